"""The catalogue of mismatches: one file each, listed here in the order in which the course shows them."""

from __future__ import annotations

from difflib import get_close_matches

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches.batch_product_mismatch import BatchProductMismatch
from dsaccum_helpers.mismatches.clipping_hides_scale import ClippingHidesScale
from dsaccum_helpers.mismatches.entry import Mismatch, Prediction
from dsaccum_helpers.mismatches.guarded_engine_step import GuardedEngineStep
from dsaccum_helpers.mismatches.leftover_micro_batches import LeftoverMicroBatches
from dsaccum_helpers.mismatches.loader_batch_differs import LoaderBatchDiffers
from dsaccum_helpers.mismatches.loss_divided_twice import LossDividedTwice
from dsaccum_helpers.mismatches.manual_accumulation import ManualAccumulation
from dsaccum_helpers.mismatches.scheduler_unit import SchedulerUnit
from dsaccum_helpers.mismatches.written_for_other_world_size import WrittenForOtherWorldSize

__all__ = ["CATALOGUE", "MATCHED", "Mismatch", "Prediction", "UnknownMismatchError", "find"]

MATCHED = Mismatch()
CATALOGUE: dict[str, Mismatch] = {
    entry.code: entry
    for entry in (
        BatchProductMismatch(),
        WrittenForOtherWorldSize(),
        LoaderBatchDiffers(),
        LeftoverMicroBatches(),
        LossDividedTwice(),
        GuardedEngineStep(),
        ManualAccumulation(),
        SchedulerUnit(),
        ClippingHidesScale(),
    )
}


class UnknownMismatchError(DsaccumError):
    """A code that is not in the catalogue."""


def find(code: str | None) -> Mismatch:
    """The entry with this code; ``None`` and ``"matched"`` give the right run. Raises ``UnknownMismatchError``."""
    if code is None or code == MATCHED.code:
        return MATCHED
    if isinstance(code, str) and code in CATALOGUE:
        return CATALOGUE[code]
    if isinstance(code, str) and code.lower() == "oracle":
        raise UnknownMismatchError("The oracle is no mismatch. Smallest fix: compare(..., oracle=True).")
    near = get_close_matches(str(code).lower(), CATALOGUE, n=1, cutoff=0.5)
    advice = f"use {near[0]}" if near else f"use one of {', '.join(CATALOGUE)}"
    shown = repr(code) if len(repr(code)) < 60 else repr(code)[:60] + "…"
    raise UnknownMismatchError(f"{shown} is not a mismatch of the catalogue. Smallest fix: {advice}.")
