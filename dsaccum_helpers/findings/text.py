"""A report as text that is understood in ten seconds: verdict, numbers, then what is wrong and the smallest change.

Everything is made of pieces, (text, style): joined they are plain text, and rich colours them on a terminal.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding, Report
    from dsaccum_helpers.job import Source

    Piece = tuple[str, str]

__all__ = [
    "as_table",
    "as_text",
    "causes_first",
    "headline",
    "joined",
    "pieces",
    "place",
    "plain",
    "short",
    "table_pieces",
    "wrapped",
]

WIDTH = 100
STYLES = {
    **{"mismatch": "bold red", "incomplete": "bold yellow", "ok": "bold green"},
    **{"error": "bold red", "warning": "bold yellow", "note": "bold cyan"},
}
NUMBERS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "data_parallel_size")
# Control characters in a person's file could change what the terminal shows; bidirectional ones its order.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def as_text(report: Report, width: int = WIDTH) -> str:
    """The report as plain text."""
    return joined(pieces(report, width))


def as_table(reports: dict[int, Report], width: int = WIDTH) -> str:
    """The same job on several numbers of processes, as plain text."""
    return joined(table_pieces(reports, width))


def joined(parts: Iterable[Piece]) -> str:
    """Pieces as plain text."""
    return "".join(text for text, _ in parts)


def plain(text: str) -> str:
    """The text with control characters written out, so that it cannot act on a terminal."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def headline(report: Report) -> str:
    """The verdict in one line: ``Mismatch: 1 error, 2 notes.``"""
    counts = []
    for severity in ("error", "warning", "note"):
        count = sum(finding.severity == severity for finding in report.findings)
        counts += [f"{count} {severity}" + "s" * (count != 1)] if count else []
    said = {
        "mismatch": f"Mismatch: {', '.join(counts)}.",
        "incomplete": "Incomplete: what was given cannot decide" + (f" ({', '.join(counts)})." if counts else "."),
        "ok": f"OK, with {', '.join(counts)}." if counts else "OK: nothing wrong found.",
    }
    return said[report.verdict]


def place(source: Source) -> str:
    """``ds_config.json:2:3 (train_batch_size)``."""
    file, key = str(source.file or ""), str(source.key or "")
    if file.startswith("--"):
        return f"{file} {key}".rstrip() if file == "--set" else file
    where = ":".join([file, *(str(part) for part in (source.line, source.column) if part)])
    return f"{where} ({key})" if file and key else where.strip(":") or key


def short(finding: Finding) -> str:
    """The message without its remedy where the fixes say it again."""
    message = finding.message
    if finding.fixes:
        message = message.partition(" Smallest fix:")[0].removesuffix(finding.fixes[0].description).rstrip()
    return message


def pieces(report: Report, width: int = WIDTH) -> Iterator[Piece]:
    """The report as (text, style)."""
    yield headline(report), STYLES[report.verdict]
    yield f"  [{report.framework}]\n", "dim"
    yield from _numbers(report)
    for finding in causes_first(report.findings):
        yield "\n", ""
        yield from _finding(finding, width)
    if report.missing:
        yield "\nStill needed:\n", "bold"
        yield from ((line, "") for line in _bullets(report.missing, width))
    if report.reasons:
        yield "\nWhy this is right:\n", "bold"
        yield from ((line, "") for line in _bullets(report.reasons, width))
    if report.findings:
        yield f"\nMore: dsaccum explain {report.findings[0].code}\n", "dim"


