"""Many micro-batches are added up in 16 bits."""

from __future__ import annotations

from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, exchanges, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Fact, Job, Source
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

#: From this many micro-batches on: a warning, and a note. Measured in bf16 (DeepSpeed 0.19.8, stages 0 to 3), the error
#: of the summed gradient is 0.3 % with 4 micro-batches, which is rounding of the gradients themselves, 0.9 % with 64,
#: 1.7 % with 512 and 9.6 % with 2048. fp16 has three more bits: with 256 its error is that of bf16 with 4, and configs
#: that leave it at that have trained well; who asks for it by name is told.
WARNING_FROM = {"bf16": 32, "fp16": 4096}
ASKED_FROM = {"bf16": 32, "fp16": 64}
NOTE_FROM = {"bf16": 16, "fp16": 32}


class AccumulationDtype(Mismatch):
    """The sum over the window has no more bits than its terms, so that late small gradients are rounded away."""

    code = "accumulation-dtype"
    title = "Many micro-batches are added up in 16 bits"
    symptom = "No message. The gradient norm falls slowly as gradient_accumulation_steps grows at the same batch."
    cause = "Without data_types.grad_accum_dtype, DeepSpeed adds the micro-batches' gradients up in the model's type."
    consequence = (
        "The summed gradient is off by 0.3 % with 4 bf16 micro-batches, 0.9 % with 64, 2 to 4 % with 512 and 9.6 % "
        'with 2048; with "grad_accum_dtype": "fp32" by nothing at stages 2 and 3 and by 0.2 % at stage 1 (measured on '
        "one process; what several processes exchange is rounded once more)."
    )
    remedy = '"data_types": {"grad_accum_dtype": "fp32"}, at ZeRO stage 1, 2 or 3.'
    learn = "notebooks/04_loop_mistakes.ipynb"
    severity = "warning"
    measures_direction = True

    def check(self, job: Job) -> Iterable[Finding]:
        """A 16-bit model, a 16-bit sum and many terms."""
        count = numerics.steps(job)
        if count is None or count < min(NOTE_FROM.values()) or not numerics.trains_with_deepspeed(job):
            return
        kind, said = numerics.dtype(job)
        asked = numerics.sum_dtype(job)
        sums = asked or self._default(job, kind)
        if kind not in NOTE_FROM or sums not in NOTE_FROM or count < NOTE_FROM[sums]:
            return
        why = "as data_types.grad_accum_dtype asks" if asked else "as data_types.grad_accum_dtype is not given"
        message = (
            f"{count} micro-batches of {kind} gradients are added up in {sums} ({'8' if sums == 'bf16' else '11'} bits "
            f"of precision) before each optimizer step, {why}: late small gradients are rounded away."
        )
        severity = "warning" if count >= (ASKED_FROM if asked else WARNING_FROM)[sums] else "note"
        yield self.found(message, self._where(job, said, bool(asked)), self._fixes(job), severity=severity)

    def _default(self, job: Job, kind: str) -> str:
        """The type of the sum where nothing is asked for."""
        if job.config is not None and job.config.has("data_types", "grad_accum_dtype"):
            return ""  # something that is no type: DeepSpeed refuses it
        if kind == "bf16" and numerics.zero_stage(job) == 0 and older(job, "deepspeed", "0.18.5"):
            return "fp32"  # what these versions did without ZeRO
        return kind

    def _where(self, job: Job, said: Fact | None, asked: bool) -> list[Source]:
        found = [job.config.source("data_types", "grad_accum_dtype")] if asked and job.config else []
        found += [said.source] if said is not None else []
        return [*found, *numerics.steps_source(job)]

    def _fixes(self, job: Job) -> list[Fix]:
        setting: dict[str, object] = {"data_types.grad_accum_dtype": "fp32"}
        if job.config is None:
            text = (
                'Name a DeepSpeed config with "data_types": {"grad_accum_dtype": "fp32"}; the plugin has no such field.'
            )
            return [Fix(text)]
        if numerics.zero_stage(job) != 0:
            return [Fix('Add the gradients up in fp32: "data_types": {"grad_accum_dtype": "fp32"}.', setting)]
        text = "Take ZeRO stage 1 and add the gradients up in fp32; at stage 0 DeepSpeed refuses a sum in fp32."
        return [Fix(text, {"zero_optimization.stage": 1, **setting})]

    def needs(self, setting: Setting) -> str | None:
        """Sums of fp32 gradients are in fp32."""
        if setting.dtype != "bf16":
            return f"In {setting.dtype} the sum has all the bits of its terms. Smallest fix: dtype 'bf16'."
        return needs_accumulation(setting)

    def mended_config(self, setting: Setting) -> dict[str, Any]:
        """Sums in fp32; stage 0 refuses them, so there the run is mended at stage 1."""
        config = setting.ds_config() | {"data_types": {"grad_accum_dtype": "fp32"}}
        return config | {"zero_optimization": {"stage": max(1, setting.zero_stage)}}

    def predict(self, setting: Setting) -> Prediction:
        """Each process adds its micro-batches up in bf16, as plain PyTorch does with a bf16 model."""
        from dataclasses import replace

        return replace(self._prediction(setting), exchanges=exchanges(setting))

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """The same micro-batches, added up in fp32."""
        from dataclasses import replace

        return replace(right, exchanges=exchanges(setting), fp32_sums=True)
