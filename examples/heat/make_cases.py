#!/usr/bin/env python3
"""Solve heat conduction in boards with a chip by finite volumes, in mm and °C: make_cases.py --cases 60 [OUT].

Needs Python with NumPy, SciPy and pyvista. Air cools both sides of a board, and a chip heats the part of the board
under it. The cases are OUT/DP 1/board.vtr, OUT/DP 2/board.vtr etc. The table OUT/design points.csv has the parameters
of all cases, written as by a spreadsheet with decimal commas.
"""

import argparse
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pyvista
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve
from scipy.stats import qmc

CELLS = (36, 24, 6)
RANGES = {
    "Length [mm]": (60.0, 100.0),
    "Width [mm]": (40.0, 70.0),
    "Thickness [mm]": (1.5, 4.0),
    "Chip x [mm]": (0.3, 0.7),
    "Chip y [mm]": (0.3, 0.7),
    "Chip size [mm]": (8.0, 20.0),
    "Power [W]": (2.0, 12.0),
    "Conductivity [W/(m·K)]": (5.0, 60.0),
    "Film coefficient [W/(m²·K)]": (20.0, 80.0),
    "Ambient (°C)": (15.0, 45.0),
}
"""The lowest and highest value of each parameter; for Chip x and Chip y, as fractions of length and width."""


@dataclass(frozen=True)
class Board:
    """The parameters of one case, in the units that the keys of `RANGES` name."""

    length: float
    width: float
    thickness: float
    chip_x: float
    chip_y: float
    chip_size: float
    power: float
    conductivity: float
    film: float
    ambient: float


def draw_boards(count: int, seed: int) -> list[Board]:
    """Return the first `count` boards of a Sobol sequence; more boards begin with the same ones."""
    power_of_two = 1 << (count - 1).bit_length()
    drawn = qmc.scale(qmc.Sobol(len(RANGES), seed=seed).random(power_of_two), *zip(*RANGES.values(), strict=True))
    drawn[:, 3] *= drawn[:, 0]
    drawn[:, 4] *= drawn[:, 1]
    return [Board(*map(float, row)) for row in drawn[:count]]


def solve(board: Board) -> tuple[pyvista.RectilinearGrid, float]:
    """Return the mesh with temperature (°C) and heat flux (W/m²) at its cells, and the highest temperature.

    The grid is uniform, with central differences. Heat leaves through top and bottom by Newton's law of cooling. Each
    cell under the chip gets heat in proportion to its covered area, so the solution changes smoothly with the chip.
    """
    sides = np.array([board.length, board.width, board.thickness]) * 1e-3
    step, k = sides / CELLS, board.conductivity
    volume = float(step.prod())
    number = np.arange(np.prod(CELLS)).reshape(CELLS)
    diagonal, heat = np.zeros(CELLS), np.zeros(CELLS)
    rows, columns, values = [], [], []
    for axis in range(3):
        one, other = (np.take(number, range(*ends), axis) for ends in ((0, CELLS[axis] - 1), (1, CELLS[axis])))
        conductance = k * volume / step[axis] ** 2
        rows += [one.ravel(), other.ravel()]
        columns += [other.ravel(), one.ravel()]
        values.append(np.full(2 * one.size, -conductance))
        np.add.at(diagonal.reshape(-1), np.concatenate([one.ravel(), other.ravel()]), conductance)
    cooled = step[0] * step[1] / (1 / board.film + step[2] / (2 * k))  # film and half a cell in series
    for side in (0, -1):
        diagonal[:, :, side] += cooled
        heat[:, :, side] += cooled * board.ambient
    edges = [np.linspace(0, side, cells + 1) for side, cells in zip(sides, CELLS, strict=True)]
    covered = [
        np.clip(np.minimum(edge[1:], (at + board.chip_size / 2) * 1e-3) -
                np.maximum(edge[:-1], (at - board.chip_size / 2) * 1e-3), 0, None)
        for edge, at in zip(edges, (board.chip_x, board.chip_y), strict=False)
    ]  # fmt: skip
    chip = np.outer(*covered)
    heat[:, :, -1] += board.power * chip / chip.sum()
    rows.append(number.ravel())
    columns.append(number.ravel())
    values.append(diagonal.ravel())
    matrix = coo_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))))
    temperature = spsolve(matrix.tocsc(), heat.ravel()).reshape(CELLS)
    flux = -k * np.stack(np.gradient(temperature, *step), axis=-1)
    grid = pyvista.RectilinearGrid(*(1e3 * edge for edge in edges))
    grid.cell_data["Temp (°C)"] = temperature.ravel(order="F")
    grid.cell_data["HFL [W/m²]"] = flux.reshape(-1, 3, order="F")
    return grid, float(temperature.max())


def main() -> int:
    """Solve all cases, and write them and their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("boards"), metavar="OUT", help="default: boards")
    parser.add_argument("--cases", type=int, default=60, help="number of cases (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters")
    wanted = parser.parse_args()
    lines = [";".join(["Name", *RANGES, "Hot spot, max (°C)"])]
    for index, board in enumerate(draw_boards(wanted.cases, wanted.seed), 1):
        folder = wanted.out / f"DP {index}"
        folder.mkdir(parents=True, exist_ok=True)
        grid, hottest = solve(board)
        grid.save(folder / "board.vtr")
        lines.append(
            ";".join([folder.name, *(f"{value:.6g}".replace(".", ",") for value in (*astuple(board), hottest))])
        )
    (wanted.out / "design points.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{wanted.out}: {wanted.cases} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
