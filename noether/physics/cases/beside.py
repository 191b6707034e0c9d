"""Tables of values beside a mesh, without coordinates: a row for each of its points, or for each of its cells."""

from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError
from noether.physics.cases.clouds import together
from noether.physics.cases.tables import read_columns


def read_values(path: Path) -> dict[str, np.ndarray]:
    """Returns a table's arrays, (N,) or (N, C), by name; columns that differ in x, y, z or a number alone are one.

    The first column that counts all rows, from any number on, is none: it says their order. RequestError: it cannot be
    read.
    """
    columns = read_columns(path)
    counting = next((name for name, values in columns.items() if _counts(values)), None)
    order = slice(None) if counting is None else np.argsort(columns.pop(counting))
    return {name: values[order] for name, values in together(columns, dimensions=3).items()}


def _counts(values: np.ndarray) -> bool:
    counted = np.sort(values)
    return len(values) > 1 and counted[0] % 1 == 0 and bool((np.diff(counted) == 1).all())


def add_values(mesh: Any, at: str, path: Path) -> None:
    """Gives a mesh, at its points or cells, the arrays of a table. RequestError: it has another number of rows."""
    count, data = (mesh.n_cells, mesh.cell_data) if at == "cells" else (mesh.n_points, mesh.point_data)
    for name, values in read_values(path).items():
        if len(values) != count:
            raise RequestError(
                "values-do-not-fit",
                f"{path} has not one row for each of the mesh's {at}",
                seen=f"{len(values)} rows, {mesh.n_points} points, {mesh.n_cells} cells",
                expected=f"{count} rows",
                fix=f"at: {'points' if at == 'cells' else 'cells'}      (if they are of these)",
            )
        data[name] = values
