"""``--fix`` and ``--write``: the mended files as a diff, or in place of the old ones."""

from __future__ import annotations

from dsaccum_helpers.commands import complain, say
from dsaccum_helpers.commands.answer import as_json, finish, read, show
from dsaccum_helpers.findings.text import plain
from dsaccum_helpers.job import JobError
from dsaccum_helpers.mend.files import write
from dsaccum_helpers.mend.repair import Repair, repair_files
from dsaccum_helpers.readers.files import kept

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.commands.options import Options
    from dsaccum_helpers.findings import Report
    from dsaccum_helpers.job import Job

__all__ = ["run"]


def run(options: Options) -> int:
    """Mend what the words describe, and say what was changed; the exit status.

    As with ruff's ``--diff``, showing a change leaves 1; after ``--write`` the status is that of the mended job.
    """
    from dsaccum_helpers.doctor import diagnose

    if options.worlds or options.format not in ("text", "json"):
        other = "--for" if options.worlds else f"--format {options.format}"
        raise JobError(f"{other} does not go with --fix or --write. Smallest fix: leave it out.")
    options.paths = [kept(path) for path in options.paths]

    def judged(job: Job) -> Report:
        return diagnose(job, options.select, options.ignore)

    job = read(options)
    before = judged(job)
    result = repair_files(job, options.paths, lambda paths: read(options, paths), judged)
    if options.write:
        mended = [{"file": name, "kept": _written(name, result, options.paths)} for name in result.texts]
    else:
        mended = [{"file": name, "diff": result.diff(name)} for name in result.texts]
    said = result.report if options.write else before
    if options.format == "json":
        fixes = [{"code": code, **fix.to_dict()} for code, fix in result.done]
        say(as_json({**said.to_dict(), "mended": mended, "fixed": fixes}))
        return finish([said])
    for one in mended:
        # A diff is for patch and keeps the name as it is; a name may hold what a terminal obeys.
        say(one.get("diff") or plain("{file} is mended; the old file is {kept}.".format(**one)) + "\n")
    for code, fix in result.done:
        complain(f"{'mended' if options.write else '--write would mend'} {code}: {fix.description}")
        if code in result.passed_over:
            complain(f"  (the first fix of the report changes no config file: {result.passed_over[code].description})")
    if not mended and before.findings:
        complain("no finding is mended by a change of a JSON or YAML file; what to do stands in the report")
    if not mended or (options.write and result.report.verdict != "ok"):
        show({0: said}, options)
    return finish([said])


def _written(name: str, result: Repair, paths: list[Any]) -> str:
    if any(isinstance(path, tuple) and path[0] == name for path in paths):
        raise JobError(f"--write: {name} cannot be written. Smallest fix: give the file's name, or --fix.")
    originals = result.originals
    return write(name, result.texts[name][1], originals.content[name], originals.encoding[name])
