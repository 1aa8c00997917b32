"""Which known key is meant by one that DeepSpeed does not know (pure)."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that other tools, or people, give to what DeepSpeed calls otherwise. Old names of DeepSpeed's own among them.
ALIASES = {
    "train_batch_size": "train_batch global_batch_size total_batch_size total_train_batch_size global_train_batch_size "
    "effective_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_per_gpu micro_batch_size micro_batch_size_per_gpu microbatch_size "
    "train_micro_batch_size train_micro_batch_per_gpu train_micro_batch train_micro_batch_size_per_device "
    "train_batch_size_per_gpu batch_size_per_gpu per_gpu_batch_size per_gpu_train_batch_size per_device_batch_size "
    "per_device_train_batch_size micro_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation gradient_acc_step gradient_acc_steps grad_accumulation "
    "grad_accumulation_steps grad_acc grad_acc_steps grad_accum grad_accum_steps accumulation_steps accum_steps "
    "accumulate_steps accumulate_grad_batches accum_iter update_freq gas",
    "gradient_clipping": "grad_clip grad_clipping grad_norm_clip gradient_clip gradient_clip_val clip_grad "
    "clip_grad_norm clipping max_grad_norm max_norm",
    "managed_gradient_accumulation": "manage_gradient_accumulation managed_grad_accumulation",
}
_ALIASES = {name: key for key, names in ALIASES.items() for name in names.split()}
_SEPARATORS = re.compile(r"[\s\-_.]+")


def flat(key: str) -> str:
    """The key in lower case, words joined by one underscore: what is left when only the writing differs."""
    return _SEPARATORS.sub("_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip())).strip("_").lower()


def distance(one: str, other: str, most: int) -> int:
    """How many letters are added, dropped, changed or swapped with their neighbour; ``most + 1`` where it is more."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, against in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def nearest(key: str, known: Iterable[str]) -> tuple[str, str] | None:
    """The known key that is meant and how it was written: ``spelling``, ``other name`` or ``misspelt``; or None."""
    known = list(known)
    plain = flat(key)
    for candidate in known:
        if plain == flat(candidate):
            return candidate, "spelling"
    if _ALIASES.get(plain) in known:
        return _ALIASES[plain], "other name"
    most = 1 if len(plain) < 8 else 2 if len(plain) < 16 else 3
    if len(plain) < 4:
        return None
    found = min(((distance(plain, candidate, most), candidate) for candidate in known), default=(most + 1, ""))
    return (found[1], "misspelt") if found[0] <= most else None
