"""The kinds that come with noether, a line each: data, models and tasks, and what physics adds elsewhere.

A kind of one's own goes the same way: its setting names it by a dotted path (`my_package.MyModel`) in place of a kind.
Modules are named, not imported, so that no torch is loaded where only the settings are read.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from noether.common.dotted_path import load_object


class Kind(NamedTuple):
    """One kind: the section of its settings and its code (a DataSource, a model, a task), by their names in a wing."""

    wing: str
    settings: str
    code: str


CORE, PHYSICS = "noether.core", "noether.physics"

KINDS: Mapping[str, Mapping[str, Kind]] = {
    "dataset": {
        "ellipsoid": Kind(PHYSICS, "EllipsoidDatasetConfig", "sources.ELLIPSOID"),
        "shapenet_car": Kind(PHYSICS, "ShapeNetCarDatasetConfig", "sources.SHAPENET_CAR"),
        "cases": Kind(PHYSICS, "CasesDatasetConfig", "sources.CASES"),
        "mnist": Kind(CORE, "MnistDatasetConfig", "data.digits.MNIST"),
    },
    "model": {
        "mlp": Kind(PHYSICS, "MLPConfig", "models.mlp.PointwiseMLP"),
        "upt": Kind(PHYSICS, "UPTConfig", "models.upt.UPT"),
        "ab_upt": Kind(PHYSICS, "ABUPTConfig", "models.ab_upt.ABUPT"),
        "transformer": Kind(PHYSICS, "TransformerConfig", "models.transformer.Transformer"),
        "transolver": Kind(PHYSICS, "TransolverConfig", "models.transolver.Transolver"),
        "convnet": Kind(CORE, "ConvNetConfig", "models.convnet.ConvNet"),
    },
    "task": {
        "fields": Kind(PHYSICS, "FieldsTaskConfig", "fields.fields.FieldsTask"),
        "classification": Kind(CORE, "ClassificationTaskConfig", "tasks.classification.ClassificationTask"),
    },
}
"""{section: {kind: what it is}}, in the order in which they are listed to users."""

HOOKS: Mapping[str, str] = {
    "recipe": f"{PHYSICS}.cases.recipe.recipe_for",
    "baselines": f"{PHYSICS}.fields.baselines.score_baselines",
    "case files": f"{PHYSICS}.predict.vtk_output.write_case_files",
}
"""What physics does for the rest: batch and length left to the data; scores and files beside an evaluation."""


def code_of(section: str) -> dict[str, str]:
    """Return the dotted path of each kind's code."""
    return {kind: f"{own.wing}.{own.code}" for kind, own in KINDS[section].items()}


def settings_of(section: str) -> dict[str, Any]:
    """Return the section of the settings of each kind, a class."""
    paths = {kind: f"{own.wing}.settings.{own.settings}" for kind, own in KINDS[section].items()}
    return {kind: load_object(kind, f"{section}.kind", paths) for kind in paths}


def hook(name: str) -> Callable[..., Any]:
    """Return a function of `HOOKS`."""
    found: Callable[..., Any] = load_object(name, name, HOOKS)
    return found
