"""The proof that accumulation is the full batch: on this machine, with the versions that are installed here.

One train batch is split into micro-batches in several ways, and DeepSpeed trains with each of them at every ZeRO stage.
The weights at the end are compared with those of plain PyTorch, which puts the whole batch through the model at once.

::

    matrix.py      every stage, type, optimizer, number of processes and split
    person.py      a person's DeepSpeed config, made small: what is kept, what is scaled and what is refused
    blocks.py      its optimizer and scheduler blocks
    keys.py        its other keys
    schedules.py   the learning rates of DeepSpeed's schedules, by our own arithmetic
    proof.py       the runs of such a config, and the comparison
    full_batch.py  what runs in their training processes: the engine, and plain PyTorch
    faults.py      known faults of the installed versions
    running.py     what both share: the tolerances, and running side by side
    rows.py        what was found, as text and JSON
    page.py        the same as HTML
"""

from __future__ import annotations

from dsaccum_helpers.verification.faults import ADAM_AHEAD
from dsaccum_helpers.verification.matrix import SPLITS, TRAIN_BATCH, verify
from dsaccum_helpers.verification.rows import Row, Verification
from dsaccum_helpers.verification.running import EXACT, UPDATES

__all__ = ["ADAM_AHEAD", "EXACT", "SPLITS", "TRAIN_BATCH", "UPDATES", "Row", "Verification", "verify"]
