"""Composes YAML files and overrides (Hydra's grammar) and checks them against the schema."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from noether.common.plain_file import read_plain
from noether.config.explain import composition_error, validation_error
from noether.config.overrides import as_hydra_override, parse_overrides
from noether.config.schema import SECTIONS_WITH_KIND, RunConfig
from noether.config.settings_file import check_yaml, configs_folder, primary_file, with_defaults, yaml_error
from noether.config.sweep import override_value, parse_override
from noether.config.trainer import LENGTHS
from noether.errors import RequestError

# What `${oc.env:NAME}` may read. Otherwise a settings file from somebody else could copy any secret in the environment
# into the run's names and files.
ALLOWED = (
    "USER", "LOGNAME", "HOME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA", "PROJECT",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PBS_JOBID", "PBS_JOBNAME", "LSB_JOBID", "LSB_JOBNAME",
)  # fmt: skip
ALLOWED_PREFIXES = ("SLURM_", "NOETHER_")
NEVER = ("NOETHER_RUN_KEY", "SLURM_JWT")
_MISSING = "_the variable has no default_"


def load_config(overrides: Sequence[str] = (), hp: str | Path | None = None) -> RunConfig:
    """Composes and validates the configuration of a run.

    Args:
        overrides: Hydra overrides in the order given: `key=value`, `+key=value`, `~key`, `group=option`.
        hp: a YAML file in any folder, which may use the groups of the configs folder. If it has no `defaults` list, it
            changes the default configuration. None: the default configuration.

    Raises:
        RequestError: a setting is wrong. The error names the key, what was expected, and the line to change.
    """
    return validate(compose_settings(overrides, hp))


@dataclass(frozen=True)
class Composed:
    """Plain settings, not validated yet, and what they were composed of.

    choices: the file of each group that was chosen, by the group.
    """

    settings: dict[str, Any]
    primary: Path
    overrides: tuple[Override, ...]
    choices: Mapping[str, Path]


def compose_settings(overrides: Sequence[str] = (), hp: str | Path | None = None) -> dict[str, Any]:
    """Composes files and overrides into plain settings, which are not validated yet."""
    return compose_from(overrides, hp).settings


def compose_from(overrides: Sequence[str] = (), hp: str | Path | None = None) -> Composed:
    """Composes files and overrides, and says which files they were. Raises as `load_config`."""
    primary = primary_file(hp)
    check_yaml(primary)
    parsed = parse_overrides(overrides)
    roots = (primary.parent, configs_folder())
    OmegaConf.register_new_resolver("oc.env", _read_variable, replace=True)
    adjusted = [as_hydra_override(override, roots) for override in parsed]
    lines = [line for line in adjusted if _chosen_kind(line) is None]
    try:
        with with_defaults(primary) as file:
            others = [root for root in dict.fromkeys(roots) if root != file.parent]
            if others:
                lines.append(f"hydra.searchpath=[{','.join(override_value(f'file://{root}') for root in others)}]")
            with initialize_config_dir(config_dir=str(file.parent), version_base="1.3"):
                composed = compose(config_name=file.stem, overrides=lines, return_hydra_config=True)
            chosen = dict(composed.hydra.runtime.choices)
            OmegaConf.set_struct(composed, False)
            del composed["hydra"]
        _apply_kinds(composed, adjusted)
        settings = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise composition_error(error, primary, roots, parsed) from None
    except yaml.YAMLError as error:
        raise yaml_error(error, primary) from None
    assert isinstance(settings, dict)
    files = [(group, root / group / f"{option}.yaml") for root in reversed(roots) for group, option in chosen.items()]
    return Composed(
        _with_one_length({str(key): value for key, value in settings.items()}, parsed),
        primary,
        tuple(parsed),
        {group: file for group, file in files if file.is_file()},
    )


def validate(settings: dict[str, Any]) -> RunConfig:
    """Checks plain settings against the schema and returns the configuration.

    Raises:
        RequestError: names each wrong key, the nearest valid key for an unknown one, and the line to change.
    """
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise validation_error(error, settings) from None


def read_dumped(path: Path) -> RunConfig:
    """Reads a run's config.yaml, as `dump_config` wrote it: plain values. It has no `defaults`, and `${}` is text.

    Raises:
        RequestError: it cannot be read, or is not what `dump_config` writes.
    """
    return validate(check_yaml(path, read_plain))


def dump_config(config: BaseModel) -> str:
    """Returns the resolved configuration as YAML, from which `--hp` reads the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _chosen_kind(line: str) -> tuple[str, str] | None:
    """Returns (section, kind) for an override like `++model.kind=my_package.MyModel`, None for any other."""
    section, dot, rest = line.lstrip("+").partition(".")
    if section not in SECTIONS_WITH_KIND or not dot or not rest.startswith("kind="):
        return None
    kind = parse_override(line).value()
    return (section, kind) if isinstance(kind, str) and "${" not in kind else None


def _apply_kinds(composed: DictConfig, lines: Sequence[str]) -> None:
    """Sets the kinds given on the command line. If a kind differs from the files', their settings for it are dropped.

    Settings of that section on the command line are kept, in the order given.
    """
    kinds = dict(chosen for line in lines if (chosen := _chosen_kind(line)) is not None)
    OmegaConf.set_struct(composed, False)
    for section, kind in kinds.items():
        if OmegaConf.select(composed, f"{section}.kind") == kind:
            continue
        composed[section] = {"kind": kind}
        for line in lines:
            if line.startswith(f"++{section}.") and _chosen_kind(line) is None:
                override = parse_override(line)
                OmegaConf.update(composed, override.key_or_group, override.value(), merge=True)


def _with_one_length(settings: dict[str, Any], overrides: list[Override]) -> dict[str, Any]:
    """Drops the file's length, such as max_epochs, if the command line gives another, such as max_updates."""
    asked = {o.key_or_group.removeprefix("trainer.") for o in overrides if o.key_or_group.startswith("trainer.")}
    trainer = settings.get("trainer")
    if asked.intersection(LENGTHS) and isinstance(trainer, dict):
        kept = {key: value for key, value in trainer.items() if key not in LENGTHS or key in asked}
        return {**settings, "trainer": kept}
    return settings


def _read_variable(name: str, default: Any = _MISSING) -> Any:
    allowed = (name in ALLOWED or name.startswith(ALLOWED_PREFIXES)) and name not in NEVER
    if not allowed:
        raise RequestError(
            "variable-not-allowed",
            f"a configuration may not read the variable {name}",
            seen=f"${{oc.env:{name}}}",
            expected=f"one of {', '.join(ALLOWED)}, or {', '.join(f'{prefix}…' for prefix in ALLOWED_PREFIXES)}",
            fix=f'the setting on the command line: name="${name}"',
        )
    if name in os.environ:
        return os.environ[name]
    if default == _MISSING:
        raise RequestError(
            "variable-not-set",
            f"the variable {name} is not set",
            seen=f"${{oc.env:{name}}}",
            expected="a variable that is set, or a default",
            fix=f"${{oc.env:{name},DEFAULT}}",
        )
    return default
