"""Choose the batch size and the number of updates of a run from the prepared cases that it trains on.

For `mlp`, the aim is a run of five minutes on two cores. The measurements behind the constants are in
benchmarks/results/2026-11-25-surrogates-*.json and 2026-11-26-mlp-lengths.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from noether.common.safe_open import read_plain
from noether.config.recipe import Recipe

LARGEST_BATCH, OTHER_BATCH = 16, 8  # largest batch size of mlp, and of the other models
# Seconds of mlp on two cores: a run; an update without points; 1,024 points of an update (64 of each of 16 cases).
SECONDS, UPDATE_SECONDS, POINTS_SECONDS = 300, 0.012, 0.020
EPOCHS, FEWEST_UPDATES = 100, 1000
"""For models other than mlp, whose updates take longer: the number of epochs, and the minimum number of updates."""


@dataclass(frozen=True)
class CasesToLearn:
    """The inputs of a recipe: the number of training cases, and the number of sets of points that have fields."""

    training: int = 100
    sets: int = 1


def choose_recipe(known: CasesToLearn | None, model: str, batch: int | None = None) -> Recipe:
    """Choose a recipe for a model (`model.kind`) and cases (None: typical cases), with the batch size `batch` if given.

    Otherwise, the batch size is a power of two, which ranks can share evenly, and at most the number of training cases.
    """
    cases, largest = known or CasesToLearn(), LARGEST_BATCH if model == "mlp" else OTHER_BATCH
    batch = batch or min(largest, 2 ** (max(cases.training, 1).bit_length() - 1))
    sets = f"{cases.sets} set{'' if cases.sets == 1 else 's'}"
    about = f"{'for' if known else 'as for'} {cases.training:,} training cases of {sets} of points"
    if model == "mlp":
        updates = round(SECONDS / (UPDATE_SECONDS + POINTS_SECONDS * cases.sets * batch / largest), -2)
        return Recipe(batch, int(updates), f"{about}: about {SECONDS // 60} minutes on two cores")
    updates = max(FEWEST_UPDATES, ceil(EPOCHS * cases.training / batch))
    return Recipe(batch, updates, f"{about}: {EPOCHS} epochs, at least {FEWEST_UPDATES:,} updates")


def recipe_for(dataset: Mapping[str, Any], root: Any, model: str, batch: int | None) -> Recipe:
    """Return the recipe for a run with these settings; `model` is `model.kind`, and `batch` is None if not given."""
    if dataset.get("kind") != "cases":
        return replace(choose_recipe(None, model, batch), of_the_data=False)
    known = _read_cases(root, dataset.get("validation_fraction", 0.1)) if isinstance(root, str | Path) else None
    return choose_recipe(known, model, batch)


def _read_cases(root: str | Path, held_out: Any) -> CasesToLearn | None:
    """Read `dataset.json`; return None if it is invalid. The check of the data, which comes later, reports why."""
    try:
        content = json.loads(read_plain(Path(root).expanduser() / "dataset.json"))
        splits = content["splits"]
        training = len(splits["train"]) - (0 if splits.get("validation") else round(len(splits["train"]) * held_out))
        return CasesToLearn(training, max(1, len({field["set"] for field in content["fields"].values()})))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
