"""Write a small raw ShapeNet-Car archive: a car has hexahedra and 3682 surface points, of which quads use 3586.

Each car is a half ellipsoid with made-up fields, but file names, orders, types and counts are those of the archive.
"""

from pathlib import Path

import numpy as np
import pyvista
from vtkmodules.vtkIOLegacy import vtkUnstructuredGridWriter

from noether.physics.cases.case_map import map_text
from noether.physics.cases.prepare import PreparedCases, prepare_cases

RINGS, SPOKES = 64, 56  # 64 · 56 + 2 poles = 3586
UNUSED = 96
FIRST = 16  # The archive's unused points follow its first 16.


def unit_sphere() -> tuple[np.ndarray, np.ndarray]:
    """Return a sphere of 3586 points and 3584 quads that face outwards; at the poles, a quad spans two spokes."""
    polar = (np.arange(RINGS) + 1) / (RINGS + 1) * np.pi
    turn = 2 * np.pi * np.arange(SPOKES) / SPOKES
    across = np.sin(polar)[:, None] * np.stack([np.cos(turn), np.sin(turn)])[:, None]
    ring = np.stack([*across, np.broadcast_to(np.cos(polar)[:, None], across[0].shape)], axis=-1)
    number = np.arange(RINGS * SPOKES).reshape(RINGS, SPOKES)
    after = np.roll(number, -1, axis=1)
    sides = np.stack([number[:-1], number[1:], after[1:], after[:-1]], axis=-1).reshape(-1, 4)
    top, bottom = RINGS * SPOKES, RINGS * SPOKES + 1
    caps = [[top, number[0, i], number[0, i + 1], number[0, (i + 2) % SPOKES]] for i in range(0, SPOKES, 2)]
    caps += [[bottom, number[-1, (i + 2) % SPOKES], number[-1, i + 1], number[-1, i]] for i in range(0, SPOKES, 2)]
    return np.concatenate([ring.reshape(-1, 3), [[0, 0, 1], [0, 0, -1]]]), np.concatenate([sides, caps])


def surface_mesh(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points (3682, 3), quads (F, 4) of 3586 of them, pressures (3682,): a closed ellipsoid on the ground."""
    axes = np.array([0.8, 0.7, 1.9]) * np.random.default_rng(seed).uniform(0.9, 1.1, 3)
    sphere, quads = unit_sphere()
    used = sphere * axes + [0, 0.75, 0]
    points = np.concatenate([used[:FIRST], np.full((UNUSED, 3), 0.1) * np.arange(UNUSED)[:, None], used[FIRST:]])
    quads = np.where(quads < FIRST, quads, quads + UNUSED)
    direction = (points - [0, 0.75, 0]) / axes
    pressure = -30 - (60 + seed) * direction[:, 2] - 25 * direction[:, 1] + 5 * np.sin(9 * direction[:, 0])
    # A coordinate has the same text in both of a car's files.
    return points.astype(np.float32), quads, pressure.astype(np.float32)


def volume_mesh(surface: np.ndarray, seed: int, cells: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a box of hexahedra whose nodes include the surface's points, and the velocity at each node."""
    axes = (np.linspace(low, high, cells) for low, high in ((-2, 2), (1.8, 4), (-4, 5)))
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    grid += np.random.default_rng(seed).uniform(0, 1e-3, grid.shape)
    points = np.concatenate([grid, surface]).astype(np.float32)
    number = np.arange(cells**3).reshape(cells, cells, cells)
    hexahedra = np.stack(
        [number[i : cells - 1 + i, j : cells - 1 + j, k : cells - 1 + k].ravel()
         for i, j, k in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))],
        axis=-1,
    )  # fmt: skip
    near = 1 / (1 + np.linalg.norm(points, axis=1))
    velocity = np.stack([near, -2 * near, 20 - 15 * near], axis=-1)
    return points, hexahedra, velocity.astype(np.float32)


def write_car(folder: Path, seed: int, *, binary: bool = False) -> None:
    """Write one car's three files as in the archive."""
    folder.mkdir(parents=True)
    points, quads, pressure = surface_mesh(seed)
    volume, hexahedra, velocity = volume_mesh(points, seed)
    write_grid(folder / "quadpress_smpl.vtk", points, quads, {"point_scalars": pressure}, binary=binary)
    write_grid(folder / "hexvelo_smpl.vtk", volume, hexahedra, {"point_vectors": velocity}, binary=binary)
    np.save(folder / "press.npy", pressure)


def grid_as_text(points, cells, arrays: dict[str, np.ndarray]) -> str:
    """Return the grid in ASCII with all digits; VTK's own text writer keeps only six."""
    lines = ["# vtk DataFile Version 4.2", "a car", "ASCII", "DATASET UNSTRUCTURED_GRID"]
    lines += [f"POINTS {len(points)} float", *(" ".join(f"{x:.9g}" for x in point) for point in points)]
    lines += [f"CELLS {len(cells)} {len(cells) * (1 + cells.shape[1])}"]
    lines += [" ".join(map(str, [cells.shape[1], *cell])) for cell in cells.tolist()]
    lines += [f"CELL_TYPES {len(cells)}", *[{4: "9", 8: "12"}[cells.shape[1]]] * len(cells)]
    lines += [f"POINT_DATA {len(points)}"]
    for name, values in arrays.items():
        head = f"SCALARS {name} float 1\nLOOKUP_TABLE default" if values.ndim == 1 else f"VECTORS {name} float"
        rows = values[:, None] if values.ndim == 1 else values
        lines += [head, *(" ".join(f"{x:.9g}" for x in row) for row in rows)]
    return "\n".join(lines) + "\n"


def write_grid(path: Path, points, cells, arrays: dict[str, np.ndarray], *, binary: bool = True) -> None:
    """Write quadrilaterals or hexahedra as an UNSTRUCTURED_GRID of legacy VTK 4.2, the archive's version."""
    if not binary:
        path.write_text(grid_as_text(points, cells, arrays))
        return
    kind = {4: pyvista.CellType.QUAD, 8: pyvista.CellType.HEXAHEDRON}[cells.shape[1]]
    grid = pyvista.UnstructuredGrid({kind: cells}, points)
    for name, values in arrays.items():
        grid.point_data[name] = values
    writer = vtkUnstructuredGridWriter()
    writer.SetFileName(str(path))
    writer.SetFileVersion(42)
    writer.SetFileType(2)
    writer.SetInputData(grid)
    assert writer.Write()


def write_archive(folder: Path, cars: dict[str, int]) -> Path:
    """Write `training_data` with `cars` cars in each param folder and one excluded car; return its path."""
    seed = 0
    for param, count in cars.items():
        for _ in range(count):
            write_car(folder / "training_data" / param / f"{seed:032x}", seed, binary=seed % 2 == 1)
            seed += 1
    without = folder / "training_data" / "param2" / "854bb96a96a4d1b338acbabdc1252e2f"
    without.mkdir(parents=True)
    (without / "hexvelo_smpl.vtk").write_text("")
    return folder / "training_data"


def prepare_cars(source: Path, out: Path, workers: int = 0, *, skip_broken: bool = False) -> PreparedCases:
    """Prepare a folder of cars in this process as `noether data prepare shapenet_car` does."""
    text = map_text("shapenet_car")
    return prepare_cases(source, out, text, "shapenet_car", workers=workers, skip_broken=skip_broken)
