"""The map of a folder of cases (`cases.yaml`): which files hold which sets of points, fields and numbers."""

import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from noether.common.errors import RequestError
from noether.common.numbers import LENGTHS
from noether.common.safe_open import read_given
from noether.common.suggest import nearest
from noether.config.explain import refused_keys
from noether.config.section import Section
from noether.config.yaml_reader import PlainYaml, parse_yaml
from noether.core.tasks.angles import Period
from noether.physics.cases.units import factor

TensorOrder = Literal["vtk", "openfoam", "abaqus"]
Invariant = Literal["von_mises", "principal"]

COMPONENTS = ("xx", "yy", "zz", "xy", "yz", "xz")
"""Components of a prepared tensor, in the order of VTK (vtkDataSetAttributes) and .frd files for symmetric tensors."""
ORDERS: dict[TensorOrder, tuple[str, ...]] = {
    "vtk": COMPONENTS,
    "openfoam": ("xx", "xy", "xz", "yy", "yz", "zz"),  # SymmTensorTemplate.H
    "abaqus": ("xx", "yy", "zz", "xy", "xz", "yz"),  # S11, S22, S33, S12, S13, S23
}
NAMES: dict[Invariant | None, tuple[str, ...]] = {
    None: COMPONENTS, "von_mises": (), "principal": ("largest", "middle", "smallest")
}  # fmt: skip
"""Names of the components of an invariant or, under None, of the tensor itself."""


def as_matrices(values: np.ndarray, order: TensorOrder = "vtk") -> np.ndarray:
    """Return tensors (n, 6), whose components are in the given order, as symmetric matrices (n, 3, 3)."""
    places = [[ORDERS[order].index(min(a + b, b + a)) for b in "xyz"] for a in "xyz"]
    return np.take(values, places, axis=1)


def as_components(matrices: np.ndarray) -> np.ndarray:
    """Return symmetric matrices (n, 3, 3) as tensors (n, 6) in VTK's order."""
    return matrices.reshape(-1, 9)[:, [0, 4, 8, 1, 5, 2]]


def invariant(values: np.ndarray, order: TensorOrder, kind: Invariant) -> np.ndarray:
    """Return an invariant of tensors (n, 6): von Mises equivalents (n, 1), or principal values (n, 3), largest first.

    The von Mises equivalent is √(3/2 s:s), where s is the deviator, and has the unit of the tensor.
    """
    matrices = as_matrices(np.asarray(values, np.float64), order)
    if kind == "principal":
        return np.asarray(np.linalg.eigvalsh(matrices)[:, ::-1])
    deviators = matrices - np.trace(matrices, axis1=1, axis2=2)[:, None, None] / 3 * np.eye(3)
    return np.asarray(np.sqrt(1.5 * np.einsum("nij,nij->n", deviators, deviators))[:, None])


