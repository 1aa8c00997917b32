"""What a run of an entry will do, worked out before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice


@dataclass(frozen=True)
class Prediction:
    """What a run will do, worked out from the setting alone.

    ``weights``: the factor with which each micro-batch of one process enters the first update (1 / accumulation steps
    each, in a right run; the mean over processes comes on top). ``later``: the same for the updates behind it, where
    they differ; the last one is repeated. ``micro_batch_size``: samples in each micro-batch; ``sizes``: the same where
    they differ, repeated in this order. ``optimizer_steps``: updates that will happen. ``samples``: samples read by all
    processes up to the last update. ``learning_rates``: one for each update. ``gradient_clipping``: the norm at which
    the engine clips, 0.0 for none. ``first_rank_only``: the processes do not exchange gradients, and what is measured
    on the first one is its own. ``refused``: the engine stops before the first update.

    What a window is made of, where it is not a weighted mean of gradients: ``exchanges``: the processes' micro-batches
    pass the model one by one, and the processes exchange gradients in the model's type: ``"sums"`` at the end of the
    window (ZeRO-0 and 1) or those of ``"each"`` micro-batch (ZeRO-2 and 3). They add up in that type too, unless
    ``fp32_sums``. ``inner_clipping``: each of the sums is clipped at this norm behind each micro-batch but the last,
    0.0 for never; ``boundary_clipping``: the mean over the processes is too. ``auxiliary``: how much more an auxiliary
    loss weighs than the main one. ``empty_step``: the optimizer steps once with an empty gradient before training.

    What the script tells its user: ``reports`` is how often, ``reported`` the first report as a share of the loss.
    """

    weights: tuple[float, ...]
    micro_batch_size: int
    optimizer_steps: int
    samples: int
    learning_rates: tuple[float, ...]
    gradient_clipping: float
    refused: bool = False
    later: tuple[tuple[float, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    first_rank_only: bool = False
    exchanges: str = ""
    fp32_sums: bool = False
    inner_clipping: float = 0.0
    boundary_clipping: bool = False
    auxiliary: float = 1.0
    empty_step: bool = False
    reports: int | None = None
    reported: float | None = None

    def windows(self) -> Iterator[list[tuple[int, float]]]:
        """For each update its micro-batches: (samples of one process, weight)."""
        sizes = cycle(self.sizes or (self.micro_batch_size,))
        for step in range(self.optimizer_steps):
            weights = self.later[min(step, len(self.later)) - 1] if step and self.later else self.weights
            yield list(zip(islice(sizes, len(weights)), weights, strict=True))
