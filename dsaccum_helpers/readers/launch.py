"""Launch commands and job scripts: which program is started, how often, with which arguments and environment.

Of several commands the one that trains counts: a distributed launcher before plain ``python``, training before
evaluation or conversion, the first before the second.
"""

from __future__ import annotations

import re

from dsaccum_helpers.job import Config, Source
from dsaccum_helpers.readers import hostfile
from dsaccum_helpers.readers.launcher_options import count, program_of, unwrapped
from dsaccum_helpers.readers.launchers import Around, launch_of, mpirun, srun
from dsaccum_helpers.readers.shell import UNKNOWN, Command, Shell

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.job import Job, Launch

__all__ = ["read", "recognises", "settle"]

_LONGEST = 200_000
_BATCH = re.compile(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.MULTILINE)
_BATCH_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus"}
_HELPER = re.compile(
    r"eval|(?:^|[/_.])(?:test|infer|inference|predict|generate|serve|chat|demo|convert\w*|preprocess\w*|prepare\w*|"
    r"download\w*|tokenize\w*|merge\w*|export\w*|plot\w*|setup|zero_to_fp32|ds_report|collect_env|visuali[sz]e\w*|"
    r"split\w*|build\w*|install\w*|check\w*|make_\w+|get_\w+)(?:[_.]|$)"
)
#: Frameworks, by a sign in the name of the program or by their own command.
_SPEAKING = (
    ("openrlhf", r"openrlhf", ()),
    ("trl", r"^trl\b", ("trl",)),
    ("transformers", r"^(?:llamafactory|axolotl)", ("llamafactory-cli", "axolotl", "swift")),
)
_QUIET = {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "PS1", "LD_PRELOAD", "LIBRARY_PATH", "CPATH"}
_PROMPT = re.compile(r"^[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+:\S*)?[$%][ \t]+", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:```.*|%%(?:bash|sh).*)$", re.MULTILINE)


def recognises(text: str) -> bool:
    """Is it a shell script, a launch command or a hostfile?"""
    text = text[:_LONGEST]
    if re.match(r"\s*#!.*\b(?:ba|z|da|k)?sh\b", text) or _BATCH.search(text) or hostfile.is_hostfile(text):
        return True
    return any(_launches(text, "", Shell()))


def read(text: str, file: str, job: Job, line: int = 1) -> None:
    """Put the launches of a shell text, or the nodes of a hostfile, into the job; ``line`` is that of its first."""
    if hosts := hostfile.hosts_of(text):
        job.hosts[file] = hosts
        _count_hosts(job)
        return
    shell = Shell(lambda name: _known(job, name))
    documents: list[Command] = []
    found = sorted(_launches(text, file, shell, line, documents), key=_importance)
    for command in documents:
        _written(command, shell, file, job)
    if found:
        for name, value in found[0][1].items():
            _environment(name, value, found[0][0].source, job)
    for name, (value, line) in shell.exported.items():
        if not found or name not in found[0][1]:
            _environment(name, value, Source(file, line), job)
    job.launches += [launch for launch, _ in found]
    if found:
        _put(found[0][0], job)
    _count_hosts(job)


def settle(job: Job) -> None:
    """After all files: a plain ``python`` is one process where nothing else says how many there are."""
    if job.all("processes") or not job.launches or any(fact.value == "lightning" for fact in job.speakers):
        return
    launch = job.launches[0]
    several = re.compile(r"--?(?:gpus|devices|nproc\w*|num_gpus|n_gpus?|world_size|num_devices|ngpus?\w*)\b|ray")
    if (
        launch.launcher == "python"
        and launch.processes
        and not any(several.search(word) for word in (*launch.words, launch.script or ""))
    ):
        job.add("processes", launch.processes, launch.source)


def _written(command: Command, shell: Shell, file: str, job: Job) -> None:
    """A DeepSpeed config that the script writes itself, where all its variables are known."""
    from dsaccum_helpers.readers.config import parse
    from dsaccum_helpers.readers.log_config import is_config

    text = "".join(shell.words.expand('"' + command.heredoc.replace('"', '\\"') + '"', split=False))
    parsed = parse(text) if UNKNOWN not in text and text.lstrip().startswith("{") else None
    if parsed and is_config(parsed.values):
        places = {path: (line + command.line, column) for path, (line, column) in parsed.places.items()}
        job.configs.append(Config(parsed.values, file, places, "embedded"))


def _known(job: Job, name: str) -> str | None:
    """A variable that another file of the job has set."""
    value = job.value(f"environment.{name}")
    if value is None and name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        value = next((launch.nodes for launch in job.launches if launch.launcher == "srun" and launch.nodes), None)
    return None if value is None else str(value)


def _environment(name: str, value: str, source: Source, job: Job) -> None:
    """One variable that the program sees."""
    if name not in _QUIET and UNKNOWN not in value and len(value) < 1000:
        number = int(value) if re.fullmatch(r"-?\d{1,12}", value) else value
        job.add(f"environment.{name}", number, source._replace(key=name))


def _importance(found: tuple[Launch, dict[str, str]]) -> tuple[bool, bool]:
    """Sorts the launch that counts first; equals keep their order."""
    launch, _ = found
    return bool(_HELPER.search((launch.script or "").lower())), launch.launcher == "python"


def _launches(
    text: str, file: str, shell: Shell, line: int = 1, documents: list[Command] | None = None
) -> Iterator[tuple[Launch, dict[str, str]]]:
    """Every launch of a text in the order written, with the variables that were set for it alone.

    ``documents`` takes in the commands that write a here-document to a file.
    """
    text = _joined(_FENCE.sub("", _PROMPT.sub("", text[:_LONGEST].replace("\r\n", "\n"))))
    batch = _batch_options(text, shell)
    for command in shell.commands(text, line):
        if documents is not None and command.heredoc and command.words[0] in ("cat", "tee"):
            documents.append(command)
        for inner, around in _inside(command, shell, batch, 0):
            environment = {name: value for name, (value, _) in shell.exported.items()} | inner.environment
            launch = launch_of(inner.words, environment, Source(file, inner.line), inner.text, around)
            if launch:
                launch.started = _times_started(launch, around)
                yield launch, inner.environment


def _times_started(launch: Launch, around: Around) -> int:
    """How often srun or mpirun starts a launcher that starts all processes of a node itself: once a node is right."""
    if launch.launcher not in ("torchrun", "deepspeed", "accelerate") or not around.tasks:
        return 1
    nodes = around.nodes or (around.tasks if around.launcher == "mpirun" else 1)
    return max(1, around.tasks // nodes)


def _joined(text: str) -> str:
    """Pasted options of which the backslash before the line end was lost, with that backslash."""
    lines = text.split("\n")
    for number, following in enumerate(lines[1:]):
        line = lines[number].rstrip()
        if re.match(r"[ \t]*--[A-Za-z]", following) and line and not re.search("#|<<", line) and line[-1] not in "\\^`":
            lines[number] = f"{line} \\"
    return "\n".join(lines)


def _batch_options(text: str, shell: Shell) -> dict[str, str]:
    """The ``#SBATCH`` options, spelt with underscores; the variables that SLURM makes of them are set."""
    options: dict[str, str] = {}
    for line in _BATCH.findall(text):
        for name, value in re.findall(r"--?([A-Za-z][\w-]*)(?:[= ]\s*(?!-)(\S+)|(?=\s|$))", line):
            attached = re.fullmatch(r"([NnG])(\d+)", name)
            name, value = (attached[1], attached[2]) if attached else (name, value)
            options[_BATCH_SHORT.get(name, name.replace("-", "_"))] = value.strip("'\"")
    nodes, tasks, per_node = (options.get(name, "") for name in ("nodes", "ntasks", "ntasks_per_node"))
    if count(nodes) and not tasks:
        each = 1 if not per_node else count(per_node)
        tasks = str(int(nodes) * each) if each else ""
    gpus = re.search(r"(\d+)$", options.get("gpus_per_node") or options.get("gres") or "")
    said = {"NNODES": nodes, "JOB_NUM_NODES": nodes, "NTASKS": tasks, "NPROCS": tasks, "NTASKS_PER_NODE": per_node}
    said |= {"GPUS_PER_NODE": gpus[1], "GPUS_ON_NODE": gpus[1]} if gpus else {}
    for name, value in said.items():
        if count(value):
            shell.variables[f"SLURM_{name}"] = value
    return options


def _inside(command: Command, shell: Shell, batch: dict[str, str], deep: int) -> Iterator[tuple[Command, Around]]:
    """The commands behind ``srun``, ``mpirun`` and ``bash -c``, and what stands around them."""
    words = unwrapped(command.words)
    name = words[0].split("/")[-1] if words else ""
    around = Around()
    if name == "srun":
        around, words = srun(words[1:], batch)
    elif name in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun"):
        around, words = mpirun(words[1:])
        shell.variables["OMPI_COMM_WORLD_SIZE"] = str(around.tasks) if around.tasks else UNKNOWN
    environment = dict(command.environment)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        key, _, value = words.pop(0).partition("=")
        environment[key] = value
    words = unwrapped(words)
    script = next((words[at + 1] for at, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
    if words and words[0].split("/")[-1] in ("bash", "sh", "zsh") and script and deep < 4:
        for inner in shell.nested(script, command):
            for one, nearer in _inside(inner, shell, batch, deep + 1):
                yield one, nearer if nearer.launcher else around
        return
    if around.launcher and words and not launch_of(words, {}, Source(), ""):
        words = program_of(words) or words
    yield command._replace(words=words, environment=environment), around


def _put(launch: Launch, job: Job) -> None:
    """The facts of the launch that counts."""
    source = launch.source
    if launch.processes and launch.launcher != "python":
        job.add("processes", launch.processes, source)
    if launch.launcher in ("accelerate", "trl"):
        _accelerate(launch, job)
    script = launch.script or ""
    for speaker, sign, launchers in _SPEAKING:
        if re.search(sign, script) or launch.launcher in launchers:
            job.speak(speaker, source)
    from dsaccum_helpers.readers.arguments import from_words

    from_words(_known_words(launch.words), job, source, script)


def _known_words(words: list[str]) -> list[str]:
    """The words without options whose value only a running shell knows."""
    kept: list[str] = []
    for word in words:
        if UNKNOWN not in word:
            kept.append(word)
        elif not word.startswith("-") and kept and kept[-1].startswith("--") and "=" not in kept[-1]:
            kept.pop()
    return kept


def _accelerate(launch: Launch, job: Job) -> None:
    """Flags of ``accelerate launch``."""
    if launch.launcher == "accelerate":
        job.speak("accelerate", launch.source)
    for name, text in launch.options.items():
        if UNKNOWN in text:
            continue
        number = re.fullmatch(r"-?\d{1,12}", text)
        value = int(text) if number else float(text) if re.fullmatch(r"\d+\.\d*", text) else text or True
        source = launch.source._replace(key=name)
        job.add(f"accelerate.flag.{name}", value, source)
        if name in ("use_deepspeed", "mixed_precision", "deepspeed_config_file", "config_file"):
            job.add(f"accelerate.{name}", value, source)
        if name == "deepspeed_config_file":
            job.refer(text, source)


def _count_hosts(job: Job) -> None:
    """Processes of launches that wait for a hostfile."""
    for launch in job.launches:
        wanted = launch.options.get("hostfile")
        if launch.processes or launch.launcher not in ("deepspeed", "mpirun"):
            continue
        for file, hosts in job.hosts.items():
            base = file.replace("\\", "/").split("/")[-1]
            named = wanted.replace("\\", "/").split("/")[-1] == base if wanted else base == "hostfile"
            if not named and not (wanted and len(job.hosts) == 1):
                continue
            if launch.launcher == "mpirun":
                launch.processes, launch.nodes = sum(hosts.values()), len(hosts)
            else:
                launch.processes, launch.nodes = hostfile.selected(hosts, launch.options)
            if launch.processes and launch is job.launches[0]:
                job.add("processes", launch.processes, launch.source)
            break
