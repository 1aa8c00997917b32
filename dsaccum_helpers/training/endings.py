"""How a run ended, in one clear sentence for a learner (pure: no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.mismatches import find
from dsaccum_helpers.training.events import RunResult
from dsaccum_helpers.training.processes import signal_name, stopped

if TYPE_CHECKING:
    from dsaccum_helpers.training.run import Run

#: What gloo and NCCL say on the *other* ranks when one has died: a consequence, never the cause.
_CONSEQUENCES = ("connection closed by peer", "connection reset", "broken pipe", "gloo", "nccl")


def explains_more(report: dict[str, Any], other: dict[str, Any]) -> bool:
    """Is this rank's report the cause and the other one's only the consequence?"""
    return _is_consequence(other) and not _is_consequence(report)


def _is_consequence(report: dict[str, Any]) -> bool:
    return any(word in report.get("words", "").lower() for word in _CONSEQUENCES)


def stopped_note(pids: list[int]) -> str:
    """Who hangs, where the operating system can tell."""
    ranks = ", ".join(map(str, stopped(pids)))
    return f"stopped processes: {ranks}" if ranks else ""


def conclude_unstarted(result: RunResult) -> None:
    """A run that was cancelled before its turn came."""
    result.ended, result.sentence = "cancelled", "Stopped before it began."


def conclude(run: Run) -> None:
    """Fill in ``ended``, ``sentence`` and the words of a run whose processes are all gone."""
    assert run.set is not None
    result, report, hung = run.result, run.report, run.hung
    how = report["how"] if report else "failed"
    result.log = run.set.log()
    count = len(result.steps)
    if how in ("finished", "refused") and not hung:
        result.ended = how  # type: ignore[assignment]
        result.sentence = f"Finished: {_steps(count)}."
        if how == "refused":
            _words_of_refusal(result, report or {})
    elif run.cancelled.is_set():
        result.ended, result.sentence = "cancelled", f"Stopped after {_steps(count)}."
    else:
        result.ended = "failed"
        result.sentence = _sentence_of_failure(run)


def _steps(count: int) -> str:
    return f"{count} optimizer step" + "s" * (count != 1)


def _words_of_refusal(result: RunResult, report: dict[str, Any]) -> None:
    result.engine_words = report.get("words", "")
    entry = find(result.code)
    stops, config = entry.stops(result.setting), entry.config(result.setting)
    given: dict[str, Any] = {key: config.get(key) for key in KEYS} if isinstance(config, dict) else {}
    result.our_words = stops or f"{entry.title}. Smallest fix: {entry.remedy}"
    try:
        if not stops and given:
            resolve_batch(**given, world_size=result.setting.processes)
    except BatchError as error:
        result.our_words = str(error)
    what = "stopped the loop before its first update" if stops else "refused the configuration"
    result.sentence = f"DeepSpeed {what}; nothing was trained."


def _sentence_of_failure(run: Run) -> str:
    report, exits = run.report, run.exits
    processes = run.set.processes if run.set else 0
    if run.hung:
        who = f" ({run.note})" if run.note else ""
        return f"The run gave no sign of life and was ended{who}. Smallest fix: press Run again."
    killed = {rank: -status for rank, status in exits.items() if status < 0}
    cause = report if report and not _is_consequence(report) else None
    if cause and cause.get("memory"):
        return (
            f"Process {cause['rank']} ran out of memory. "
            "Smallest fix: a smaller micro-batch and more accumulation steps."
        )
    if cause is None and killed:
        rank, number = next(iter(killed.items()))
        hint = "; the usual reason is that memory ran out" if signal_name(number) == "SIGKILL" else ""
        return (
            f"Process {rank} of {processes} was killed from outside ({signal_name(number)}){hint}. "
            "Smallest fix: press Run again, with fewer processes if it happens again."
        )
    if report and (report.get("disk") or "No space left" in report.get("words", "")):
        return "The disk is full: a training process could not write. Smallest fix: free some space, or set TMPDIR."
    if report is None and not exits:
        return "The process that training starts from is gone. Smallest fix: press Run again."
    words = f" ({report['words'][:300]})" if report else ""
    return f"A training process failed{words}. Smallest fix: look at the log of the run, then press Run again."
