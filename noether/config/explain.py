"""Explains values that the schema refuses."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.groups import configs_folder
from noether.config.other_names import Suggestion, default_of, fields_of, setting_meant
from noether.config.schema import RunConfig
from noether.config.section import kind_of, sections_in
from noether.config.setting_error import SettingError
from noether.config.sweep import override_value


@dataclass(frozen=True)
class SettingProblem:
    """A setting that the schema refuses, in the parts of a RequestError.

    `fix` is a line, "" for none, or None for leaving the setting out.
    """

    code: str
    summary: str
    setting: str
    seen: str = ""
    expected: str = ""
    fix: Suggestion | str | None = None

    @property
    def line(self) -> str:
        """The fix as it is shown."""
        return f"leave {self.setting} out" if self.fix is None else str(self.fix)


def problems_of(error: ValidationError, settings: Mapping[str, Any]) -> dict[str, SettingProblem]:
    """Returns what the schema refuses of `settings`, by the key that it refuses."""
    kinds = {name: str(part["kind"]) for name, part in settings.items() if isinstance(part, dict) and "kind" in part}
    problems: dict[str, SettingProblem] = {}
    for problem in error.errors(include_url=False):
        key, section = _locate(problem["loc"])
        # A union (int, auto or null) reports a problem for each member; the first is enough.
        problems.setdefault(key, _describe(problem, key, section, kinds))
    return problems


def refusal_of(problems: Sequence[SettingProblem]) -> RequestError:
    """Returns one error for all problems: the first in full, and a line for each other one."""
    first, *others = problems
    more = [other.summary + (f"   → {other.line}" if other.line else "") for other in others]
    fix = "\n".join([first.line, f"and {len(others)} more:", *more]).lstrip() if others else first.line
    return RequestError(first.code, first.summary, seen=first.seen, expected=first.expected, fix=fix)


def _describe(problem: Any, key: str, section: type[BaseModel], kinds: Mapping[str, str]) -> SettingProblem:
    """Returns one of the schema's problems, with the key as the user writes it."""
    kind, value, field = problem["type"], problem["input"], section.model_fields.get(key.rpartition(".")[2])
    if kind == "extra_forbidden":
        return _unknown_key(key, value, list(section.model_fields), kinds)
    if kind == "missing":
        options = sorted(file.stem for file in (configs_folder() / key).glob("*.yaml"))
        return SettingProblem(
            "setting-missing",
            f"{key} is not set",
            key,
            expected=f"one of {', '.join(options)}" if options else f"a value for {key}",
            fix=f"{key}={('default' if 'default' in options else options[0]) if options else 'VALUE'}",
        )
    if kind == "value_error":
        return _refused_by_section(problem, key)
    shown, seen = _short(value), f"{key}={_short(value)} ({type(value).__name__})"
    expected, default = _KINDS.get(kind, "a value of another type"), default_of([field] if field else [])
    expected = expected.format(**problem.get("ctx", {}))
    has_default = default not in (None, {}, ()) and not isinstance(default, BaseModel)
    fix = f"{key}={shlex.quote(as_override(default))}" if has_default else None
    if kind in ("string_type", "path_type") and is_number(value):
        shown = f"the number {shown}"
        expected = "text in quotes, because YAML reads text that looks like a number as a number"
        fix = f'{key.rpartition(".")[2]}: "{_short(value)}"      (quoted, in the file that sets it)'
    elif kind == "string_type" and isinstance(value, bool):
        fix = f"{key}={twice_quoted(str(value))}"
    elif kind == "literal_error":
        known = re.findall(r"'([^']+)'", problem["ctx"]["expected"])
        seen, expected = f"{key}={shown}", f"one of {', '.join(known)}"
        fix = f"{key}={nearest(str(value), known) or (default if default in known else known[0])}"
    elif kind == "tuple_type":
        # For a list of any length, the given value becomes its one element; for a fixed length, show the default.
        given = (override_value(value),) if isinstance(value, str) else ()
        elements = default if isinstance(default, tuple) and default else given
        fix = f"{key}={shlex.quote('[' + ','.join(map(str, elements)) + ']')}"
    return SettingProblem("invalid-value", f"{key} cannot be {shown}", key, seen, expected, fix=fix)