CASE, STEP, PIECE = "{case}", "{step}", "{piece}"
"""Placeholders in a map's paths: a case's name, a step's number, and what differs between the pieces of one mesh."""
MAPS = resources.files("noether.physics.cases") / "maps"
DIRECTIONS = {sign + axis: s * np.eye(3)[i] for i, axis in enumerate("xyz") for sign, s in (("+", 1), ("-", -1))}
RESERVED = ("points", "normals", "area", "cell_volume", "sdf", "part")
"""Names that noether gives to the arrays that it adds to a set; fields must have other names."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*$")

SetKind = Literal["surface", "volume", "points"]


def unfit_for_forces(fields: Mapping[str, str], numbers: Mapping[str, str]) -> str:
    """Describe the first field or number whose stated unit is wrong for forces, or return ""; inputs: {name: unit}."""
    known = {**dict.fromkeys(fields, "Pa"), "wind_speed": "m/s", "reference_area": "m²"}
    stated = {name: unit for name, unit in {**numbers, **fields}.items() if unit and unit != known.get(name)}
    return next((f"{name} is in {stated[name]}, not in {unit}" for name, unit in known.items()
                 if name in stated and factor(stated[name], unit) != 1), "")  # fmt: skip


def metres_of(length: str) -> float:
    """Return the length in metres of the unit `length`, such as mm. ValueError: it is not a unit of length."""
    if (metres := LENGTHS.get(length) or factor(length, "m")) is None:
        raise ValueError(f"length: {length!r} is not a unit of length ({', '.join(LENGTHS)}) or a number of metres")
    return metres


class AxesMap(Section):
    """The directions that noether's axes have in the files; noether's x is across the wind, y up, z along the wind."""

    wind: Literal["+x", "-x", "+y", "-y", "+z", "-z"] = Field(description="Direction in which the air flows.")
    up: Literal["+x", "-x", "+y", "-y", "+z", "-z"] = Field(description="Direction that points up.")

    @model_validator(mode="after")
    def _are_not_parallel(self) -> "AxesMap":
        if self.wind[1] == self.up[1]:
            raise ValueError(f"wind={self.wind} and up={self.up} lie along one axis")
        return self

    def rotation(self) -> np.ndarray:
        """Return the matrix (3, 3) that rotates a vector from the files' axes into noether's."""
        wind, up = DIRECTIONS[self.wind], DIRECTIONS[self.up]
        return np.stack([np.cross(up, wind), up, wind])


class AtTime(Section):
    """A step given by its time."""

    time: float


Scaling = Literal["standardised", "symmetric_log"]

Step = Literal["last"] | int | AtTime
"""The step of a file to read: the last step, or a step given by its index (from 0) or its time."""


class FieldMap(Section):
    """One field: the name of its array in the file, and how the array's values are converted and scaled."""

    array: str = Field(description="Name of the array in the file.")
    unit: str = Field("", description="Unit of the field, after `scale` and `times` are applied.")
    scale: float = Field(1.0, description="A factor; -1 reverses the sign.")
    times: str | None = Field(None, description="A constant or parameter to multiply by, such as density.")
    components: int | None = Field(None, gt=0, description="Number of components; null: the number in the first case.")
    tensor: TensorOrder | None = Field(None, description="Order of the six components, if they are a symmetric tensor.")
    take: Invariant | None = Field(None, description="Invariant of a tensor: von Mises, or the principal values.")
    period: Period | None = Field(None, description="Range of an angle that wraps around, such as [-180, 180].")
    scaling: Scaling | None = Field(None, description="Scaling for the model: symmetric_log if values span decades.")

    @model_validator(mode="after")
    def _is_one_of_its_kind(self) -> "FieldMap":
        if self.take and not self.tensor:
            raise ValueError(f"take={self.take} needs tensor: vtk, openfoam or abaqus")
        if self.period and (self.period[0] >= self.period[1] or self.tensor or self.components not in (None, 1)):
            raise ValueError(f"period needs [low, high] and an angle with one component, not {list(self.period)}")
        if self.tensor and self.components not in (None, 6):
            raise ValueError(f"a tensor has 6 components, not {self.components}")
        return self


class SetMap(Section):
    """One set of points of a case, and the fields on it."""

    file: str = Field(
        description="Path with {case} for the case's name, {step} for a step's number, * for any characters in a name, "
        "and {piece} for the part of the name that differs between the pieces of one mesh."
    )
    kind: SetKind
    at: Literal["cells", "points"] = Field("cells", description="Whether arrays at cells or at points are read.")
    patches: list[str] = Field([], description="Names of blocks or patches (* allowed); empty: all blocks of the kind.")
    coordinates: list[str] = Field([], description="A CSV's columns with x, y and z, by name; empty: the usual names.")
    values: str = Field("", description="Path, with {case}, of a table of more arrays: a row per point or cell.")
    normals: Literal["outward", "keep", "flip"] = Field("outward", description="Direction of a surface's normals.")
    distance_to: str | None = Field(None, description="A surface set; each point's distance from it is added.")
    most_points: int | None = Field(None, gt=0, description="Maximum number of points per case, drawn at random.")
    fields: dict[str, FieldMap] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_free(self) -> "SetMap":
        for name in self.fields:
            if name in RESERVED or not _NAME.match(name):
                raise ValueError(f"fields.{name}: use lower-case letters, digits and _, and not {', '.join(RESERVED)}")
        return self


