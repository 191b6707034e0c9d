"""Choose the batch and the length of a run whose settings are `auto`.

Both depend only on the data and the model, so that they are the same on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noether.registry import hook

AUTO, CHOSEN = "auto", ("effective_batch_size", "max_updates")


@dataclass(frozen=True)
class Recipe:
    """The chosen batch and length, with the reason, which `plan` omits if the data are not cases (`of_the_data`)."""

    effective_batch_size: int
    max_updates: int
    reason: str
    of_the_data: bool = True


def with_recipe(settings: dict[str, Any]) -> tuple[dict[str, Any], Recipe | None]:
    """Replace each `auto` by the recipe's choice; return the settings and the recipe (None if nothing is `auto`)."""
    names = left_to_recipe(settings)
    if not names:
        return settings, None
    dataset, model, trainer = (_section(settings, name) for name in ("dataset", "model", "trainer"))
    given = trainer.get("effective_batch_size")
    batch = given if isinstance(given, int) and given > 0 else None
    recipe: Recipe = hook("recipe")(dataset, settings.get("dataset_root"), str(model.get("kind")), batch)
    chosen = {name: getattr(recipe, name) for name in names}
    return {**settings, "trainer": {**settings["trainer"], **chosen}}, recipe


def left_to_recipe(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the trainer's settings whose value is `auto`."""
    trainer = _section(settings, "trainer")
    return [name for name in CHOSEN if trainer.get(name) == AUTO]


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = settings.get(name)
    return section if isinstance(section, Mapping) else {}