_KINDS = dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "a whole number")
_KINDS |= dict.fromkeys(("float_parsing", "float_type"), "a number") | {"finite_number": "a finite number"}
_KINDS |= dict.fromkeys(("bool_parsing", "bool_type"), "true or false")
_KINDS |= dict.fromkeys(("string_type", "path_type"), "a text")
_KINDS |= dict.fromkeys(("tuple_type", "list_type"), "a list in brackets")
_KINDS |= dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a group of settings, each with its name")
_KINDS |= {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "{min_length} values",
    "too_long": "{max_length} values",
}
"""What is expected where pydantic reports an error of such a type; its own sentences are for programmers."""


def _unknown_key(key: str, value: Any, known: Sequence[str], kinds: Mapping[str, str]) -> SettingProblem:
    parent, _, name = key.rpartition(".")
    near, is_group = nearest(name, known), isinstance(value, dict)
    typed, leaf = _first_setting(key, value)
    rest, given = typed.removeprefix(key), as_override(leaf)
    named = Suggestion(f"{parent}.{near}".lstrip(".") + rest, given) if near else None
    meant = None
    if named is None or not is_group:
        meant = setting_meant(typed, given, known, kinds)
    elif not fields_of(named.setting) and any(map(_takes_known_names, fields_of(named.setting.removesuffix(rest)))):
        meant = setting_meant(named.setting, given, (), kinds)
    if meant is None and is_group and (other := setting_meant(key, "", (), kinds)):
        meant = Suggestion(other.setting + rest, given)  # A group of settings that another section has.
    meant = meant or named
    return SettingProblem(
        "unknown-key",
        f"unknown key {key!r}" + (f", did you mean {meant.setting.removesuffix(rest)!r}?" if meant else ""),
        typed if meant else key,
        seen=f"{typed}={_short(leaf)}",
        expected="" if meant else f"a key of {parent or 'the configuration'}: {', '.join(known)}",
        fix=meant,
    )


def _takes_known_names(field: FieldInfo) -> bool:
    """Whether a setting is a section, not a mapping such as slurm_additional_parameters with names of the user's."""
    return bool(sections_in(field.annotation))


def _refused_by_section(problem: Any, key: str) -> SettingProblem:
    """Explains a check of the schema itself, whose message already says what was seen and what was expected."""
    error, value = problem["ctx"]["error"], problem["input"]
    if not isinstance(error, SettingError):  # Of pydantic's own.
        error = SettingError("setting-refused", "", str(error))
    if error.setting:
        full = key if key.rpartition(".")[2] == error.setting else f"{key}.{error.setting}".lstrip(".")
        seen, fix = (f"{full}{error.given}", error.fix or None) if error.given else ("", error.fix)
        summary = f"{full}{error.given}{error.problem}"
        return SettingProblem(error.code, summary, full, error.seen or seen, error.expected, fix)
    fix = shlex.quote(f"{key}={error.instead}") if error.instead else None
    seen = f"{key}={_short(value)}" if key and not isinstance(value, (dict, BaseModel)) else ""
    return SettingProblem(error.code, f"{key}: {error.problem}" if key else error.problem, key, seen, fix=fix)


def _locate(location: tuple[int | str, ...]) -> tuple[str, type[BaseModel]]:
    """Returns the key as it is written in files, and the section in which its last part was looked up.

    `location` also contains the chosen section's tag ("upt", "custom") and the member of a union ("int").
    """
    path: list[str] = []
    sections: list[type[BaseModel]] = [RunConfig]
    parent: type[BaseModel] = RunConfig
    for part in map(str, location):
        chosen = [section for section in sections if part == (kind_of(section) or "custom")]
        if len(sections) > 1 and chosen:
            sections = chosen
            continue
        if not sections:
            break
        path.append(part)
        parent = sections[0]
        field = next((section.model_fields[part] for section in sections if part in section.model_fields), None)
        if field is not None:
            sections = sections_in(field.annotation)
    return ".".join(path), parent


def _first_setting(key: str, value: Any) -> tuple[str, Any]:
    """Returns a setting and its value; for a whole section, the first setting in it."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key, value


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_override(value: Any) -> str:
    """Returns a value as Hydra's grammar writes it; the shell may want it quoted."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return override_value(value) if isinstance(value, str) else str(value)


def is_number(value: Any) -> bool:
    """Returns whether a value is an integer or a float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def twice_quoted(value: str) -> str:
    """Returns a value quoted for both Hydra and the shell, with a note that says so."""
    return f"{shlex.quote(override_value(value))}      (quoted twice: once for the shell)"
