"""What every entry of the catalogue can do; each entry is one file beside this one.

An entry explains itself in words and looks for itself in a Job (``check``). Where a run can show it, it says how its
run differs from the right one (``config``, ``loop``, ``loader_sizes``, ``epochs``), predicts what that does to training
*before* anything runs (``predict``), and how the mended run looks (``mended_loop``, ``mended_config``).
Nothing here imports torch: the loops are given a ``run`` with an engine, and call it.
"""

from __future__ import annotations

from dsaccum_helpers.findings import Finding, Fix

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.training.tasks import Task


class Mismatch:
    """One entry of the catalogue. This base class is the *right* run; an entry overrides what it does wrong."""

    code = "matched"
    title = "Config, loader and loop agree"
    symptom = "The loss falls like that of one full batch."
    cause = "The loop calls engine.backward and engine.step once for each micro-batch; the engine does the rest."
    consequence = "Every update is the mean over exactly train_batch_size samples."
    remedy = "Nothing to mend."
    learn = "notebooks/02_matched_or_mismatched.ipynb"
    severity = "error"
    #: Codes that need not be said beside this one: they name the same fault less well.
    silences: tuple[str, ...] = ()
    #: Codes that stand under this one where both are found: consequences of the same cause.
    explains: tuple[str, ...] = ()
    #: Codes of which one must be found too: this entry never stands alone. Empty: it may.
    beside: tuple[str, ...] = ()
    #: Findings of one severity stand in this order, lower first, and then in that of the catalogue.
    rank = 5
    #: The script steps the scheduler itself instead of handing it to ``deepspeed.initialize``.
    script_owns_scheduler = False
    #: ``deepspeed.initialize`` raises: there is no curve, only the engine's words and ours.
    refused = False
    #: The loop calls ``optimizer.step`` itself, so that updates are counted there too.
    bypasses_engine_step = False
    #: The model is trained by DeepSpeed's pipeline engine, on one stage.
    pipeline = False
    #: The first update is measured against plain PyTorch's full batch and not against the right run.
    against_full_batch = False
    #: The first update is compared number by number, not only by its size.
    measures_direction = False
    #: Why no run shows this entry on a learner's machine; empty where one does.
    not_reproduced = ""
    #: Why the live observer says nothing of it, although it runs; empty where it does.
    not_watched = ""

    def check(self, job: Job) -> Iterable[Finding]:
        """What of this mismatch the job shows; nothing where it is absent, or cannot be known."""
        return ()

    def found(
        self,
        message: str,
        where: Iterable[Source] = (),
        fixes: Iterable[Fix] = (),
        *,
        severity: str | None = None,
        consequence: str | None = None,
        title: str | None = None,
    ) -> Finding:
        """A Finding of this entry; severity, consequence and title are the entry's own unless given."""
        consequence = self.consequence if consequence is None else consequence
        severity, title = severity or self.severity, title or self.title
        return Finding(self.code, severity, title, message, where, consequence, fixes, self.learn)

    def needs(self, setting: Setting) -> str | None:
        """Why this setting cannot show the mismatch, with the smallest remedy; ``None`` where it can."""
        return None

    def config(self, setting: Setting) -> dict[str, Any] | str:
        """The DeepSpeed configuration of the wrong run; a text where that is what the script hands over."""
        return setting.ds_config()

    def stops(self, setting: Setting) -> str | None:
        """Where the engine stops the wrong loop before its first update: why, with the smallest remedy."""
        return None

    def loader_batch_size(self, setting: Setting) -> int:
        """Samples in each micro-batch that the loader really gives."""
        return setting.train_micro_batch_size_per_gpu

    def loader_sizes(self, setting: Setting) -> tuple[int, ...]:
        """The same where the micro-batches differ: repeated in this order."""
        return (self.loader_batch_size(setting),)

    def prepare(self, task: Task) -> Task:
        """The task with what the mistake needs to show, in the wrong, the mended and the full-batch run alike."""
        return task

    def mended_prepare(self, task: Task) -> Task:
        """The same for the mended run and its full batch, where mending means another model."""
        return self.prepare(task)

    def epochs(self, setting: Setting) -> tuple[int, int]:
        """How many epochs are trained, and how many micro-batches one process reads in each."""
        return 1, setting.micro_batches

    def micro_batches_read(self, setting: Setting) -> int:
        """How many micro-batches one process will have read in the end."""
        epochs, length = self.epochs(setting)
        return epochs * length

    start: Any = None
    """What the script does in place of a right start-up, called with its configuration; ``None``: it starts right."""
    loop: Any = None
    """The wrong training loop, called with a ``run``; ``None`` where the loop is the right one."""
    mended_loop: Any = None
    """The mended training loop; ``None`` where it is the right one."""

    def mended_config(self, setting: Setting) -> dict[str, Any]:
        """The DeepSpeed configuration of the mended run."""
        return setting.ds_config()

    def mended_sizes(self, setting: Setting) -> tuple[int, ...]:
        """What the loader of the mended run gives, as ``loader_sizes``."""
        return (setting.train_micro_batch_size_per_gpu,)

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """What the mended run will do: what the right run does, unless it comes to that in another way."""
        return right

    def predict(self, setting: Setting) -> Prediction:
        """The consequence, before the run."""
        return self._prediction(setting)

    def loop_source(self) -> str:
        """The wrong loop, or start-up, as a learner reads it; an empty text where both are right."""
        return _source(self.loop or self.start)

    def mended_source(self) -> str:
        """The mended loop as a learner reads it, or an empty text where it is the right one."""
        return _source(self.mended_loop)

    def _prediction(
        self,
        setting: Setting,
        *,
        weights: tuple[float, ...] | None = None,
        optimizer_steps: int | None = None,
        scheduler_steps: tuple[int, ...] | None = None,
        gradient_clipping: float | None = None,
        later: tuple[tuple[float, ...], ...] = (),
        first_rank_only: bool = False,
    ) -> Prediction:
        """The right run's prediction with what the entry changes."""
        from dataclasses import replace

        from dsaccum_helpers.mismatches.prediction import Prediction

        count = setting.gradient_accumulation_steps
        steps = setting.optimizer_steps if optimizer_steps is None else optimizer_steps
        refused = self.refused or self.stops(setting) is not None
        sizes = self.loader_sizes(setting)
        rates = tuple(setting.rate_at(step) for step in scheduler_steps or range(steps))
        prediction = Prediction(
            weights=(1 / count,) * count if weights is None else weights,
            micro_batch_size=sizes[0],
            optimizer_steps=0 if refused else steps,
            samples=0,
            learning_rates=() if refused else rates,
            gradient_clipping=setting.gradient_clipping if gradient_clipping is None else gradient_clipping,
            refused=refused,
            later=later,
            sizes=sizes if len(sizes) > 1 else (),
            first_rank_only=first_rank_only,
        )
        read = sum(size for window in prediction.windows() for size, _ in window)
        return replace(prediction, samples=read * setting.processes)


def _source(loop: Any) -> str:
    import inspect
    import textwrap

    if loop is None:
        return ""
    lines = textwrap.dedent(inspect.getsource(loop)).splitlines()
    return "\n".join(line for line in lines if line.strip() != "@staticmethod")


def needs_accumulation(setting: Setting) -> str | None:
    """The reason shared by all entries that only exist with more than one micro-batch per update."""
    if setting.gradient_accumulation_steps > 1:
        return None
    return (
        "With gradient_accumulation_steps 1 there is nothing to accumulate, so this mistake cannot happen. "
        "Smallest fix: gradient_accumulation_steps 2."
    )


def keeps_only_last(setting: Setting) -> bool:
    """Do several ``engine.backward`` calls without ``engine.step`` lose all gradients but the last?

    ZeRO-1 and 2 hand each boundary gradient to the partition anew; stage 0 and 3 add up (measured with DeepSpeed 0.19).
    """
    return setting.zero_stage in (1, 2)


def exchanges(setting: Setting) -> str:
    """What the processes exchange: the ``"sums"`` of their windows, or the gradients of ``"each"`` micro-batch."""
    return "each" if setting.zero_stage >= 2 else "sums"
