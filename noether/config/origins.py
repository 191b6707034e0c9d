"""Where each setting of a run comes from: the command line, a file, or the default of the schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.config.compose import SettingsFile, compose_layers, laid_over, validate
from noether.config.groups import configs_folder
from noether.config.interpolation import interpolated
from noether.config.recipe import left_to_recipe, with_recipe
from noether.config.section import flat

TYPED, DEFAULT = "command line", "default"


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
    origins = {name: _shown(layer.file) for layer in layers for name, _ in flat(layer.settings)}
    if recipe is not None:
        for name in left_to_recipe(typed):
            origins[f"trainer.{name}"] += f": auto, {recipe.reason}"
    found = []
    for name, value in flat(config):
        places = [place for place, letter in enumerate(name) if letter == "."] + [len(name)]
        known = [origins[name[:place]] for place in places if name[:place] in origins]
        found.append(Setting(name, value, known[-1] if known else DEFAULT))
    return found


def _shown(file: Path | None) -> str:
    if file is None:
        return TYPED
    own = configs_folder()
    return str(file.relative_to(own.parent) if file.is_relative_to(own) else file)
