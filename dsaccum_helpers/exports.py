"""A comparison as files: the curves, the points, the numbers, and the right run's ``ds_config.json``."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import shutil
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from typing import Any

import dsaccum_helpers
from dsaccum_helpers.atlas import Atlas
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches import MATCHED
from dsaccum_helpers.plots import Curves, alt_text
from dsaccum_helpers.training.comparison import MOST_MISMATCHES, Comparison
from dsaccum_helpers.training.events import ORACLE, Point, RunResult

FILES = ("curves.png", "curves.svg", "points.csv", "comparison.json", "ds_config.json")
COLUMNS = ("run", *(field.name for field in fields(Point)))
MAKER = "dsaccum compare"
"""What ``comparison.json`` says of its maker; a folder without it is somebody else's."""
_FOLDER = "dsaccum-export-{}"


class ExportError(DsaccumError):
    """The files cannot be written; the message says why and names the smallest remedy."""


def export(comparison: Comparison, folder: str | Path | None = None, machine: dict[str, Any] | None = None) -> Path:
    """Write ``FILES`` into ``folder`` and return its full path. They are moved in together, when all are complete.

    ``None`` makes a new folder ``dsaccum-export-1``, ``-2``, ... beside the notebook. A folder that holds an earlier
    export is written anew; files of another origin are never replaced. ``machine`` is kept in ``comparison.json``.
    Raises ``ExportError``.
    """
    target = _named("dsaccum-export" if folder in (None, "") else folder)
    try:
        target = target if folder else _new_folder()
        refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.parent / f".{target.name}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            _write(comparison, machine, draft)
            target.mkdir(exist_ok=True)
            for name in FILES:
                os.replace(draft / name, target / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ExportError(_sentence(error, target)) from error
    return target.resolve()


def as_dict(comparison: Comparison, machine: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything measured and predicted, ready for strict JSON: a value that is not finite becomes null."""
    rows = [asdict(row) | {"agrees": row.agrees} for row in comparison.rows()]
    content = {
        "maker": MAKER,
        "version": dsaccum_helpers.__version__,
        "machine": machine,
        "setting": comparison.setting.to_dict(),
        "summary": alt_text(comparison),
        "runs": [_run_as_dict(result) for result in comparison.results],
        "rows": rows,
    }
    cleaned: dict[str, Any] = _finite(content)
    return cleaned


def _run_as_dict(result: RunResult) -> dict[str, Any]:
    return {
        "code": result.code,
        "ended": result.ended,
        "sentence": result.sentence,
        "engine_words": result.engine_words,
        "our_words": result.our_words,
        "expected": asdict(result.expected) if result.expected else None,
        "points": [asdict(point) for point in list(result.points)],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def points_csv(comparison: Comparison) -> str:
    """One line for each measured point of each run (``COLUMNS``); what a point does not have is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in comparison.results:
        writer.writerows([result.code, *asdict(point).values()] for point in list(result.points))
    return text.getvalue()


def config_json(comparison: Comparison) -> str:
    """The right run's DeepSpeed configuration, ready to be saved as ``ds_config.json``."""
    return json.dumps(comparison.setting.ds_config(), indent=2) + "\n"


def _write(comparison: Comparison, machine: dict[str, Any] | None, folder: Path) -> None:
    folder.mkdir()
    mistakes = [result for result in comparison.results if result.code not in (ORACLE, MATCHED.code)]
    # So many lines in one picture cannot be told apart: then each has a small one of its own.
    curves = Curves(comparison) if len(mistakes) <= MOST_MISMATCHES else Atlas(comparison)
    content = json.dumps(as_dict(comparison, machine), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "curves.png").write_bytes(curves.png())
    (folder / "curves.svg").write_bytes(curves.svg())
    (folder / "points.csv").write_text(points_csv(comparison), encoding="utf-8")
    (folder / "comparison.json").write_text(content, encoding="utf-8")
    (folder / "ds_config.json").write_text(config_json(comparison), encoding="utf-8")


def _new_folder() -> Path:
    return next(path for number in count(1) if not os.path.lexists(path := Path.cwd() / _FOLDER.format(number)))


def _named(folder: str | Path) -> Path:
    if not isinstance(folder, str | Path) or "\0" in str(folder):
        raise ExportError(f"{folder!r} is no name for a folder. Smallest fix: a text such as 'my-export'.")
    return Path(folder).expanduser()


def refuse_foreign(folder: str | Path) -> None:
    """Raise ``ExportError`` where the folder holds a file of one of our names that no export has written.

    So too where no folder can be made there: better said before a training than after it.
    """
    folder = _named(folder)
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise ExportError(_sentence(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), folder))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ExportError(_sentence(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), folder))
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if there and not _is_ours(folder):
        raise ExportError(
            f"{folder / there[0]} is there already and is no export. Smallest fix: choose another folder."
        )


def _is_ours(folder: Path) -> bool:
    try:
        content = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("maker") == MAKER


def _sentence(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: nothing was exported to {folder}. Smallest fix: free some space."
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{folder} is a file, or lies below one, so no folder can be made. Smallest fix: choose another folder."
    return f"Cannot write to {folder}: {error.strerror}. Smallest fix: choose a folder you can write to."
