"""What the proof found: rows, and all of them with the machine and versions that they were measured with (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dsaccum_helpers.findings.text import plain

#: By how much the gradient norm of an update may differ from the oracle's, as a share of it, in fp32.
SAME_NORM = 1e-4
#: Two computations of one learning rate: the same formula in another order.
SAME_RATE = 1e-9


@dataclass(frozen=True)
class Row:
    """One split. ``distance`` from the full batch's weights, and what rounding explains (``allowed``).

    In fp32 both are the largest difference of any weight. In bf16 they are shares of the distance that the weights move
    in the training (root mean squares). ``distance`` is None where the run did not finish; ``words`` say why.
    ``gradient_norm``: the largest difference of an update's gradient norm from the oracle's, as a share of it; it may
    be as large as ``gradient_norm_allowed``. ``learning_rate``: the same for the rate, None where the script owns it.
    ``what``: what a row of a person's config stands for.
    """

    zero_stage: int
    dtype: str
    optimizer: str
    processes: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    distance: float | None
    allowed: float
    words: str = ""
    gradient_norm: float | None = None
    gradient_norm_allowed: float = SAME_NORM
    learning_rate: float | None = None
    what: str = ""

    @property
    def off(self) -> list[str]:
        """What differs from the full batch by more than rounding explains; empty where the row holds."""
        if self.distance is None:
            return ["the run did not finish"]
        found = []
        # "not within" rather than "above": a number that is none at all must not pass.
        if not self.distance <= self.allowed:
            found.append("the weights part by more than rounding explains")
        if self.gradient_norm is not None and not self.gradient_norm <= self.gradient_norm_allowed:
            found.append(f"the gradient norm is off by {self.gradient_norm:.2g} of the full batch's")
        if self.learning_rate is not None and not self.learning_rate <= SAME_RATE:
            found.append(f"the learning rate is off by {self.learning_rate:.2g} of the schedule's")
        return found

    @property
    def holds(self) -> bool:
        """Did the run end at the weights of the full batch?"""
        return not self.off

    def because(self, fault: str, unfinished: str | None) -> Row:
        """The same row; where it does not hold, ``words`` say so with the known fault's name or how the run ended."""
        return self if self.holds else replace(self, words=fault or unfinished or "; ".join(self.off))

    @property
    def verdict(self) -> str:
        """``yes``, or ``no`` and why."""
        return "yes" if self.holds else f"no: {self.words}"

    def cells(self) -> dict[str, str]:
        """What a table shows, by heading."""
        return {
            **({"of the config": self.what} if self.what else {}),
            "ZeRO": str(self.zero_stage),
            "dtype": self.dtype,
            "optimizer": self.optimizer,
            "micro-batch": str(self.train_micro_batch_size_per_gpu),
            "accumulation": str(self.gradient_accumulation_steps),
            "processes": str(self.processes),
            "distance": "–" if self.distance is None else f"{self.distance:.1e}",
            "allowed": f"{self.allowed:.1e}",
            "norm off by": "–" if self.gradient_norm is None else f"{self.gradient_norm:.1e}",
            "same": self.verdict,
        }


class Verification:
    """All rows, and the machine and versions that they were measured with. ``holds``: every row does.

    For a person's config ``source`` names it, ``kept``, ``scaled`` and ``left_out`` say what was made of it, and
    ``findings`` holds what is wrong with it where nothing could be trained; ``rows`` is empty then.
    """

    def __init__(self, rows: Sequence[Row], machine: dict[str, Any]) -> None:
        self.rows, self.machine = list(rows), machine
        self.source = ""
        self.kept: list[str] = []
        self.scaled: list[str] = []
        self.left_out: list[str] = []
        self.findings: list[str] = []

    @property
    def holds(self) -> bool:
        """Is accumulation the full batch in every row?"""
        return not self.findings and all(row.holds for row in self.rows)

    @property
    def parts(self) -> dict[str, list[str]]:
        """What was made of the config, by heading; without what is empty."""
        named = {
            "Kept": self.kept,
            "Scaled down": self.scaled,
            "Replaced or left out": self.left_out,
            "Wrong": self.findings,
        }
        return {name: [plain(line) for line in lines] for name, lines in named.items() if lines}

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        rows = [asdict(row) | {"holds": row.holds} for row in self.rows]
        config = {"source": self.source, "kept": self.kept, "scaled": self.scaled, "left_out": self.left_out}
        return {
            "holds": self.holds,
            "summary": self.summary,
            "machine": self.machine,
            **({"config": config, "findings": self.findings} if self.source else {}),
            "rows": rows,
        }

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if self.findings:
            return f"{self.source} does not agree with itself; nothing was trained."
        wrong = sum(not row.holds for row in self.rows)
        if wrong:
            return f"{wrong} of {len(self.rows)} settings do not end at the weights of the full batch."
        return f"All {len(self.rows)} settings end at the weights of the full batch."

    @property
    def measured_on(self) -> str:
        """Devices and versions in one sentence."""
        machine = self.machine
        if not machine:
            return "Nothing was measured."
        count = machine["gpus"] if machine["accelerator"] == "cuda" else machine["cores"]
        kind = "GPU" if machine["accelerator"] == "cuda" else "processor core"
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        return f"Measured on {machine['accelerator']} ({count} {kind}{'s' * (count != 1)}) with {versions}."

    def __str__(self) -> str:
        lines = [self.summary, self.measured_on]
        for name, sentences in self.parts.items():
            lines += ["", f"{name}:", *(f"  {sentence}" for sentence in sentences)]
        table = [row.cells() for row in self.rows]
        if table:
            heads = list(table[0])
            wide = {head: max(len(head), *(len(cells[head]) for cells in table)) for head in heads}
            lines.append("")
            for cells in ({head: head for head in heads}, *table):
                lines.append("  ".join(_padded(head, cells[head], wide[head]) for head in heads).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from dsaccum_helpers.verification.page import as_html

        return as_html(self)


def _padded(head: str, text: str, width: int) -> str:
    words = ("of the config", "dtype", "optimizer", "same")
    return text.ljust(width) if head in words else text.rjust(width)
