"""Options of a program: argparse, click, environment variables, and the command line that overrides them."""

from __future__ import annotations

from dsaccum_helpers.readers.script.roles import Roles
from dsaccum_helpers.readers.script.state import first_of
from dsaccum_helpers.readers.script.values import Class, Constant, Count, Role, Sequence, Unknown, Value
from dsaccum_helpers.trace import Number, is_count_name, named_count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast
    from typing import Any

    Values = list[Value]
    Named = dict[str, Value]


class Options(Roles):
    """Where a program's settings come from."""

    def setting(self, name: str, default: Value | None) -> Value:
        """A setting by its name: the command line's word for it, else its default."""
        if name in self.words:
            return self.literal(self.words[name], name)
        if isinstance(default, Count) and not default.number.symbols and is_count_name(name):
            return Count(named_count(name, default.number.factor), name)
        if default is None or (isinstance(default, Constant) and default.value is None):
            return Count(named_count(name, None), name) if is_count_name(name) else Unknown(name)
        if isinstance(default, Constant) and not default.name:
            return Constant(default.value, name)
        return default

    def literal(self, value: Any, name: str) -> Value:
        """A plain value as the interpreter sees it."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Count(named_count(name, value) if is_count_name(name) else Number(value), name)
        return Constant(value, name)

    def environment(self, name: str, default: Value | None) -> Value:
        """An environment variable."""
        return self.setting(f"environment.{name}" if f"environment.{name}" in self.words else name, default)

    def _on_parser(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name == "add_argument":
            self._option(role, arguments, keywords)
            return Constant(None)
        if name in ("add_argument_group", "add_mutually_exclusive_group"):
            return role
        if name == "set_defaults":
            role.facts.update(keywords)
            return Constant(None)
        if name in ("parse_args", "parse_known_args"):
            made = Role("namespace", self.source(node), parser=role.facts)
            return made if name == "parse_args" else Sequence([made, Unknown()])
        if name in ("parse_args_into_dataclasses", "parse_json_file", "parse_yaml_file", "parse_dict"):
            classes = role.facts.get("classes", [])
            return Sequence([self._filled(kind, node) for kind in classes])
        return None

    def _option(self, role: Role, arguments: Values, keywords: Named) -> None:
        names = [part.value for part in arguments if isinstance(part, Constant) and isinstance(part.value, str)]
        given = keywords.get("dest")
        long = next((name for name in names if name.startswith("--")), names[0] if names else "")
        dest = given.value if isinstance(given, Constant) else long.lstrip("-").replace("-", "_")
        if not isinstance(dest, str):
            return
        action = keywords.get("action")
        if isinstance(action, Constant) and action.value in ("store_true", "store_false") and dest not in self.words:
            role.facts[dest] = Unknown(dest)
            return
        spelt = next((name for name in names if name.lstrip("-").replace("-", "_") in self.words), "")
        name = spelt.lstrip("-").replace("-", "_") or dest
        role.facts[dest] = self.setting(name, keywords.get("default"))

    def _filled(self, kind: Value, node: Any) -> Value:
        """A dataclass filled from the command line."""
        if not isinstance(kind, Class):
            made = self.call_library(kind.name, [], {}, node)
            return made if isinstance(made, Role) else Unknown(kind.name)
        filled = self.instance(kind, [], {}, node)
        for name in (*self.fields(kind), *kind.attributes):
            default = kind.attributes.get(name)
            if default is None or isinstance(default, Count | Constant | Unknown):
                filled.attributes[name] = self.setting(name, default)
        return filled

    def decorated(self, node: Any) -> dict[str, Value]:
        """The parameters that ``@click.option`` and its like give a function."""
        found: dict[str, Value] = {}
        for decorator in node.decorator_list:
            if not hasattr(decorator, "func") or not decorator.args:
                continue
            from ast import Constant as Literal
            from ast import unparse

            if not unparse(decorator.func).endswith(("option", "argument")):
                continue
            names = [part.value for part in decorator.args if isinstance(part, Literal) and isinstance(part.value, str)]
            long = next((name for name in names if name.startswith("--")), names[0] if names else "")
            name = long.lstrip("-").split("/")[0].replace("-", "_")
            default = next((key.value for key in decorator.keywords if key.arg == "default"), None)
            value = self.literal(default.value, name) if isinstance(default, Literal) else None
            found[name] = self.setting(name, value)
        return found

    def new_parser(self, name: str, arguments: Values, keywords: Named, node: Any) -> Value | None:
        """``argparse.ArgumentParser()`` and the like."""
        if name == "HfArgumentParser":
            given = first_of(arguments, keywords, "dataclass_types")
            classes = given.items if isinstance(given, Sequence) else [given] if given else []
            return Role("parser", self.source(node), classes=classes)
        if name in ("ArgumentParser", "ArgParser", "HfArgParser"):
            return Role("parser", self.source(node))
        return None
