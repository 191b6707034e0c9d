"""Settings of the physics data sets, of the models of fields at points, and of the fields task."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from noether.common.errors import SettingError
from noether.common.suggest import nearest
from noether.config.section import ComponentSection, DatasetSection, FieldConfig, Section, Unit

SHAPENET_CAR_SURFACE_POINTS = 3586
"""Number of points on the surface of each ShapeNet-Car car; points that no quadrilateral uses are not counted."""


def _check_counts(dataset: DatasetSection, have: Mapping[str, int]) -> None:
    """Raise SettingError if the settings request more points of a set, or of the geometry, than a sample has."""
    asked = [(f"points_per_update.{name}", name, count) for name, count in dataset.points_per_update.items()]
    for key, name, count in (*asked, ("geometry_points", "surface", dataset.geometry_points or 0)):
        if count > have.get(name, count):
            problem = f" is more than the {have[name]} {name} points of each sample"
            raise SettingError("more-points-than-made", key, problem, value=count)


class EllipsoidDatasetConfig(DatasetSection):
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
                    "no-points-of-that-set", f"points_per_update.{prefix}",
                    ": this data set has only surface and volume points", value=wanted,
                    fix=f"dataset.points_per_update.{nearest(prefix, have) or 'surface'}={wanted}",
                )  # fmt: skip
        _check_counts(self, have)
        return self


class ShapeNetCarDatasetConfig(DatasetSection):
    """ShapeNet-Car (Umetani and Bickel 2018), prepared: 889 cars in air at 20 m/s; needs `dataset_root`."""

    problem = "fields"
    kind: Literal["shapenet_car"] = "shapenet_car"
    split: Literal["param0", "randperm189"] = Field(
        "param0",
        description="Published split, named after its test split: param0 (the 100 cars of the folder param0) or "
        "randperm189 (189 of the 889 cars, drawn with seed 0).",
    )

    @property
    def surface_points(self) -> int:
        """Number of surface points of each car."""
        return SHAPENET_CAR_SURFACE_POINTS

    @model_validator(mode="after")
    def _enough_points(self) -> "ShapeNetCarDatasetConfig":
        _check_counts(self, {"surface": SHAPENET_CAR_SURFACE_POINTS})
        return self


class CasesDatasetConfig(DatasetSection):
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
        description="Number of points drawn anew from a case for every update: one number for all sets, or a mapping "
        "from set names to numbers; a set that is not listed uses all its points. null: the model's default, 64 for "
        "mlp and 4096 for the other models. A case with fewer points uses all its points.",
    )
    evaluation_points: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Maximum number of points that evaluation uses, by set name, for very large cases. A set that is "
        "not listed uses all its points.",
    )


def check_heads(dim: int, heads: int, *, rotary: bool) -> None:
    """Raise SettingError if `heads` does not divide `dim`, or if rotary positions cannot rotate a head's channels.

    RoPE rotates pairs of channels for three axes, so a head needs an even number of channels, at least 6.
    """
    step, smallest = (2 * heads, 6 * heads) if rotary else (heads, heads)
    if dim % step or dim < smallest:
        why = " (2 × heads: rotary positions rotate pairs of channels on three axes)" if rotary else ""
        raise SettingError(
            "heads-do-not-divide", "dim",
            f" cannot be divided by model.heads={heads}" + (" into heads that can be rotated" if rotary else ""),
            value=dim, seen=f"model.dim={dim}, model.heads={heads}",
            expected=f"a multiple of {step}{why}, at least {smallest}",
            fix=f"model.dim={max(smallest, round(dim / step) * step)}",
        )  # fmt: skip


class _Attention(ComponentSection):
    problem = "fields"
    rotary: ClassVar[bool] = True
    dim: int = Field(192, gt=0, description="Width of every token.")
    heads: int = Field(3, gt=0, description="Number of attention heads; must divide dim.")

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> "_Attention":
        check_heads(self.dim, self.heads, rotary=self.rotary)
        return self


class _Supernodes(_Attention):
    supernodes: int | None = Field(None, gt=0, description="Number of geometry tokens; null: one per geometry point.")
    radius: float = Field(9.0, gt=0, description="Pooling radius in scaled units (the domain is 1000 long).")
    max_neighbours: int = Field(32, gt=0, description="Maximum number of nearest points pooled into a supernode.")

    def check_beside(self, config: Any) -> None:
        """Raise SettingError if supernodes outnumber geometry points; checked if the number of points is known."""
        known = (EllipsoidDatasetConfig, ShapeNetCarDatasetConfig)
        if self.supernodes is None or not isinstance(config.dataset, known):
            return
        points = config.dataset.geometry_points or config.dataset.surface_points
        if self.supernodes > points:
            raise SettingError("too-few-geometry-points", "model.supernodes",
                               f" is more than the {points} geometry points", value=self.supernodes,
                               expected="no more supernodes than geometry points",
                               fix=f"model.supernodes={points}      (or more dataset.geometry_points)")  # fmt: skip


class UPTConfig(_Supernodes):
    """Universal Physics Transformer (arXiv 2402.12365), with supernode pooling and a perceiver decoder."""

    kind: Literal["upt"] = "upt"
    encoder_depth: int = Field(12, ge=1, description="Number of transformer blocks over the supernodes.")
    decoder_depth: int = Field(12, ge=1, description="Number of perceiver blocks in which queries read the supernodes.")


class ABUPTConfig(_Supernodes):
    """Anchored-Branched UPT (arXiv 2502.09692): surface and volume anchors exchange information; queries read them."""

    kind: Literal["ab_upt"] = "ab_upt"
    geometry_depth: int = Field(1, ge=1, description="Number of transformer blocks over the supernodes.")
    physics_depth: int = Field(4, ge=1, description="Number of pairs of blocks: one within each set, one between sets.")
    branch_depth: int = Field(2, ge=1, description="Number of final blocks, separate for surface and volume.")


class TransformerConfig(_Attention):
    """A plain transformer (arXiv 1706.03762) over the surface and volume points."""

    kind: Literal["transformer"] = "transformer"
    depth: int = Field(12, ge=1, description="Number of transformer blocks.")


class TransolverConfig(_Attention):
    """Transolver (arXiv 2402.02366): attention between slices, each a group of points of similar physical state."""

    rotary = False
    kind: Literal["transolver"] = "transolver"
    dim: int = Field(256, gt=0, description="Width of every point.")
    heads: int = Field(8, gt=0, description="Number of attention heads; must divide dim.")
    depth: int = Field(8, ge=1, description="Number of blocks.")
    slices: int = Field(32, gt=0, description="Number of slices per head.")
    mlp_ratio: int = Field(2, ge=1, description="Hidden width of the MLPs, divided by their outer width.")


WHY_THIS_WIDTH = "of the widths 64, 128 and 256, the smallest error in equal time, both with 63 and with 416 cases"
"""The reason for the default width of `mlp`, shown by `reasons` (benchmarks/results/2026-11-26-mlp-lengths.json)."""


class MLPConfig(ComponentSection):
    """A point-wise MLP for tens to hundreds of cases; the parameters or shape of a case scale and shift its layers."""

    problem = "fields"
    kind: Literal["mlp"] = "mlp"
    dim: int = Field(128, gt=0, description="Width of the hidden layers.")
    depth: int = Field(4, ge=1, description="Number of hidden layers.")
    octaves: int = Field(3, ge=0, description="Number of frequencies per coordinate, each twice the previous one.")
    case_dim: int = Field(64, gt=0, description="Width of the case's embedding, which scales and shifts the layers.")
    shape: bool | None = Field(None, description="Read the geometry's points. null: only if cases have no parameters.")

    def reasons(self) -> dict[str, str]:
        """Return the reason for the width if it is the default; else {}."""
        return {"model": f"mlp, {self.dim} wide: {WHY_THIS_WIDTH}"} if self.dim == MLPConfig().dim else {}


class ParameterConfig(Section):
    """An input of a whole case, such as the wind speed. Its name is its key in the samples."""

    unit: Unit = Field("", description="Physical unit, shown with its range.")


class ForceCoefficientConfig(Section):
    """The force or moment of pressure and any wall shear stress, divided by dynamic pressure and reference area."""

    pressure: str = Field("surface_pressure", description="Field to integrate, in Pa.")
    shear: str | None = Field(
        None, description="Field of the wall shear stress in Pa with which the air pulls; null: only pressure."
    )
    points: str = Field("surface_points", description="Key of the points, in m, for the lever arms of a moment.")
    normals: str = Field("surface_normals", description="Key of the outward unit normals.")
    areas: str = Field("surface_area", description="Key of the area of each point, in m².")
    direction: tuple[float, float, float] = Field(description="Direction of the force, or axis of the moment.")
    moment: bool = Field(False, description="Use the moment about the origin instead of the force.")
    dynamic_pressure: float | str = Field(
        description="0.5 · density · speed² in Pa, or the key of each case's speed in m/s, which also needs `density`."
    )
    density: float | None = Field(
        None, gt=0, description="Density of the air in kg/m³, as in `dynamic_pressure`; shown with the coefficient."
    )
    reference_area: str = Field("reference_area", description="Key of the reference area in m².")
    reference_length: float = Field(1.0, gt=0, description="Reference length of a moment, in m.")
    truth: str | None = Field(
        None,
        description="Key of the true value: the coefficient, or the force (3,) in N or moment (3,) in N·m; "
        "null: the integral of the true field.",
    )

    @property
    def speed(self) -> float | None:
        """The speed in m/s that gives the dynamic pressure; None if there is no density or each case has a speed."""
        if self.density is None or isinstance(self.dynamic_pressure, str):
            return None
        return float((2 * self.dynamic_pressure / self.density) ** 0.5)

    @model_validator(mode="after")
    def _pressure_is_known(self) -> "ForceCoefficientConfig":
        if isinstance(self.dynamic_pressure, str):
            if self.density is None:
                problem = " is the key of a speed: density is needed"
                raise SettingError("speed-without-density", "dynamic_pressure", problem, value=self.dynamic_pressure)
        elif self.dynamic_pressure <= 0:
            raise SettingError("pressure-not-positive", "", "dynamic_pressure must be above 0")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields from which the coefficient is integrated."""
        return (self.pressure, *([self.shear] if self.shear else []))

    @property
    def divisors(self) -> tuple[str, ...]:
        """The keys of the numbers that divide the coefficient: the reference area and, if a key names it, the speed."""
        speed = [self.dynamic_pressure] if isinstance(self.dynamic_pressure, str) else []
        return (self.reference_area, *speed)

    def needed_keys(self) -> tuple[str, ...]:
        """Return the keys that a sample needs, besides the fields, for the coefficient to be computed."""
        truth = [self.truth] if self.truth else []
        return (self.points, self.normals, self.areas, *self.divisors, *truth)


