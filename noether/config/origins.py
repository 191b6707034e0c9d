"""Where each setting of a run comes from: the command line, a file, or the default of the schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.config.compose import Composed, compose_from, validate
from noether.config.section import flat
from noether.config.settings_file import check_yaml, configs_folder

TYPED, DEFAULT = "command line", "default"


@dataclass(frozen=True)
class Setting:
    """A setting by its full name, its value, and where it comes from: "command line", a file's path, or "default"."""

    name: str
    value: Any
    origin: str


def settings_with_origins(overrides: Sequence[str] = (), hp: str | Path | None = None) -> list[Setting]:
    """Returns every setting of the configuration that `load_config` would return. Raises as it does."""
    composed = compose_from(overrides, hp)
    config = validate(composed.settings).model_dump(mode="json")
    names = _by_file(composed)
    typed = {override.key_or_group for override in composed.overrides if not override.is_delete()}
    found = []
    for name, value in flat(config):
        parents = {name[:place] for place, letter in enumerate(name) if letter == "."} | {name}
        origin = next((_shown(file) for file, have in names.items() if have & parents), DEFAULT)
        # A group that was typed (model=upt) has its values from the group's file.
        found.append(Setting(name, value, TYPED if (typed - set(composed.choices)) & parents else origin))
    return found


def _shown(file: Path) -> str:
    own = configs_folder()
    return str(file.relative_to(own.parent) if file.is_relative_to(own) else file)


def _by_file(composed: Composed) -> dict[Path, set[str]]:
    """Returns the settings that each file sets, the file that counts most first: experiments, the file, its groups."""
    own = {name for name, _ in flat(_without_defaults(composed.primary))}
    groups, experiments = {}, {}
    for group, file in composed.choices.items():
        content = file.read_text()
        if content.startswith("# @package _global_"):
            experiments[file] = {name for name, _ in flat(_without_defaults(file))}
        else:
            groups[file] = {f"{group}.{name}" for name, _ in flat(_without_defaults(file))}
    return experiments | {composed.primary: own} | groups


def _without_defaults(file: Path) -> Mapping[str, Any]:
    return {name: value for name, value in check_yaml(file).items() if name != "defaults"}
