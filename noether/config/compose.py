"""What was asked: YAML files and overrides composed (Hydra's grammar) and validated, or refused in words."""

import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from noether.common.suggest import did_you_mean, nearest
from noether.config.environment_values import allow_listed_variables
from noether.config.reference import sections_in
from noether.config.schema import RunConfig
from noether.config.sweep import override_value
from noether.config.trainer import LENGTHS
from noether.errors import RequestError

DEFAULT_CONFIG = "train.yaml"


def configs_folder() -> Path:
    """Returns the folder of the configuration groups: the checkout's, or the one inside an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / DEFAULT_CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no configs folder beside {package} or in it")


def load_config(overrides: Sequence[str] = (), hp: str | Path | None = None) -> RunConfig:
    """Composes and validates the configuration of a run.

    Args:
        overrides: Hydra overrides in the order given: `key=value`, `+key=value`, `~key`, `group=option`.
        hp: a YAML file from anywhere; the groups of the configs folder are found from it. Without a `defaults` list
            of its own it changes the default configuration. None: the default.

    Raises:
        RequestError: with the key, what was expected there, and the line to change.
    """
    return validate(compose_settings(overrides, hp))


def compose_settings(overrides: Sequence[str] = (), hp: str | Path | None = None) -> dict[str, Any]:
    """Composes the files and overrides into plain settings, not yet validated."""
    primary = _primary_file(hp)
    _check_yaml(primary)
    parsed = _parse_overrides(overrides)
    roots = (primary.parent, configs_folder())
    allow_listed_variables()
    lines = [_as_hydra_override(override, roots) for override in parsed]
    try:
        with _with_defaults(primary) as file:
            others = [root for root in dict.fromkeys(roots) if root != file.parent]
            if others:
                lines.append(f"hydra.searchpath=[{','.join(override_value(f'file://{root}') for root in others)}]")
            with initialize_config_dir(config_dir=str(file.parent), version_base="1.3"):
                composed = compose(config_name=file.stem, overrides=lines)
        settings = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _composition_error(error, primary, roots) from None
    except yaml.YAMLError as error:
        raise _yaml_error(error, primary) from None
    assert isinstance(settings, dict)
    return _with_one_length({str(key): value for key, value in settings.items()}, parsed)


def validate(settings: dict[str, Any]) -> RunConfig:
    """Checks plain settings against the schema.

    Raises:
        RequestError: naming each wrong key, the nearest valid one for an unknown key, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise _validation_error(error) from None


def dump_config(config: BaseModel) -> str:
    """Returns the resolved configuration as YAML that `--hp` reads back to the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _primary_file(hp: str | Path | None) -> Path:
    if hp is None:
        return configs_folder() / DEFAULT_CONFIG
    path = Path(hp).expanduser().resolve()
    if path.is_file() and path.suffix == ".yaml":
        return path
    # The documented --hp configs/NAME.yaml means our own file outside a checkout too: in a container's /work, say.
    own = configs_folder() / path.name
    if not path.exists() and Path(hp).parent == Path("configs") and own.suffix == ".yaml" and own.is_file():
        return own
    if path.is_file():
        raise RequestError(
            f"{path.name} does not end in .yaml",
            seen=str(hp),
            expected="a file named NAME.yaml",
            fix=f"mv {hp} {Path(hp).with_suffix('.yaml')}",
        )
    beside = (file.name for file in path.parent.glob("*.y*ml") if file.is_file()) if path.parent.is_dir() else ()
    near = nearest(path.name, beside)
    raise RequestError(
        f"no configuration file {hp}",
        seen=f"{path} does not exist" if not path.exists() else f"{path} is a folder",
        expected="a YAML file",
        fix=f"--hp {Path(hp).parent / near}" if near else "--hp configs/train.yaml, or leave --hp out for it",
    )


@contextmanager
def _with_defaults(path: Path) -> Iterator[Path]:
    """Gives a file without a `defaults` list that of the default configuration, in a copy.

    A section that names its `kind` stands for itself: what the default sets there belongs to another kind. A length of
    the run replaces the default's.
    """
    own: Any = OmegaConf.load(path)
    if "defaults" in own:
        yield path
        return
    base: Any = OmegaConf.load(configs_folder() / DEFAULT_CONFIG)
    whole = {name for name, section in own.items() if OmegaConf.is_dict(section) and "kind" in section}
    own["defaults"] = [entry for entry in base["defaults"] if isinstance(entry, str) or not whole.intersection(entry)]
    trainer = own.get("trainer")
    if OmegaConf.is_dict(trainer) and any(trainer.get(name) is not None for name in LENGTHS):
        own["trainer"] = {**dict.fromkeys(LENGTHS), **trainer}
    with tempfile.TemporaryDirectory(prefix="noether-") as folder:
        copy = Path(folder) / "settings.yaml"
        OmegaConf.save(own, copy)
        yield copy


def _check_yaml(path: Path) -> None:
    """Reads the file once on its own: Hydra's message for broken YAML names neither file nor line."""
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise _yaml_error(error, path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}", seen=str(error), expected="a YAML file in UTF-8") from None
    if content is not None and not isinstance(content, dict):
        raise RequestError(
            f"{path} holds no settings",
            seen=f"a {type(content).__name__}",
            expected="keys and values, such as 'seed: 0'",
        )


