"""What TrainingArguments hold where nobody gives an argument: known only where the arguments themselves are shown."""

from __future__ import annotations

from dsaccum_helpers.effective.owners import opaque, opaque_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job, Source

#: Defaults of the Hugging Face Trainer that those built on it keep, and those that TRL's configs replace.
_DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0}
_OWN_DEFAULTS = {"learning_rate": 5e-5, "adam_epsilon": 1e-8, "weight_decay": 0.0}
_FILES = (".json", ".yaml", ".yml")


def default(job: Job, name: str) -> tuple[Any, Source] | None:
    """The default of an argument that is not among those shown, and where they stand; None where it may be given."""
    known = _DEFAULTS if job.framework == "trl" else _DEFAULTS | _OWN_DEFAULTS
    if name not in known or job.fact(f"trainer.{name}") or opaque(job, f"trainer.{name}"):
        return None
    source = _shown(job, name)
    return (known[name], source) if source else None


def _shown(job: Job, name: str) -> Source | None:
    """Where all arguments of a Trainer stand: in a file of them, on a command line, in a call of the script."""
    absent = job.fact("trainer.defaults")
    if job.programs or absent:
        # A script may give or change what a file or a command leaves out.
        return absent.source if absent and name in absent.value else None
    output = job.fact("trainer.output_dir")
    if output is None or _others_defaults(job):
        return None
    in_file = str(output.source.file).lower().endswith(_FILES)
    if any(opaque_words(launch) for launch in job.launches):
        return None
    if not in_file and not any(launch.source.file == output.source.file for launch in job.launches):
        return None
    return output.source if in_file or not any(map(_names_a_file, job.launches)) else None


def _names_a_file(launch: Any) -> bool:
    """Does the command name a file of arguments beside the DeepSpeed config?"""
    before = ""
    for word in launch.words:
        option, equals, value = str(word).partition("=")
        owner = option if equals else before
        if (value if equals else option).lower().endswith(_FILES) and "deepspeed" not in owner:
            return True
        before = option
    return False


def _others_defaults(job: Job) -> bool:
    """Do axolotl or ms-swift start the Trainer? They have defaults of their own."""
    return bool(job.fact("trainer.base_model")) or any("swift" in launch.text for launch in job.launches)
