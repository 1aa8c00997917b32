"""Why a training loop is right: one sentence for each way of doing it that was understood."""

from __future__ import annotations

from dsaccum_helpers.mismatches.windows import at, live, once, own_count, pairs, sets_boundary, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.windows import Pair, Setup
    from dsaccum_helpers.trace import Program


def reasons(job: Job) -> list[str]:
    """What is right about the loops of a job in which nothing wrong was found."""
    known = setup(job)
    said = [sentence for program in job.programs for sentence in _of_program(program, known)]
    return list(dict.fromkeys(said))


def _of_program(program: Program, known: Setup) -> Iterator[str]:
    number = f"{known.gas} micro-batch{'es' * (known.gas > 1)}" if known.gas else ""
    for pair in pairs(program):
        if pair.step is not None and pair.backward.loops:
            yield _of_pair(program, pair, known)
    for pair in pairs(program, "accelerate", "optimizer-step"):
        inside = any(guard.kind == "accumulate" for guard in pair.backward.guards)
        if pair.step is not None and inside:
            counts = f"counts to {number}" if number else "counts the micro-batches"
            yield (
                f"accelerator.backward ({at(pair.backward)}) stands under accelerator.accumulate(), which {counts}: "
                "step and zero_grad act at the end of the window only."
            )
    for event in live(program):
        if event.kind == "train-batch":
            yield f"Each train_batch() ({at(event)}) is a whole window{f' of {number}' * bool(number)} with its update."
        elif event.kind == "return-loss":
            owner = "Lightning's Trainer" if event.actor.kind == "lightning" else "the Trainer"
            yield f"The loss is handed to {owner} undivided ({at(event)}), which accumulates and divides."


def _of_pair(program: Program, pair: Pair, known: Setup) -> str:
    name = pair.engine.name
    count, number = (known.gas, "it") if known.gas else ("the accumulation steps of its config", "them")
    places = f"{name}.backward ({at(pair.backward)}) and {name}.step() ({at(pair.step)})"
    divides = (
        f"divides by {number}"
        if pair.backward.info.get("scaled", True)
        else "is told not to divide (scale_wrt_gas=False)"
    )
    if sets_boundary(program, pair.engine):
        return f"{places}: the script says which micro-batch is the last of a window, and the engine keeps to that."
    if known.managed is False:
        own = own_count(pair, known)
        return f"{places}: the script owns the window{f' of {own}' if own else ''}, and the scale of the loss fits it."
    if pair.inner or once(pair.guards):
        return f"{places}: the gradients of the script's own window add up at this ZeRO stage."
    return f"{places} are called once for each micro-batch: the engine counts to {count} itself and {divides}."