class NumberMap(Section):
    """A number of each case, which is in a file of that case, or in a table with a row for each case."""

    file: str | None = Field(None, description="JSON, YAML, CSV, .xlsx, or the last row of OpenFOAM's .dat.")
    column: str | None = Field(None, description="The number's name in the file; null: its name in the map.")
    row: str | None = Field(None, description="For a table of all cases: the column with the cases' names.")
    unit: str = ""
    scale: float = 1.0


class SplitMap(Section):
    """The split into training, validation and test cases, by lists, by fractions and a seed, or by a table's column."""

    test: float | list[str] | str = Field(0.1, description="A fraction, a list of cases, or a file with such a list.")
    validation: float | list[str] | str = Field(0.1, description="Like test; these cases select the best checkpoint.")
    seed: int = Field(0, ge=0, description="Seed of the random draw for fractions.")
    file: str | None = Field(None, description="A table (CSV, .xlsx) with a row for each case, for `column`.")
    row: str = Field("case", description="The column of `file` with the cases' names.")
    column: str | None = Field(None, description="The column of `file` that holds train, validation or test.")


class ForcesMap(Section):
    """The fields of a surface set, in Pa, that are integrated to forces: the pressure, and the air's shear stress."""

    set: str
    pressure: str
    shear: str | None = None


class CaseMap(Section):
    """A whole map. In the prepared data, sets, fields, parameters and outputs have the same names as in the map."""

    reader: Literal["meshes", "shapenet_car"] = Field("meshes", description="shapenet_car: the data set's own reader.")
    axes: AxesMap | None = Field(None, description="null: the files' axes are kept.")
    length: str | float = Field("m", description="Unit of the files' positions, such as mm, or its length in m.")
    step: Step | Literal["each"] = Field("last", description="last, an index or {time: T}; each: a case per step.")
    constants: dict[str, float] = Field(default_factory=dict)
    parameters: dict[str, NumberMap] = Field(default_factory=dict)
    outputs: dict[str, NumberMap] = Field(default_factory=dict)
    sets: dict[str, SetMap] = Field(min_length=1)
    forces: ForcesMap | None = None
    split: SplitMap = SplitMap()

    @model_validator(mode="after")
    def _names_exist(self) -> "CaseMap":
        if isinstance(self.length, str):
            metres_of(self.length)
        time = self.parameters.setdefault("time", NumberMap(unit="s")) if self.step == "each" else None
        if time and (time.file or "time" in self.outputs):
            raise ValueError("step: each makes `time` a parameter, so a number from a file needs another name")
        numbers = {*self.constants, *self.parameters}
        for name in (*self.sets, *self.parameters, *self.outputs):
            if not _NAME.match(name):
                raise ValueError(f"{name}: use lower-case letters, digits and _ in names")
        if clash := [(a, b) for a in self.sets for b in self.sets if b.startswith(f"{a}_")]:
            raise ValueError(f"sets.{clash[0][1]}: its name begins with the set name {clash[0][0]}; rename one of them")
        for name, own in self.sets.items():
            for field, about in own.fields.items():
                if about.times is not None and about.times not in numbers:
                    raise ValueError(f"sets.{name}.fields.{field}.times: no constant or parameter {about.times!r}")
            if own.distance_to and (own.distance_to not in self.sets or self.sets[own.distance_to].kind != "surface"):
                raise ValueError(f"sets.{name}.distance_to: {own.distance_to!r} is not a surface set of this map")
        if not self.outputs and self.reader == "meshes" and not any(own.fields for own in self.sets.values()):
            raise ValueError("sets: there is nothing to predict, neither a field nor an output")
        return self

    @model_validator(mode="after")
    def _forces_can_be_made(self) -> "CaseMap":
        if self.forces:
            surface = self.sets.get(self.forces.set)
            wanted = [name for name in (self.forces.pressure, self.forces.shear) if name]
            if surface is None or surface.kind != "surface" or not set(wanted) <= set(surface.fields):
                raise ValueError(f"forces: there must be a surface set {self.forces.set!r} with {', '.join(wanted)}")
            stated = {name: surface.fields[name].unit for name in wanted}
            if unfit := unfit_for_forces(stated, {name: own.unit for name, own in self.parameters.items()}):
                raise ValueError(f"forces: {unfit}: convert it with its `scale`, and set its `unit`")
        return self

    @property
    def metres(self) -> float:
        """The length in metres of one unit of the files' positions."""
        return metres_of(self.length) if isinstance(self.length, str) else self.length

    @property
    def rotation(self) -> np.ndarray:
        """The matrix (3, 3) that rotates a vector from the files' axes into noether's."""
        return self.axes.rotation() if self.axes else np.eye(3)

    def component_names(self, field: FieldMap, components: int) -> list[str]:
        """Name a prepared field's components by the axes of the files; return [] if the usual names apply."""
        axes = ["xyz"[axis] for axis in np.abs(self.rotation).argmax(axis=1)]
        if field.tensor:
            turned_to = dict(zip("xyz", axes, strict=True))
            return ["".join(sorted(turned_to[axis] for axis in name)) if name in COMPONENTS else name
                    for name in NAMES[field.take]]  # fmt: skip
        if components == 9:
            return [str(3 * "xyz".index(row) + "xyz".index(column)) for row in axes for column in axes]
        return axes if components == 3 else []


