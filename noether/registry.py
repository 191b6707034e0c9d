"""The built-in kinds of data sets, models and tasks, one line each, and the hooks of the physics wing.

A user's own class is built the same way: a setting gives its dotted path (`my_package.MyModel`) in place of a kind.
Modules are only named, not imported, so that reading settings does not load torch.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from noether.common.dotted_path import load_object


class Kind(NamedTuple):
    """A kind: its wing, and the names in that wing of its settings class and its code (DataSource, model or task)."""

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
"""{section: {kind: its definition}}, in the order in which users see them listed."""

HOOKS: Mapping[str, str] = {
    "recipe": f"{PHYSICS}.cases.recipe.recipe_for",
    "baselines": f"{PHYSICS}.fields.baselines.score_baselines",
    "case files": f"{PHYSICS}.predict.vtk_output.write_case_files",
}
"""The functions of physics that other wings call: the recipe for batch and length, baselines, and case files."""


def code_of(section: str) -> dict[str, str]:
    """Return {kind: dotted path of its code} for a section of the settings."""
    return {kind: f"{own.wing}.{own.code}" for kind, own in KINDS[section].items()}


def settings_of(section: str) -> dict[str, Any]:
    """Return {kind: class of its settings} for a section of the settings."""
    paths = {kind: f"{own.wing}.settings.{own.settings}" for kind, own in KINDS[section].items()}
    return {kind: load_object(kind, f"{section}.kind", paths) for kind in paths}


def hook(name: str) -> Callable[..., Any]:
    """Return the function with this name in `HOOKS`."""
    found: Callable[..., Any] = load_object(name, name, HOOKS)
    return found
