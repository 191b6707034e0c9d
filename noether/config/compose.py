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
"""A file of settings, or the layer read from one; None: the default configuration."""


def load_config(overrides: Sequence[str] = (), hp: SettingsFile = None) -> RunConfig:
    """Compose and validate the configuration of a run.

    overrides: Hydra overrides in the order given: `key=value`, `+key=value`, `~key`, `group=option`.
    hp: a YAML file in any folder, which may use the groups of the configs folder; without a `defaults` list it changes
        the default configuration. None: the default configuration.
    RequestError: a setting is wrong. The error names the key, the expected value, and the line to change.
    """
    layers = compose_layers(overrides, hp)  # of the files and the command line, the lowest first
    settings = interpolated(laid_over(layers))  # `${key}` is replaced by its value
    complete, recipe = with_recipe(settings)  # `auto` is replaced by the recipe's choice
    return validate(complete).chosen_by(recipe)


def load_sweep(overrides: Sequence[str], hp: str | None, verb: str) -> tuple[list[list[str]], list[RunConfig]]:
    """Return the overrides and the configuration of each run of a sweep; `verb` is the command that was typed.

    RequestError: as `expand_sweep` and `load_config`, or `resume` names one run, which not every run can resume.
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
    """Compose files and overrides into plain settings, not yet validated, in which `auto` may remain."""
    return interpolated(laid_over(compose_layers(overrides, hp)))


def compose_layers(overrides: Sequence[str], hp: SettingsFile) -> list[SettingsLayer]:
    """Return the settings of the files and, last, of the command line: the lowest layer first.

    If a layer sets a new `kind` of a section, that section is removed from the lower layers. If it sets the length of
    the run in another unit, the length is removed from the lower layers.
    """
    known: dict[str, Any] | None = None
    if isinstance(hp, SettingsLayer):
        assert hp.file is not None
        known, primary = hp.settings, hp.file.resolve()  # The file has been read already, so its name does not matter.
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
    """Return the settings of all layers; a later layer overrides an earlier one."""
    return reduce(merged, (layer.settings for layer in layers), {})


def validate(settings: dict[str, Any]) -> RunConfig:
    """Check plain settings against the schema; return the configuration.

    RequestError: names each wrong key, the nearest valid key for an unknown one, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise refusal_of(error, settings) from None


@dataclass(frozen=True)
class Setting:
    """A setting: its full name, its value, and its origin: "command line", a file's path, or "default"."""

    name: str
    value: Any
    origin: str


def settings_with_origins(overrides: Sequence[str] = (), hp: SettingsFile = None) -> list[Setting]:
    """Return every setting of the configuration that `load_config` would return. RequestError: as `load_config`."""
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
    """Read a run's config.yaml, as `dump_config` wrote it: plain values, without `defaults`; `${}` is text.

    RequestError: it cannot be read, or does not fit the schema.
    """
    return validate(dumped_layer(path).settings)


def dumped_layer(path: Path) -> SettingsLayer:
    """Read a run's config.yaml as a layer, over which others can be laid. RequestError: it cannot be read."""
    return SettingsLayer(path, read_settings(path, read_plain, RunYaml)[0])


def dump_config(config: BaseModel) -> str:
    """Return the resolved configuration as YAML, from which `--hp` reads the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _replaced(below: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of `below` that are removed when `above` is laid over it."""
    for name in SECTIONS_WITH_KIND:
        parts = [part for one in (below, above) if isinstance(part := one.get(name), dict)]
        kinds = {str(part["kind"]) for part in parts if "kind" in part}
        if len(kinds) > 1 and "${" not in f"{kinds}":
            yield name
    trainer = above.get("trainer")
    lengths = [name for name in LENGTHS if isinstance(trainer, dict) and trainer.get(name) is not None]
    yield from (f"trainer.{name}" for name in LENGTHS if lengths and name not in lengths)
