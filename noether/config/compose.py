"""The configuration of a run: YAML files and overrides (Hydra's grammar), composed and checked against the schema."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from noether.common.errors import RequestError
from noether.common.safe_open import read_plain
from noether.config.explain import refusal_of
from noether.config.groups import configs_folder
from noether.config.interpolation import interpolated
from noether.config.layers import SearchPath, SettingsLayer, layers_of, primary_file, read_settings
from noether.config.overrides import TYPED, chosen_options, parse_overrides, setting_value
from noether.config.recipe import left_to_recipe, with_recipe
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.section import flat, merged, nested, take
from noether.config.sweep import expand_sweep
from noether.config.trainer import LENGTHS
from noether.config.yaml_reader import RunYaml

DEFAULT = "default"
SettingsFile = str | Path | SettingsLayer | None
"""A settings file, or the layer that was read from a settings file; None: the default configuration."""


def load_config(overrides: Sequence[str] = (), hp: SettingsFile = None) -> RunConfig:
    """Compose and validate the configuration of a run.

    overrides: first every `group=option`, then `key=value`, `+key=value` and `~key` in order (Hydra's grammar).
    hp: a YAML file in any folder, which can use the groups of the configs folder. Without a `defaults` list, the file
        changes the default configuration. None: the default configuration.
    RequestError: a setting is wrong. The error names the key, the expected value, and the line to change.
    """
    layers = compose_layers(overrides, hp)  # the layers of the files and of the command line, the lowest first
    settings = interpolated(laid_over(layers))  # `${key}` is replaced by its value
    complete, recipe = with_recipe(settings)  # `auto` is replaced by the recipe's choice
    return validate(complete).chosen_by(recipe)


def load_sweep(overrides: Sequence[str], hp: str | None, verb: str) -> tuple[list[list[str]], list[RunConfig]]:
    """Return the overrides of each run of a sweep, and the configuration of each run; `verb` is the typed command.

    RequestError: as for `expand_sweep` and `load_config`, or `resume` names a single run, but the sweep has several.
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
    """Compose files and overrides into plain settings, which are not validated and can still contain `auto`."""
    return interpolated(laid_over(compose_layers(overrides, hp)))


def compose_layers(overrides: Sequence[str], hp: SettingsFile) -> list[SettingsLayer]:
    """Return the layers of settings, from the lowest to the highest: those of the files, then the command line's.

    If a layer sets another `kind` of a section, that section is removed from the lower layers. If a layer sets the
    length of the run in another unit, the length is removed from the lower layers.
    """
    known: dict[str, Any] | None = None
    if isinstance(hp, SettingsLayer):
        assert hp.file is not None
        known, primary = hp.settings, hp.file.resolve()  # The file was read before, so it may have any name.
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
                raise RequestError("nothing-to-delete", f"there is no setting to delete: {key}", seen=f"~{key}",
                                   expected="a key that a settings file sets", fix=f"leave ~{key} out")  # fmt: skip
        elif key not in chosen:
            layers[-1] = SettingsLayer(None, merged(layers[-1].settings, nested(key, setting_value(override))))
    for place, layer in enumerate(layers):
        for key in _replaced(laid_over(layers[:place]), layer.settings):
            for lower in layers[:place]:
                take(lower.settings, key)
    return layers


def laid_over(layers: Sequence[SettingsLayer]) -> dict[str, Any]:
    """Return the settings of all layers merged into one dictionary; each layer overrides the layers before it."""
    return reduce(merged, (layer.settings for layer in layers), {})


def validate(settings: dict[str, Any]) -> RunConfig:
    """Check plain settings against the schema; return the configuration.

    RequestError: a setting is wrong. The error names each wrong key, the key probably meant, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise refusal_of(error, settings) from None


@dataclass(frozen=True)
class Setting:
    """A setting with its full name, its value, and its origin ("command line", the path of a file, or "default")."""

    name: str
    value: Any
    origin: str


def settings_with_origins(overrides: Sequence[str] = (), hp: SettingsFile = None) -> list[Setting]:
    """Return every setting of the configuration that `load_config` returns. RequestError: as for `load_config`."""
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
    """Read the config.yaml that `dump_config` wrote for a run; `${}` and `defaults` have no special meaning in it.

    RequestError: the file cannot be read, or its settings do not fit the schema.
    """
    return validate(dumped_layer(path).settings)


def dumped_layer(path: Path) -> SettingsLayer:
    """Read a run's config.yaml as a layer that other layers can override. RequestError: the file cannot be read."""
    return SettingsLayer(path, read_settings(path, read_plain, RunYaml)[0])


def dump_config(config: BaseModel) -> str:
    """Return the configuration as YAML. Passed as `--hp`, this YAML gives the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _replaced(below: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the settings to remove from `below` before `above` is laid over it."""
    for name in SECTIONS_WITH_KIND:
        parts = [part for one in (below, above) if isinstance(part := one.get(name), dict)]
        kinds = {str(part["kind"]) for part in parts if "kind" in part}
        if len(kinds) > 1 and "${" not in f"{kinds}":
            yield name
    trainer = above.get("trainer")
    lengths = [name for name in LENGTHS if isinstance(trainer, dict) and trainer.get(name) is not None]
    yield from (f"trainer.{name}" for name in LENGTHS if lengths and name not in lengths)
