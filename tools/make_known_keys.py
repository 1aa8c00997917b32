"""Write ``dsaccum_helpers/known_keys.py`` anew from the installed DeepSpeed: ``make known-keys``.

DeepSpeed's source is read with ``ast``: neither DeepSpeed nor torch is imported, and no device is needed. What earlier
versions knew and the installed one does not is kept by hand, in ``EARLIER``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from dsaccum_helpers.installed_keys import MODELS, package, removed, table, version

OUT = Path(__file__).resolve().parents[1] / "dsaccum_helpers" / "known_keys.py"
#: Keys of DeepSpeed 0.3 to 0.19 that the installed version neither reads nor refuses.
EARLIER = {
    "": "allreduce_always_fp32 checkpoint_tag_validation disable_gradient_allreduce fp32_allreduce inference "
    "load_universal_checkpoint moe pld seed use_node_local_storage",
    "checkpoint": "writer",
    "zero_optimization": "cpu_offload cpu_offload_params cpu_offload_use_pin_memory grad_hooks offload_16bit_grads "
    "stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters memory_efficient_linear "
    "mics_shard_size mics_hierarchical_params_gather zeropp_loco_param",
}
HEAD = '''"""The keys that DeepSpeed reads from its config: written by ``make known-keys``, not by hand.

``VERSION``: the DeepSpeed that was read. ``TOP_LEVEL``: keys of the config itself, those of earlier versions included;
DeepSpeed ignores any other without a word. ``SECTIONS``: the same for blocks that it does not check either.
``CHECKED``: keys of the blocks that are pydantic models: another key stops DeepSpeed with "Extra inputs are not
permitted". ``REMOVED``: keys that this version refuses although earlier ones knew them.
"""

# ruff: noqa: SIM905 - words in a text read better than two hundred in quotes

'''


def whole_table(folder: str) -> dict[str, object]:
    """The table as it stands in ``known_keys.py``: what the installed version reads, and what earlier ones read."""
    sections, checked = table(folder)
    missing = [MODELS[block] for block, keys in checked.items() if not keys]
    if missing:
        raise SystemExit(f"{missing[0]} is not in this DeepSpeed. Smallest fix: bring MODELS up to date.")
    for block, words in EARLIER.items():
        (checked if block in checked else sections)[block] |= set(words.split())
    top = sections.pop("")
    found = version(folder)
    return {"VERSION": found, "TOP_LEVEL": top, "SECTIONS": sections, "CHECKED": checked, "REMOVED": removed(folder)}


def source(known: dict[str, object]) -> str:
    """The module's text."""
    lines = []
    for name, value in known.items():
        if isinstance(value, str):
            lines.append(f'{name} = "{value}"')
        elif isinstance(value, set):
            lines.append(f"{name} = frozenset(\n{words(value, 4)}\n)")
        elif isinstance(value, dict):
            rows = [f'    "{block}": frozenset(\n{words(keys, 8)}\n    ),' for block, keys in sorted(value.items())]
            lines.append("\n".join([f"{name} = {{", *rows, "}"]))
    return HEAD + "\n".join(lines) + "\n"


def words(keys: set[str], indent: int) -> str:
    """An expression that splits a text of words, in lines that fit."""
    margin = " " * indent
    text = textwrap.fill(" ".join(sorted(keys)), 118, initial_indent=margin, subsequent_indent=margin)
    return f'{margin}"""\n{text}\n{margin}""".split()'


def main() -> None:
    """Write the table."""
    folder = package()
    if folder is None:
        raise SystemExit("DeepSpeed is not installed here. Smallest fix: make install.")
    OUT.write_text(source(whole_table(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
