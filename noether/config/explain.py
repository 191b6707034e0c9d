"""Explain why the schema refuses a setting: give the value found, the values expected, and the line to change.

The suggestions come from the schema and from a table of the names that other programs use for settings.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from noether.common.errors import RequestError, SettingError
from noether.common.numbers import is_number
from noether.common.sanitize import shortened
from noether.common.suggest import nearest, number_meant
from noether.config.groups import lines_for, our_groups
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.section import Interval, kind_of, merged, nested, sections_in, take
from noether.config.sweep import as_typed, override_value, parse_override

Kinds = Mapping[str, str]
"""{section: its kind}, for the sections whose kind is known."""
UNKNOWN: Kinds = MappingProxyType({})


class Suggestion(NamedTuple):
    """The line to type instead, which is an override or other words. `remark` is an explanation, not to be typed."""

    line: str
    remark: str = ""

    @property
    def setting(self) -> str:
        """The name of the setting that the line sets; "" for a line that is not an override."""
        name, equals, _ = self.line.partition("=")
        return name if equals and re.fullmatch(r"\w+(\.[\w-]+)*", name) else ""

    def __str__(self) -> str:
        """Return the line, quoted for the shell, followed by the remark in parentheses."""
        line = shlex.quote(self.line) if self.setting else self.line
        return f"{line}      ({self.remark})" if self.remark else line


@cache
def other_words() -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
    """Return the two tables of `other_words.txt`: {foreign word: our line}, {our setting: (pattern, value) pairs}."""
    lines, values = dict[str, str](), dict[str, list[tuple[str, str]]]()
    for row in re.sub(r"\n +", " ", Path(__file__).with_name("other_words.txt").read_text("utf-8")).splitlines():
        if (parts := row.partition(" <- "))[1]:
            lines |= dict.fromkeys(parts[2].split(), parts[0])
        elif rule := re.fullmatch(r"(\S+): (.+) -> (.*)", row):
            values.setdefault(rule[1], []).append((rule[2], rule[3]))
    return lines, values


# Other programs' names for the setting that chooses a component, which is `kind` in noether.
_NAMES_OF_KIND = ("name", "type", "class", "class_path", "_target_")
SECTIONS = ("", *(name for name, field in RunConfig.model_fields.items() if sections_in(field.annotation)))
"""The names of the sections; "" is the top level."""
_EXPECTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a text", "path": "a text",
    "tuple": "a list in brackets", "list": "a list in brackets",
    **dict.fromkeys(("dict", "model"), "a group of settings, each with its name"),
    "greater_than": "a number above {gt}", "greater_than_equal": "a number of at least {ge}",
    "too_short": "at least {min_length} entry",
    "less_than": "a number below {lt}", "less_than_equal": "a number of at most {le}",
}  # fmt: skip
"""{pydantic's error type, or its beginning: the expected value}. For all other types, pydantic's message is used."""
MOST_EXPLAINED = 30
"""The maximum number of refused settings that are explained; a wrong file can have 10,000 of them."""


def sections_at(key: str, kinds: Kinds = UNKNOWN, root: type[BaseModel] = RunConfig) -> list[type[BaseModel]]:
    """Return the schemas of the section `key`: of its kind if that is known, otherwise of all kinds. "": top level."""
    sections = [root]
    parts = key.split(".") if key else []
    while parts and sections:
        part = parts.pop(0)
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        found = [one for field in fields for one in sections_in(field.annotation)]
        sections = [one for one in found if kind_of(one) == kinds.get(part)] or found
        if any("dict[" in str(field.annotation) for field in fields) and (not parts or not parts.pop(0)):
            return []  # In a mapping, the user chooses the names.
    return sections


def fields_of(key: str, kinds: Kinds = UNKNOWN) -> list[FieldInfo]:
    """Return the schema's fields of a setting: none for an unknown setting, several if the field depends on a kind."""
    section, _, name = key.rpartition(".")
    return [one.model_fields[name] for one in sections_at(section, kinds) if name in one.model_fields]


def default_of(fields: Iterable[FieldInfo]) -> Any:
    """Return the first default of a setting's fields that a user can type; None if no field has such a default."""
    given = (one.get_default(call_default_factory=True, validated_data={}) for one in fields if not one.is_required())
    return next((one for one in given if one not in (None, {}, ()) and not isinstance(one, BaseModel)), None)


def settings(kinds: Kinds = UNKNOWN) -> dict[str, FieldInfo]:
    """Return {name: field} of every setting, the top level first. A section of unknown kind has all kinds' settings."""
    found: dict[str, FieldInfo] = {}
    for section in SECTIONS:
        for one in sections_at(section, kinds):
            for name, field in one.model_fields.items():
                if name != "kind" and (section or name not in SECTIONS):
                    found.setdefault(f"{section}.{name}".lstrip("."), field)
    return found


def members_of(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, and the texts of a Literal; of a mapping, the types of its values."""
    if (origin := get_origin(annotation)) in (Union, UnionType, Literal):
        return [member for one in get_args(annotation) for member in members_of(one)]
    return members_of(get_args(annotation)[origin is dict]) if origin in (Annotated, dict) else [annotation]


def resolve_value(setting: str, typed: str, kinds: Kinds = UNKNOWN) -> str | None:
    """Return the value meant for a setting by a user who typed another program's value, or a number with its unit.

    Return None if this value is unknown. The schema can still refuse a returned value, for example 0.
    """
    for pattern, value in other_words()[1].get(setting, ()):
        if match := re.fullmatch(pattern, typed, re.IGNORECASE):
            return match.expand(value)
    if setting in SECTIONS:
        return nearest(typed, our_groups().get(setting, ()))
    fields = fields_of(setting, kinds) or fields_of(setting.rpartition(".")[0], kinds)
    members = [member for field in fields for member in members_of(field.annotation)]
    if "VALUE" in typed and bool in members:
        return "true"
    if "VALUE" in typed or {str, Path} & {*members} or (typed == "null" and type(None) in members):
        return typed
    if Interval in members:  # Only the intervals of a schedule can be percentages of the run.
        meant = Interval.meant(typed)
        return "1 epoch" if meant and "%" in meant and not setting.startswith("schedule.") else meant
    near = nearest(typed, [one for one in members if isinstance(one, str)])
    if bool in members:
        near = typed if typed.lower() in ("true", "false", "yes", "no", "on", "off") else None
    if near is None and tuple in [get_origin(one) for one in members]:
        return typed if typed.startswith("[") else f"[{typed}]"
    if near is None and {int, float} & {*members}:
        if re.fullmatch(r"-?\d+" if float not in members else r"[-+]?[\d.]+(e[-+]?\d+)?", typed):
            return typed  # Unchanged, because 1e-3 should stay 1e-3.
        unit = setting.rpartition("_")[2]
        return number_meant(typed, unit if unit in ("s", "min", "gb") else "", whole=float not in members)
    return near


def resolve_alias(key: str, value: str, kinds: Kinds = UNKNOWN, verb: str = "") -> Suggestion | None:
    """Return the line to type instead of `key`, a setting of another program or of another section; None if unknown.

    verb: the typed command, because the table has words that only one command explains.
    """
    section, _, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in _NAMES_OF_KIND and any(kind_of(one) is not None for one in sections_at(section)):
        return Suggestion(f"{section}.kind={as_typed(value)}")
    there, lines = settings(kinds), other_words()[0]
    asked = (one for word in (f"{verb}.{name}", key, name) for one in (f"{word}={value}", word))
    word = next((one for one in asked if one in lines), "")
    line, _, remark = lines.get(word, "").partition("      ")
    setting, equals, template = line.partition("=")
    # In an unrelated section, a name such as `root` or `time` means something else.
    about = ("", "trainer", setting.rpartition(".")[0], setting.partition(".")[0])
    if line and (word in (key, f"{key}={value}") or section in about or section not in SECTIONS):
        if not equals or line[0] in "-+":
            return Suggestion(line.replace("WORD", key).replace("{}", value), remark[1:-1])
        if "{}" not in template and "=" not in word and value.lower() in ("false", "no", "none", "null", "off", "0"):
            return Suggestion(f"leave {key} out")
        if setting in there or setting in SECTIONS or "WORD" in setting:
            setting = setting.replace("WORD", name.replace("_", "-"))
            return _set(setting, template.replace("{}", value), key, kinds, remark[1:-1])
    known = {_letters(one): one for one in there if one != key}
    alike = [one for one in there if one != key and _letters(one.rpartition(".")[2]) == _letters(name)]
    first, *others = [known[_letters(key)]] if _letters(key) in known else alike or [""]
    return _set(first, value, key, kinds, ", ".join(f"or {one}={value}" for one in others)) if first else None


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _set(setting: str, typed: str, key: str, kinds: Kinds, remark: str) -> Suggestion:
    """Return the override that gives a setting the value that was meant or, if this is unknown, its default."""
    value, default = resolve_value(setting, typed, kinds), default_of(fields_of(setting, kinds))
    written = as_override(default) if value is None else as_typed(value)
    return Suggestion(f"leave {key} out" if value is default is None else f"{setting}={written}", remark)


def refusal_of(error: ValidationError, settings: Mapping[str, Any]) -> RequestError:
    """Return one error for all refused settings: it explains the first, and has a line for each further setting."""
    kinds = {name: str(part["kind"]) for name, part in settings.items() if isinstance(part, dict) and "kind" in part}
    problems: dict[str, Any] = {}
    for problem in error.errors(include_url=False):
        # For a union (int, auto or null), pydantic reports a problem for each member. The first problem is enough.
        problems.setdefault(_key_of(problem, settings), problem)
    told = list(problems.items())[:MOST_EXPLAINED]
    first, *others = (_accepted(_explained(problem, key, kinds), key, settings, kinds) for key, problem in told)
    more = [other.summary + (f"   → {other.fix}" if other.fix else "") for other in others]
    more += ["…"] * (len(told) < len(problems))
    fix = "\n".join([first.fix, f"and {len(problems) - 1} more:", *more]).lstrip() if others else first.fix
    return RequestError(**first.parts | {"fix": fix})


def _accepted(refused: RequestError, key: str, settings: Mapping[str, Any], kinds: Kinds) -> RequestError:
    """Return the error about `key`. If the schema refuses the error's fix too, use the new error's fix instead."""
    trial, fix = deepcopy(dict(settings)), ""
    try:
        override = parse_override(*shlex.split(re.split(r" {6}|\n", refused.fix)[0]))
        if override is None or override.key_or_group in SECTIONS or override.is_sweep_override():
            return refused
        setting, value = override.key_or_group, override.value()
        for name in (key, setting):
            take(trial, name)
        if value is not None:
            trial = merged(trial, nested(setting, value))
        RunConfig.model_validate(trial)
    except ValidationError as error:
        for problem in error.errors():
            again = _explained(problem, _key_of(problem, trial), kinds)
            if again.summary.startswith(setting) and not fix:
                fix = again.fix if re.match(r"'?[\w.]+=", again.fix) else f"leave {key} out"
                fix = f"{re.split(' {6}', fix)[0]}      ({again.summary})"
    except (RequestError, LookupError, TypeError, ValueError):  # The fix is not an override, or it chooses an option.
        pass
    return RequestError(**refused.parts | {"fix": fix}) if fix else refused


def _key_of(problem: Any, settings: Mapping[str, Any]) -> str:
    """Return the key as in a file: pydantic's `loc` without the tag of a section ("upt") and the member of a union."""
    place, within = list(problem["loc"]), settings
    if place and place[0] in SECTIONS_WITH_KIND:
        del place[1:2]
    path = []
    for part in place:
        is_missing = problem["type"] == "missing" and part == place[-1]
        if is_missing or (isinstance(within, Mapping) and part in within):
            path.append(str(part))
            within = {} if is_missing else within[part]
    return ".".join(path)


def _explained(problem: Any, key: str, kinds: Kinds) -> RequestError:
    """Return the error about one setting."""
    kind, value, default = problem["type"], problem["input"], default_of(fields_of(key, kinds))
    if kind == "extra_forbidden":
        return _unknown_key(key, value, kinds)
    if kind == "value_error":
        return _refused_by_section(problem["ctx"]["error"], key, value, kinds)
    if kind == "missing":
        options = our_groups().get(key, ["VALUE"])
        expected = f"a value for {key}" if options == ["VALUE"] else f"one of {', '.join(options)}"
        fix = f"{key}={'default' if 'default' in options else options[0]}"
        return RequestError("setting-missing", f"{key} is not set", expected=expected, fix=fix)
    shown, seen, expected = _short(value), f"{key}={_short(value)} ({type(value).__name__})", _expected(problem)
    text = as_text(value)
    meant = resolve_value(key, text, kinds)
    fix = f"leave {key} out" if default is None else f"{key}={shlex.quote(as_override(default))}"
    if meant not in (None, text):
        fix = shlex.quote(f"{key}={as_typed(meant)}")
    if kind in ("string_type", "path_type") and is_number(value):
        return RequestError(
            "invalid-value", f"{key} cannot be {shown}", seen=seen,
            expected="text in quotes, because YAML reads text that looks like a number as a number",
            fix=f'{key.rpartition(".")[2]}: "{shown}"      (quoted, in the file that sets it)',
        )  # fmt: skip
    if kind == "literal_error":
        seen, known = f"{key}={shown}", expected.removeprefix("one of ").split(", ")
        fix = f"{key}={meant or (default if default in known else known[0])}"
    return RequestError("invalid-value", f"{key} cannot be {shown}", seen=seen, expected=expected, fix=fix)


def _expected(problem: Any) -> str:
    """Describe in words the value that is expected instead of a wrong value."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        return "one of " + ", ".join(re.findall(r"'([^']+)'", context["expected"]))
    wanted = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0])
    return wanted.format_map(context) if wanted else problem["msg"].removeprefix("Input should be ")


def refused_keys(error: ValidationError, content: Mapping[str, Any], root: type[BaseModel]) -> list[str]:
    """Return a sentence for each key of `content` that the schema `root` refuses."""
    said: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        key, kind = _key_of(problem, content), problem["type"]
        parent, _, name = key.rpartition(".")
        if key not in said and len(said) == MOST_EXPLAINED:
            return [*said.values(), "… and more"]
        if key in said and " cannot be " in said[key]:  # The problem is about the next member of a union.
            said[key] += f" or {_expected(problem)}"
        elif kind == "extra_forbidden":
            near = nearest(name, [one for section in sections_at(parent, root=root) for one in section.model_fields])
            said[key] = f"unknown key {key}" + (f", did you mean {near}?" if near else "")
        elif kind == "value_error":
            said[key] = f"{key}: {problem['ctx']['error']}".removeprefix(": ")
        elif key not in said:
            shown = f" cannot be {_short(problem['input'])}: expected {_expected(problem)}"
            said[key] = key + (" is not set" if kind == "missing" else shown)
    return list(said.values())


def _unknown_key(key: str, value: Any, kinds: Kinds) -> RequestError:
    typed = key
    while isinstance(value, dict) and value:  # Of a whole section, use the first setting.
        name, value = next(iter(value.items()))
        typed = f"{typed}.{name}"
    given, rest, meant = as_text(value), typed.removeprefix(key), None
    spelled, lines = _spelled(key, kinds) + rest, lines_for(f"{typed.replace('.', '/')}/{as_text(value)}")
    if rest and _is_setting(spelled, kinds):
        meant = Suggestion(f"{spelled}={as_typed(given)}")
    elif not rest and key in settings(kinds):  # A file contains a dotted name as a key.
        meant = Suggestion(key.replace(".", ": {") + f": {given}" + "}" * key.count("."), "nested, in its file")
    meant = meant or resolve_alias(spelled if rest else typed, given, kinds)
    group = resolve_alias(key, "VALUE", kinds) if rest and not meant else None  # The name may be another section's.
    for other in (group.setting + rest if group else "", _spelled(typed, kinds)):
        option = resolve_value(other, given, kinds) if other in SECTIONS else given
        if not meant and option and _is_setting(other, kinds):
            meant = Suggestion(f"{other}={as_typed(option)}")
    meant = meant or (Suggestion(lines[0]) if lines else None)
    parent = key.rpartition(".")[0]
    known = list(dict.fromkeys(name for one in sections_at(parent, kinds) for name in one.model_fields))
    near, all_of = get_close_matches(key.rpartition(".")[2], known, 6, 0), f"noether help {parent or 'top-level'}"
    listed = ", ".join(known) if len(known) <= 12 else f"{', '.join(near)} … ({all_of} lists all {len(known)})"
    better = meant.setting.removesuffix(rest) if meant else ""
    return RequestError("unknown-key", f"unknown key {key!r}" + (f", did you mean {better!r}?" if better else ""),
                        seen=f"{typed}={_short(value)}",
                        expected="" if better else f"a key of {parent or 'the configuration'}: {listed}",
                        fix=str(meant) if meant else f"leave {typed} out")  # fmt: skip


def _is_setting(name: str, kinds: Kinds) -> bool:
    """Return whether the schema has a setting of this name, or the name is a key that the user chose in a mapping."""
    within = name.rpartition(".")[0]
    return bool(fields_of(name, kinds) or (fields_of(within, kinds) and not sections_at(within, kinds)))


def _spelled(key: str, kinds: Kinds) -> str:
    """Correct the spelling of each part of a setting's name, using the names in the section; return the new name."""
    path = ""
    for part in key.split("."):
        known = [name for section in sections_at(path, kinds) for name in section.model_fields]
        path = f"{path}.{part if part in known else nearest(part, known) or part}".lstrip(".")
    return path


def _refused_by_section(error: ValueError, key: str, value: Any, kinds: Kinds) -> RequestError:
    """Return the error for a setting that a section's validator refuses. Its SettingError names the problem."""
    if not isinstance(error, SettingError):  # Pydantic itself raised the error.
        error = SettingError("setting-refused", "", str(error))
    name, given, problem = error.setting, error.given, error.problem
    full = key if not name or key.rpartition(".")[2] == name else f"{key}.{name}".lstrip(".")
    shown = f"{full}: {problem}" if full and not name else f"{full}{given}{problem}"
    if not name and not isinstance(value, (dict, BaseModel)):
        given = f"={_short(value)}"
    fix = shlex.quote(f"{full}={error.instead}") if error.instead else error.fix or f"leave {full} out"
    text = as_text(value.get(name) if name and isinstance(value, Mapping) else value)
    if (meant := resolve_value(full, text, kinds)) not in (None, text):
        fix = shlex.quote(f"{full}={as_typed(str(meant))}")
    seen = error.seen or (f"{full}{given}" if given else "")
    return RequestError(error.code, shown, seen=seen, expected=error.expected, fix=fix)


def _short(value: Any) -> str:
    return shortened(repr(value) if isinstance(value, str) and (not value or " " in value) else str(value), 80)


def as_text(value: Any) -> str:
    """Return a value as a user would type it, without quotes."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def as_override(value: Any) -> str:
    """Return a value in Hydra's grammar. In a shell, the result may need quotes."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(as_override(one) or repr('') for one in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{as_override(one) or repr('')}" for key, one in value.items()) + "}"
    return override_value(value) if isinstance(value, str) else as_text(value)
