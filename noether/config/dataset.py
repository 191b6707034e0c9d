"""Settings of the data set: which samples to train on, and how many points of each."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.common.suggest import nearest
from noether.config.section import ComponentSection, chosen_by_kind, dotted_path_or
from noether.config.setting_error import SettingError

SHAPENET_CAR_SURFACE_POINTS = 3586
"""Points of a ShapeNet-Car surface that are part of a quad."""


class _Dataset(ComponentSection):
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="Share of the training split that is held out for choosing the best weights."
    )
    points_per_update: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Number of points drawn anew for every update, by the prefix of their keys (surface, volume); "
        "prefixes not listed use all their points. Evaluation uses all points.",
    )
    geometry_points: int | None = Field(
        None, gt=0, description="Number of surface points that the model sees as the shape; null: all, or 512 for mlp."
    )

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the data set's constructor."""
        return self.model_dump(exclude={"kind", "validation_fraction", "points_per_update", "geometry_points"})


class EllipsoidDatasetConfig(_Dataset):
    """Exact potential flow around half-ellipsoid cars on the ground, generated from a seed without any download."""

    problem = "fields"
    kind: Literal["ellipsoid"] = "ellipsoid"
    train_shapes: int = Field(600, gt=1, description="Number of shapes in the training split.")
    test_shapes: int = Field(100, gt=1, description="Number of unseen shapes in the test split.")
    surface_points: int = Field(1024, gt=7, description="Number of surface points of each shape.")
    volume_points: int = Field(1024, gt=7, description="Number of volume points of each shape.")
    seed: int = Field(0, ge=0, description="Seed for the shapes and their points.")

    @model_validator(mode="after")
    def _enough_points(self) -> "EllipsoidDatasetConfig":
        have = {"surface": self.surface_points, "volume": self.volume_points}
        for prefix, wanted in self.points_per_update.items():
            if prefix not in have:
                raise SettingError(
                    "no-points-of-that-set",
                    f"points_per_update.{prefix}",
                    ": this data set has surface and volume points",
                    value=wanted,
                    fix=f"dataset.points_per_update.{nearest(prefix, have) or 'surface'}={wanted}",
                )
            if wanted > have[prefix]:
                problem = f" is more than {prefix}_points={have[prefix]}"
                raise SettingError("more-points-than-made", f"points_per_update.{prefix}", problem, value=wanted)
        if (self.geometry_points or 0) > self.surface_points:
            problem = f" is more than surface_points={self.surface_points}"
            raise SettingError("more-geometry-points-than-made", "geometry_points", problem, value=self.geometry_points)
        return self


class MnistDatasetConfig(_Dataset):
    """Handwritten digits: MNIST's IDX files in dataset_root, or the 5,000 real digits of a small package."""

    problem = "classes"
    kind: Literal["mnist"] = "mnist"


class ShapeNetCarDatasetConfig(_Dataset):
    """ShapeNet-Car (Umetani and Bickel 2018): 889 cars in air at 20 m/s, prepared; needs `dataset_root`."""

    problem = "fields"
    kind: Literal["shapenet_car"] = "shapenet_car"
    split: Literal["param0", "randperm189"] = Field(
        "param0",
        description="Published split: param0 (the test split is its 100 cars) or randperm189 (189 of the 889 cars, "
        "drawn with seed 0).",
    )

    @property
    def surface_points(self) -> int:
        """The number of surface points of each car."""
        return SHAPENET_CAR_SURFACE_POINTS

    @model_validator(mode="after")
    def _enough_points(self) -> "ShapeNetCarDatasetConfig":
        for key, wanted in (
            ("points_per_update.surface", self.points_per_update.get("surface", 0)),
            ("geometry_points", self.geometry_points or 0),
        ):
            if wanted > SHAPENET_CAR_SURFACE_POINTS:
                problem = f" is more than the {SHAPENET_CAR_SURFACE_POINTS} surface points of a car"
                raise SettingError("more-points-than-a-car", key, problem, value=wanted)
        return self


class CasesDatasetConfig(_Dataset):
    """Your own simulations, prepared by `noether data prepare CASES OUT --map cases.yaml`; `dataset_root` is OUT."""

    problem = "fields"
    kind: Literal["cases"] = "cases"
    validation_fraction: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the training split that is held out if the prepared cases have no validation split.",
    )
    points_per_update: Annotated[int, Field(gt=0)] | dict[str, Annotated[int, Field(gt=0)]] | None = Field(  # type: ignore[assignment]
        None,
        description="Number of points of a case that are drawn anew for every update: one number for each set, or by "
        "the set's name in the map, where sets not listed use all their points. null: as many as the model learns best "
        "from, 64 for mlp and 4096 for the others. A case with fewer gives what it has.",
    )
    evaluation_points: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Largest number of points in evaluation, by the set's name, for very large cases; sets not listed "
        "use all.",
    )


KNOWN = ("ellipsoid", "shapenet_car", "cases", "mnist")


class CustomDatasetConfig(_Dataset):
    """The user's own data set: all other keys are passed to its constructor, together with `split` and `root`."""

    model_config = ConfigDict(extra="allow")
    kind: Annotated[str, dotted_path_or(*KNOWN)]


DatasetConfig = Annotated[
    Annotated[EllipsoidDatasetConfig, Tag("ellipsoid")]
    | Annotated[ShapeNetCarDatasetConfig, Tag("shapenet_car")]
    | Annotated[CasesDatasetConfig, Tag("cases")]
    | Annotated[MnistDatasetConfig, Tag("mnist")]
    | Annotated[CustomDatasetConfig, Tag("custom")],
    chosen_by_kind(*KNOWN),
]