def turned(
    rotation: np.ndarray, factor: float = 1.0, tensor: TensorOrder | None = None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that scales arrays, and also rotates vectors (n, 3) and tensors (n, 9) into noether's axes.

    tensor: the order of components, if the arrays are symmetric tensors (n, 6); they are rotated and get VTK's order.
    """

    def step(block: np.ndarray) -> np.ndarray:
        if tensor is not None:
            return as_components(factor * (rotation @ as_matrices(block, tensor) @ rotation.T))
        if block.shape[1:] == (3,):
            return np.asarray(factor * block @ rotation.T)
        if block.shape[1:] == (9,):
            return np.asarray(factor * (rotation @ block.reshape(-1, 3, 3) @ rotation.T).reshape(-1, 9))
        return factor * block

    return step


def ready_maps() -> list[str]:
    """Return the names of the maps that come with noether."""
    return sorted(path.name.removesuffix(".yaml") for path in MAPS.iterdir() if path.name.endswith(".yaml"))


def map_text(name: str, folders: str = "CASES OUT") -> str:
    """Return the text of a map file or ready map. RequestError: it cannot be read (the fix names `folders`)."""
    path = Path(name).expanduser()
    if path.is_file() or path.is_fifo():
        try:
            return read_given(path, PlainYaml.most_bytes).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError("not-a-map", f"{name} is not a map", seen=str(error),
                               expected=f"YAML in UTF-8, at most {PlainYaml.most_bytes:,} bytes") from None  # fmt: skip
    if name in ready_maps():
        return (MAPS / f"{name}.yaml").read_text()
    near = nearest(path.name.removesuffix(".yaml"), ready_maps())
    beside = next(
        (f"{name}{suffix}" for suffix in (".yaml", ".yml") if path.with_name(path.name + suffix).is_file()), near
    )
    draft = "" if beside else f"noether data inspect {folders.split()[0]} && "
    raise RequestError(
        "unknown-map", f"there is no map {name}", seen="neither a file nor a ready map",
        expected="a file written by `noether data inspect CASES`, or one of " + ", ".join(ready_maps()),
        fix=f"{draft}noether data prepare {folders} --map {beside or 'cases.yaml'}",
    )  # fmt: skip


def parse_map(text: str, name: str) -> CaseMap:
    """Parse a map. RequestError: the text is not YAML, or keys do not fit; the error names every wrong key."""
    try:
        content: Any = parse_yaml(text, name)
        if isinstance(content, dict) and content.get("sets", {}) is None:
            raise RequestError("map-without-sets", f"{name} has no sets", seen="sets: nothing",
                               expected="at least one set; in a draft, doubtful sets are commented out")  # fmt: skip
        return CaseMap.model_validate(content if isinstance(content, dict) else {})
    except ValidationError as error:
        raise RequestError(
            "map-does-not-fit", f"{name} is not valid", seen="\n".join(refused_keys(error, content or {}, CaseMap)),
            expected="keys as in the map that `noether data inspect CASES` writes, which explains them",
        ) from None  # fmt: skip
