"""A key that DeepSpeed ignores: misspelt, of another tool, spaced, or in the wrong section."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.unknown_keys import MANY, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Config, Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.unknown_keys import Key
    from dsaccum_helpers.setting import Setting


_MISSPELT = "gradient_accumulation_step"


class UnknownConfigKey(Mismatch):
    """The top of DeepSpeed's config is not checked: what is not read is not reported either."""

    code = "unknown-config-key"
    title = "A key that DeepSpeed does not read"
    symptom = "No message. The setting behind the key keeps its default, most often accumulation over one micro-batch."
    cause = "The key is misspelt, spaced, an old or another tool's name, or stands in the wrong section."
    consequence = "The setting is not used: training uses the default, or a number derived from the others."
    remedy = "Write the key as DeepSpeed names it, at the top of the config."
    learn = "notebooks/01_three_numbers.ipynb"
    rank = 2

    def check(self, job: Job) -> Iterable[Finding]:
        """Unknown keys of the config that counts, and of the Accelerate config."""
        if job.config is not None and job.config.kind != "arguments":
            yield from self._in_config(job, job.config)
        if any(name.startswith("accelerate.") for name in job.facts):
            from dsaccum_helpers.mismatches.accelerate_fields import unknown_fields

            yield from (self.found(text, where, fixes) for text, where, fixes in unknown_fields(job))

    def _in_config(self, job: Job, config: Config) -> Iterator[Finding]:
        keys, far = unknown(config, job.installed_keys)
        if keys:
            then = _mended(job, config, keys)
            fixes = [_fix(config, keys, then)]
            yield from (self._near(job, config, key, then, fixes) for key in keys)
        if far and len(far) < MANY and config.kind == "file":
            text = f"DeepSpeed does not read {_names(far)}; harmless where another program does."
            yield self._silent(self.found(text, map(config.source, far), severity="note", consequence=""))
        yield from self._removed(job, config)

    def _near(self, job: Job, config: Config, key: Key, then: Any, fixes: list[Fix]) -> Finding:
        """One key, with what is used now and what would be with the right keys."""
        severity, now, changes = key.severity, effective(job).batch(), "."
        if key.meant[0] in KEYS and severity != "note":
            if then.error is None and then.batch() == now:
                severity, changes = "warning", ". The number that is derived in its place happens to be the same."
            else:
                changes = f". Now {_sentence(now)}."
                changes += "" if then.error else f" With the right key {_sentence(then.batch())}."
        found = self.found(f"{key.words}{changes}", [config.source(*key.path)], fixes, severity=severity)
        found.silences = ("accumulation-key-missing",) if key.meant[0] == KEYS[2] else ()
        return found

    def _removed(self, job: Job, config: Config) -> Iterator[Finding]:
        """Keys of earlier versions that newer ones refuse by name."""
        from dsaccum_helpers.known_keys import REMOVED, VERSION

        keys = sorted(REMOVED.intersection(config.values) - {"elasticity"})  # which has an entry of its own
        version = job.version("deepspeed")
        if keys and not older(job, "deepspeed", VERSION):
            text = f"DeepSpeed {version or VERSION} refuses {_names(keys)}: the feature was removed"
            text += "." if version else ", and earlier versions read it."
            fix = Fix("Remove it, or stay with the version that it was written for.", dict.fromkeys(keys))
            severity, stops = "error" if version else "note", "deepspeed.initialize stops."
            where = map(config.source, keys)
            yield self._silent(self.found(text, where, [fix], severity=severity, consequence=stops))

    def _silent(self, finding: Finding) -> Finding:
        """The finding, which makes no other superfluous."""
        finding.silences = ()
        return finding

    def needs(self, setting: Setting) -> str | None:
        """One is what the engine counts anyway."""
        return needs_accumulation(setting)

    def config(self, setting: Setting) -> dict[str, Any]:
        """An s is missing, and no train batch size is there to derive the number from."""
        config = setting.ds_config() | {_MISSPELT: setting.gradient_accumulation_steps}
        return {key: value for key, value in config.items() if key not in (KEYS[0], KEYS[2])}

    def predict(self, setting: Setting) -> Prediction:
        """The engine counts one: each micro-batch is an update with its whole gradient, and the schedule runs along."""
        return self._prediction(setting, weights=(1.0,), optimizer_steps=setting.micro_batches)


def _mended(job: Job, config: Config, keys: list[Key]) -> Any:
    """The effective numbers with the right keys in the wrong ones' places."""
    trial = job.clone()
    changed = trial.configs[job.configs.index(config)]
    for key in keys:
        changed.change(key.path, None)
        if changed.get(*key.meant) is None:
            changed.change(key.meant, key.value)
    return effective(trial)


def _fix(config: Config, keys: list[Key], then: Any) -> Fix:
    """One change that puts every key right, with the batch numbers that result."""
    change: dict[str, Any] = {".".join(key.path): None for key in keys}
    renamed = [key for key in keys if config.get(*key.meant) is None]
    for key in renamed:
        change.setdefault(".".join(key.meant), key.value)
    text = "; ".join(f'"{".".join(key.path)}" becomes "{".".join(key.meant)}"' for key in renamed)
    gone = [".".join(key.path) for key in keys if key not in renamed]
    text = "; ".join(filter(None, [text, f"{_names(gone)} is removed" if gone else ""]))
    if any(key.meant[0] in KEYS for key in renamed):
        batch = then.batch() if then.error is None else {}
        nearest = (getattr(then.error, "nearest", None) or [{}])[0]
        if batch and None not in [batch[name] for name in KEYS]:
            change |= {name: batch[name] for name in KEYS}
            text += f": {_sentence(batch)}"
        elif nearest:
            change |= nearest
            text += ", and numbers that agree: " + ", ".join(f"{name} {value}" for name, value in nearest.items())
    dotted = any("." in part for key in keys for part in key.path)  # such a name cannot be said to --set
    return Fix(f"{text}.", {} if dotted else change)


def _names(keys: Iterable[str]) -> str:
    return " and ".join(f'"{key}"' for key in keys)


def _sentence(batch: dict[str, Any]) -> str:
    """``the batch is 32 = 4 x 1 x 8``, as far as it is known."""
    train, micro, steps, replicas = (batch[name] for name in (*KEYS, "data_parallel_size"))
    if None in (train, micro, steps, replicas):
        return f"gradient_accumulation_steps is {steps}" if steps else "the batch cannot be known"
    product = micro * steps * replicas
    if train != product:
        return f"{train} is not {micro} x {steps} x {replicas} = {product}, and DeepSpeed stops"
    return f"the batch is {train} = {micro} x {steps} x {replicas}"
