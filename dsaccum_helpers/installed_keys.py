"""The keys that the installed DeepSpeed reads, found in its source with ``ast``: it is never imported.

``known_keys.py`` is the table of one version, kept for where DeepSpeed is not installed or is that version. Where
another one is installed, its own keys count as well.
"""

from __future__ import annotations

import ast
import os
import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

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


def package() -> str | None:
    """The folder of the installed DeepSpeed, found without importing it; None where there is none."""
    from importlib.util import find_spec

    try:
        found = find_spec("deepspeed")
    except (ImportError, ValueError):
        return None
    return os.path.dirname(found.origin) if found is not None and found.origin else None


def version(folder: str) -> str | None:
    """The version of the DeepSpeed in a folder, as it says itself."""
    match = re.search(r"version\s*=\s*['\"]([^'\"]+)", _text(folder, "git_version_info_installed.py"))
    return match[1].partition("+")[0] if match else None


def newer_keys(known: str) -> frozenset[str]:
    """The top-level keys of an installed DeepSpeed that is another version than the known one; none otherwise."""
    folder = package()
    if folder is None or version(folder) in (None, known):
        return frozenset()
    return frozenset(table(folder)[0].get("", ()))


def _text(folder: str, name: str) -> str:
    """A file of the package; nothing where this version does not have it."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _tree(folder: str, name: str) -> ast.Module:
    try:
        return ast.parse(_text(folder, name))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def constants(folder: str) -> dict[str, str]:
    """Every name that DeepSpeed's files of constants bind to a text."""
    bound: dict[str, str] = {}
    for name in sorted([*_files(folder, "constants.py"), *READERS]):
        for node in _tree(folder, name).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            text = node.value.value
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


def _files(folder: str, ending: str) -> list[str]:
    """The names of all files with this ending, relative to the folder."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sorted(os.path.relpath(path, folder) for path in paths if path.endswith(ending))


def fields(folder: str, model: str) -> set[str]:
    """The fields of a pydantic model, under every name that it accepts; none where this version does not have it."""
    for name in [name for name in _files(folder, ".py") if "config" in os.path.basename(name)]:
        for node in _tree(folder, name).body:
            if isinstance(node, ast.ClassDef) and node.name == model:
                annotated = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                calls = [one.value for one in annotated if isinstance(one.value, ast.Call)]
                aliases = [word.value for call in calls for word in call.keywords if word.arg == "alias"]
                named = {one.target.id for one in annotated if isinstance(one.target, ast.Name)}
                return named | {str(alias.value) for alias in aliases if isinstance(alias, ast.Constant)}
    return set()


def removed(folder: str) -> set[str]:
    """The keys that this version refuses by name."""
    for node in _tree(folder, "runtime/config.py").body:
        named = isinstance(node, ast.Assign) and name_of(node.targets[0]) == "_REMOVED_TOP_LEVEL_CONFIG_KEYS"
        if named and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    return set()


def table(folder: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Keys of the config (under an empty name) and of the blocks that are not checked; keys of those that are."""
    bound = constants(folder)
    sections: dict[str, set[str]] = {"": removed(folder) | {key for key in MODELS if "." not in key}}
    sections[""] |= {"autotuning", "communication_data_type", "data_efficiency", "sequence_parallel_size"}
    for reader in READERS:
        for holder, key in reads(_tree(folder, reader)):
            text = bound.get(name_of(key)) if not isinstance(key, ast.Constant) else key.value
            block: str | None = "" if name_of(holder) in WHOLE else BLOCKS.get(name_of(holder))
            if isinstance(holder, ast.Subscript) and name_of(holder.value) in WHOLE:
                block = bound.get(name_of(holder.slice))
            if isinstance(text, str) and block is not None:
                sections.setdefault(block, set()).add(text)
    sections["pipeline"] = {
        *("stages", "partition", "seed_layers", "activation_checkpoint_interval", "pipe_partitioned"),
        *("grad_partitioned", "use_reentrant"),
    }
    checked = {block: fields(folder, model) for block, model in MODELS.items()}
    for block in ("timers", *checked):
        sections.pop(block, None)
    return sections, checked
