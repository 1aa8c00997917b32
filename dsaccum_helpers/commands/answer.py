"""Read what the words describe, and print what there is to say: shared by ``check`` and ``--fix``."""

from __future__ import annotations

import json
import os
import sys

from dsaccum_helpers.commands import REPORT_IT, complain, say

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from dsaccum_helpers.commands.options import Options
    from dsaccum_helpers.findings import Report
    from dsaccum_helpers.job import Job


def finish(reports: Iterable[Report]) -> int:
    """The exit status; a fault of our own is said, and is one where nothing else was found."""
    reports = list(reports)
    faults = dict.fromkeys(fault for report in reports for fault in report.faults)
    if faults:
        complain(f"a fault of dsaccum itself: {'; '.join(faults)}. {REPORT_IT}")
    return 1 if any(report.verdict == "mismatch" for report in reports) else 2 * bool(faults)


def read(options: Options, paths: Sequence[Any] | None = None) -> Job:
    """The Job that the words describe; ``paths`` in place of those of the words."""
    from dsaccum_helpers.doctor import read_job

    read_paths = options.paths if paths is None else paths
    job = read_job(*read_paths, framework=options.framework, have=options.have, set=options.set, **options.sizes)
    if options.here:
        from dsaccum_helpers.commands.here import look

        look(job)
    if paths is None:
        _name_unused(job, options.paths)
    return job


def _name_unused(job: Job, paths: Sequence[Any]) -> None:
    """A job has one config; whoever gives several may believe that all of them were checked."""
    given = {path[0] if isinstance(path, tuple) else path for path in paths}
    others = [one for one in job.configs if one.kind == "file" and one is not job.config]
    unused = [str(one.file) for one in others if one.file in given and one not in job.rivals()]
    if unused and job.config is not None:
        names = f"{unused[0]} is" if len(unused) == 1 else f"{unused[0]} and {len(unused) - 1} more are"
        complain(f"{names} not checked: the config of this job is {job.config.file}. Give one config at a time.")


def show(reports: dict[int, Report], options: Options) -> None:
    """Print the reports; the one of the job as it is stands under 0, others under their number of processes."""
    if options.format == "json":
        found = {str(size): report.to_dict() for size, report in reports.items()}
        say(as_json(found.get("0") or {"worlds": found}))
    elif options.format == "sarif":
        from dsaccum_helpers import __version__
        from dsaccum_helpers.findings.sarif import as_sarif
        from dsaccum_helpers.mismatches import load

        codes = dict.fromkeys(code for report in reports.values() for code in report.codes)
        say(as_json(as_sarif(reports, {code: load(code) for code in codes}, __version__)))
    elif options.format == "github":
        from dsaccum_helpers.findings.github import as_github

        say(as_github(reports))
    elif options.format == "html":
        from dsaccum_helpers.findings.html import as_page

        say(as_page(reports))
    else:
        from dsaccum_helpers.findings.text import pieces, table_pieces

        show_pieces(pieces(reports[0], width()) if 0 in reports else table_pieces(reports, width()))


def as_json(values: dict[str, Any]) -> str:
    """JSON that any terminal can show."""
    utf8 = "utf" in (sys.stdout.encoding or "").lower()
    return json.dumps(values, indent=2, ensure_ascii=not utf8, default=str) + "\n"


def show_pieces(parts: Iterable[tuple[str, str]]) -> None:
    """Print (text, style): with colours on a terminal, plain elsewhere."""
    if not sys.stdout.isatty():
        say("".join(text for text, _ in parts))
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.assemble(*parts), end="", soft_wrap=True)


def width() -> int:
    """How wide text may be: as the terminal, neither cramped nor endless."""
    try:
        return max(min(os.get_terminal_size(sys.stdout.fileno()).columns, 110), 40)
    except (OSError, ValueError):  # no terminal
        return 100
