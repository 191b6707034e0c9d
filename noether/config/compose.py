"""Composes YAML files and overrides (Hydra's grammar) and checks them against the schema."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from noether.common.errors import RequestError
from noether.common.numbers import is_number
from noether.common.safe_open import read_plain
from noether.common.suggest import nearest, plain_characters
from noether.config.explain import (
    as_override,
    default_of,
    fields_of,
    members_of,
    refusal_of,
    resolve_alias,
    resolve_value,
)
from noether.config.groups import configs_folder, lines_for, our_groups
from noether.config.interpolation import interpolated
from noether.config.layers import (
    SearchPath,
    SettingsLayer,
    as_yaml,
    layers_of,
    no_option,
    primary_file,
    read_settings,
)
from noether.config.recipe import left_to_recipe, with_recipe
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.section import flat, merged, nested, take
from noether.config.sweep import as_typed, check_amount, expand_sweep, parse_override
from noether.config.trainer import LENGTHS
from noether.config.yaml_reader import RunYaml, SettingsYaml, parse_yaml

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

TYPED, DEFAULT = "command line", "default"
LONGEST_UNREAD = 1_000
"""Characters of a word that cannot be parsed and is shown, and searched for what was meant."""
SettingsFile = str | Path | SettingsLayer | None
"""A file of settings, or what was read of one; None: the default configuration."""


def load_config(overrides: Sequence[str] = (), hp: SettingsFile = None) -> RunConfig:
    """Composes and validates the configuration of a run.

    Args:
        overrides: Hydra overrides in the order given: `key=value`, `+key=value`, `~key`, `group=option`.
        hp: a YAML file in any folder, which may use the groups of the configs folder. If it has no `defaults` list, it
            changes the default configuration. None: the default configuration.

    RequestError: a setting is wrong. The error names the key, what was expected, and the line to change.
    """
    settings, recipe = with_recipe(compose_settings(overrides, hp))
    return validate(settings).chosen_by(recipe)


def load_sweep(overrides: Sequence[str], hp: str | None, verb: str) -> tuple[list[list[str]], list[RunConfig]]:
    """Returns the overrides and the configuration of each run of a sweep; `verb` is the command that was typed.

    RequestError: as `expand_sweep` and `load_config`; or `resume` names a run, which cannot be that of each.
    """
    expanded = expand_sweep(overrides, verb)
    configs = [load_config(words, hp) for words in expanded]
    for config in configs:
        if config.resume not in (None, "auto"):
            raise RequestError("sweep-resumes-others", "a sweep can only resume its own runs",
                               seen=f"resume={config.resume}", expected="resume=auto, with the run_id of the sweep",
                               fix="run_id=NAME resume=auto")  # fmt: skip
    return expanded, configs


def compose_settings(overrides: Sequence[str] = (), hp: SettingsFile = None) -> dict[str, Any]:
    """Composes files and overrides into plain settings, which are not validated yet, and may be `auto`."""
    return interpolated(laid_over(compose_layers(overrides, hp)))


def parse_overrides(overrides: Sequence[str]) -> "list[Override]":
    """Reads the overrides of one run. RequestError: a word is not an override, or a setting has several values."""
    check_amount(overrides)
    parsed = []
    for place, text in enumerate(overrides):
        override = parse_override(text)
        key = override.key_or_group if override and override.package is None else ""
        unreadable = not key or key.endswith(".") or ("/" in key and fields_of(key.replace("/", ".")))
        if override is None or unreadable or (override.is_delete() and "=" in text):
            raise _unreadable(text, overrides[place + 1 : place + 3])
        if key.split(".")[0] == "hydra":
            raise RequestError(
                "setting-of-hydra",
                f"{key} is a setting of Hydra's own program, which does not run here",
                seen=text,
                expected="a setting of noether: noether help top-level",
                fix=f"output_path={override.value()}"
                if key in ("hydra.run.dir", "hydra.sweep.dir")
                else f"leave {shlex.quote(text)} out",
            )
        if override.is_sweep_override():
            raise _several_values(text)
        parsed.append(override)
    return parsed


def _several_values(text: str) -> RequestError:
    key, _, value = text.partition("=")
    name, expected, fix = key.lstrip("+"), "one value", f"-m {shlex.quote(text)}      (a run for each value)"
    if not fields_of(name) and (meant := resolve_alias(name, value)):
        fix = str(meant)
    elif takes(name, tuple):
        expected, fix = "a list in brackets", f"{key}={shlex.quote(f'[{value}]')}"
    elif takes(name, str, Path):
        fix = f'{key}=\\"{value}\\"      (one text with commas; a sweep: -m {text})'
    elif re.search(",0+\\d", value) and (number := resolve_value(name, value)):  # 0,001 and 10,000 are no lists.
        fix = f"{key}={number}"
    return RequestError("setting-given-twice", f"{name} was given several values", seen=text,
                        expected=f"{expected}; a comma separates the values of a sweep", fix=fix)  # fmt: skip


def _unreadable(text: str, following: Sequence[str] = ()) -> RequestError:
    """Explains a word that is not an override; `following` are the next two: its value, or `=` and its value."""
    if len(text) > LONGEST_UNREAD:
        raise RequestError("override-too-long", f"cannot read {len(text):,} characters", seen=f"{text[:40]}…",
                           expected="key=value, with a number of at most 20 digits, and few brackets",
                           fix=f"{text.partition('=')[0][:100]}=VALUE")  # fmt: skip
    after = following[: 1 + ("=" in following[:1])] if fields_of(text) else []
    if text.endswith(":"):  # YAML in several words: trainer: max_epochs: 3
        after = following[: 1 + following[0].endswith(":")] if following else []
    seen = " ".join([text, *after]) if after and "=" not in after[-1] and after[-1][0] not in "+~" else text
    if meant := _overrides_meant(plain_characters(seen).rstrip(",;")):
        fix = shlex.join(meant) + any('"' in one for one in meant) * "      (quoted twice: once for the shell)"
    elif (default := default_of(fields_of(text))) is not None:
        fix = shlex.quote(f"{text}={as_override(default)}")
    else:
        fix = _word_meant(text) or f"leave {shlex.quote(text)} out"
    return RequestError("unreadable-override", f"cannot read {seen!r}", seen=seen,
                        expected="key=value, +group=option or ~key", fix=fix)  # fmt: skip


def _overrides_meant(text: str) -> list[str]:
    """Returns the overrides of a word that is none: YAML, JSON, several in one, other marks in the name; else none."""
    name, _, value = text.partition("=")
    if value.strip().startswith("{"):  # trainer={'max_epochs': 3}
        text = f"{name}: {value.replace('=', ': ')}"
    with suppress(RequestError):
        content = parse_yaml(re.sub(r":\s+(?=[\w.]+:)", ".", text), TYPED, SettingsYaml)  # trainer: max_epochs: 3
        if isinstance(content, dict):
            return [f"{key}={as_override(one)}" for key, one in flat(content)]
    pieces = re.split(r"[\s,;]+(?=[+~]*[\w./]+=)", text)
    if len(pieces) > 1 and all("=" in piece for piece in pieces):
        return pieces
    # trainer.max_epochs==3, trainer.max_epochs:3, trainer/max_epochs=3, trainer.max_epochs = 3, trainer['max_epochs']=3
    marked = re.sub(r"->|::|\[['\"]?(?=\w+['\"]?\]\s*=)", ".", text)
    parts = re.fullmatch(r"\+*([\w.:/-]+?)['\"]?\]?(\s*:?=+\s*|\s+|:(?!.*=))(.+)", marked)
    key = re.sub("[/:]", ".", parts[1]) if parts else ""
    if not parts or key.endswith(".") or not (fields_of(key) or text.startswith(f"{key}=")):
        return []
    return [f"{key}={as_typed(parts[3])}"]


def _word_meant(word: str) -> str:
    """Returns the line for a word alone: a run, a file, or the name of an option; "" for none."""
    path, quoted = Path(word), shlex.quote(word)
    around = [one for place in (path, "runs" / path) if os.path.exists(place) for one in (place, *place.parents)]
    if run := next((one for one in around if (one / "config.yaml").is_file()), None):
        return f"resume={shlex.quote(str(run))}"
    if path.suffix in (".yaml", ".yml"):
        return f"--hp {quoted}"
    if path.suffix in (".toml", ".json") and path.is_file():
        return as_yaml(path) + f"      (then --hp {path.with_suffix('.yaml')})"
    if path.suffix in (".sh", ".sbatch", ".slurm"):
        return f"sbatch {quoted}      (noether lint {quoted} checks it)"
    own = ".".join(path.with_suffix("").parts)
    return (
        f"leave {quoted} out      (its class: model.kind={own}.CLASS)" if path.suffix == ".py" else _option_meant(word)
    )


def _option_meant(word: str, others: Sequence[str] = ()) -> str:
    """Returns the line that chooses an option of that name, which goes together with the other words; "" for none."""
    known = [f"{group}/{one}" for group, options in our_groups().items() for one in options]
    lines = lines_for(word) or lines_for(word.rpartition("/")[2]) or lines_for(nearest(word, known) or "")
    for line in lines:
        with suppress(RequestError):
            load_config([*others, line])
            return line
    return ""


def chosen_options(overrides: "Sequence[Override]", path: SearchPath) -> dict[str, list[str]]:
    """Returns the options that the overrides choose, by their group: none for a group that is left out by `~group`.

    RequestError: there is no such option or group.
    """
    chosen: dict[str, list[str]] = {}
    for override in overrides:
        group, value = override.key_or_group, cast(Any, override.value())
        if "/" in group or any((folder / group).is_dir() for folder in path.folders):
            if isinstance(value, dict):  # Settings of a section, whose name is that of the group too.
                raise _unreadable(str(override.input_line))
            chosen[group] = [] if override.is_delete() else value if isinstance(value, list) else [value]
            for option in chosen[group]:
                if not isinstance(option, str) or path.find(f"{group}/{option}") is None:
                    others = [str(one.input_line) for one in overrides if one is not override]
                    other = "" if path.options(group) else _option_meant(f"{group}/{option}", others)
                    raise no_option(group, str(option), path, str(override.input_line), other)
    return chosen


def setting_value(override: "Override") -> Any:
    """Returns the value that an override gives to a setting.

    Hydra's grammar would read run_id=40_1 (an array's job and task) as the number 401: for a text, it stays one.
    """
    value, written = override.value(), str(override.input_line).partition("=")[2].strip()
    if is_number(value) and takes(override.key_or_group, str, Path):
        return written
    if isinstance(value, int) and abs(value) >= 2**64:
        raise RequestError("number-too-long", f"{override.key_or_group} is a number of more than 64 bits",
                           seen=f"{written[:40]}…, of {len(written):,} digits", expected="at most 20 digits",
                           fix=f"{override.key_or_group}={written[:18]}")  # fmt: skip
    return value


def takes(key: str, *wanted: type) -> bool:
    """Returns whether the schema knows a setting and accepts only values of these types for it, or null."""
    found = [field.annotation for field in fields_of(key)]
    kinds = {get_origin(kind) or kind for one in found for kind in members_of(one)}
    return bool(kinds) and kinds <= {*wanted, type(None)}


def compose_layers(overrides: Sequence[str], hp: SettingsFile) -> list[SettingsLayer]:
    """Returns what the files and, as the last, the command line set: the lowest first, each without what it lost.

    A layer that sets another kind of a section, or another length of the run, takes the lower layers' from them.
    """
    known: dict[str, Any] | None = None
    if isinstance(hp, SettingsLayer):
        assert hp.file is not None
        known, primary = hp.settings, hp.file.resolve()  # It has been read, whatever its name.
    else:
        primary = primary_file(hp)
    path = SearchPath(tuple(dict.fromkeys((primary.parent, configs_folder()))))
    parsed = parse_overrides(overrides)
    chosen = chosen_options(parsed, path)
    layers, groups = layers_of(primary, path, chosen, known)
    layers.append(SettingsLayer(None, {}))
    for override in parsed:
        key = override.key_or_group
        if override.is_delete() and key not in groups:
            taken = [take(layer.settings, key) for layer in layers]
            if not any(taken):
                raise RequestError("nothing-to-delete", f"nothing to delete at {key}", seen=f"~{key}",
                                   expected="a key that the files set", fix=f"leave ~{key} out")  # fmt: skip
        elif key not in chosen:
            layers[-1] = SettingsLayer(None, merged(layers[-1].settings, nested(key, setting_value(override))))
    for place, layer in enumerate(layers):
        for key in _replaced(laid_over(layers[:place]), layer.settings):
            for lower in layers[:place]:
                take(lower.settings, key)
    return layers


def laid_over(layers: Sequence[SettingsLayer]) -> dict[str, Any]:
    """Returns the settings of all layers, where the last one that has a setting counts."""
    return reduce(merged, (layer.settings for layer in layers), {})


def validate(settings: dict[str, Any]) -> RunConfig:
    """Checks plain settings against the schema and returns the configuration.

    RequestError: names each wrong key, the nearest valid key for an unknown one, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise refusal_of(error, settings) from None


