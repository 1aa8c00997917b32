"""Values of the DeepSpeed config differ from the arguments of the Hugging Face Trainer."""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective.owners import ACCUMULATION, PER_DEVICE, TRAINERS
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import Source, by_place
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.framework_runs import AUTO, differing
from dsaccum_helpers.mismatches.layers import accumulation_owners, counted
from dsaccum_helpers.mismatches.trainer_defaults import default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Fact, Job

TRAIN, MICRO, STEPS = KEYS
#: Keys that the Trainer compares, with the argument that each must equal; a "+" or "|" joins several arguments.
PAIRS = {
    MICRO: "per_device_train_batch_size",
    STEPS: "gradient_accumulation_steps",
    TRAIN: "train_batch_size (calculated)",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "scheduler.params.warmup_num_steps": "warmup_steps",
}

Row = namedtuple("Row", "key value argument wanted where default", defaults=(False,))
Row.__doc__ = """A config key and its value, the argument and the value that the Trainer wants, Sources of both, and
whether the argument is not given, so that it has its default."""


class TrainerDisagrees(Mismatch):
    """Two files own the same number, and the Trainer refuses to choose."""

    code = "trainer-disagrees"
    title = "The DeepSpeed config and the trainer's arguments differ"
    symptom = "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values."
    cause = "The same number stands in the DeepSpeed config and in TrainingArguments, and only one of them was changed."
    consequence = "Nothing is trained: the Trainer compares every explicit value at train() and stops."
    remedy = 'Write "auto" for these keys in the DeepSpeed config: the arguments then own them.'
    learn = "notebooks/05_frameworks.ipynb"
    not_watched = "The Trainer refuses before there is an engine to watch: `dsaccum check` compares its arguments."
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "world-size-seen-as-one",
        "written-for-other-world-size",
        "model-parallel-world",
    )
    explains = ("accumulation-key-missing",)
    rank = 4
    programs = (
        differing(MICRO, 8, PAIRS[MICRO], 4, AUTO),
        differing(STEPS, 8, PAIRS[STEPS], 4, {TRAIN: 16, MICRO: 4, STEPS: 4}),
        differing(TRAIN, 32, PAIRS[TRAIN], 16, {**AUTO, STEPS: 4}),
        differing("gradient_clipping", 1.0, "max_grad_norm", 0.0, {**AUTO, "gradient_clipping": 0.0}),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The rows of the Trainer's own message that still hold, and what it will compare at train()."""
        trainer = job.framework in TRAINERS
        if not trainer and (job.framework == "lightning" or not job.said("trainer-disagrees")):
            return
        rows = {row.key: row for row in _logged(job)}
        for row in _compared(job):
            logged = rows[row.key].where if row.key in rows else []
            rows[row.key] = row._replace(where=[*row.where, *logged])
        found = sorted(rows.values(), key=lambda row: row.key not in KEYS)
        if found:
            where = [source for row in found for source in row.where if source and source.file]
            message = f"{'; '.join(map(_words, found))}.{_factors(job, found)}"
            yield self.found(message[0].upper() + message[1:], by_place(where), _fixes(job, found))


def _words(row: Row) -> str:
    config = f"the config says {row.key} {_shown(row.value)}"
    if row.default:
        return f"{config}, and the trainer's {row.argument}, which is not given, is {_shown(row.wanted)} by default"
    return f"{config}, the trainer's arguments say {row.argument} {_shown(row.wanted)}"


def _shown(value: Any) -> str:
    return ascii(value)[:60]


def _factors(job: Job, rows: list[Row]) -> str:
    """The product behind the calculated train batch size."""
    train = next((row for row in rows if row.key == TRAIN), None)
    micro, steps, world = _arguments(job)
    if train is None or micro is None or steps is None:
        return ""
    if world and micro * steps * world == train.wanted:
        return f" By the arguments it is {micro} x {steps} x {counted(world, 'process')} = {train.wanted}."
    if micro * steps == train.wanted and world and train.value == micro * steps * world:
        return (
            f" {train.value} = {micro} x {steps} x {world} is right for the {counted(world, 'process')} launched, but "
            f"the Trainer counted 1: start it with the launcher, so that each process knows of the others."
        )
    return ""


def _arguments(job: Job) -> tuple[int | None, int | None, int | None]:
    """Per-device batch, accumulation steps and world size as the Trainer will see them."""
    facts = [job.fact(PER_DEVICE), job.fact(ACCUMULATION)]
    micro, steps = (whole(fact.value) if fact else _said(job, key) for fact, key in zip(facts, KEYS[1:], strict=True))
    if micro is None and (known := default(job, "per_device_train_batch_size")):
        micro = known[0]
    if not steps and facts[1] is None and (default(job, STEPS) or (micro and _complete(facts[0]))):
        steps = 1
    shared = any((job.value(f"{kind}_parallel") or 1) != 1 for kind in ("tensor", "pipeline", "sequence"))
    return micro, steps, None if shared else whole(job.value("processes"))


def _said(job: Job, key: str) -> int | None:
    """The argument's value where only a row of the log says it."""
    rows = (row for event in job.said("trainer-disagrees") for row in event.values["rows"])
    return next((whole(row[3]) for row in rows if row[0] == key), None)


def _complete(fact: Fact | None) -> bool:
    """Was it read in a file of arguments, where one that is missing has its default? A script may set it otherwise."""
    return fact is not None and str(fact.source.file).lower().endswith((".json", ".yaml", ".yml"))


def _logged(job: Job) -> Iterator[Row]:
    """The rows of the log that still hold: a value that has been changed since is no mismatch any more."""
    for event in job.said("trainer-disagrees"):
        for key, value, argument, wanted in event.values["rows"]:
            where = [job.config.source(*key.split("."))] if job.config else []
            fact = job.fact(f"trainer.{argument}")
            if _holds(job, key, value, argument, wanted):
                if key == TRAIN:
                    wanted = _calculated(job, wanted, value)
                elif fact:
                    wanted = fact.value  # a log may be an older run's
                yield Row(key, value, argument, wanted, [*where, *([fact.source] if fact else []), event.source])


def _holds(job: Job, key: str, value: Any, argument: str, wanted: Any) -> bool:
    path = key.split(".")
    if job.config and job.config.kind != "log" and job.config.has(*path) and job.config.get(*path) != value:
        return False
    fact = job.fact(f"trainer.{argument}")
    if fact and (key in KEYS or not isinstance(fact.value, str)):
        return _differ(value, fact.value, key in KEYS)
    if "calculated" not in argument:
        given = [job.fact(f"trainer.{name}") for name in argument.replace("|", "+").split("+")]
        return not any(fact and fact.source.file == "--set" for fact in given)
    micro, steps, world = _arguments(job)
    if key != TRAIN or not (micro and steps and world) or micro * steps * world != value:
        return True
    # The arguments as read make the config's number: they were mended, or the Trainer counted one process.
    owners = [job.fact(f"trainer.{name}") for name in ("per_device_train_batch_size", STEPS)]
    counted_one = micro * steps == wanted and not any(fact and fact.source.file == "--set" for fact in owners)
    return counted_one and not any(event.values.get("world") == 1 for event in job.said("product-assertion"))


def _calculated(job: Job, logged: Any, value: Any) -> Any:
    """The train batch size by the arguments, where they are all known."""
    micro, steps, world = _arguments(job)
    product = micro * steps * world if micro and steps and world else logged
    return logged if product == value else product


def _compared(job: Job) -> Iterator[Row]:
    """What HfTrainerDeepSpeedConfig compares: only values that both sides give; absent keys never differ."""
    found = job.value("trainer.auto_find_batch_size")
    micro, steps, world = _arguments(job)
    wanted: dict[str, Any] = {MICRO: None if found else micro, STEPS: steps}
    wanted[TRAIN] = micro * steps * world if micro and steps and world and not found else None
    owners = {MICRO: "per_device_train_batch_size", STEPS: STEPS, TRAIN: "per_device_train_batch_size"}
    for key, argument in PAIRS.items():
        fact = job.fact(f"trainer.{owners.get(key, argument)}")
        known = default(job, argument)
        want = wanted.get(key) if key in KEYS else fact.value if fact else known and known[0]
        where = [fact.source] if fact else [known[1]] if known else []
        for value, source in _config_values(job, key):
            if want is not None and _differ(value, want, key in KEYS):
                yield Row(key, value, argument, want, [source, *where], fact is None and known is not None)


def _config_values(job: Job, key: str) -> Iterator[tuple[Any, Source]]:
    """The value in the DeepSpeed config; where Accelerate builds that from its YAML or flags, theirs."""
    path = key.split(".")
    config = job.config
    if config is not None:
        if config.kind != "log" and config.has(*path):
            yield config.get(*path), config.source(*path)
        return
    if key not in (STEPS, "gradient_clipping"):
        return
    fact = job.fact(f"accelerate.flag.{key}") or job.fact(f"accelerate.{key}")
    if fact:
        yield fact.value, fact.source


def _differ(value: Any, wanted: Any, batch: bool) -> bool:
    """Do both hold a number, and not the same one?"""
    if batch:
        return whole(value) is not None and not isinstance(value, str) and value != wanted
    try:
        return value != "auto" and not isinstance(value, bool) and float(value) != float(wanted)
    except (TypeError, ValueError):
        return False


def _setting(job: Job, micro: int | None, steps: int | None, world: int | None) -> dict[str, Any]:
    """The three numbers, "auto" for one that is not known, and the arguments that own them."""
    train = micro * steps * world if micro and steps and world else None
    setting: dict[str, Any] = {TRAIN: train or "auto", MICRO: micro or "auto", STEPS: steps or "auto"}
    setting |= {PER_DEVICE: micro} if micro else {}
    if steps:
        setting |= dict.fromkeys((ACCUMULATION, *accumulation_owners(job)), steps)
    return setting


def _fixes(job: Job, rows: list[Row]) -> Iterator[Fix]:
    """Let the arguments own the numbers, write them into the config, or write the config's into the arguments."""
    micro, steps, world = _arguments(job)
    others = [row for row in rows if row.key not in KEYS]
    owners = _setting(job, micro, steps, world)
    trainer = {name: value for name, value in owners.items() if name not in KEYS}
    auto = {**dict.fromkeys(KEYS, "auto"), **trainer} if len(others) < len(rows) else {}
    names = ", ".join(row.key for row in rows)
    yield Fix(
        f'Write "auto" for {names} in the DeepSpeed config: the arguments fill them in.',
        {**auto, **{row.key: "auto" for row in others}},
    )
    numbers = {row.key: row.wanted for row in rows}
    product = numbers.get(TRAIN) or (owners[TRAIN] if isinstance(owners[TRAIN], int) else None)
    equal = {**owners, **({TRAIN: product} if product else {}), **numbers} if auto else {**numbers}
    yield Fix(
        "Write the numbers of the arguments into the DeepSpeed config: "
        + ", ".join(f"{key} {_shown(value)}" for key, value in numbers.items())
        + ".",
        equal,
    )
    yield from _argument_fixes(job, rows)


def _argument_fixes(job: Job, rows: list[Row]) -> Iterator[Fix]:
    """Change the arguments to what the config says."""
    config = {key: whole(row.value) for row in rows for key in KEYS if row.key == key}
    if not config:
        return
    micro, steps, world = _arguments(job)
    others: dict[str, Any] = {}
    for row in rows:
        if row.key not in KEYS:
            simple = row.argument.isidentifier()
            others |= {f"trainer.{row.argument}": row.value} if simple else {row.key: "auto"}
    stated = [config.get(key) or (whole(job.config.get(key)) if job.config else None) for key in (MICRO, STEPS)]
    also = "".join(f", {name.removeprefix('trainer.')} {_shown(value)}" for name, value in others.items())
    for new_micro, new_steps in _cuts(config.get(TRAIN), world, stated, (micro, steps)):
        settings = _setting(job, new_micro, new_steps, world)
        product = f" ({settings[TRAIN]} = {new_micro} x {new_steps} x {world})" if world else ""
        yield Fix(
            f"Keep the config and change the arguments: per_device_train_batch_size {new_micro}, "
            f"gradient_accumulation_steps {new_steps}{also}{product}.",
            {**settings, **others},
        )


def _cuts(
    train: int | None, world: int | None, stated: list[int | None], given: tuple[int | None, int | None]
) -> Iterator[tuple[int, int]]:
    """Micro-batch and accumulation steps that make the config's numbers true, the least change first."""
    micro, steps = (own or argument for own, argument in zip(stated, given, strict=True))
    if train is None:
        if micro and steps:
            yield micro, steps
        return
    if world is None or train % world:
        return
    share = train // world
    cuts = []
    if micro and share % micro == 0 and stated[1] in (None, share // micro):
        cuts.append((micro, share // micro))
    if steps and share % steps == 0 and stated[0] in (None, share // steps):
        cuts.append((share // steps, steps))
    if not cuts and stated == [None, None]:
        near = next(n for n in range(min(micro or 1, share), 0, -1) if share % n == 0)
        cuts.append((near, share // near))
    yield from dict.fromkeys(cuts)
