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

from dsaccum_helpers.job.evidence import Config, Launch
from dsaccum_helpers.job.facts import (
    BATCH_KEYS,
    CONFIG_FACTS,
    FACTS,
    FRAMEWORKS,
    GIVEN,
    OPEN_FACTS,
    Event,
    Fact,
    JobError,
    Source,
    Unreadable,
    by_place,
    checked,
    config_path,
)

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.trace import Program

__all__ = [
    "BATCH_KEYS",
    "CONFIG_FACTS",
    "FACTS",
    "FRAMEWORKS",
    "GIVEN",
    "OPEN_FACTS",
    "Config",
    "Event",
    "Fact",
    "Job",
    "JobError",
    "Launch",
    "Source",
    "Unreadable",
    "by_place",
    "checked",
    "config_path",
]


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
        #: Keys that the installed DeepSpeed knows beyond the kept table, looked up where a config has such a key.
        self.installed_keys: frozenset[str] = frozenset()
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
        # Scripts with a loop of their own print the Trainer's block too, but then a script or a launcher speaks.
        block = self.said("training-summary") and not self.programs
        return next((name for name in order if name in said), "transformers" if block else "deepspeed")

    @property
    def config(self) -> Config | None:
        """The DeepSpeed config that counts: one that something refers to, else the first one."""
        for fact in self.references:
            name = str(fact.value).replace("\\", "/")
            for config in self.configs:
                if config.file and (config.file.endswith(name) or config.file.split("/")[-1] == name.split("/")[-1]):
                    return config
        return self.configs[0] if self.configs else None

    def rivals(self) -> list[Config]:
        """Config files beside the one that counts, where nothing says which of them the job uses."""
        if self.references or self.launches or self.programs or self.events:
            return []
        return [one for one in self.configs if one.kind == "file" and one is not self.config]

    def with_config(self, config: Config | None) -> Job:
        """The same job with this config and no other."""
        other = Job.__new__(Job)
        other.__dict__.update({**self.__dict__, "configs": [config] if config else []})
        return other

    def clone(self) -> Job:
        """A job whose facts and configs can be changed; what was read of scripts and logs is shared."""
        from copy import copy, deepcopy

        new = copy(self)
        new.facts = {name: list(facts) for name, facts in self.facts.items()}
        new.configs = []
        for config in self.configs:
            fresh = copy(config)
            fresh.values, fresh.places = deepcopy(config.values), dict(config.places)
            new.configs.append(fresh)
        return new

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
