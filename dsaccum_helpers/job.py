"""Job: all that is known of one training job, each fact with where it was read (pure).

Readers put evidence in, the mismatches look at it; nothing here opens a file or knows a mismatch.

::

    facts      named values (the names of ``dsaccum check --set``), each said by one or more sources
    config     the DeepSpeed config that the job will use, with the line and column of every key
    launches   commands that start the job, the one that counts first
    events     what a log or traceback says, the same words of several ranks once
    programs   what the training scripts and notebooks do (``trace.py``)

Like all that ``dsaccum check`` loads, this imports neither dataclasses nor typing, which double the start-up time.
"""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.errors import DsaccumError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from dsaccum_helpers.trace import Program

FRAMEWORKS = ("deepspeed", "transformers", "accelerate", "lightning", "trl", "openrlhf", "megatron")
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Facts that stand for a key of the DeepSpeed config: setting them changes the config.
CONFIG_FACTS = {**{key: (key,) for key in BATCH_KEYS}, "zero_stage": ("zero_optimization", "stage")}
#: The other names that ``--set`` takes, with what each must be. ``environment.*`` and ``trainer.*`` take any name.
FACTS = {
    "processes": "count",
    "tensor_parallel": "count",
    "pipeline_parallel": "count",
    "sequence_parallel": "count",
    "trainer.per_device_train_batch_size": "any",
    "trainer.gradient_accumulation_steps": "any",
    "trainer.accumulate_grad_batches": "any",
    "trainer.max_grad_norm": "number",
    "accelerator.gradient_accumulation_steps": "any",
    "loader.batch_size": "count",
    "loader.length": "size",
    "loader.has_batch_size": "flag",
    "dataset.length": "size",
    "dataset.drop_last": "flag",
    "dataset.equal_token_counts": "flag",
    "scheduler.steps_per_optimizer_step": "number",
    "scheduler.total_steps": "count",
    "epochs": "number",
    "checkpoint.processes": "count",
    "checkpoint.gradient_accumulation_steps": "count",
    "checkpoint.train_micro_batch_size_per_gpu": "count",
    "checkpoint.global_step": "size",
    "generation.num_generations": "count",
    "generation.processes": "size",
    "model.has_batch_norm": "flag",
    "model.has_auxiliary_loss": "flag",
    "optimizer": "text",
    "dtype": "text",
    "wanted.train_batch_size": "count",
}

Source = namedtuple("Source", "file line column key", defaults=(None, None, None, None))
Source.__doc__ = "Where something was read: a file (or the option that said it), line and column from 1, and the key."

Fact = namedtuple("Fact", "value source")
Fact.__doc__ = "One value of a named fact, and the Source that says so."

GIVEN = Source("--have")

Event = namedtuple("Event", "kind values source count")
Event.__doc__ = "What a log says: its kind (see readers/log.py), a dict of values, the first Source, how often it came."

Unreadable = namedtuple("Unreadable", "source message remedy")
Unreadable.__doc__ = "A file that is recognisable as a config but cannot be read; ``remedy`` is the smallest one."


class JobError(DsaccumError):
    """An option that is off, or a file that cannot be read: one line that says which and why."""


class Launch:
    """One command that starts the job.

    ``launcher``: ``deepspeed``, ``torchrun``, ``accelerate``, ``srun``, ``mpirun`` or ``python``.
    ``processes``: how many it starts, None where the command does not say. ``nodes`` and ``per_node`` likewise.
    ``script`` and ``words``: the program and the arguments that reach it. ``text``: the command as it was read.
    ``options``: the launcher's own options, spelt with underscores.
    """

    def __init__(
        self,
        launcher: str,
        source: Source,
        processes: int | None = None,
        nodes: int | None = None,
        per_node: int | None = None,
        script: str | None = None,
        words: Sequence[str] = (),
        text: str = "",
        options: dict[str, str] | None = None,
    ) -> None:
        self.launcher, self.source, self.processes, self.nodes = launcher, source, processes, nodes
        self.per_node, self.script, self.words, self.text = per_node, script, list(words), text
        self.options = options or {}


