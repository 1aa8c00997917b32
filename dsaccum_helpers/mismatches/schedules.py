"""What a script does with its learning-rate schedulers, in units of optimizer steps."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.windows import at, live, once, pairs, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.entry import Mismatch
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.trace import Event, Program


def from_script(entry: Mismatch, job: Job) -> Iterator[Finding]:
    """Schedulers that move with the micro-batches, move twice, or have a length in another unit."""
    known = setup(job)
    for program in job.programs:
        moved: set[int] = set()
        for event in same_place(live(program)):
            if event.kind == "scheduler-step":
                message = _moves(program, event, known)
                if message:
                    moved.add(id(event.info["scheduler"]))
                    fix = Fix(_remedy(event))
                    yield entry.found(message, [event.source], [fix])
        for facts in program.schedulers:
            if id(facts) not in moved and (message := _length(program, facts, known)):
                fix = Fix("Count its length in optimizer steps: epochs * len(loader) // accumulation steps.")
                title = "The length of the schedule is not counted in optimizer steps"
                consequence = "The learning rate does not run through its schedule in the time of the run."
                yield entry.found(message, [facts["source"]], [fix], title=title, consequence=consequence)


def _remedy(event: Event) -> str:
    owner = event.info["scheduler"].get("owner")
    if owner == "engine":
        return "Leave scheduler.step() out: the engine steps it at every update."
    if event.actor is not None and event.actor.kind == "accelerate":
        return "Hand the scheduler to accelerator.prepare() as well, or step it only if accelerator.sync_gradients."
    return "Pass lr_scheduler=... to deepspeed.initialize and leave scheduler.step() out."


def _moves(program: Program, event: Event, known: Setup) -> str:
    """What is wrong with the place of a scheduler.step(), an empty text where nothing is."""
    facts = event.info["scheduler"]
    owner, count = facts.get("owner"), known.gas
    raw = bool(event.loops) and any(pair.backward.loops == event.loops for pair in pairs(program))
    prepared = pairs(program, "accelerate", "optimizer-step")
    wrapped = bool(event.loops) and any(pair.backward.loops == event.loops for pair in prepared)
    guarded = once(event.guards) is not None
    if raw and owner == "engine":
        more = f"{count} times more in each window" if count else "once more in each micro-batch"
        if guarded or count == 1:
            more = "once more in each window"
        return (
            f"The engine steps this scheduler at every update, and the script moves it {more} ({at(event)}): the "
            "learning rate runs through its schedule too fast."
        )
    if not facts or guarded or count == 1 or owner == "prepared" or not (raw or wrapped):
        return ""
    if _in_micro_batches(facts):
        return ""  # planned in micro-batches and stepped with them: right
    often = f", {count} times in each optimizer step" if count else ""
    over = f"after 1/{count} of the run" if count else "long before the run"
    return (
        f"scheduler.step() is called in every micro-batch ({at(event)}){often}; its length is meant in optimizer "
        f"steps, so the schedule is over {over}."
    )


def _in_micro_batches(facts: dict[str, object]) -> bool:
    """Is the length of the schedule that of the loader, not divided by the accumulation steps?"""
    total = facts.get("total")
    symbols = getattr(total, "symbols", {})
    if any(power < 0 for symbol, power in symbols.items() if symbol != "world"):
        # Divided by something: by the accumulation steps under another name, more likely than not.
        return False
    return any(_is_loader(symbol) for symbol in symbols) and getattr(total, "count_power", 0) == 0


def _is_loader(symbol: str) -> bool:
    name = symbol.removeprefix("len:").lower()
    if "num_training_batches" in name:
        return True
    return (
        symbol.startswith("len:")
        and "dataset" not in name
        and any(part in name for part in ("loader", "_dl", "batches", "iter"))
    )


def _length(program: Program, facts: dict[str, object], known: Setup) -> str:
    """What is wrong with the length of a schedule that moves once in each optimizer step."""
    total, owner, count = facts.get("total"), facts.get("owner"), known.gas
    if total is None or count == 1 or not _steps_with_updates(program, facts):
        return ""
    if getattr(total, "count_power", 0) > 0:
        by = f"the accumulation steps ({count})" if count else "the accumulation steps"
        ends = f"after 1/{count} of the schedule" if count else "long before the schedule"
        return (
            f"The scheduler moves once in each optimizer step, and its length is multiplied by {by}: the run ends "
            f"{ends}."
        )
    if _in_micro_batches(facts) and count is not None:
        mover = {"engine": "engine", "prepared": "prepared scheduler", "lightning": "Trainer"}.get(str(owner), "script")
        return (
            f"The length of the schedule counts micro-batches (len of the loader), but the {mover} moves it once in "
            f"each optimizer step, every {count} micro-batches: the run ends after 1/{count} of the schedule."
        )
    return ""


def _steps_with_updates(program: Program, facts: dict[str, object]) -> bool:
    """Does it move once in each optimizer step?"""
    if facts.get("owner") in ("engine", "prepared", "lightning"):
        return True
    steps = [e for e in live(program) if e.kind == "scheduler-step" and e.info["scheduler"] is facts]
    return bool(steps) and all(once(event.guards) for event in steps)