def table_pieces(reports: dict[int, Report], width: int = WIDTH) -> Iterator[Piece]:
    """One row a number of processes, then the first finding of each that does not work."""
    rows = [(size, report, _equation(report)) for size, report in reports.items()]
    wide = max(len(equation) for *_, equation in rows)
    yield f"{'processes':>9}  {'verdict':10}  {'train = micro x accumulation x replicas':{wide}}  findings\n", "bold"
    for size, report, equation in rows:
        yield f"{size:>9}  ", ""
        yield f"{report.verdict:10}", STYLES[report.verdict]
        yield f"  {equation:{max(wide, 39)}}  {', '.join(report.codes)}".rstrip() + "\n", ""
    for size, report, _ in rows:
        if report.findings:
            yield f"\nOn {size} process{'es' * (size != 1)}:\n", "bold"
            yield from _finding(report.findings[0], width)
    missing = list(dict.fromkeys(sentence for report in reports.values() for sentence in report.missing))
    if missing:
        yield "\nStill needed:\n", "bold"
        yield from ((line, "") for line in _bullets(missing, width))


def _equation(report: Report) -> str:
    train, *factors = (report.batch.get(name) for name in NUMBERS)
    return f"{_number(train)} = {' x '.join(map(_number, factors))}"


def _number(value: int | None) -> str:
    return "?" if value is None else plain(str(value))


def _numbers(report: Report) -> Iterator[Piece]:
    """The equation, one number a line, with where each was read."""
    values = [_number(report.batch.get(name)) for name in NUMBERS]
    if set(values) == {"?"}:
        return
    wide = max(map(len, values))
    train, micro, steps, replicas = (report.batch.get(name) for name in NUMBERS)
    equal = train is None or None in (micro, steps, replicas) or train == micro * steps * replicas  # type: ignore[operator]
    yield "\n", ""
    for name, value, sign in zip(NUMBERS, values, ("", "=" if equal else "!=", "x", "x"), strict=True):
        yield f"  {sign:>2} {value:>{wide}}", "bold"
        source = report.sources.get(name, "")
        if not source and value != "?" and name != NUMBERS[3]:
            source = "derived"
        yield f"  {name:30}  {plain(source)}".rstrip() + "\n", ""


def causes_first(findings: list[Finding]) -> Iterator[Finding]:
    """Each main finding, followed by its consequences."""
    mains = [finding for finding in findings if not finding.because_of]
    codes = {finding.code for finding in mains}
    for main in mains:
        yield main
        if main.code in codes:
            codes.discard(main.code)
            yield from (other for other in findings if other.because_of == main.code)
    # A consequence of a consequence has no main finding above it.
    said = {finding.code for finding in mains}
    yield from (other for other in findings if other.because_of and other.because_of not in said)


def _finding(finding: Finding, width: int) -> Iterator[Piece]:
    indent = "    " if finding.because_of else ""
    yield f"{indent}{finding.severity}", STYLES[finding.severity]
    yield f" {finding.code}", "bold"
    yield f": {plain(finding.title)}" + (f"  (follows from {finding.because_of})" * bool(finding.because_of)) + "\n", ""
    indent += "  "
    where = ", ".join(dict.fromkeys(filter(None, map(place, finding.where[:4]))))
    if where:
        more = f" and {len(finding.where) - 4} more" if len(finding.where) > 4 else ""
        yield from ((line, "dim") for line in wrapped(f"at {where}{more}", indent, width, indent + "   "))
    yield from ((line, "") for line in wrapped(short(finding), indent, width))
    if finding.consequence:
        yield from ((line, "") for line in wrapped(f"What it does: {finding.consequence}", indent, width))
    for number, fix in enumerate(finding.fixes):
        words = "or: " if number else "Smallest fix: "
        lines = wrapped(f"{words}{fix.description}", indent + "  " * bool(number), width)
        yield from ((line, "" if number else "green") for line in lines)


def _bullets(sentences: Iterable[str], width: int) -> Iterator[str]:
    for sentence in sentences:
        yield from wrapped(f"- {sentence}", "  ", width, "    ")


def wrapped(text: str, indent: str, width: int, hanging: str | None = None) -> Iterator[str]:
    """Lines of at most ``width`` characters where the words allow it."""
    for paragraph in plain(text).splitlines():
        line = indent
        for word in paragraph.split():
            if len(line) + len(word) > width and line.strip():
                yield line.rstrip() + "\n"
                line = indent if hanging is None else hanging
            line += word + " "
        yield line.rstrip() + "\n"
