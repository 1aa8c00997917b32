"""Launch commands and DeepSpeed configs as they were read (pure)."""

from __future__ import annotations

from dsaccum_helpers.job.facts import Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Launch:
    """One command that starts the job.

    ``launcher``: ``deepspeed``, ``torchrun``, ``accelerate``, ``srun``, ``mpirun`` or ``python``.
    ``processes``: how many it starts, None where the command does not say. ``nodes``: on how many, likewise.
    ``script`` and ``words``: the program and the arguments that reach it. ``text``: the command as it was read.
    ``options``: the launcher's own options, spelt with underscores. ``started``: how often the command itself is
    started on each node; more than once only where srun or mpirun starts another launcher.
    """

    def __init__(
        self,
        launcher: str,
        source: Source,
        processes: int | None = None,
        nodes: int | None = None,
        script: str | None = None,
        words: Sequence[str] = (),
        text: str = "",
        options: dict[str, str] | None = None,
    ) -> None:
        self.launcher, self.source, self.processes, self.nodes = launcher, source, processes, nodes
        self.script, self.words, self.text = script, list(words), text
        self.options = options or {}
        self.started = 1


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
