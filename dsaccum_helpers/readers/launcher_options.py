"""The options of launchers: which take a value, and where the program begins (pure)."""

from __future__ import annotations

import re

from dsaccum_helpers.readers.shell_words import UNKNOWN

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEEPSPEED_FLAGS = _names(
    "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank "
    "quiet q help"
)
DEEPSPEED_NAMES = _names(
    "hostfile include exclude num_nodes min_elastic_nodes max_elastic_nodes num_gpus num_accelerators master_port "
    "master_addr node_rank launcher launcher_args module no_python no_local_rank no_ssh no_ssh_check force_multi "
    "save_pid enable_each_rank_log autotuning elastic_training bind_cores_to_rank bind_core_list ssh_port "
    "venv_script log_level quiet"
)
TORCHRUN_FLAGS = _names("standalone module m no_python run_path use_env help h")
ACCELERATE_FLAGS = _names(
    "cpu multi_gpu tpu ipex use_xpu quiet q use_deepspeed use_fsdp use_megatron_lm module m no_python debug "
    "same_network tpu_cluster no_tpu_cluster tpu_use_cluster tpu_use_sudo downcast_bf16 enable_cpu_affinity fp16 "
    "use_mps_device dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation use_parallelism_config "
    "use_fp8 help h"
)
SRUN_FLAGS = _names(
    "label l unbuffered u exclusive pty overlap no_kill k verbose v quiet Q disable_status X wait_all_nodes "
    "propagate overcommit O oversubscribe s spread_job contiguous exact whole"
)
MPI_FLAGS = _names(
    "allow_run_as_root oversubscribe tag_output report_bindings v q d display_map display_allocation bind_to_core "
    "bynode bycore byslot nolocal nooversubscribe prepend_rank l pernode quiet verbose timestamp_output "
    "genvall envall"
)
PYTHON_VALUES = frozenset(("-X", "-W", "--check-hash-based-pycs"))
_WRAPPERS = re.compile(
    r"^(?:nohup|time|exec|command|builtin|sudo|setsid|then|do|else|env|stdbuf|numactl|nice|ionice|timeout|taskset|"
    r"uv|uvx|poetry|pixi|pdm|hatch|rye|pipenv|conda|mamba|micromamba|singularity|apptainer|docker|podman|enroot|"
    r"shifter|nsys|ncu|nvprof|scalene|coverage|xvfb-run|strace|gdb|catchsegv|ssh|pdsh|jsrun|aprun|kubectl|"
    r"proxychains4?|script|unbuffer|tini|dumb-init|chrt|watch|py-spy|memray|viztracer|sbatch|\$)$"
)
#: Words with which a program begins, wherever they stand behind a wrapper.
_PROGRAM = re.compile(
    r"^(?:\S*/)?(?:deepspeed|torchrun|accelerate|python[\d.]*|mpirun|mpiexec(?:\.hydra)?|srun|bash|sh|llamafactory-cli|"
    r"axolotl|swift|trl|ray|horovodrun)(?:\.exe)?$"
)
_SCRIPT = re.compile(r"\.(?:py|sh|bash)$")
_LARGEST = 10_000_000


def count(text: str | None) -> int | None:
    """A positive whole number that is written out, None for anything else."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0 else None


def devices(environment: Mapping[str, str]) -> int | None:
    """How many devices ``CUDA_VISIBLE_DEVICES`` and its kin show; None where they do not say."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        listed = [part.strip() for part in environment.get(name, "").split(",") if part.strip()]
        if listed and all(re.fullmatch(r"\d+|(?:GPU|MIG)-[\w/-]+", part) for part in listed):
            return len(listed)
    return None


def split(
    words: Sequence[str],
    flags: Collection[str],
    names: Collection[str] = (),
    *,
    short: Mapping[str, str] | None = None,
    twice: Collection[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """The options before the program, spelt with underscores, and the words from the program on.

    ``names``: may be shortened, as argparse allows. ``short``: one-letter names. ``twice``: options with two values.
    """
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("--", UNKNOWN):
            at += 1
            continue
        if not word.startswith("-") or word == "-":
            break
        at += 1
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        attached = re.fullmatch(r"([A-Za-z])(\d+)", name)
        if short and attached and attached[1] in short and not word.startswith("--"):
            name, equals, value = attached[1], "=", attached[2]
        name = _full_name(name, names, short or {})
        if equals or name in flags:
            options[name] = value
        elif at < len(words) and not _is_no_value(words, at, name):
            options[name] = words[at]
            at += 2 if name in twice else 1
        else:
            options[name] = ""
    return options, list(words[at:])


def _full_name(name: str, names: Collection[str], short: Mapping[str, str]) -> str:
    """The option's full name: ``H`` is ``hostfile``, ``num_gpu`` is ``num_gpus``."""
    if name in short:
        return short[name]
    if names:
        name = {"H": "hostfile", "i": "include", "e": "exclude"}.get(name, name)
        near = [one for one in names if one.startswith(name)]
        if name not in names and len(near) == 1:
            name = near[0]
        return {"num_accelerators": "num_gpus"}.get(name, name)
    return name


def _is_no_value(words: Sequence[str], at: int, name: str) -> bool:
    """Is the word behind an option of unknown kind the next option or the program itself?"""
    word = words[at]
    if re.match(r"--?[A-Za-z]", word):
        return True
    last = at + 1 >= len(words) or words[at + 1].startswith("-")
    return bool(_SCRIPT.search(word)) and last and "config" not in name and "script" not in name


def program_of(words: Sequence[str]) -> list[str]:
    """From the first word on with which a program begins; nothing where there is none."""
    for at, word in enumerate(words):
        if _PROGRAM.match(word):
            return list(words[at:])
    return []


def unwrapped(words: Sequence[str]) -> list[str]:
    """A command without what merely stands around it: ``nohup``, ``env A=1``, ``docker run ...``, ``uv run``."""
    words = [word for word in words if word]
    while words and words[0] in ("!", "$", "&", "@"):
        words = words[1:]
    if words and words[0].startswith("!") and len(words[0]) > 1:
        words = [words[0][1:], *words[1:]]
    if words and _WRAPPERS.match(words[0].split("/")[-1]):
        return program_of(words[1:])
    return list(words)
