"""A micro-batch is left between its forward pass and its step."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, compatible, live, pairs, setup
from dsaccum_helpers.trace import without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Pair, Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event, Guard, Program


class MicroBatchSkipped(Mismatch):
    """After the forward pass some micro-batches go no further."""

    code = "micro-batch-skipped"
    title = "Some micro-batches are left after their forward pass"
    symptom = "One rank skips: the others wait for it, or gloo/NCCL aborts. All skip: no message."
    cause = (
        "A continue, a condition on the loss, or a caught exception stands between the forward pass and engine.step()."
    )
    consequence = (
        "The windows of the ranks shift against each other, and updates mix micro-batches of different windows. Where "
        "all ranks leave the same ones, updates come later and fewer (4 in place of 6 measured, with every fifth one "
        "left), and the schedule does not come to its end."
    )
    remedy = (
        "Decide before the forward pass, on all ranks alike, best in the data set; or give the engine a loss of 0 and "
        "step all the same."
    )
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterator[Finding]:
        """Conditions on the forward pass's own result around backward and step; exceptions that are swallowed."""
        known = setup(job)
        for program in job.programs:
            events = live(program)
            seen = set()
            for pair in pairs(program):
                guard = _condition(events, pair)
                if guard is not None and guard.text not in seen:
                    seen.add(guard.text)
                    yield self._said(pair, guard, known)
            yield from self._swallowed(program, known)

    def _said(self, pair: Pair, guard: Guard, known: Setup) -> Finding:
        window = f"of {known.gas} " if known.gas and known.gas > 1 else ""
        message = f"Whether {pair.engine.name}.backward ({at(pair.backward)}) and step() happen depends on what the "
        message += f"forward pass gave (`{guard.text}`): a micro-batch that is left there is missing from its window "
        message += f"{window}and the windows of the ranks shift against each other, or ranks wait for each other."
        fix = Fix(
            "Decide before the forward pass and on all ranks alike; or call backward(loss * 0) and step() for such a "
            "micro-batch as well (a loss that is NaN stays NaN so: let all ranks agree to leave the window out)."
        )
        where = [guard.source] if guard.source else []
        return self.found(message, [*where, pair.backward.source], [fix])

    def _swallowed(self, program: Program, known: Setup) -> Iterator[Finding]:
        for event in program.events:
            inside = event.info["events"] if event.kind == "swallowed" else []
            kinds = {
                one.kind for one in inside if one.actor is not None and one.actor.kind == "deepspeed" and one.loops
            }
            if kinds & {"backward", "step"} and kinds & {"forward", "backward"} and _training(inside, event):
                message = f"An exception in the forward or backward pass is caught ({at(event)}) and training goes on: "
                message += f"that micro-batch is missing from its window{f' of {known.gas}' if known.gas else ''}, and "
                message += "only on the rank that failed."
                fix = Fix("Raise again, or let all ranks agree to leave the whole window out.")
                yield self.found(message, [event.source], [fix], severity="warning")

    def needs(self, setting: Setting) -> str | None:
        """A window of one micro-batch is left out as a whole, and none is mixed."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Leave every fifth micro-batch behind its forward pass, in all processes alike."""
        for i, (inputs, targets) in enumerate(run.loader):
            loss = run.criterion(run.engine(inputs), targets)
            if i % 5 == 1:  # stands for: this loss is a spike
                continue
            run.engine.backward(loss)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """The engine waits for its count of backwards, so a window reaches into the next one's micro-batches."""
        count, read = setting.gradient_accumulation_steps, setting.micro_batches
        kept = read - (read + 3) // 5
        # Four windows are 4 x count micro-batches that are kept of 5 x count that are read: then it repeats.
        windows: list[list[float]] = [[] for _ in range(4)]
        step = 0
        for i in range(5 * count):
            windows[step // count].append(0.0 if i % 5 == 1 else 1 / count)
            step += i % 5 != 1
        first, *later = [tuple(windows[step % 4]) for step in range(max(kept // count, 1))]
        return self._prediction(setting, weights=first, later=tuple(later), optimizer_steps=kept // count)


def _training(inside: list[Event], event: Event) -> bool:
    """Is it one micro-batch that is tried, and not the whole training?"""
    return all(len(one.loops) <= len(event.loops) for one in inside) and bool(event.loops)


def _condition(events: list[Event], pair: Pair) -> Guard | None:
    """A condition on the forward pass's result under which both backward and step stand."""
    engine, loops = pair.engine, pair.backward.loops
    data = [g for g in pair.backward.guards if g.kind.removeprefix("not-") == "data" and engine in g.engines]
    if pair.step is None or pair.inner or not loops or not data:
        return None
    for forward in events:
        if forward.kind != "forward" or forward.actor is not engine or forward.loops != loops:
            continue
        if not compatible(forward.guards, pair.backward.guards):
            continue
        for guard in without(data, forward.guards):
            if not _in_other_branch(guard, pair, events):
                return guard
    return None


def _in_other_branch(guard: Guard, pair: Pair, events: list[Event]) -> bool:
    """Is there a backward in the other branch too, so that every micro-batch has one?"""
    return any(
        event.kind == "backward" and event.actor is pair.engine and not compatible([guard], event.guards)
        for event in events
    )