def _yaml_error(error: yaml.YAMLError, path: Path) -> RequestError:
    mark = getattr(error, "problem_mark", None)
    name = Path(mark.name) if mark is not None and mark.name and Path(mark.name).is_file() else path
    where = f"{name}:{mark.line + 1}" if mark is not None else str(name)
    problem = " ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    line = ""
    if mark is not None:
        lines = name.read_text(errors="replace").splitlines()
        line = lines[mark.line] if mark.line < len(lines) else ""
    return RequestError(
        f"{where} is not valid YAML",
        seen=(f"{line.strip()}   ({problem})" if line.strip() else problem or str(error)),
        expected="key: value, indented with spaces",
        fix=f"mend {where}",
    )


def _parse_overrides(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except (OverrideParseException, HydraException):
            key, _, value = text.partition("=")
            fix = f"{key}={_twice_quoted(value)}" if value else f"{text}=VALUE"
            raise RequestError(
                f"cannot read {text!r}", seen=text, expected="key=value, +group=option or ~key", fix=fix
            ) from None
        if override.is_sweep_override():
            key, _, value = text.partition("=")
            is_list = _takes(key.lstrip("+"), tuple)
            fix = f"{key}={shlex.quote(f'[{value}]')}" if is_list else f'{key}=\\"{value}\\" for one text with commas'
            raise RequestError(
                f"{key.lstrip('+')} was given several values",
                seen=text,
                expected=("a list in brackets" if is_list else "one value") + "; a comma lists the values of a sweep",
                fix=fix,
            )
        parsed.append(override)
    return parsed


def _is_group(override: Override, roots: Iterable[Path]) -> bool:
    return isinstance(override.value(), (str, list)) and any((root / override.key_or_group).is_dir() for root in roots)


def _as_hydra_override(override: Override, roots: Iterable[Path]) -> str:
    """Lets `key=value` and `+key=value` both set a value: which keys exist is the schema's to say, not the files'."""
    line = override.input_line
    assert line is not None
    if override.is_delete() or _is_group(override, roots):
        return line
    if any((root / override.key_or_group).is_dir() for root in roots):
        options = sorted({file.stem for root in roots for file in (root / override.key_or_group).glob("*.yaml")})
        raise RequestError(
            f"{override.key_or_group} is a group",
            seen=line,
            expected=f"the name of one of its files: {', '.join(options)}",
            fix=f"{override.key_or_group}={options[0] if options else 'NAME'}",
        )
    if "/" in override.key_or_group:
        groups = sorted(str(f.relative_to(configs_folder())) for f in configs_folder().rglob("*") if f.is_dir())
        near = nearest(override.key_or_group, groups)
        raise RequestError(
            f"no group {did_you_mean(override.key_or_group, groups)}",
            seen=line,
            expected=f"one of {', '.join(groups)}",
            fix=f"+{near}={override.value()}" if near else "",
        )
    key, _, text = line.lstrip("+").partition("=")
    if _is_number(override.value()) and _takes(key, str, Path):
        # The grammar reads run_id=40_1, an array's job and task, as the number 401; such a setting means what it says.
        return f"++{key}='{text.strip()}'"
    return f"++{key}={text}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _takes(key: str, *wanted: type) -> bool:
    """Whether the schema knows a setting and takes nothing but these kinds of values there, or null."""
    *parents, name = key.split(".")
    sections: list[type[BaseModel]] = [RunConfig]
    for part in parents:
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = [section for field in fields for section in sections_in(field.annotation)]
    found = [section.model_fields[name].annotation for section in sections if name in section.model_fields]
    unions = (Union, UnionType)
    members = {kind for one in found for kind in (get_args(one) if get_origin(one) in unions else (one,))}
    kinds = {get_origin(kind) or kind for kind in members}
    return bool(kinds) and kinds <= {*wanted, type(None)}


def _with_one_length(settings: dict[str, Any], overrides: list[Override]) -> dict[str, Any]:
    """Drops a file's max_epochs where the command line gives max_updates: it says how long the run is, anew."""
    asked = {o.key_or_group.removeprefix("trainer.") for o in overrides if o.key_or_group.startswith("trainer.")}
    trainer = settings.get("trainer")
    if asked.intersection(LENGTHS) and isinstance(trainer, dict):
        kept = {key: value for key, value in trainer.items() if key not in LENGTHS or key in asked}
        return {**settings, "trainer": kept}
    return settings


def _composition_error(error: Exception, primary: Path, roots: Sequence[Path]) -> RequestError:
    text = str(error).strip()
    group = re.search(r"(?:Could not find|In .*: Could not find) '([^']+)'", text)
    if group:
        name = group[1]
        folder = name.rsplit("/", 1)[0] if "/" in name else ""
        options = sorted({file.stem for root in roots for file in (root / folder).glob("*.yaml")})
        near = nearest(name.rsplit("/", 1)[-1], options)
        return RequestError(
            f"no configuration {name!r}",
            seen=f"no {name}.yaml in {' or '.join(str(root) for root in dict.fromkeys(roots))}",
            expected=f"one of {', '.join(options)}" if options else f"a file {name}.yaml",
            fix=f"{folder}={near or options[0]}" if folder and options else "",
        )
    delete = re.search(r"Could not delete from config\. '?([^' ]+)'?", text)
    if delete:
        return RequestError(
            f"nothing to delete at {delete[1]}",
            seen=text.splitlines()[0],
            expected="a key that the files set",
            fix=f"leave ~{delete[1]} out",
        )
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    hint = next((line for line in rest if line.startswith("To append")), "")
    return RequestError(
        f"the configuration of {primary.name} cannot be composed",
        seen=first,
        expected="keys and groups that exist",
        fix=hint or f"mend {primary.name}, or the override that is named",
    )


def _validation_error(error: ValidationError) -> RequestError:
    problems: dict[str, RequestError] = {}
    for problem in error.errors(include_url=False):
        key, section = _locate(problem["loc"])
        # A union (int, auto or null) reports one problem a member; the first is enough.
        problems.setdefault(key, _describe(problem, key, section))
    first, *others = problems.values()
    if not others:
        return first
    more = "\n".join(other.summary + (f"   → {other.fix}" if other.fix else "") for other in others)
    fix = f"{first.fix}\nand {len(others)} more:\n{more}".lstrip()
    return RequestError(first.summary, seen=first.seen, expected=first.expected, fix=fix)


def _describe(problem: Any, key: str, section: type[BaseModel]) -> RequestError:
    """Turns one problem into a sentence with the key as the user writes it."""
    value, parent = problem["input"], key.rpartition(".")[0]
    if problem["type"] == "extra_forbidden":
        known = list(section.model_fields)
        near = nearest(key.rpartition(".")[2], known)
        name = f"{parent}.{near}" if parent else str(near)
        return RequestError(
            f"unknown key {key!r}" + (f", did you mean {name!r}?" if near else ""),
            seen=_first_setting(key, value),
            expected=f"a key of {parent or 'the configuration'}: {', '.join(known)}",
            fix=_first_setting(name, value) if near else f"leave {key} out",
        )
    if problem["type"] == "union_tag_invalid":
        known = re.findall(r"'([^']+)'", problem["ctx"]["expected_tags"])
        return RequestError(
            f"no such {key}.kind: {did_you_mean(problem['ctx']['tag'], known)}",
            seen=f"{key}.kind={problem['ctx']['tag']}",
            expected=f"one of {', '.join(known)}",
            fix=f"{key}.kind={nearest(problem['ctx']['tag'], known) or known[0]}",
        )
    if problem["type"] == "missing":
        return RequestError(f"{key} is not set", expected=f"a value for {key}", fix=f"{key}=VALUE")
    if problem["type"] in ("string_type", "path_type") and _is_number(value):
        return RequestError(
            f"{key} cannot be the number {_short(value)}",
            seen=f"{key}={_short(value)} ({type(value).__name__})",
            expected="a text; YAML reads one that looks like a number as a number",
            fix=f'{key.rpartition(".")[2]}: "{_short(value)}"      (quoted, in the file that sets it)',
        )
    message = re.sub(r"^(Value error|Assertion failed), ", "", problem["msg"])
    if problem["type"] == "value_error":
        # The schema's own checks already say what was seen and what was expected.
        named = re.match(r"([\w.]+)(?:=(\S+?)(?=:?\s)|(?=: ))", message)
        if named:  # A section's own check begins with the setting: max_batch_size=0: …
            setting = key if named[1] == key else f"{key}.{named[1]}".lstrip(".")
            seen, fix = (f"{setting}={named[2]}", f"leave {setting} out") if named[2] else ("", "")
            return RequestError(setting + message[len(named[1]) :], seen=seen, fix=fix)
        written = re.search("write '([^']+)'", message)
        fix = shlex.quote(f"{key}={written[1]}") if written else ""
        return RequestError(f"{key}: {message}" if key else message, seen=_seen(key, value), fix=fix)
    if problem["type"] == "tuple_type":
        # Of a list of any length the value given is one element; where the length is fixed, the default shows it.
        default = _default(key, section)
        given = (override_value(value),) if isinstance(value, str) else ()
        elements = default if isinstance(default, tuple) and default else given
        return RequestError(
            f"{key} cannot be {_short(value)}",
            seen=f"{key}={_short(value)} ({type(value).__name__})",
            expected="a list in brackets",
            fix=f"{key}={shlex.quote('[' + ','.join(map(str, elements)) + ']')}",
        )
    takes_text = problem["type"] == "string_type" and isinstance(value, int | float)
    return RequestError(
        f"{key} cannot be {_short(value)}",
        seen=f"{key}={_short(value)} ({type(value).__name__})",
        expected=_KINDS.get(problem["type"], message[0].lower() + message[1:]),
        fix=f"{key}={_twice_quoted(str(value)) if takes_text else _short(_default(key, section))}",
    )


_KINDS = dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number")
_KINDS |= dict.fromkeys(("float_parsing", "float_type"), "a number")
_KINDS |= dict.fromkeys(("bool_parsing", "bool_type"), "true or false")


def _twice_quoted(value: str) -> str:
    return f"{shlex.quote(override_value(value))}      (quoted twice: once for the shell)"


def _locate(location: tuple[int | str, ...]) -> tuple[str, type[BaseModel]]:
    """Returns the key as the files write it, and the section in which its last part was looked up.

    The location also names the chosen section's tag ("upt", "custom") and the member of a union ("int").
    """
    path: list[str] = []
    sections: list[type[BaseModel]] = [RunConfig]
    parent: type[BaseModel] = RunConfig
    for part in map(str, location):
        chosen = [section for section in sections if part == _tag(section)]
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


def _tag(section: type[BaseModel]) -> str:
    kind = section.model_fields.get("kind")
    known = get_args(kind.annotation) if kind is not None else ()
    return str(known[0]) if known else "custom"


def _default(key: str, section: type[BaseModel]) -> Any:
    field = section.model_fields.get(key.rpartition(".")[2])
    if field is None or field.is_required():
        return "VALUE"
    default = field.get_default(call_default_factory=True, validated_data={})
    return "VALUE" if default is None else default


def _seen(key: str, value: Any) -> str:
    return f"{key}={_short(value)}" if key and not isinstance(value, (dict, BaseModel)) else ""


def _first_setting(key: str, value: Any) -> str:
    """Returns a setting as it is typed: of a section, its first one."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return f"{key}={_short(value)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
