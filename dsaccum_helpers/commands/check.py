"""``dsaccum check``: read, diagnose, show."""

from __future__ import annotations

import json
import os
import sys

from dsaccum_helpers.commands import REPORT_IT, complain, say
from dsaccum_helpers.commands.options import Options, parse
from dsaccum_helpers.job import JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from dsaccum_helpers.findings import Report
    from dsaccum_helpers.job import Job

__all__ = ["as_json", "finish", "read", "run", "show"]


def run(words: list[str]) -> int:
    """The command, with the words after ``check``; the exit status."""
    options = parse(words)
    if options.help:
        from dsaccum_helpers.commands.usage import CHECK

        say(CHECK)
        return 0
    if not (options.paths or options.set or options.here):
        raise JobError("there is nothing to read. Smallest fix: dsaccum check ds_config.json; --help lists the rest.")
    if options.fix or options.write:
        from dsaccum_helpers.commands import fix

        return fix.run(options)
    from dsaccum_helpers.doctor import at_worlds, diagnose

    job = read(options)
    codes = {"select": options.select, "ignore": options.ignore}
    reports = at_worlds(job, options.worlds, **codes) if options.worlds else {0: diagnose(job, **codes)}
    show(reports, options)
    return finish(reports.values())


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
    return job


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
