"""How many processes a log says were started, and by whom (pure)."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.readers.log import Events

_COUNT = r"\s*(\d{1,7})\b"
#: (how it is named, the word searched for, pattern), the best evidence first.
_SAID = (
    ("dist_world_size", "dist_world_size", r"dist_world_size\s*=" + _COUNT),
    ("the launcher's nnodes and num_local_procs", "num_local_procs", r"nnodes=(\d{1,7}),\s*num_local_procs=" + _COUNT),
    ("global_world_sizes", "global_world_sizes", r"global_world_sizes=\[" + _COUNT),
    ("torchrun's launch configs", "nproc_per_node", r"max_nodes\s*:\s*(\d{1,7})\s+nproc_per_node\s*:\s*(\d{1,7})\b"),
    ("MPI settings", "Discovered MPI settings", r"world_size=" + _COUNT),
    ("Lightning's MEMBER", "MEMBER:", r"MEMBER:\s*\d+\s*/" + _COUNT),
    ("Lightning", "All distributed processes registered", r"Starting with\s*(\d{1,7})\s*process"),
    ("Megatron's world size", "using world size", r"using world size:" + _COUNT),
    ("Num processes", "Num processes", r"Num processes\s*[:=]" + _COUNT),
    ("num_processes", "num_processes", r"\bnum_processes['\"]?\s*[:=]" + _COUNT),
)
_WORLD = re.compile(r"(?<![\w-])[Ww]orld[ _][Ss]ize['\"]?\s*(?:is\s*|[:=]\s*)(\d{1,7})\b")
_OTHER_WORLD = re.compile(
    r"(?:parallel|model|tensor|pipeline|data|dp|tp|pp|sp|mp|ep|group(?: of)?|MPI|torch|local|expert|sequence|current|"
    r"checkpoint|mesh_device\s*\w*|cross|previous|old|saved)['\"\]]?[\s_=-]*$",
    re.IGNORECASE,
)
_DATA_WORK = re.compile(r"data|token|\bmap\b|worker|pool|preprocess|load", re.IGNORECASE)
_PARALLEL = (
    ("tensor_parallel", r"tensor-model-parallel[- ]size:\s*(\d{1,7})\b"),
    ("pipeline_parallel", r"pipeline-model-parallel[- ]size:\s*(\d{1,7})\b"),
    ("sequence_parallel", r"context-parallel[- ]size:\s*(\d{1,7})\b"),
)


def read(events: Events) -> None:
    """``started`` events, and the fact ``processes`` by the best of them."""
    said = [*_counts(events), *_worlds(events)]
    if world := _world_info(events):
        said.insert(0, world)
    for how, processes, at in said:
        events.add("started", {"processes": processes, "how": how}, at)
    if said:
        events.job.add("processes", said[0][1], events.source(said[0][2]))
    _ranks(events)
    _commands(events)


def _counts(events: Events) -> list[tuple[str, int, int]]:
    """What launchers and frameworks say in so many words: (how, processes, place)."""
    found = []
    for how, word, pattern in _SAID:
        for at in events.log.hits(word, 5):
            window = events.log.window(at, 0, 2)
            match = re.search(pattern, window.text)
            if not match or (how == "num_processes" and _DATA_WORK.search(window.text.split("\n")[0])):
                continue
            processes = 1
            for text in match.groups():
                processes *= int(text)
            if processes:
                found.append((how, processes, at))
                if how.startswith("Megatron"):
                    _parallel(events, window.text, at)
                break
    return found


def _parallel(events: Events, text: str, at: int) -> None:
    """The sizes by which Megatron divides the world."""
    for name, pattern in _PARALLEL:
        if (match := re.search(pattern, text)) and int(match[1]) > 1:
            events.job.add(name, int(match[1]), events.source(at))


def _worlds(events: Events) -> list[tuple[str, int, int]]:
    """``world_size: 8`` in a line of anybody's, but for parts of the world."""
    for word in ("world_size", "world size", "World size", "World Size"):
        for at in events.log.hits(word, 40):
            line = events.log.text[max(0, at - 40) : at + 60]
            before = line[: min(at, 40)].split("\n")[-1]
            match = _WORLD.match(events.log.text, at) if not _OTHER_WORLD.search(before) else None
            if match and "mesh_device" not in line and int(match[1]):
                return [("world_size", int(match[1]), at)]
    return []


def _world_info(events: Events) -> tuple[str, int, int] | None:
    """The dict of nodes and their devices that ``deepspeed`` prints, or hands on in base64."""
    for at in events.log.hits("WORLD INFO DICT", 3):
        window = events.log.window(at, 0, 8)
        listed = re.search(r"WORLD INFO DICT\s*:\s*\{([^}]*)\}", window.text)
        sizes = [len(re.findall(r"\d+", slots)) for slots in re.findall(r"\[([^\]]*)\]", listed[1])] if listed else []
        if sum(sizes):
            return "WORLD INFO DICT", sum(sizes), at
    for at in events.log.hits("--world_info=", 3):
        import base64
        import json

        coded = re.compile(r"[\w+/=-]{1,20000}").match(events.log.text, at + len("--world_info="))
        try:
            world = json.loads(base64.urlsafe_b64decode(coded[0])) if coded else {}
            processes = sum(len(slots) for slots in world.values())
        except (ValueError, AttributeError, TypeError, RecursionError):
            continue
        if processes:
            return "--world_info", processes, at
    return None


def _ranks(events: Events) -> None:
    """The highest rank that speaks: at least so many processes were started."""
    text = events.log.text
    for how, word, pattern in (
        ("Process rank", "rocess rank", r"[Pp]rocess rank:\s*(\d{1,6})\b"),
        ("ranks seen", "[rank", r"\[rank(\d{1,6})\]"),
        ("ranks seen", "[default", r"\[default(\d{1,6})\]:"),
        ("ranks seen", "<std", r"\[\d+,(\d{1,6})\]<std"),
    ):
        first = text.find(word)
        if first >= 0:
            highest = max((int(rank) for rank in re.findall(pattern, text)), default=0)
            if highest:
                events.add("started", {"processes": highest + 1, "how": how}, first)


def _commands(events: Events) -> None:
    """The command that ``deepspeed`` prints: it holds the arguments of the program."""
    for at in events.log.hits("-m deepspeed.launcher.launch ", 1):
        line = events.log.line(at, 8000)
        if not events.job.launches and (match := re.search(r"(?:cmd\s*=\s*)(\S.*)", line.body)):
            from dsaccum_helpers.readers import launch

            launch.read(match[1], events.file, events.job, events.log.number(at))
