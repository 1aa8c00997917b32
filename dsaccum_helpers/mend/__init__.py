"""Fixes become changes of the person's own files, comments and order kept.

::

    tree    where keys and values of a JSON, HJSON or YAML text begin and end
    edit    one value changed, all else kept
    files   the file as it is on the disk, and a new text written in its place
    repair  which fixes are taken, one finding after the other

``placed`` says where in which file each change of a fix belongs; ``mended`` gives the changed texts.
"""

from __future__ import annotations

from dsaccum_helpers.job import CONFIG_FACTS, config_path
from dsaccum_helpers.mend.edit import changed
from dsaccum_helpers.mend.tree import Unmendable, tree

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.mend.tree import Block

    Place = tuple[str, tuple[str, ...]]
    Texts = Callable[[str], str]

__all__ = ["Unmendable", "mended", "placed"]


def mended(changes: Iterable[tuple[Place, Any]], texts: Texts) -> dict[str, str]:
    """The new text of each file. ``texts`` gives the text of a file by name. Raises ``Unmendable``."""
    by_file: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for (file, path), value in changes:
        by_file.setdefault(file, []).append((path, value))
    return {file: changed(texts(file), file, pairs) for file, pairs in by_file.items()}


def placed(job: Job, name: str, texts: Texts) -> Place | None:
    """The file and key path where a fact or config key of ``--set`` stands or belongs; None where it is in no file
    that can be changed: a launch command, a script, an option.
    """
    path = CONFIG_FACTS.get(name) or config_path(name)
    if path:
        return _in_config(job, path, texts)
    fact = job.fact(name)
    if fact:
        return _at(fact.source, texts)
    group, dot, key = name.partition(".")
    for other in job.facts if dot else ():
        # A new argument goes where the other arguments stand.
        beside = _at(job.facts[other][0].source, texts) if other.startswith(f"{group}.") else None
        if beside:
            return beside[0], (*beside[1][:-1], key)
    return None


def _in_config(job: Job, path: tuple[str, ...], texts: Texts) -> Place | None:
    config = job.config
    if config is None or config.kind not in ("file", "embedded") or not config.file:
        return None
    if config.kind == "file":
        return config.file, path
    root = _tree(config.file, texts)
    # Where the config begins in the other file is seen from where its first key stands.
    for inner, place in config.places.items():
        found = _path_at(root, texts(config.file), *place) if root else None
        if found and found[-len(inner) :] == inner:
            return config.file, (*found[: -len(inner)], *path)
    return None


def _at(source: Source | None, texts: Texts) -> Place | None:
    if source is None or not source.file or not source.line:
        return None
    root = _tree(source.file, texts)
    found = _path_at(root, texts(source.file), source.line, source.column or 0) if root else None
    return (source.file, found) if found else None


def _tree(file: str, texts: Texts) -> Block | None:
    try:
        return tree(texts(file), file)
    except Unmendable:
        return None


def _path_at(root: Block, text: str, line: int, column: int) -> tuple[str, ...] | None:
    """The key path of what stands at a line and column; without a column, of the only key of the line."""
    on_line = {path: member.start for path, member in root.walk() if text.count("\n", 0, member.start) + 1 == line}
    for path, start in on_line.items():
        if start - text.rfind("\n", 0, start) == column:
            return path
    return next(iter(on_line)) if len(on_line) == 1 else None
