"""Write ``dsaccum_helpers/known_keys.py`` anew from the installed DeepSpeed: ``make known-keys``.

DeepSpeed's source is read with ``ast``: neither DeepSpeed nor torch is imported, and no device is needed. What earlier
versions knew and the installed one does not is kept by hand, in ``EARLIER``.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "dsaccum_helpers" / "known_keys.py"
#: The files that read the config, relative to the package.
READERS = (
    "runtime/config.py",
    *(f"runtime/{part}/config.py" for part in ("activation_checkpointing", "tensor_parallel", "zero")),
    "runtime/precision_config.py",
    "runtime/swap_tensor/aio_config.py",
    *(f"{part}/config.py" for part in ("comm", "datastates", "monitor", "profiling", "utils")),
)
#: What the readers call the whole config, and what they call one block of it.
WHOLE = ("param_dict", "_param_dict", "ds_config")
BLOCKS = {
    "act_chkpt_config_dict": "activation_checkpointing",
    "aio_dict": "aio",
    "checkpoint_params": "checkpoint",
    "data_types_params": "data_types",
    "flops_profiler_dict": "flops_profiler",
}
#: Blocks that are pydantic models, which refuse a key that they do not know.
MODELS = {
    "bf16": "DeepSpeedBF16Config",
    "comet": "CometConfig",
    "comms_logger": "CommsLoggerConfig",
    "compile": "CompileConfig",
    "csv_monitor": "CSVConfig",
    "fp16": "DeepSpeedFP16Config",
    "hybrid_engine": "HybridEngineConfig",
    "tensor_parallel": "TPTrainingConfig",
    "tensorboard": "TensorBoardConfig",
    "wandb": "WandbConfig",
    "zero_optimization": "DeepSpeedZeroConfig",
    "zero_optimization.offload_optimizer": "DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.offload_param": "DeepSpeedZeroOffloadParamConfig",
}
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


def package() -> Path:
    """The folder of the installed DeepSpeed, found without importing it."""
    found = importlib.util.find_spec("deepspeed")
    if found is None or found.origin is None:
        raise SystemExit("DeepSpeed is not installed here. Smallest fix: make install.")
    return Path(found.origin).parent


def constants(folder: Path) -> dict[str, str]:
    """Every name that DeepSpeed's files of constants bind to a text."""
    bound = {}
    for file in sorted([*folder.rglob("constants.py"), *(folder / reader for reader in READERS)]):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            text = node.value.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) else None
            if isinstance(text, str) and text.replace("_", "").isalnum():
                bound.setdefault(name_of(node.targets[0]), text)
    return bound


def name_of(node: ast.expr) -> str:
    """``x`` for x, ``self.x``, ``x.keys()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
        return name_of(node.func.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def reads(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs (dict, key) of all that looks a key up: ``d[k]``, ``k in d``, ``d.get(k)``, ``get_something(d, k)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            yield node.comparators[0], node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield node.func.value, node.args[0]
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            yield node.args[0], node.args[1]
        elif isinstance(node, ast.DictComp) and isinstance(node.generators[0].iter, ast.Tuple):
            reads_one = [read for read in reads(node.value) if name_of(read[1]) == name_of(node.key)]
            yield from ((holder, key) for holder, _ in reads_one for key in node.generators[0].iter.elts)


def fields(folder: Path, model: str) -> set[str]:
    """The fields of a pydantic model, under every name that it accepts."""
    for file in sorted(folder.rglob("*config*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == model:
                annotated = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                calls = [one.value for one in annotated if isinstance(one.value, ast.Call)]
                aliases = [word.value for call in calls for word in call.keywords if word.arg == "alias"]
                named = {one.target.id for one in annotated if isinstance(one.target, ast.Name)}
                return named | {alias.value for alias in aliases if isinstance(alias, ast.Constant)}
    raise SystemExit(f"{model} is not in this DeepSpeed. Smallest fix: bring MODELS up to date.")


def removed(folder: Path) -> set[str]:
    """The keys that this version refuses by name."""
    for node in ast.parse((folder / "runtime/config.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "_REMOVED_TOP_LEVEL_CONFIG_KEYS":
            return set(ast.literal_eval(ast.Dict(node.value.keys, [ast.Constant(0)] * len(node.value.keys))))
    return set()


def table(folder: Path) -> dict[str, object]:
    """The whole table, as it stands in ``known_keys.py``."""
    bound = constants(folder)
    sections: dict[str, set[str]] = {"": removed(folder) | {key for key in MODELS if "." not in key}}
    sections[""] |= {"autotuning", "communication_data_type", "data_efficiency", "sequence_parallel_size"}
    for reader in READERS:
        for holder, key in reads(ast.parse((folder / reader).read_text(encoding="utf-8"))):
            text = bound.get(name_of(key)) if not isinstance(key, ast.Constant) else key.value
            block = "" if name_of(holder) in WHOLE else BLOCKS.get(name_of(holder))
            if isinstance(holder, ast.Subscript) and name_of(holder.value) in WHOLE:
                block = bound.get(name_of(holder.slice))
            if isinstance(text, str) and block is not None:
                sections.setdefault(block, set()).add(text)
    sections["pipeline"] = {
        *("stages", "partition", "seed_layers", "activation_checkpoint_interval", "pipe_partitioned"),
        *("grad_partitioned", "use_reentrant"),
    }
    checked = {block: fields(folder, model) for block, model in MODELS.items()}
    for block, words in EARLIER.items():
        (checked if block in checked else sections)[block] |= set(words.split())
    for block in ("timers", *checked):
        sections.pop(block, None)
    top = sections.pop("")
    version = importlib.metadata.version("deepspeed").partition("+")[0]
    return {"VERSION": version, "TOP_LEVEL": top, "SECTIONS": sections, "CHECKED": checked, "REMOVED": removed(folder)}


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
    OUT.write_text(source(table(package())), encoding="utf-8")


if __name__ == "__main__":
    main()
