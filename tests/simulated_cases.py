"""Write small made-up cases of the flow around a box, as VTP and VTU, in any unit and with any axes."""

import json
from pathlib import Path

import numpy as np
import pyvista
from processes import halve

from noether.physics.cases.case_map import CaseMap, parse_map
from noether.physics.cases.draft import draft_map
from noether.physics.cases.prepare import PreparedCases, prepare_cases
from noether.physics.cases.survey import survey_folder

LAYOUTS = {"+x+z": np.eye(3), "-y+z": np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1.0]])}
"""Matrices, by the directions of wind and up, that rotate vectors from axes with wind +x and up +z."""


def body(length: float, level: int = 4) -> pyvista.PolyData:
    """Return the surface of a box: quadrilaterals that face outwards, with pressure and wall shear at cells."""
    box = pyvista.Box((0, length, -0.2, 0.2, 0.1, 0.4), level=level)
    centres = box.cell_centers().points
    box.cell_data["p"] = 100 - 300 * centres[:, 0] / length + 20 * centres[:, 2]
    box.cell_data["wss"] = np.stack([1 + centres[:, 0], 0 * centres[:, 0], -centres[:, 2]], axis=-1)
    return box


def air(length: float, cells: int = 8) -> pyvista.UnstructuredGrid:
    """Return a mesh of hexahedra around the body, with velocity and temperature at cells."""
    lines = (np.linspace(-1, 2 + length, cells + 3), np.linspace(-1, 1, cells), np.linspace(0, 1, cells - 2))
    grid = pyvista.RectilinearGrid(*lines).cast_to_structured_grid().cast_to_unstructured_grid()
    centres = grid.cell_centers().points
    grid.cell_data["U"] = np.stack([30 - 5 / (1 + centres[:, 0] ** 2), centres[:, 1], centres[:, 2]], axis=-1)
    grid.cell_data["T"] = 293 + 10 * centres[:, 2]
    return grid


def write_case(folder: Path, index: int, *, scale: float = 1.0, turn: np.ndarray | None = None) -> None:
    """Write surface.vtp, volume.vtu and numbers.json of one case, with lengths in units of 1/scale metres."""
    folder.mkdir(parents=True)
    length = 0.8 + 0.1 * index
    for name, mesh in (("surface.vtp", body(length, 3 + index % 3)), ("volume.vtu", air(length, 7 + index % 2))):
        rotation = np.eye(3) if turn is None else turn
        mesh.points = mesh.points.astype(np.float64) @ rotation.T * scale
        for vectors in {"wss", "U"} & set(mesh.cell_data.keys()):
            mesh.cell_data[vectors] = mesh.cell_data[vectors] @ rotation.T
        mesh.save(folder / name)
    numbers = {"length": length, "inlet": {"wind_speed": 30 + index}, "drag": 0.3 + 0.01 * index, "solver": "made up"}
    (folder / "numbers.json").write_text(json.dumps(numbers))


def write_cases(root: Path, count: int = 6, **how) -> Path:
    """Write cases named run_0, run_1, ...; return their folder."""
    for index in range(count):
        write_case(root / f"run_{index}", index, **how)
    return root


def without_array(folder: Path) -> None:
    mesh = pyvista.read(folder / "surface.vtp")
    del mesh.cell_data["p"]
    mesh.save(folder / "surface.vtp")


def with_two_components(folder: Path, file: str = "surface.vtp", array: str = "p", *, binary: bool = True) -> None:
    mesh = pyvista.read(folder / file)
    mesh.cell_data[array] = np.zeros((mesh.n_cells, 2))
    mesh.save(folder / file, binary=binary)


def with_nan(folder: Path) -> None:
    mesh = pyvista.read(folder / "volume.vtu")
    mesh.cell_data["T"][7] = np.nan
    mesh.save(folder / "volume.vtu")


def torn(folder: Path) -> None:
    halve(folder / "volume.vtu")


MAP = """
axes: {wind: +x, up: +z}
length: m
constants: {density: 1.225}
parameters:
  wind_speed: {file: "{case}/numbers.json", column: inlet.wind_speed, unit: m/s}
outputs:
  drag: {file: "{case}/numbers.json", unit: "1"}
sets:
  surface:
    file: "{case}/surface.vtp"
    kind: surface
    fields:
      pressure: {array: p, unit: Pa}
      wall_shear: {array: wss, unit: Pa}
  volume:
    file: "{case}/volume.vtu"
    kind: volume
    distance_to: surface
    fields:
      velocity: {array: U, unit: m/s}
      temperature: {array: T, unit: K}
forces: {set: surface, pressure: pressure, shear: wall_shear}
split: {test: 0.2, validation: 0.2, seed: 1}
"""


def drafted(root: Path, workers: int = 1) -> tuple[str, CaseMap]:
    """Draft the map of a folder; return its text and the parsed map."""
    text = draft_map(survey_folder(root, workers=workers))
    return text, parse_map(text, "m")


def prepare(root: Path, out: Path, text: str = MAP, *, workers: int = 1, skip_broken: bool = False) -> PreparedCases:
    """Prepare the cases in a folder according to the text of a map, by default in one process."""
    return prepare_cases(root, out, text, "m", workers=workers, skip_broken=skip_broken)
