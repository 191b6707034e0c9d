"""Clouds of points in CSV: which columns are the coordinates, and which together are a vector or tensor."""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from noether.data.cases.tables import read_columns
from noether.data.cases.vocabulary import name_and_unit
from noether.data.mesh_files import import_pyvista
from noether.errors import RequestError

PLACE = r"(?:points?|coord(?:inate)?s?|pos(?:ition)?s?|centroids?|nodes?)"
COMPONENT = re.compile(
    r"(?P<name>.+?)(?:[\s:_.-]?(?P<letter>[xyz])|\[(?P<bracket>[ijk])\]|[\s:_.-](?P<digit>\d))$", re.IGNORECASE
)


def read_cloud(path: Path, coordinates: Sequence[str] = ()) -> Any:
    """Returns a table's rows as points (a PointSet of pyvista) with its other columns of numbers as their arrays.

    coordinates: the columns of x, y and z; where none are given, those that are usually called so. Columns that differ
    in x, y, z or in a number from 0 alone are one array.

    Raises:
        RequestError: the table cannot be read, or has no such columns.
    """
    columns = read_columns(path)
    own = coordinates or guessed_coordinates(list(columns))
    if len(own) != 3 or not set(own) <= set(columns):
        raise RequestError(
            "no-coordinates",
            f"{path} has no columns of coordinates",
            seen=", ".join(columns) or "no columns of numbers",
            expected=", ".join(coordinates) or "x, y and z",
            fix="coordinates: [x, y, z]      (the names of the columns, in the map's set)",
        )
    cloud = import_pyvista().PointSet(np.stack([columns.pop(name) for name in own], axis=-1))
    for name, parts in _arrays(list(columns)).items():
        values = [columns[part] for part in parts]
        cloud.point_data[name] = np.stack(values, axis=-1) if len(values) > 1 else values[0]
    return cloud


def guessed_coordinates(columns: Sequence[str]) -> list[str]:
    """The columns that are called x, y and z, Points:0, x-coordinate, X (m) or alike; [] where there are not three."""
    found = []
    for digit, letter in enumerate("xyz"):
        usual = re.compile(rf"(?:{PLACE}[\s:_.-]*)?{letter}(?:[\s_-]?{PLACE})?$|{PLACE}[\s:_.-]{digit}$", re.IGNORECASE)
        found += [column for column in columns if usual.match(name_and_unit(column)[0])][:1]
    return found if len(set(found)) == 3 else []


def is_cloud(path: Path) -> bool:
    """Whether a table is a cloud, by its first lines: coordinates, and more than one row of numbers."""
    with path.open("rb") as file:
        head = b"".join(islice(file, 4))
    try:
        columns = read_columns(path, head)
    except RequestError:
        return False
    return bool(guessed_coordinates(list(columns))) and len(next(iter(columns.values()))) > 1


def _arrays(columns: Sequence[str]) -> dict[str, list[str]]:
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
             if len(own) > 2 and sorted(own) == list(range(len(own))) and name not in columns}  # fmt: skip
    within = {column for own in whole.values() for column in own}
    return whole | {column: [column] for column in columns if column not in within}