class FieldsTaskConfig(ComponentSection):
    """Regression of fields at points. The task computes its statistics once, over the training split."""

    problem = "fields"
    kind: Literal["fields"] = "fields"
    fields: dict[str, FieldConfig] | None = Field(
        None, description="The outputs, by their key in the samples; null: all outputs that the data set names."
    )
    inputs: tuple[str, ...] = Field((), description="Keys of additional model inputs at each point, standardised.")
    parameters: dict[str, ParameterConfig] | None = Field(
        None, description="Inputs of a whole case, by their key in the samples; null: those that the data set names."
    )
    domain_low: float | None = Field(
        None, description="Lowest coordinate of the domain on every axis, in m; null: from the training split's box."
    )
    domain_length: float | None = Field(
        None, gt=0, description="Length of the domain in m, scaled to 1000; null: from the training split's box."
    )
    scalars: dict[str, ForceCoefficientConfig] = Field(
        default_factory=dict, description="Coefficients derived from the fields, by name."
    )
    force_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of each of `scalars` in the loss. The term is the squared error of the force over the "
        "drawn points, divided by area and dynamic pressure and standardised over the training split. 0: no term.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "FieldsTaskConfig":
        if (self.domain_low is None) != (self.domain_length is None):
            problem = "domain_low and domain_length belong together: give both, or neither"
            raise SettingError("half-a-domain", "", problem)
        if self.fields is None:
            return self
        if not self.fields:
            raise SettingError("no-output-field", "fields", ": at least one output field is needed")
        if not any(field.weight for field in self.fields.values()):
            raise SettingError("weights-all-zero", "fields", ": every weight is 0, so nothing would be learned")
        of_the_data = not all(field.points for field in self.fields.values())
        for name, scalar in () if of_the_data else self.scalars.items():
            for part, wanted in (("pressure", scalar.pressure), ("shear", scalar.shear)):
                if wanted is not None and wanted not in self.fields:
                    problem = f" is not among fields ({', '.join(self.fields)})"
                    raise SettingError("not-an-output-field", f"scalars.{name}.{part}", problem, value=wanted)
        return self
