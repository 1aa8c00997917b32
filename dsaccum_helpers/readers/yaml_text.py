"""YAML to nested values with the line and column of every key: safe loading only, bounded in depth and size."""

from __future__ import annotations

from dsaccum_helpers.readers.arguments import typed

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1_000_000  # letters; a longer one is no file of settings
_NODES = 50_000  # aliases count each time they are used, so that a few lines cannot grow without bound
_DEEPEST = 60


class YamlError(ValueError):
    """Why a text is no YAML that can be read, with ``line`` and ``column`` from 1, None where it is all of the text."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line, self.column = line, column


def load(text: str) -> tuple[Any, dict[tuple[str, ...], tuple[int, int]]]:
    """Values of the first document and the places of its keys. Raises ``YamlError``."""
    import yaml

    if len(text) > _LARGEST:
        raise YamlError("it is too long for a file of settings")
    try:
        loader = _bounded(yaml.SafeLoader(text))
        try:
            node = loader.get_node() if loader.check_node() else None
            reading = _Reading(loader)
            return (reading.value(node, ()) if node is not None else None), reading.places
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise YamlError(str(error.problem or error.context or "it is no YAML"), *place) from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        if isinstance(error, YamlError):
            raise
        words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).split("\n")[0]
        raise YamlError(words[:200]) from None


def _bounded(loader: Any) -> Any:
    """The loader, stopping at a text of too many values: PyYAML takes seconds for a megabyte of them."""
    compose, left = loader.compose_node, _NODES

    def compose_node(parent: Any, index: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise YamlError("it has too many values for a file of settings")
        return compose(parent, index)

    loader.compose_node = compose_node
    return loader


class _Reading:
    """One document being turned into values."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.left = loader, _NODES
        self.places: dict[tuple[str, ...], tuple[int, int]] = {}

    def value(self, node: Any, path: tuple[str, ...]) -> Any:
        """The value of a node."""
        self.left -= 1
        if self.left < 0:
            raise YamlError("its aliases make it too large")
        if len(path) > _DEEPEST:
            raise YamlError("it is nested too deeply", node.start_mark.line + 1, node.start_mark.column + 1)
        if node.id == "mapping":
            return self.mapping(node, path)
        if node.id == "sequence":
            return [self.value(item, (*path, str(index))) for index, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """A mapping; what ``<<`` merges in counts only where the mapping has no such key."""
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            name = str(key.value) if key.id == "scalar" else str(key.start_mark.line)
            inner = (*path, name)
            if name == "<<" and key.style is None:
                found = self.value(item, path)
                for part in reversed(found) if isinstance(found, list) else [found]:
                    merged.update(part if isinstance(part, dict) else {})
                continue
            values[name] = self.value(item, inner)
            self.places[inner] = (key.start_mark.line + 1, key.start_mark.column + 1)
        return {**merged, **values}

    def scalar(self, node: Any) -> Any:
        """A plain scalar as YAML types it; ``2e-5``, a text for YAML 1.1, as the number it is meant to be."""
        tag = node.tag.rsplit(":", 1)[-1]
        if tag == "str":
            value = typed(node.value) if node.style is None else node.value
            return value if isinstance(value, int | float) and not isinstance(value, bool) else node.value
        if tag not in ("int", "float", "bool", "null"):
            return node.value
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, OverflowError, KeyError):
            return node.value