@dataclass(frozen=True)
class Setting:
    """A setting by its full name, its value, and where it comes from: "command line", a file's path, or "default"."""

    name: str
    value: Any
    origin: str


def settings_with_origins(overrides: Sequence[str] = (), hp: SettingsFile = None) -> list[Setting]:
    """Returns every setting of the configuration that `load_config` would return. Raises as it does."""
    layers = compose_layers(overrides, hp)
    typed = interpolated(laid_over(layers))
    settings, recipe = with_recipe(typed)
    config = validate(settings).model_dump(mode="json")
    origins = {name: _origin(layer.file) for layer in layers for name, _ in flat(layer.settings)}
    if recipe is not None:
        for name in left_to_recipe(typed):
            origins[f"trainer.{name}"] += f": auto, {recipe.reason}"
    found = []
    for name, value in flat(config):
        places = [place for place, letter in enumerate(name) if letter == "."] + [len(name)]
        known = [origins[name[:place]] for place in places if name[:place] in origins]
        found.append(Setting(name, value, known[-1] if known else DEFAULT))
    return found


def _origin(file: Path | None) -> str:
    own = configs_folder()
    return TYPED if file is None else str(file.relative_to(own.parent) if file.is_relative_to(own) else file)


def read_dumped(path: Path) -> RunConfig:
    """Reads a run's config.yaml, as `dump_config` wrote it: plain values. It has no `defaults`, and `${}` is text.

    RequestError: it cannot be read, or is not what `dump_config` writes.
    """
    return validate(dumped_layer(path).settings)


def dumped_layer(path: Path) -> SettingsLayer:
    """Reads a run's config.yaml for `read_dumped`, or to lay others over it. Raises RequestError: it cannot be read."""
    return SettingsLayer(path, read_settings(path, read_plain, RunYaml)[0])


def dump_config(config: BaseModel) -> str:
    """Returns the resolved configuration as YAML, from which `--hp` reads the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _replaced(below: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[str]:
    """Yields the settings that go when `above` is laid over `below`."""
    for name in SECTIONS_WITH_KIND:
        parts = [part for one in (below, above) if isinstance(part := one.get(name), dict)]
        kinds = {str(part["kind"]) for part in parts if "kind" in part}
        if len(kinds) > 1 and "${" not in f"{kinds}":
            yield name
    trainer = above.get("trainer")
    lengths = [name for name in LENGTHS if isinstance(trainer, dict) and trainer.get(name) is not None]
    yield from (f"trainer.{name}" for name in LENGTHS if lengths and name not in lengths)
