"""Read YAML with limits, because a few lines with aliases can expand to more values than fit in memory."""

import re
from typing import Any

import yaml
from yaml.composer import Composer

from noether.common.errors import RequestError

MOST_BYTES = 2**20
"""The maximum size of a settings file in bytes; noether's own files are at most 6,000 bytes long."""
DEEPEST, LONGEST_NUMBER = 50, 100
"""The maximum number of nested levels, and the maximum number of characters in a number."""
_FOUND_IN = "tag:yaml.org,2002:"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnboundedYaml(yaml.MarkedYAMLError):
    """The YAML expands beyond the limits."""


class _Counted(Composer):
    """A composer of YAML nodes that counts the values. An alias counts as all the values that it repeats."""

    most_values, takes_aliases = 10_000, True

    def __init__(self) -> None:
        Composer.__init__(self)
        self._values, self._level, self._deepest = 0, 0, 0
        self._named: dict[str, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. UnboundedYaml: there are too many values or levels, or an alias refers to itself."""
        event: Any = self.peek_event()  # type: ignore[attr-defined]
        before, deepest, name = self._values, self._deepest, getattr(event, "anchor", None) or ""
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and (not self.takes_aliases or (name in self.anchors and name not in self._named)):
            why = f"*{name} contains itself" if self.takes_aliases else f"*{name}: programs write no aliases"
            raise UnboundedYaml(problem=why, problem_mark=event.start_mark)
        values, levels = self._named.get(name, (0, 0)) if is_alias else (1 + len(getattr(event, "value", "")) // 100, 1)
        self._values, self._deepest = self._values + values, self._level + levels
        if self._values > self.most_values or self._deepest > DEEPEST:
            why = f"{self._values:,} values and {self._deepest} levels up to here"
            raise UnboundedYaml(problem=why, problem_mark=event.start_mark)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        if name and not is_alias:
            self._named[name] = self._values - before, self._deepest - self._level
        self._deepest = max(deepest, self._deepest)
        return node


class PlainYaml(_Counted, _LOADER):  # type: ignore[misc]
    """YAML of data, read as PyYAML's safe loader reads it, by PyYAML's C parser if that is installed."""

    most_bytes, most_values = 2**24, 300_000  # A map can name more than 100,000 cases.

    def __init__(self, text: str) -> None:
        _LOADER.__init__(self, text)
        _Counted.__init__(self)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. To PyYAML's errors about invalid dates, numbers and tags, add the line."""
        try:
            if node.tag in (f"{_FOUND_IN}int", f"{_FOUND_IN}float") and len(node.value) > LONGEST_NUMBER:
                raise ValueError(f"a number of {len(node.value):,} characters")
            value = super().construct_object(node, deep)
            if isinstance(value, int) and abs(value) >= 2**64:
                raise ValueError("a whole number of more than 64 bits; in quotes it is a text")
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
            raise yaml.MarkedYAMLError(problem=str(error)[:200], problem_mark=node.start_mark) from None
        return value


class RunYaml(PlainYaml):
    """YAML of settings that a run has written."""

    most_bytes, most_values, takes_aliases = MOST_BYTES, 10_000, False


class SettingsYaml(PlainYaml):
    """YAML of settings that a person has written: 1e-3 is a number, a date is a text, a repeated key is an error."""

    most_bytes, most_values = MOST_BYTES, 10_000

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; refuse a key that occurs twice."""
        seen = set()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{name.value} occurs twice", problem_mark=name.start_mark)
            seen.add(name.value)
        return dict(super().construct_mapping(node, deep))


SettingsYaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_WITH_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")
SettingsYaml.add_implicit_resolver(f"{_FOUND_IN}float", _WITH_EXPONENT, list("-+.0123456789"))


def parse_yaml(text: str, name: str, kind: type[PlainYaml] = PlainYaml) -> Any:
    """Parse the text of the file `name`; return its content as dictionaries, lists and values.

    RequestError: the text is not YAML, or expands beyond the limits of `kind`.
    """
    try:
        if len(text) > kind.most_bytes:
            raise UnboundedYaml(problem=f"{len(text):,} characters")
        return kind(text).get_single_data()
    except UnboundedYaml as error:
        where, seen = _place_and_problem(error, text)
        limits = f"at most {kind.most_bytes:,} characters, {kind.most_values:,} values and {DEEPEST} levels"
        raise RequestError("unbounded-yaml", f"{name}{where} expands to more than noether reads", seen=seen,
                           expected=limits + (", with every *alias expanded" if kind.takes_aliases else ""),
                           fix=f"shorten {name}{where}, or read another file") from None  # fmt: skip
    except yaml.YAMLError as error:
        where, seen = _place_and_problem(error, text)
        raise RequestError("invalid-yaml", f"{name}{where} is not valid YAML", seen=seen,
                           expected="key: value, indented with spaces",
                           fix=f"fix {'line ' * bool(where)}{name}{where}") from None  # fmt: skip


def _place_and_problem(error: Any, text: str) -> tuple[str, str]:
    """Return where an error is, as `:3` ("" if unknown), and the text of that line with the problem."""
    told = (getattr(error, "context", None), getattr(error, "problem", None))
    problem, mark = " ".join(filter(None, told)) or str(error), getattr(error, "problem_mark", None)
    if mark is None:
        return "", problem
    line = "".join(text.splitlines()[mark.line : mark.line + 1]).strip()[:200]
    return f":{mark.line + 1}", f"{line}   ({problem})" if line else problem
