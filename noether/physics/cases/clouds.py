"""Clouds of points in CSV: which columns are the coordinates, and which together are a vector or tensor."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError
from noether.physics.cases.mesh_files import import_pyvista
from noether.physics.cases.tables import read_columns
from noether.physics.cases.vocabulary import LENGTH_UNITS, name_and_unit

PLACE = r"(?:points?|coord(?:inate)?s?|pos(?:ition)?s?|centroids?|nodes?)"
COMPONENT = re.compile(
    r"(?P<name>.+?)(?:[\s:_.-]?(?P<letter>[xyz])|\[(?P<bracket>[ijk])\]|[\s:_.-](?P<digit>\d))$", re.IGNORECASE
)


def read_cloud(path: Path, coordinates: Sequence[str] = ()) -> Any:
    """Returns a table's rows as points (a PointSet of pyvista) with its other columns of numbers as their arrays.

    coordinates: the columns of x, y and z; where none are given, those that are usually called so. Columns that differ
    in x, y, z or in a number from 0 alone are one array. Of a plane, with x and y alone, z is 0, of vectors too.

    Raises:
        RequestError: the table cannot be read, or has no such columns.
    """
    columns = read_columns(path)
    own = coordinates or guessed_coordinates(list(columns))
    if len(own) not in (2, 3) or not set(own) <= set(columns):
        raise RequestError(
            "no-coordinates",
            f"{path} has no columns of coordinates",
            seen=", ".join(columns) or "no columns of numbers",
            expected=", ".join(coordinates) or "x, y and z; of a plane, x and y",
            fix="name its columns x, y, z in its first line      (or coordinates: [their, own, names] in the map)",
        )
    places = [columns.pop(name) for name in own]
    zero = np.zeros_like(places[0])
    cloud = import_pyvista().PointSet(np.stack([*places, zero][:3], axis=-1))
    if len(units := {name_and_unit(name)[1] for name in own}) == 1 and units <= set(LENGTH_UNITS):
        cloud.field_data["length"] = [*units]
    for name, values in together(columns, dimensions=len(own)).items():
        is_plane = values.ndim > 1 and values.shape[1] == len(own) == 2
        cloud.point_data[name] = np.column_stack([values, zero]) if is_plane else values
    return cloud


def together(columns: Mapping[str, np.ndarray], dimensions: int) -> dict[str, np.ndarray]:
    """Returns columns (N,) as arrays: those that differ in x, y, z or in a number from 0 alone as one (N, C)."""
    return {name: np.stack([columns[part] for part in parts], axis=-1) if len(parts) > 1 else columns[parts[0]]
            for name, parts in _arrays(list(columns), dimensions).items()}  # fmt: skip


def guessed_coordinates(columns: Sequence[str]) -> list[str]:
    """The columns that are called x, y and z, Points:0, x-coordinate, X (m) or alike; [] where x or y is missing."""
    found: list[str] = []
    for digit, letter in enumerate("xyz"):
        usual = re.compile(rf"(?:{PLACE}[\s:_.-]*)?{letter}(?:[\s_-]?{PLACE})?$|{PLACE}[\s:_.-]{digit}$", re.IGNORECASE)
        named = [column for column in columns if usual.match(name_and_unit(column)[0])][:1]
        if not named and letter != "z":
            return []
        found += named
    return found if len(set(found)) == len(found) else []


def is_cloud(path: Path) -> bool:
    """Whether a table is a cloud, by its first lines: coordinates, and more than one row of numbers."""
    with path.open("rb") as file:
        head = b"".join(islice(file, 100))
    try:
        columns = read_columns(path, head, rows=3)
    except RequestError:
        return False
    return bool(guessed_coordinates(list(columns))) and len(next(iter(columns.values()))) > 1


def _arrays(columns: Sequence[str], dimensions: int) -> dict[str, list[str]]:
    """The columns of each array, in the order of its components."""
    groups: dict[str, dict[int, str]] = {}
    for column in columns:
        name, unit = name_and_unit(column)
        if part := COMPONENT.match(name):
            index = (
                int(part["digit"]) if part["digit"] else "xyzijk".index((part["letter"] or part["bracket"]).lower()) % 3
            )
            groups.setdefault(f"{part['name']} [{unit}]" if unit else part["name"], {})[index] = column
    whole = {name: [own[index] for index in sorted(own)] for name, own in groups.items()
             if len(own) >= dimensions and sorted(own) == list(range(len(own))) and name not in columns}  # fmt: skip
    within = {column for own in whole.values() for column in own}
    return whole | {column: [column] for column in columns if column not in within}
