"""``dsaccum check``: read, diagnose, show."""

from __future__ import annotations

from dsaccum_helpers.commands import say
from dsaccum_helpers.commands.answer import finish, read, show
from dsaccum_helpers.commands.options import parse
from dsaccum_helpers.job import JobError


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
