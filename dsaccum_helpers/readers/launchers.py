"""What each launcher's command line says: how many processes, which program, which arguments reach it (pure)."""

from __future__ import annotations

import re
from collections import namedtuple

from dsaccum_helpers.job import Launch
from dsaccum_helpers.readers.hostfile import Count, include_count
from dsaccum_helpers.readers.launcher_options import (
    ACCELERATE_FLAGS,
    DEEPSPEED_FLAGS,
    DEEPSPEED_NAMES,
    MPI_FLAGS,
    PYTHON_VALUES,
    SRUN_FLAGS,
    TORCHRUN_FLAGS,
    count,
    devices,
    program_of,
    split,
    unwrapped,
)

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsaccum_helpers.job import Source

__all__ = ["Around", "launch_of", "mpirun", "srun"]

Around = namedtuple("Around", "launcher nodes tasks options", defaults=(None, None, None, None))
Around.__doc__ = "What stands around a command: srun or mpirun, and how many nodes and tasks it starts."
ALONE = Around()

_NOT_TRAINING = re.compile(
    r"^(?:pip|venv|ensurepip|http\.server|json\.tool|pytest|unittest|ipykernel|jupyter|site|timeit|zipfile|build|"
    r"nltk\.\w+|spacy|torch\.utils\.\w+|tensorboard\S*|wandb|compileall|py_compile|pdb)$"
)
_FRAMEWORK_COMMANDS = {"llamafactory-cli": "train", "llamafactory_cli": "train", "lmf": "train", "axolotl": "train"}
_SWIFT = {"sft", "rlhf", "pt"}
_TRL = {"sft", "dpo", "grpo", "kto", "rloo", "reward"}


def launch_of(
    words: Sequence[str], environment: Mapping[str, str], source: Source, text: str, around: Around = ALONE
) -> Launch | None:
    """The launch that a command's words are, None where they start no training program."""
    words = unwrapped(words)
    if not words:
        return None
    name, rest = words[0].replace("\\", "/").split("/")[-1].removesuffix(".exe"), words[1:]
    if re.fullmatch(r"(?:python|pypy)[\d.]*w?", name):
        return _python(rest, environment, source, text, around)
    if name in ("deepspeed", "ds", "deepspeed.pt"):
        return _deepspeed(rest, environment, source, text)
    if name == "torchrun":
        return _torchrun(rest, environment, source, text, around)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _accelerate(rest[1:], environment, source, text)
    if name == "accelerate-launch":
        return _accelerate(rest, environment, source, text)
    return _framework(name, rest, environment, source, text)


def _framework(
    name: str, rest: Sequence[str], environment: Mapping[str, str], source: Source, text: str
) -> Launch | None:
    """Command lines of training frameworks, which start their own processes."""
    first = rest[0] if rest else ""
    if _FRAMEWORK_COMMANDS.get(name) == first:
        per_node = count(environment.get("NPROC_PER_NODE")) or devices(environment)
        nodes = count(environment.get("NNODES")) or 1
        processes = per_node * nodes if per_node else None
        options = {word.lstrip("-"): "" for word in rest if word.startswith("--launcher")}
        return Launch(name, source, processes, nodes, first, rest[1:], text, options)
    if name in ("swift", "megatron") and first in _SWIFT:
        per_node, nodes = count(environment.get("NPROC_PER_NODE")), count(environment.get("NNODES")) or 1
        return Launch("swift", source, per_node * nodes if per_node else None, nodes, first, rest[1:], text)
    if name == "trl" and first in _TRL:
        options, _ = split(rest[1:], ACCELERATE_FLAGS)
        return Launch("trl", source, count(options.get("num_processes")), None, first, rest[1:], text, options)
    if name == "ray" and rest[:2] == ["job", "submit"]:
        inner = rest[rest.index("--") + 1 :] if "--" in rest else program_of(rest[2:])
        found = launch_of(inner, environment, source, text) if inner and inner[0] != "ray" else None
        if found:
            return Launch("ray", source, None, None, found.script, found.words, text)
    if name == "horovodrun":
        options, inner = split(rest, {"verbose"})
        found = launch_of(inner, environment, source, text)
        if found:
            return Launch("mpirun", source, count(options.get("np")), None, found.script, found.words, text)
    return None


def _deepspeed(rest: Sequence[str], environment: Mapping[str, str], source: Source, text: str) -> Launch | None:
    """``deepspeed [options] script arguments``."""
    options, words = split(rest, DEEPSPEED_FLAGS, DEEPSPEED_NAMES)
    if not words:
        return None
    found = _deepspeed_count(options, environment)
    return Launch("deepspeed", source, *found, words[0], words[1:], text, options)


def _deepspeed_count(options: Mapping[str, str], environment: Mapping[str, str]) -> Count:
    """As far as the options alone tell; a hostfile may tell more."""
    nodes, gpus = count(options.get("num_nodes")), count(options.get("num_gpus"))
    if include := options.get("include"):
        return include_count(include)
    if options.get("exclude") or ("hostfile" in options and nodes != 1):
        return Count(None, nodes)
    if gpus is None and "num_gpus" not in options and nodes in (None, 1):
        gpus = devices(environment)
        nodes = 1 if gpus else nodes
    if gpus is None or (nodes is None and "num_nodes" in options):
        return Count(None, nodes)
    return Count(gpus * (nodes or 1), nodes or 1)


