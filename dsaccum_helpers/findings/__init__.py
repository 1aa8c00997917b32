"""What the doctor says: Finding, Fix and Report (pure); ``text``, ``sarif``, ``html`` and ``github`` show them."""

from __future__ import annotations

from dsaccum_helpers.job import Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["SEVERITIES", "Finding", "Fix", "Report"]

SEVERITIES = ("error", "warning", "note")


class Fix:
    """One smallest change that mends a finding.

    ``description``: what to do, in one sentence. ``set``: the facts and config keys that change, under the names of
    ``--set``; None as a value removes the key. Empty where the change is one of the script.
    """

    def __init__(self, description: str, set: dict[str, Any] | None = None) -> None:
        self.description, self.set = description, set or {}

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON report; ``set`` is left out where nothing can be set."""
        return {"description": self.description, **({"set": self.set} if self.set else {})}

    def __repr__(self) -> str:
        return f"Fix({self.description!r}, {self.set!r})"


class Finding:
    """One thing that is wrong, or worth knowing.

    ``code``: the entry of the catalogue. ``where``: Sources, the most telling first. ``because_of``: the code of the
    main finding of which this one is a consequence, None for a main finding. ``silences``: codes that need not be said
    beside this finding; None where they are those of its entry.
    """

    def __init__(
        self,
        code: str,
        severity: str,
        title: str,
        message: str,
        where: Iterable[Source] = (),
        consequence: str = "",
        fixes: Iterable[Fix] = (),
        learn: str = "",
    ) -> None:
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r} is none of {SEVERITIES}")
        self.code, self.severity, self.title, self.message = code, severity, title, message
        self.where, self.consequence, self.fixes, self.learn = list(where), consequence, list(fixes), learn
        self.because_of: str | None = None
        self.silences: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON report."""
        found = {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "message": self.message,
            "where": [
                {key: value for key, value in source._asdict().items() if value is not None} for source in self.where
            ],
            "consequence": self.consequence,
            "fixes": [fix.to_dict() for fix in self.fixes],
            "learn": self.learn,
        }
        return {**found, "because_of": self.because_of} if self.because_of else found

    def __repr__(self) -> str:
        return f"Finding({self.code!r}, {self.severity!r}, {self.message!r})"


class Report:
    """What the doctor says of one job.

    ``findings``: most important first. ``batch``: the three numbers and ``data_parallel_size`` that the job will
    really use, None for a number that cannot be known. ``sources``: number to ``file:line``.
    ``missing``: facts that are needed to decide, each a sentence that says how to get it.
    ``reasons``: sentences that say why what was read is right. ``framework``: the one whose rules were used.
    ``faults``: entries that failed by a fault of their own, each a sentence; empty unless dsaccum has one.
    """

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        batch: dict[str, int | None] | None = None,
        sources: dict[str, str] | None = None,
        missing: Iterable[str] = (),
        reasons: Iterable[str] = (),
        framework: str = "deepspeed",
    ) -> None:
        self.findings, self.batch, self.sources = list(findings), batch or {}, sources or {}
        self.missing, self.reasons, self.framework = list(missing), list(reasons), framework
        self.faults: list[str] = []

    @property
    def verdict(self) -> str:
        """``mismatch`` with any error or warning, ``incomplete`` where facts are missing, else ``ok``."""
        if any(finding.severity != "note" for finding in self.findings):
            return "mismatch"
        return "incomplete" if self.missing else "ok"

    @property
    def codes(self) -> list[str]:
        """The codes of the findings, most important first."""
        return [finding.code for finding in self.findings]

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON report."""
        return {
            "verdict": self.verdict,
            "framework": self.framework,
            "batch": {**self.batch, "sources": self.sources},
            "findings": [finding.to_dict() for finding in self.findings],
            "missing": self.missing,
            "reasons": self.reasons,
            **({"faults": self.faults} if self.faults else {}),
        }

    def __str__(self) -> str:
        from dsaccum_helpers.findings.text import as_text

        return as_text(self)

    def __repr__(self) -> str:
        # What a plain Python prompt shows: the report, not an address.
        return str(self).rstrip()

    def _repr_html_(self) -> str:
        from dsaccum_helpers.findings.html import as_html

        return as_html(self)