class Config:
    """One DeepSpeed config.

    ``values``: the nested dict. ``places``: key path (a tuple) to (line, column) of the key, both from 1.
    ``kind``: ``file``, ``embedded`` (under another file's ``deepspeed:`` key), ``log`` (printed), ``script`` (a dict
    literal), ``arguments`` (built by a framework from its arguments) or ``given`` (``--set``).
    ``text``: the file's text, None where there is no file of its own to mend.
    ``strict``: what a strict JSON reader says: (message, line, column), None where it reads the file without a word.
    ``hjson``: what DeepSpeed's own HJSON reader says, likewise. ``duplicates``: (key path, line, column) of keys that
    stand twice.
    """

    def __init__(
        self,
        values: dict[str, Any],
        file: str | None = None,
        places: dict[tuple[str, ...], tuple[int, int]] | None = None,
        kind: str = "file",
        text: str | None = None,
    ) -> None:
        self.values, self.file, self.places, self.kind, self.text = values, file, places or {}, kind, text
        self.strict: tuple[str, int, int] | None = None
        self.hjson: tuple[str, int, int] | None = None
        self.duplicates: list[tuple[tuple[str, ...], int, int]] = []

    def get(self, *path: str, default: Any = None) -> Any:
        """The value under a key path; the default where a key is missing or a block is no dict."""
        node: Any = self.values
        for key in path:
            if not isinstance(node, dict) or key not in node:
                return default
            node = node[key]
        return node

    def has(self, *path: str) -> bool:
        """Is the key there, whatever its value?"""
        missing = object()
        return self.get(*path, default=missing) is not missing

    def source(self, *path: str) -> Source:
        """Where the key stands; the nearest block above it where the key itself is missing."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return Source(self.file, *self.places[path[:length]], ".".join(path))
        return Source(self.file, None, None, ".".join(path) or None)

    def change(self, path: Sequence[str], value: Any) -> None:
        """Set the value under a key path, or remove the key where the value is None."""
        node = self.values
        for key in path[:-1]:
            inner = node.get(key)
            if not isinstance(inner, dict):
                if value is None:
                    return
                inner = node[key] = {}
            node = inner
        if value is None:
            node.pop(path[-1], None)
        else:
            node[path[-1]] = value


class Job:
    """All that is known of one training job.

    ``Job({"loader.batch_size": 8, "train_batch_size": 64}, processes=4, framework="deepspeed")``: the names are those
    of ``dsaccum check --set``; readers add what they find in files. Raises ``JobError`` for a name or value that is
    off.
    """

    def __init__(self, facts: dict[str, Any] | None = None, *, framework: str | None = None, **more: Any) -> None:
        if framework is not None and framework not in FRAMEWORKS:
            raise JobError(f"framework is {framework!r:.60}. Smallest fix: use one of {', '.join(FRAMEWORKS)}.")
        self.asked_framework = framework
        self.facts: dict[str, list[Fact]] = {}
        self.configs: list[Config] = []
        self.launches: list[Launch] = []
        #: Hostfiles: the file to its nodes and their slots.
        self.hosts: dict[str, dict[str, int]] = {}
        self.events: list[Event] = []
        self.programs: list[Program] = []
        self.unreadable: list[Unreadable] = []
        self.versions: dict[str, Fact] = {}
        #: What speaks for a framework, in the order read: Facts whose values are names of FRAMEWORKS.
        self.speakers: list[Fact] = []
        #: Config files that a command, an argument or a script names: Facts whose values are paths as written.
        self.references: list[Fact] = []
        #: Lines that carry ``# dsaccum: ignore[...]``: (file, line) to the codes, an empty set for all.
        self.ignored: dict[tuple[str, int], set[str]] = {}
        for name, value in {**(facts or {}), **more}.items():
            self.set(name, value)

    @property
    def framework(self) -> str:
        """The framework as asked for; else what most speaks for; else ``deepspeed``."""
        if self.asked_framework:
            return self.asked_framework
        said = {fact.value for fact in self.speakers}
        order = ("openrlhf", "trl", "lightning", "transformers", "accelerate", "megatron")
        return next((name for name in order if name in said), "deepspeed")

    @property
    def config(self) -> Config | None:
        """The DeepSpeed config that counts: one that something refers to, else the first one."""
        for fact in self.references:
            name = str(fact.value).replace("\\", "/")
            for config in self.configs:
                if config.file and (config.file.endswith(name) or config.file.split("/")[-1] == name.split("/")[-1]):
                    return config
        return self.configs[0] if self.configs else None

    def add(self, name: str, value: Any, source: Source | None = None) -> None:
        """One more source for a fact; the first one counts (``value``), all are kept (``all``)."""
        self.facts.setdefault(name, []).append(Fact(value, source or Source()))

    def set(self, name: str, value: Any) -> None:
        """What ``--set`` does: this value counts and no other. None removes the fact or the config key."""
        path = CONFIG_FACTS.get(name) or config_path(name)
        if path:
            if self.config is None:
                if value is None:
                    return
                self.configs.append(Config({}, "--set", kind="given"))
            assert self.config is not None
            self.config.change(path, value)
            self.config.places.pop(tuple(path), None)
            return
        if value is None:
            self.facts.pop(name, None)
        else:
            self.facts[name] = [Fact(checked(name, value), Source("--set", key=name))]

    def all(self, name: str) -> list[Fact]:
        """Every source of a fact, the one that counts first."""
        return self.facts.get(name, [])

    def fact(self, name: str) -> Fact | None:
        """The Fact that counts, None where nothing is known. Names of the DeepSpeed config are looked up there."""
        path = CONFIG_FACTS.get(name)
        if path is None:
            return next(iter(self.all(name)), None)
        if self.config is None or not self.config.has(*path):
            return None
        return Fact(self.config.get(*path), self.config.source(*path))

    def value(self, name: str, default: Any = None) -> Any:
        """The value that counts, or the default where nothing is known."""
        fact = self.fact(name)
        return default if fact is None else fact.value

    def version(self, name: str) -> str | None:
        """The known version of an installed package, None where nobody says."""
        return self.versions[name].value if name in self.versions else None

    def have(self, name: str, version: str, source: Source = GIVEN) -> None:
        """An installed version; the first one that is said counts."""
        self.versions.setdefault(str(name).strip().lower().replace("_", "-"), Fact(str(version).strip(), source))

    def said(self, *kinds: str) -> list[Event]:
        """The log events of these kinds, in the order read."""
        return [event for event in self.events if event.kind in kinds]

    def refer(self, path: str, source: Source) -> None:
        """Something names a config file."""
        self.references.append(Fact(path, source))

    def speak(self, framework: str, source: Source) -> None:
        """Something speaks for a framework."""
        self.speakers.append(Fact(framework, source))


def config_path(name: str) -> tuple[str, ...] | None:
    """The key path in the DeepSpeed config for a name that is none of the facts: ``bf16.enabled``."""
    groups = ("environment", "trainer", "generation", "accelerator", "accelerate", "plugin", "loader")
    if name in FACTS or name.split(".")[0] in groups:
        return None
    return tuple(name.split("."))


def checked(name: str, value: Any) -> Any:
    """The value of a fact, or JobError where it is not what the fact must be."""
    kind = FACTS.get(name, "any")
    whole = isinstance(value, int) and not isinstance(value, bool)
    right = {
        "count": whole and value >= 1,
        "size": whole and value >= 0,
        "number": (whole or isinstance(value, float)) and value >= 0,
        "flag": isinstance(value, bool),
        "text": isinstance(value, str),
        "any": True,
    }[kind]
    if right:
        return value
    needed = {"count": "a positive integer", "size": "an integer of at least 0", "flag": "true or false"}
    raise JobError(f"{name} is {value!r:.60}. Smallest fix: give {needed.get(kind, f'a {kind}')}.")


def by_place(sources: Iterable[Source]) -> list[Source]:
    """Each source once, in the order given."""
    return list(dict.fromkeys(sources))
