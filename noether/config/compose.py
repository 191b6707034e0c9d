"""Composes YAML files and overrides (Hydra's grammar) and checks them against the schema."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException
from pydantic import BaseModel, ValidationError

from noether.common.errors import RequestError
from noether.common.plain_file import read_plain
from noether.config.explain import SettingProblem, problems_of, refusal_of
from noether.config.groups import configs_folder
from noether.config.interpolation import interpolated
from noether.config.layers import SearchPath, SettingsLayer, layers_of, nested
from noether.config.other_names import SECTIONS, Suggestion
from noether.config.overrides import chosen_options, parse_overrides, setting_value
from noether.config.recipe import with_recipe
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.settings_file import check_yaml, primary_file
from noether.config.sweep import expand_sweep, parse_override
from noether.config.trainer import LENGTHS

SettingsFile = str | Path | SettingsLayer | None
"""A file of settings, or what was read of one; None: the default configuration."""


def load_config(overrides: Sequence[str] = (), hp: SettingsFile = None) -> RunConfig:
    """Composes and validates the configuration of a run.

    Args:
        overrides: Hydra overrides in the order given: `key=value`, `+key=value`, `~key`, `group=option`.
        hp: a YAML file in any folder, which may use the groups of the configs folder. If it has no `defaults` list, it
            changes the default configuration. None: the default configuration.

    Raises:
        RequestError: a setting is wrong. The error names the key, what was expected, and the line to change.
    """
    settings, recipe = with_recipe(compose_settings(overrides, hp))
    return validate(settings).chosen_by(recipe)


def load_sweep(overrides: Sequence[str], hp: str | None, verb: str) -> tuple[list[list[str]], list[RunConfig]]:
    """Returns the overrides and the configuration of each run of a sweep; `verb` is the command that was typed.

    Raises:
        RequestError: as `expand_sweep` and `load_config`; or `resume` names a run, which cannot be that of each.
    """
    expanded = expand_sweep(overrides, verb)
    configs = [load_config(words, hp) for words in expanded]
    for config in configs:
        if config.resume not in (None, "auto"):
            raise RequestError(
                "sweep-resumes-others",
                "a sweep can only resume its own runs",
                seen=f"resume={config.resume}",
                expected="resume=auto, with the run_id of the sweep",
                fix="run_id=NAME resume=auto",
            )
    return expanded, configs


def compose_settings(overrides: Sequence[str] = (), hp: SettingsFile = None) -> dict[str, Any]:
    """Composes files and overrides into plain settings, which are not validated yet, and may be `auto`."""
    return interpolated(laid_over(compose_layers(overrides, hp)))


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
            taken = [_take(layer.settings, key) for layer in layers]
            if not any(taken):
                raise RequestError(
                    "nothing-to-delete",
                    f"nothing to delete at {key}",
                    seen=f"~{key}",
                    expected="a key that the files set",
                    fix=f"leave ~{key} out",
                )
        elif key not in chosen:
            layers[-1] = SettingsLayer(None, _merged(layers[-1].settings, nested(key, setting_value(override))))
    for place, layer in enumerate(layers):
        for key in _replaced(laid_over(layers[:place]), layer.settings):
            for lower in layers[:place]:
                _take(lower.settings, key)
    return layers


def laid_over(layers: Sequence[SettingsLayer]) -> dict[str, Any]:
    """Returns the settings of all layers, where the last one that has a setting counts."""
    return reduce(_merged, (layer.settings for layer in layers), {})


def validate(settings: dict[str, Any]) -> RunConfig:
    """Checks plain settings against the schema and returns the configuration.

    Raises:
        RequestError: names each wrong key, the nearest valid key for an unknown one, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        problems = problems_of(error, settings)
    raise refusal_of([_with_value_corrected(key, problem, settings) for key, problem in problems.items()])


def _with_value_corrected(key: str, problem: SettingProblem, settings: Mapping[str, Any]) -> SettingProblem:
    """Tries the fix of an unknown key: where the setting that it names refuses the value, one line corrects both."""
    meant, tried = problem.fix, deepcopy(dict(settings))
    if not isinstance(meant, Suggestion) or meant.setting in SECTIONS:  # The latter: an option of a group.
        return problem
    _take(tried, key)
    try:
        override = parse_override(meant.override)
        tried = _merged(tried, nested(meant.setting, setting_value(override)))
        RunConfig.model_validate(tried)
    except (HydraException, RequestError):
        return problem
    except ValidationError as error:
        for key, second in problems_of(error, tried).items():
            if f"{meant.setting}.".startswith(f"{second.setting}."):
                second = _with_value_corrected(key, second, tried)
                return replace(problem, expected=second.expected, fix=second.fix)
    return problem


def read_dumped(path: Path) -> RunConfig:
    """Reads a run's config.yaml, as `dump_config` wrote it: plain values. It has no `defaults`, and `${}` is text.

    Raises:
        RequestError: it cannot be read, or is not what `dump_config` writes.
    """
    return validate(dumped_layer(path).settings)


def dumped_layer(path: Path) -> SettingsLayer:
    """Reads a run's config.yaml for `read_dumped`, or to lay others over it. Raises RequestError: it cannot be read."""
    return SettingsLayer(path, check_yaml(path, read_plain, yaml.SafeLoader))


def dump_config(config: BaseModel) -> str:
    """Returns the resolved configuration as YAML, from which `--hp` reads the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merged(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return merged


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


def _take(settings: dict[str, Any], key: str) -> bool:
    """Deletes a setting by its full name. Returns whether there was one."""
    name, dot, rest = key.partition(".")
    part = settings.get(name)
    if dot:
        return isinstance(part, dict) and _take(part, rest)
    return settings.pop(name, part) is not None
