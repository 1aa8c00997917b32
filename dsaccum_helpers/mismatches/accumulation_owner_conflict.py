"""Several owners of the accumulation count under Accelerate, and one of them silently wins."""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import (
    ARGUMENT,
    FIELD,
    FLAG,
    JSON_COUNTS,
    PLUGIN,
    TRAINERS,
    VARIABLE,
    still_said,
    uses_deepspeed,
)
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.framework_runs import AUTO, Shown, accelerate
from dsaccum_helpers.mismatches.layers import complete, counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source

KEY = KEYS[2]
#: Fields of an Accelerate YAML that may not stand beside deepspeed_config_file.
FIELDS = (
    KEY,
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
#: From this version on Accelerator takes over the count of the JSON; PR 3632.
COUNTS_AGREE = "1.8.0"

Owner = namedtuple("Owner", "steps name source")
Owner.__doc__ = "One accumulation count, what says it in words, and where."


class AccumulationOwnerConflict(Mismatch):
    """JSON, plugin, launch flag, YAML, environment and argument can all say the count; only one is used."""

    code = "accumulation-owner-conflict"
    title = "Several places say the accumulation steps, and only one of them counts"
    symptom = 'At most "Gradient accumulation steps mismatch" or "Updating DeepSpeed\'s gradient accumulation steps".'
    cause = "Accelerate takes the first of JSON, plugin, launch flag, YAML, environment and argument that says a count."
    consequence = "Training runs with another effective batch than the one written in the place that was edited."
    remedy = "Write the count in one place, or the same count in all of them."
    learn = "notebooks/05_frameworks.ipynb"
    not_watched = (
        "The engine has one count, and only the arguments say that another one was meant: `dsaccum check` "
        "compares them; told the wanted batch, `watch` sees the difference."
    )
    explains = ("step-unit-confusion",)
    programs = (
        Shown(
            "8 in the config, 4 in Accelerator(...)",
            accelerate({**AUTO, KEY: 8}),
            accelerate({**AUTO, KEY: 4}),
            "GradientAccumulationPlugin has 4, DeepSpeed config has 8. Using DeepSpeed's value.",
            3,
        ),
        Shown(
            "1 in the config, 4 in Accelerator(...)",
            accelerate({**AUTO, KEY: 1}),
            accelerate(AUTO),
            "GradientAccumulationPlugin has 4, DeepSpeed config has 1. Using DeepSpeed's value.",
            24,
        ),
        Shown(
            "8 in DeepSpeedPlugin(...), 4 in Accelerator(...)",
            accelerate(AUTO, plugin={KEY: 8}),
            accelerate(AUTO, plugin={KEY: 4}),
            "GradientAccumulationPlugin has 4, DeepSpeed config has 8. Using DeepSpeed's value.",
            3,
        ),
        Shown(
            "8 in the environment, 4 in Accelerator(...)",
            accelerate(AUTO, environment={VARIABLE.removeprefix("environment."): "8"}),
            accelerate(AUTO, environment={VARIABLE.removeprefix("environment."): "4"}),
            optimizer_steps=3,
        ),
        Shown(
            "4 in the Accelerate YAML, beside a config file",
            accelerate({**AUTO, KEY: 8}, yaml={KEY: 4}),
            accelerate({**AUTO, KEY: 4}, yaml={}),
            "When using `deepspeed_config_file`, the following accelerate config variables will be ignored",
        ),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """One finding: what is refused, else dropped, else said by the log, else what the files say."""
        for look in (self._refused, self._dropped, self._logged, self._differing):
            found = next(iter(look(job)), None)
            if found is not None:
                yield found
                return

    def _refused(self, job: Job) -> Iterator[Finding]:
        """Fields of the YAML beside a deepspeed_config_file: Accelerate raises ValueError."""
        file = job.fact("accelerate.deepspeed_config_file")
        facts = {name: fact for name in FIELDS if (fact := job.fact(f"accelerate.{name}"))}
        facts = {name: fact for name, fact in facts.items() if str(fact.source.file).endswith((".yaml", ".yml"))}
        events = job.said("fields-ignored")
        consequence = "Nothing is trained: Accelerate raises ValueError as the plugin is made."
        if uses_deepspeed(job) is False:
            return
        if file and str(file.value).lower() != "none" and facts:
            text = ", ".join(facts)
            message = f"The Accelerate YAML names the config file {file.value} and has {text} beside it"
            ours, theirs = facts.get(KEY), job.fact(KEY)
            if ours and theirs and ours.value != theirs.value:
                message += f" ({KEY} {ours.value} in the YAML, {theirs.value} in the JSON)"
            rest = (job.fact(name) for name in (KEY, PLUGIN, FLAG, VARIABLE, ARGUMENT, FIELD))
            steps = next((count for fact in rest if fact and (count := whole(fact.value))), None)
            numbers = {**_numbers(job, steps), **{f"accelerate.{name}": None for name in facts}}
            numbers |= {ARGUMENT: steps} if steps and job.value("accelerator.present") else {}
            fix = Fix(f"Remove {text} from the YAML: what the JSON says is used.", numbers)
            where = [fact.source for fact in facts.values()] + [event.source for event in events]
            yield self.found(f"{message}; Accelerate refuses both.", where, [fix], consequence=consequence)
        elif events and not file:
            message = f"Accelerate refuses settings beside a deepspeed_config_file, {KEY} among them."
            fix = Fix(f"Remove {KEY} and the other listed fields from the Accelerate YAML; keep them in the JSON.")
            yield self.found(message, [events[0].source], [fix], consequence=consequence)

    def _dropped(self, job: Job) -> Iterator[Finding]:
        """The flag of ``accelerate launch`` is exported for DeepSpeed runs alone."""
        flag, argument = job.fact(FLAG), job.fact(ARGUMENT)
        steps, used = whole(flag and flag.value), whole(argument.value) if argument else 1
        if flag is None or steps is None or used is None or used == steps or uses_deepspeed(job):
            return
        if uses_deepspeed(job) is None and any("config_file" in launch.text for launch in job.launches):
            return  # the Accelerate YAML was not given, and may say DEEPSPEED
        said = f"Accelerator({KEY}={used})" if argument else "Accelerator(), whose default is 1"
        message = (
            f"accelerate launch --{KEY} {steps} is handed on only with --use_deepspeed, which is not there: "
            f"the count stays that of {said}, so an update takes {counted(used, 'micro-batch')}, not {steps}."
        )
        numbers = _numbers(job, steps)
        fixes = [Fix(f"Write the count where it is read: Accelerator({KEY}={steps}).", {**numbers, ARGUMENT: steps})]
        if not job.fact("accelerate.distributed_type") and not job.fact("accelerate.deepspeed_config_file"):
            text = "Or, for DeepSpeed, start with accelerate launch --use_deepspeed."
            fixes.append(Fix(text, {**numbers, "accelerate.use_deepspeed": True}))
        yield self.found(message, [flag.source, *([argument.source] if argument else [])], fixes)

    def _logged(self, job: Job) -> Iterator[Finding]:
        """What Accelerate says as it prepares the engine, unless it has been mended since."""
        if job.framework == "lightning":
            return
        for event in job.said("accumulation-updated"):
            new, old = event.values.get("to"), event.values.get("before")
            if new == old or not whole(old) or not still_said(job, old, new):
                continue
            message = (
                f"Accelerate replaced the DeepSpeed config's {KEY} {old} by {new}, the count of Accelerator(...)"
                f"{', which is 1 where none is given' * (new == 1)}: an update takes {counted(new, 'micro-batch')}, "
                f"not {old}."
            )
            yield self.found(message, _where(job, event.source), _all_agree(job, [old, new]))
        for event in job.said("accumulation-mismatch"):
            ours, theirs = event.values.get("plugin"), event.values.get("config")
            if ours == theirs or not still_said(job, theirs, ours) or _false_alarm(job, ours, theirs):
                continue
            message = (
                f"Accelerator's {KEY} is {ours}, the DeepSpeed config's is {theirs}, and {theirs} is used: "
                f"an update takes {counted(theirs, 'micro-batch')}, not {ours}."
            )
            severity = "note" if ours == 1 and not job.fact(ARGUMENT) else None
            fixes = _all_agree(job, [ours, theirs])
            yield self.found(message, _where(job, event.source), fixes, severity=severity)

    def _differing(self, job: Job) -> Iterator[Finding]:
        """What the files say: two or more owners with different counts."""
        if job.framework in TRAINERS or job.framework != "accelerate" or not uses_deepspeed(job):
            return
        owners = _owners(job)
        if len({owner.steps for owner in owners}) < 2:
            return
        used, why = _winner(job, owners)
        said = ", ".join(f"{owner.name} says {owner.steps}" for owner in owners)
        message = f"{said}. {why}, so an update takes {counted(used, 'micro-batch')}."
        counts = [owner.steps for owner in owners if owner.steps != used] + [used]
        where = [owner.source for owner in owners if owner.source and owner.source.file]
        yield self.found(message, where, _all_agree(job, counts))


def _owners(job: Job) -> list[Owner]:
    """Every explicit count, the first one that a recent Accelerate uses first."""
    found = []
    config, asked = job.config, job.fact(KEY)
    if config is not None and config.kind != "log":
        if not config.has(KEY):
            return []  # the key is missing, and Accelerate writes 1: accumulation-key-missing
        found.append((f"the DeepSpeed config {config.file or ''}".strip(), asked))
    found.append(("DeepSpeedPlugin(...)", job.fact(PLUGIN)))
    flag, field = job.fact(FLAG), job.fact(FIELD)
    launched = flag or field
    name = f"accelerate launch --{KEY}" if flag else "the Accelerate YAML"
    # The launcher exports its count over what the shell has.
    found.append((name, launched) if launched else ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", job.fact(VARIABLE)))
    argument, word = job.fact(ARGUMENT), job.fact(f"trainer.{KEY}")
    # A word of the command line reaches Accelerator through the script, which may not be there.
    found.append(("Accelerator(...)", argument) if argument or not word else (f"the script's --{KEY}", word))
    owners = [Owner(steps, name, fact.source) for name, fact in found if fact and (steps := whole(fact.value))]
    own = [owner for owner in owners if owner.name not in ("Accelerator(...)", f"the script's --{KEY}")]
    if len(own) == len(owners) == 1 and _default_counts(job) and own[0].name.startswith("the DeepSpeed config"):
        owners.append(Owner(1, "Accelerator(), where none is given,", None))
    return owners


def _default_counts(job: Job) -> bool:
    """Does the default 1 of ``Accelerator()`` matter? Only in versions that do not take over the config's count."""
    return bool(job.value("accelerator.present")) and older(job, "accelerate", COUNTS_AGREE) is True


def _winner(job: Job, owners: list[Owner]) -> tuple[int, str]:
    """The count that is used, and why."""
    first = owners[0]
    if not first.name.startswith("the DeepSpeed config"):
        return first.steps, f"{first.name[0].upper()}{first.name[1:]} wins without a word"
    if older(job, "accelerate", JSON_COUNTS):
        other = next((owner for owner in owners[1:] if owner.name != "DeepSpeedPlugin(...)"), first)
        return other.steps, f"Before Accelerate {JSON_COUNTS} Accelerator's own count replaces that of the JSON"
    if older(job, "accelerate", COUNTS_AGREE):
        return first.steps, (
            f"Before Accelerate {COUNTS_AGREE} the engine uses the JSON's and Accelerator keeps counting its own"
        )
    return first.steps, "The JSON wins"


def _false_alarm(job: Job, ours: int | None, theirs: int | None) -> bool:
    """Is Accelerate's warning one that right programs give too?

    Every right run of the Hugging Face Trainer with accumulation prints it. Where the script gives Accelerator no
    count, the config's is taken over, which is what it says. A config without the key is a fault of its own.
    """
    if job.framework in TRAINERS or job.said("training-summary"):
        return True
    if theirs == 1 and job.config is not None and job.config.kind == "file" and not job.config.has(KEY):
        return True
    return ours == 1 and bool(job.value("accelerator.present")) and not job.fact(ARGUMENT)


def _where(job: Job, logged: Source) -> list[Source]:
    """The line of the log, and where the config and the script say their counts."""
    facts = [job.fact(KEY), job.fact(ARGUMENT)]
    return [logged, *(fact.source for fact in facts if fact and fact.source.file)]


def _numbers(job: Job, steps: int | None) -> dict[str, object]:
    """The complete setting with this count."""
    numbers = effective(job)
    return complete(job, whole(numbers.micro and numbers.micro.value), steps, numbers.replicas)


def _all_agree(job: Job, counts: list[int]) -> list[Fix]:
    """For each count: write it everywhere."""
    fixes = []
    for steps in dict.fromkeys(counts):
        settings = {**_numbers(job, steps), ARGUMENT: steps}
        text = f"Let every place say {steps}: {KEY} {steps} in the config or YAML and Accelerator({KEY}={steps})"
        fixes.append(Fix(f"{text}; or write it in one of them alone.", settings))
    return fixes
