"""The pages of the version atlas: what was measured of each release as tables, and beside the known-bad table. Pure.

A *measurement* is one release: ``release``, ``rows`` (those of ``Verification.to_dict``), ``probes`` (name to answer of
``version_probes``), ``words`` (why nothing could be measured, or empty), ``stopped`` (why not all was, where there is
such a reason), ``wall`` and ``cpu`` in seconds, ``versions``, ``python`` and ``date``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsaccum_helpers.known_versions import ROWS

Measurement = dict[str, Any]
BEGIN, END = "<!-- version_atlas: begin -->", "<!-- version_atlas: end -->"
NEAR = {"fp32": 1e-3, "half": 0.02}
"""How far a ratio of norms may be from what it is said to be; bf16 rounds by 0.3 % at four micro-batches."""
STAGES, TYPES, OPTIMIZERS = (0, 1, 2, 3), ("fp32", "bf16"), ("SGD", "Adam")


WORDS = 160
"""So much of an error is shown."""


class Notes:
    """Long words (an error's) become a number in the table and a line below it."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def mark(self, words: str) -> str:
        """The number of these words, the same for the same words."""
        # What a run says of a failed process holds the release's own words.
        inner = re.search(r"failed \((.+)\)\. Smallest fix", words)
        words = (inner[1] if inner else words)[:WORDS].rstrip()
        if words not in self.words:
            self.words.append(words)
        return f"[{self.words.index(words) + 1}]"

    def lines(self) -> list[str]:
        """The list below the tables."""
        return [f"* [{number}] `{words}`" for number, words in enumerate(self.words, 1)]


def near(ratio: float | None, wanted: float, kind: str = "fp32") -> bool:
    """Is a measured ratio the wanted one, but for rounding?"""
    return ratio is not None and abs(ratio / wanted - 1.0) <= NEAR[kind]


def kind_of(probe: str) -> str:
    """The rounding that a probe's numbers have."""
    return "half" if probe.startswith(("bf16", "fp16")) else "fp32"


def verify_cell(rows: Iterable[dict[str, Any]], notes: Notes) -> str:
    """All of one stage and dtype: right, or for each optimizer what is wrong and by how much."""
    words = []
    for optimizer in OPTIMIZERS:
        mine = [row for row in rows if row["optimizer"] == optimizer]
        words.append(_optimizer_words(mine, notes))
    return words[0] if words[0] == words[1] else f"SGD {words[0]}; Adam {words[1]}"


def _optimizer_words(rows: Sequence[dict[str, Any]], notes: Notes) -> str:
    if not rows:
        return "–"
    wrong = [row for row in rows if not row["holds"]]
    if not wrong:
        return "right"
    silent = [row for row in wrong if row["distance"] is None]
    if silent:
        some = "on 2 processes " if silent == [row for row in rows if row["processes"] > 1] else "in part "
        return ("" if len(silent) == len(rows) else some) + "refused " + notes.mark(silent[0]["words"])
    farthest = max(row["distance"] for row in wrong)
    accumulated = [row for row in rows if row["gradient_accumulation_steps"] > 1]
    where = "" if len(wrong) == len(rows) else " if accumulated" if wrong == accumulated else " in part"
    return f"**wrong** {farthest:.1g}{where}"


def probe_words(name: str, answer: dict[str, Any], notes: Notes) -> str:
    """One probe: right, what the gradient looks like, or why there is none."""
    if "words" in answer:
        return f"refused {notes.mark(answer['words'])}"
    ratio, kind = answer["ratio"], kind_of(name)
    if name.startswith("no gradient_clipping"):
        return "clips at 1" if near(answer["norm"], 1.0) else "off" if near(answer["norm"], 4.0) else f"× {ratio:.4g}"
    if all(near(one, 1.0, kind) for one in answer.get("ratios", [ratio])):
        return "right"
    if "ratios" in answer:
        return "**" + ", ".join(factor(one) for one in answer["ratios"]) + "**"
    likeness = [like for like, norm in answer["like"].items() if near(ratio, norm)]
    return f"**{likeness[0]}**" if likeness else f"**{factor(ratio)}**"


def factor(ratio: float) -> str:
    """How often the right gradient this is: ``× 4``, ``× 1/128``."""
    if near(ratio, 1.0):
        return "right"
    inverse = 1.0 / ratio if ratio else 0.0
    whole = 2 ** round(math.log2(inverse)) if inverse > 1.5 else 0
    return f"× 1/{whole}" if whole and near(inverse, whole) else f"× {ratio:.4g}"


def probe_cell(name: str, answers: dict[str, dict[str, Any]], notes: Notes) -> str:
    """All stages of a probe: stages that answer alike stand together."""
    mine = {one: answer for one, answer in answers.items() if one == name or one.startswith(f"{name} ZeRO-")}
    if not mine:
        return "–"
    if name in mine:
        return probe_words(name, mine[name], notes)
    said = [(one.rsplit("-", 1)[1], probe_words(one, mine[one], notes)) for one in sorted(mine)]
    parts = [(words, [stage for stage, _ in group]) for words, group in groupby(said, key=lambda pair: pair[1])]
    return "; ".join(f"{'–'.join(dict.fromkeys((s[0], s[-1])))}: {words}" for words, s in parts)


def groups(measurements: Iterable[Measurement]) -> list[str]:
    """The probes' names without their stages, in the order of their first coming."""
    names = (name for one in measurements for name in one["probes"])
    return list(dict.fromkeys(re.sub(r" ZeRO-\d$", "", name) for name in names))


def in_order(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The newest release first."""
    return sorted(measurements, key=lambda one: Version(one["release"]), reverse=True)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)]


def verify_table(measurements: Sequence[Measurement], notes: Notes) -> list[str]:
    """Releases down, stages and dtypes across."""
    columns = [(dtype, stage) for dtype in TYPES for stage in STAGES]
    lines = []
    for one in measurements:
        cells = [
            verify_cell([row for row in one["rows"] if (row["dtype"], row["zero_stage"]) == column], notes)
            for column in columns
        ]
        if one["words"]:
            cells[0] = f"not measured {notes.mark(one['words'])}"
        stopped = f" {notes.mark(one['stopped'])}" if one.get("stopped") else ""
        lines.append([one["release"] + stopped, *cells])
    return markdown(["release", *(f"{dtype} ZeRO-{stage}" for dtype, stage in columns)], lines)


def probe_table(measurements: Sequence[Measurement], notes: Notes) -> list[str]:
    """Releases down, probes across."""
    names = groups(measurements)
    lines = [[one["release"], *(probe_cell(name, one["probes"], notes) for name in names)] for one in measurements]
    return markdown(["release", *names], lines)


# The known-bad table beside what was measured. A witness says of one measurement whether the fault shows in it: True,
# False, or None where it could not be measured.

Witness = Callable[[Measurement], bool | None]


def _verified(stage: int, dtype: str, optimizer: str, *, accumulates: bool = False) -> Witness:
    def witness(one: Measurement) -> bool | None:
        rows = [
            row
            for row in one["rows"]
            if (row["zero_stage"], row["dtype"], row["optimizer"]) == (stage, dtype, optimizer)
            and (not accumulates or row["gradient_accumulation_steps"] > 1)
        ]
        able = [row for row in rows if row["distance"] is not None]
        return any(not row["holds"] for row in able) if able else None

    return witness


def _probed(*names: str, wrong: Callable[[dict[str, Any]], bool] | None = None) -> Witness:
    """Any of these probes shows it; ``wrong`` says how, where any other gradient than the right one is not enough."""

    def witness(one: Measurement) -> bool | None:
        answers = {name: one["probes"].get(name, {"words": ""}) for name in names}
        seen = [(name, answer) for name, answer in answers.items() if "words" not in answer]
        if any(wrong(answer) if wrong else not near(answer["ratio"], 1.0, kind_of(name)) for name, answer in seen):
            return True
        return False if seen else None

    return witness


def _refused(name: str, words: str) -> Witness:
    def witness(one: Measurement) -> bool | None:
        answer = one["probes"].get(name)
        return None if answer is None else words in answer.get("words", "")

    return witness


def _adam_alone(one: Measurement) -> bool | None:
    sgd, adam = (_verified(0, "bf16", name)(one) for name in OPTIMIZERS)
    return None if sgd or sgd is None else adam


def _stages(*names: str) -> tuple[str, ...]:
    return tuple(f"{name} ZeRO-{stage}" for name in names for stage in STAGES)


WITNESSES: dict[str, Witness] = {
    "ZeRO-2 gradients are too small": _verified(2, "fp32", "SGD"),
    "scale_wrt_gas=False is ignored": _probed(
        *_stages("scale_wrt_gas=False"), wrong=lambda answer: near(answer["ratio"], 0.25)
    ),
    "ZeRO-2 with CPU offload drops gradients": _probed("offload ZeRO-2"),
    "CPU offload loses gradients of several backwards": _probed(
        "several backwards, offload ZeRO-1", "several backwards, offload ZeRO-2"
    ),
    "the pipeline engine does not divide by the accumulation steps": _probed(
        *_stages("pipeline"), wrong=lambda answer: near(answer["ratios"][-1], 4.0)
    ),
    "the pipeline engine divides at every stage": _probed(
        *_stages("pipeline"), wrong=lambda answer: near(answer["ratios"][-1], 1.0) and near(answer["ratios"][0], 0.25)
    ),
    "ZeRO-1 in bf16 loses the last micro-batch": _probed(
        "bf16 with fp32 sums ZeRO-1", wrong=lambda answer: 0.01 < abs(answer["ratio"] - 1.0) < 0.9
    ),
    "ZeRO-1 in bf16 with sums in fp32 divides by a loss scale that was never applied": _probed(
        "bf16 with fp32 sums ZeRO-1", wrong=lambda answer: answer["ratio"] < 0.001
    ),
    "bf16 at ZeRO-0 does not clear its gradients": _verified(0, "bf16", "SGD"),
    "fp16 at ZeRO-0 divides by a loss scale that was never applied": _probed("fp16 ZeRO-0"),
}
"""Name of a row of ``known_versions.ROWS`` to what shows it here."""
UNSEEN = {"the config is built before the process group": "needs the start-up order of a framework of that time"}
"""Rows about DeepSpeed that no probe shows, and why."""
ELSEWHERE: tuple[tuple[str, str, Witness], ...] = (
    (
        "without the key gradient_clipping the gradient is clipped at 1.0",
        ">=0.19.3",
        _probed("no gradient_clipping ZeRO-0", wrong=lambda answer: near(answer["norm"], 1.0)),
    ),
    (
        "loss.backward() at ZeRO-1 to 3 is not that of engine.backward(loss)",
        "<0.18.3",
        lambda one: (
            any(
                "words" in answer or not near(answer["ratio"], 1.0)
                for answer in (one["probes"].get(f"loss.backward() ZeRO-{stage}", {"words": ""}) for stage in (1, 2, 3))
            )
            if one["probes"]
            else None
        ),
    ),
    ("no_sync is refused at ZeRO-2", ">=0.16.0", _refused("no_sync ZeRO-2", "no_sync context manager is incompatible")),
    ("bf16 with Adam at ZeRO-0 begins one Adam step ahead", ">=0.18.6", _adam_alone),
    (
        "inside no_sync at ZeRO-1 gradients are not divided by the accumulation steps",
        ">=0.16.0,<=0.18.2",
        _probed("no_sync ZeRO-1"),
    ),
    (
        "several backwards at ZeRO-1 and 2 keep only the last, without offload",
        ">=0.18.3",
        _probed("several backwards ZeRO-1", "several backwards ZeRO-2"),
    ),
    ("the engine and engine.module in one loss", "", _probed(*_stages("engine and engine.module"))),
)
"""What other parts of the package and its documents say of releases: name, versions (empty: none is named), witness."""


def compare(versions: str, witness: Witness, measurements: Sequence[Measurement]) -> tuple[str, str]:
    """The verdict on one row, and the releases that it rests on: ("confirmed", "seen in ..., not in ...")."""
    inside = SpecifierSet(versions) if versions else SpecifierSet("<0")
    seen: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    against = []
    for one in sorted(measurements, key=lambda one: Version(one["release"])):
        shows = witness(one)
        seen[shows].append(one["release"])
        if shows is not None and shows is not inside.contains(one["release"]):
            against.append(f"{one['release']} {'shows it' if shows else 'does not'}")
    if not seen[True] and not seen[False]:
        return "not measurable here", "no release answered"
    words = [f"seen in {spans(seen[True], measurements)}" if seen[True] else "seen in none"]
    words += [f"not in {spans(seen[False], measurements)}"] if seen[False] else []
    words += [f"could not be measured in {spans(seen[None], measurements)}"] if seen[None] else []
    if against:
        return "**contradicted**", f"{'; '.join(words)}. Against the table: {', '.join(against)}"
    return ("confirmed" if seen[True] else "not seen"), "; ".join(words)


def spans(releases: Sequence[str], measurements: Sequence[Measurement]) -> str:
    """Releases as ranges, where nothing that was measured lies between: ``0.17.6 to 0.18.2, 0.18.9``."""
    order = [one["release"] for one in reversed(in_order(measurements))]
    places = sorted(order.index(release) for release in releases)
    runs = [
        [place for _, place in group] for _, group in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(order[run[0]] if len(run) == 1 else f"{order[run[0]]} to {order[run[-1]]}" for run in runs)


def comparison_table(measurements: Sequence[Measurement]) -> list[str]:
    """The known-bad table row by row, then what is said elsewhere."""
    lines = []
    for row in ROWS:
        if row.package != "deepspeed":
            lines.append(
                [row.name, f"{row.package} {row.versions}", "not measurable here", "another package's release"]
            )
        elif row.name in WITNESSES:
            lines.append([row.name, row.versions, *compare(row.versions, WITNESSES[row.name], measurements)])
        else:
            lines.append([row.name, row.versions, "not measurable here", UNSEEN.get(row.name, "no probe")])
    for name, versions, witness in ELSEWHERE:
        lines.append([name, versions or "–", *compare(versions, witness, measurements)])
    return markdown(["fault", "known in", "verdict", "measured"], [[f"{line[0]}", *line[1:]] for line in lines])


def page(measurements: Iterable[Measurement], command: str) -> str:
    """The generated part of ``docs/releases.md``, markers included."""
    ordered, notes = in_order(measurements), Notes()
    able = [one for one in ordered if not one["words"]]
    made = sorted({f"torch {one['versions']['torch']}, Python {one['python']}" for one in able})
    dates = sorted({one["date"] for one in ordered})
    when = " to ".join(dict.fromkeys(dates[:1] + dates[-1:]))
    cost = f"{max((one['cpu'] for one in able), default=0):.0f} seconds of processor time a release at most"
    tables = [
        ("## Every stage, dtype and optimizer", verify_table(ordered, notes)),
        ("## Probes of what lies outside that matrix", probe_table(able, notes)),
    ]
    lines = [BEGIN, f"Measured {when} on the CPU with {'; '.join(made) or 'nothing'}: `{command}` ({cost}).", ""]
    for title, table in tables:
        lines += [title, "", *table, ""]
    if notes.words:
        lines += ["What was refused, in the release's own words:", "", *notes.lines(), ""]
    lines += ["## Beside the known-bad table", "", *comparison_table(able), "", END]
    return "\n".join(lines)


def put(text: str, generated: str) -> str:
    """The document with its generated part exchanged. Raises ``ValueError`` where a marker is missing."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the markers {BEGIN} and {END} are not there once each, in this order")
    return text[: text.index(BEGIN)] + generated + text[text.index(END) + len(END) :]
