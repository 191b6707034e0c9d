"""A small raw ShapeNet-Car archive of the real format: 3682 surface points of which quads use 3586, hexahedra around.

The car is a half ellipsoid with made-up fields; counts, file names, orders and types are those of the archive.
"""

from pathlib import Path

import meshio
import numpy as np

RINGS, SPOKES = 64, 56  # 64 · 56 + 2 poles = 3586
UNUSED = 96
FIRST = 16  # the archive's unused points follow its first 16


def unit_sphere() -> tuple[np.ndarray, np.ndarray]:
    """A sphere of 3586 points and 3584 quads that look outwards; the poles are closed by quads over two spokes."""
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
    """Points (3682, 3), quads (F, 4) of 3586 of them, pressures (3682,): a closed ellipsoid on the ground."""
    axes = np.array([0.8, 0.7, 1.9]) * np.random.default_rng(seed).uniform(0.9, 1.1, 3)
    sphere, quads = unit_sphere()
    used = sphere * axes + [0, 0.75, 0]
    points = np.concatenate([used[:FIRST], np.full((UNUSED, 3), 0.1) * np.arange(UNUSED)[:, None], used[FIRST:]])
    quads = np.where(quads < FIRST, quads, quads + UNUSED)
    direction = (points - [0, 0.75, 0]) / axes
    pressure = -30 - (60 + seed) * direction[:, 2] - 25 * direction[:, 1] + 5 * np.sin(9 * direction[:, 0])
    # Coordinates are the same text in both files of a car.
    return points.astype(np.float32), quads, pressure.astype(np.float32)


def volume_mesh(surface: np.ndarray, seed: int, cells: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A box of hexahedra whose nodes include the surface's points, and the velocity at each node."""
    grid = np.stack(
        np.meshgrid(np.linspace(-2, 2, cells), np.linspace(1.8, 4, cells), np.linspace(-4, 5, cells), indexing="ij"), -1
    ).reshape(-1, 3)
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
    """Writes one car's three files as the archive has them."""
    folder.mkdir(parents=True)
    points, quads, pressure = surface_mesh(seed)
    volume, hexahedra, velocity = volume_mesh(points, seed)
    surface_file = meshio.Mesh(points, [("quad", quads)], point_data={"point_scalars": pressure})
    volume_file = meshio.Mesh(volume, [("hexahedron", hexahedra)], point_data={"point_vectors": velocity})
    # Through the writer itself: meshio.write warns of ASCII files.
    for name, mesh in (("quadpress_smpl.vtk", surface_file), ("hexvelo_smpl.vtk", volume_file)):
        meshio.vtk.write(folder / name, mesh, fmt_version="4.2", binary=binary)
    np.save(folder / "press.npy", pressure)


def write_archive(folder: Path, cars: dict[str, int]) -> Path:
    """Writes `training_data` with so many cars in each param folder, and one that is excluded; returns its path."""
    seed = 0
    for param, count in cars.items():
        for _ in range(count):
            write_car(folder / "training_data" / param / f"{seed:032x}", seed, binary=seed % 2 == 1)
            seed += 1
    without = folder / "training_data" / "param2" / "854bb96a96a4d1b338acbabdc1252e2f"
    without.mkdir(parents=True)
    (without / "hexvelo_smpl.vtk").write_text("")
    return folder / "training_data"