def _torchrun(
    rest: Sequence[str], environment: Mapping[str, str], source: Source, text: str, around: Around
) -> Launch | None:
    """``torchrun [options] script arguments``, also as ``python -m torch.distributed.run``."""
    options, words = split(rest, TORCHRUN_FLAGS)
    if not words:
        return None
    said = options.get("nproc_per_node", environment.get("PET_NPROC_PER_NODE", "1"))
    per_node = devices(environment) if said in ("auto", "gpu") else count(said)
    wanted = options.get("nnodes", environment.get("PET_NNODES"))
    nodes = count(re.sub(r"^(\d+):\1$", r"\1", wanted)) if wanted else None
    if wanted is None or (nodes is None and around.nodes and ":" not in wanted):
        nodes = around.nodes or (around.tasks if around.launcher == "mpirun" else None) or 1
    if "standalone" in options:
        nodes = nodes or 1
    processes = per_node * nodes if per_node and nodes else None
    return Launch("torchrun", source, processes, nodes, words[0], words[1:], text, options)


def _accelerate(rest: Sequence[str], environment: Mapping[str, str], source: Source, text: str) -> Launch | None:
    """``accelerate launch [options] script arguments``."""
    options, words = split(rest, ACCELERATE_FLAGS)
    if not words:
        return None
    processes = count(options.get("num_processes"))
    if "num_processes" not in options and "config_file" not in options and "cpu" not in options:
        processes = devices(environment)
    nodes = count(options.get("num_machines"))
    return Launch("accelerate", source, processes, nodes, words[0], words[1:], text, options)


def _python(
    rest: Sequence[str], environment: Mapping[str, str], source: Source, text: str, around: Around
) -> Launch | None:
    """``python [-u] script`` or ``python -m module``; a launcher's module is that launcher."""
    at = 0
    while at < len(rest) and rest[at].startswith("-") and rest[at] not in ("-m", "-c", "-"):
        at += 2 if rest[at] in PYTHON_VALUES else 1
    rest = rest[at:]
    if len(rest) > 1 and rest[0] == "-m":
        module, rest = rest[1], rest[2:]
        if re.fullmatch(r"torch\.distributed\.(?:run|launch)", module):
            return _torchrun(rest, environment, source, text, around)
        if module == "deepspeed.launcher.runner" or module == "deepspeed":
            return _deepspeed(rest, environment, source, text)
        if module == "deepspeed.launcher.launch":
            return _one_node(rest, source, text)
        if module in ("accelerate.commands.launch", "accelerate.launch"):
            return _accelerate(rest, environment, source, text)
        if _NOT_TRAINING.match(module):
            return None
        return _around(module, rest, environment, source, text, around)
    if not rest or rest[0].startswith("-") or not re.search(r"\.pyc?$|\.pt$", rest[0]):
        return None
    if re.search(r"torch/distributed/(?:run|launch)\.py$", rest[0]):
        return _torchrun(rest[1:], environment, source, text, around)
    return _around(rest[0], rest[1:], environment, source, text, around)


def _around(
    script: str, words: Sequence[str], environment: Mapping[str, str], source: Source, text: str, around: Around
) -> Launch:
    """A plain program: as many processes as what stands around it starts, one without."""
    if around.launcher:
        options = dict(around.options or {})
        return Launch(around.launcher, source, around.tasks, around.nodes, script, words, text, options)
    placed = "WORLD_SIZE" in environment or any(
        word.lstrip("-").startswith(("local_rank", "local-rank")) for word in words
    )
    size = count(environment.get("WORLD_SIZE")) if placed else 1  # something else may start it several times
    return Launch("python", source, size, None, script, words, text)


def _one_node(rest: Sequence[str], source: Source, text: str) -> Launch | None:
    """``deepspeed.launcher.launch``: the command that ``deepspeed`` runs on each node, with the world in base64."""
    import base64
    import json

    options, words = split(rest, DEEPSPEED_FLAGS)
    try:
        world = json.loads(base64.urlsafe_b64decode(options.get("world_info", "")))
        sizes = [len(slots) for slots in world.values()]
    except (ValueError, AttributeError, TypeError, RecursionError):
        sizes = []
    if not words:
        return None
    return Launch("deepspeed", source, sum(sizes) or None, len(sizes) or None, words[0], words[1:], text, options)


def srun(rest: Sequence[str], batch: Mapping[str, str]) -> tuple[Around, list[str]]:
    """What ``srun`` starts, given the ``#SBATCH`` lines, and the words behind its options."""
    options, words = split(rest, SRUN_FLAGS, short={"n": "ntasks", "N": "nodes", "G": "gpus", "J": "job_name"})
    if "nodes" in options and "ntasks" not in options:
        batch = {name: value for name, value in batch.items() if name != "ntasks"}
    said = {**batch, **options}
    nodes = count(said.get("nodes", "").split("-")[0] if "-" not in said.get("nodes", "") else None)
    per_node = count(said.get("ntasks_per_node"))
    tasks = count(said.get("ntasks"))
    if tasks is None and "ntasks" not in said and nodes:
        tasks = nodes * per_node if per_node else None if "ntasks_per_node" in said else nodes
    return Around("srun", nodes, tasks, options), words


def mpirun(rest: Sequence[str]) -> tuple[Around, list[str]]:
    """What ``mpirun`` or ``mpiexec`` starts, and the words behind its options."""
    short = {"n": "np", "c": "np", "N": "npernode", "ppn": "npernode", "perhost": "npernode", "H": "host"}
    short |= {"f": "hostfile", "machinefile": "hostfile", "pernode": "pernode"}
    twice = {"mca", "gmca", "genv", "env", "am"}
    options, words = split(rest, MPI_FLAGS, short=short, twice=twice)
    hosts = [part.partition(":") for part in options.get("host", "").split(",") if part]
    tasks = count(options.get("np"))
    slots = [count(number) for _, _, number in hosts]
    if tasks is None and "np" not in options and slots and all(slots):
        tasks = sum(number or 0 for number in slots)
    return Around("mpirun", None, tasks, options), words
