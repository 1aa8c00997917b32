"""Several backwards, or several engines, in one step."""

from __future__ import annotations

from itertools import islice, takewhile

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, keeps_only_last
from dsaccum_helpers.mismatches.windows import at, compatible, holds_forward, live, pairs, sets_boundary, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Pair, Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event, Program

_STEPS = ("optimizer-step", "step")


class SeveralBackwardsPerStep(Mismatch):
    """One micro-batch, more than one backward pass."""

    code = "several-backwards-per-step"
    title = "Several backward passes share one step"
    symptom = "No message, or a shape error at ZeRO-3 with retain_graph."
    cause = "Two losses each have a backward of their own, or a loss runs through the other model's engine."
    consequence = (
        "ZeRO-1 and 2 keep only the last backward at a boundary (0.12 to 0.68 of the right norm measured). Under "
        "Accelerate every backward is a step of its own."
    )
    remedy = "Add the losses up and call backward once."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterator[Finding]:
        """More than one backward between two steps; a loss through a second engine."""
        known = setup(job)
        for program in job.programs:
            if known.managed is not False:
                yield from self._raw(program, known)
            if known.deepspeed:
                yield from self._accelerate(program)
            yield from self._crossed(program, known)
            yield from self._lightning(program, known)

    def _raw(self, program: Program, known: Setup) -> Iterator[Finding]:
        groups: dict[int, list[Pair]] = {}
        for pair in pairs(program):
            if pair.step is not None and not sets_boundary(program, pair.engine):
                groups.setdefault(id(pair.step), []).append(pair)
        for group in groups.values():
            together = _together([pair.backward for pair in group if not pair.inner])
            looped = [pair.backward for pair in group if pair.inner and not holds_forward(program, pair)]
            found = together if len(together) > 1 else looped
            if not found or known.stage == 0 or (known.stage == 3 and not _late(program, found)):
                continue
            yield self._said(group[0], found, known)

    def _said(self, pair: Pair, found: list[Event], known: Setup) -> Finding:
        name, stage = pair.engine.name, f"ZeRO-{known.stage}" if known.stage else "ZeRO-1 and 2"
        count = len(found) if len(found) > 1 else "several"
        message = f"{name}.backward is called {count} times for one {name}.step() ("
        message += f"{', '.join(at(event) for event in found)}; {at(pair.step)}). At the end of a window {stage} "
        message += "keeps only the last backward; the gradients of the others are lost."
        fix = Fix(f"Add the losses up and call {name}.backward(loss_1 + loss_2) once.")
        return self.found(message, [event.source for event in found], [fix])

    def _accelerate(self, program: Program) -> Iterator[Finding]:
        events = live(program)
        for place, event in enumerate(events):
            if event.kind != "backward" or event.actor.kind != "accelerate":
                continue
            rest = takewhile(lambda one: one.kind not in _STEPS, islice(events, place, None))
            found = _together([one for one in rest if one.kind == "backward" and one.actor.kind == "accelerate"])
            if len(found) > 1:
                message = f"accelerator.backward is called {len(found)} times in one micro-batch "
                message += f"({', '.join(at(one) for one in found)}). Under DeepSpeed each call also steps the engine: "
                message += f"{len(found)} steps in place of one, and the weights move between the losses."
                fix = Fix("Add the losses up and call accelerator.backward(loss_1 + loss_2) once.")
                yield self.found(message, [one.source for one in found], [fix])
                return

    def _lightning(self, program: Program, known: Setup) -> Iterator[Finding]:
        """manual_backward reaches the engine each time it is called."""
        backwards = [e for e in live(program) if e.kind == "backward" and e.actor.kind == "lightning"]
        events = program.events
        if known.stage in (1, 2) and len(backwards) > 1 and not _stepped_between(events, backwards[0], backwards[-1]):
            places = ", ".join(at(event) for event in backwards)
            message = f"manual_backward is called {len(backwards)} times for one step ({places}): at the end of a "
            message += "window "
            message += f"ZeRO-{known.stage} keeps only the last of them."
            fix = Fix("Add the losses up and call manual_backward once.")
            yield self.found(message, [event.source for event in backwards], [fix])

    def _crossed(self, program: Program, known: Setup) -> Iterator[Finding]:
        """A loss that runs through a second engine, whose hooks fire in a backward that is not its own."""
        if known.stage not in (2, 3):
            return
        for event in live(program):
            loss = event.info.get("loss") if event.kind == "backward" else None
            others = [e for e in (loss.engines if loss else ()) if e is not event.actor and e.kind == "deepspeed"]
            others = [e for e in others if any(one.actor is e and one.kind == "backward" for one in program.events)]
            if others and event.actor.kind == "deepspeed":
                message = f"The loss of {at(event)} runs through a second engine, and backward is called on the first "
                message += (
                    f"one only: at ZeRO-{known.stage} the hooks of the second fire in a backward that is not its "
                )
                message += "own, and stray gradients stay in its window."
                fix = Fix(
                    "Freeze the second model (requires_grad_(False)) for this loss, call it through engine.module, and "
                    "clear its gradients before its own backward; or use ZeRO-0 or 1 for it."
                )
                yield self.found(message, [event.source], [fix])
                return

    @staticmethod
    def loop(run: Any) -> None:
        """Two terms of the loss, each with a backward of its own."""
        for inputs, targets in run.loader:
            for share in (0.75, 0.25):
                loss = share * run.criterion(run.engine(inputs), targets)
                run.engine.backward(loss)
            run.engine.step()

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Both terms in one backward."""
        for inputs, targets in run.loader:
            loss = sum(share * run.criterion(run.engine(inputs), targets) for share in (0.75, 0.25))
            run.engine.backward(loss)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """The sum of the terms; or the last term of the last micro-batch alone, by ZeRO stage."""
        count = setting.gradient_accumulation_steps
        weights = (0.0,) * (count - 1) + (0.25 / count,) if keeps_only_last(setting) else None
        return self._prediction(setting, weights=weights)


def _together(backwards: list[Event]) -> list[Event]:
    """Those that happen in one and the same pass: same loops, no opposite conditions, each place once."""
    found: list[Event] = []
    for event in backwards:
        same = not found or (event.loops == found[0].loops and event.actor is found[0].actor)
        if same and all(compatible(event.guards, one.guards) and event.source != one.source for one in found):
            found.append(event)
    return found


def _late(program: Program, backwards: list[Event]) -> bool:
    """Do all forward passes come before the first backward? Only then ZeRO-3 loses a gradient."""
    places = {id(event): place for place, event in enumerate(program.events)}
    first, last = places[id(backwards[0])], places[id(backwards[-1])]
    actor, loops = backwards[0].actor, backwards[0].loops
    between = program.events[first:last]
    return not any(e.kind == "forward" and e.actor is actor and e.loops == loops for e in between)


def _stepped_between(events: list[Event], one: Event, other: Event) -> bool:
    first, last = events.index(one), events.index(other)
    return any(event.kind in _STEPS for event in events[first:last])
