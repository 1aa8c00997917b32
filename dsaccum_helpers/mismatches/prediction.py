"""What a run of an entry will do, worked out before it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """What a run will do, worked out from the setting alone.

    ``weights``: the factor with which each micro-batch of one process enters the first update (1 / accumulation steps
    each, in a right run; the mean over processes comes on top). ``micro_batch_size``: samples in each of them.
    ``optimizer_steps``: updates that will happen. ``samples``: samples read by all processes up to the last update.
    ``learning_rates``: one for each update. ``gradient_clipping``: the norm at which the engine clips, 0.0 for none.
    """

    weights: tuple[float, ...]
    micro_batch_size: int
    optimizer_steps: int
    samples: int
    learning_rates: tuple[float, ...]
    gradient_clipping: float
    refused: bool = False
