"""Read tables (CSV and .xlsx), also as point clouds or values for a mesh, and read a case's numbers from any file."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line
from noether.common.suggest import nearest
from noether.config.section import flat
from noether.config.yaml_reader import parse_yaml
from noether.physics.cases.case_map import CASE, NumberMap
from noether.physics.cases.mesh_files import import_pyvista
from noether.physics.cases.vocabulary import is_length, name_and_unit

TABLE_SUFFIXES = (".csv", ".tsv", ".xlsx")
SEPARATORS = ("\t", ";", ",")
SEPARATED_BY = 1_000  # lines examined to find the separator
COMMENT = "#%"  # characters with which the line of names, and comment lines above it, may begin
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")

Row = Mapping[str, str]
"""A row of a table, {column: value}; numbers have decimal points, even if the file has decimal commas."""
PLACE = r"(?:points?|coord(?:inate)?s?|pos(?:ition)?s?|centroids?|nodes?)"
COMPONENT = re.compile(
    r"(?P<name>.+?)(?:[\s:_.-]?(?P<letter>[xyz])|\[(?P<bracket>[ijk])\]|[\s:_.-](?P<digit>\d))$", re.IGNORECASE
)
NUMBER_SUFFIXES = (*TABLE_SUFFIXES, ".json", ".yaml", ".yml", ".dat")


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table, keyed by the column names in its first line; outer spaces are removed.

    In a CSV whose values are separated by tabs or semicolons, `0,35` is a number. Only the first sheet of an Excel file
    is read. RequestError: the table is unreadable, columns share a name, or a row has more values than columns.
    """
    return _read(path, _changed(path))


def read_columns(path: Path, text: bytes | None = None, rows: int | None = None) -> dict[str, np.ndarray]:
    """Return a CSV's columns of numbers (N,) by name; columns whose first value is not a number are left out.

    text: contents to use instead of the file; rows: maximum number of rows. RequestError: a line or name is unusable.
    """
    separator, lines = _separator_and_lines(_text(path, text))
    lines = lines if rows is None else lines[: rows + 1]
    if len(lines) < 2:
        return {}
    names = [name.lstrip(COMMENT + " ") for name in _fields(lines[:1], separator)[0]]
    if separator != ",":
        lines = [line.replace(",", ".") for line in lines]
    own = [place for place, value in enumerate(_fields(lines[1:2], separator)[0]) if as_number(value) is not None]
    if not own:
        return {}
    try:
        values = np.loadtxt(lines[1:], delimiter=separator, usecols=own, ndmin=2, quotechar='"')
    except ValueError as error:
        raise _unreadable(path, one_line(error), "numbers in every line") from None
    columns: dict[str, np.ndarray] = {}
    for place, column in zip(own, values.T, strict=True):
        if place < len(names):
            first = columns.setdefault(names[place], column)
            if rows is None and not np.array_equal(first, column, equal_nan=True):
                raise _of_one_name(path, [names[place]])
    return columns


def rows_by_case(path: Path, column: str) -> Mapping[str, list[Row]]:
    """Return a table's rows, grouped by the `case_key` of their value in `column`. RequestError: it is unreadable."""
    return _indexed(path, _changed(path), column)


def case_key(name: str) -> str:
    """Return a key that all spellings of a case's name share: `7`, `007` and `_7` are one case, but `-7` is another."""
    digits = name.strip(" _")
    return str(int(digits)) if digits.isdecimal() else name


def _changed(path: Path) -> int:
    """Return a file's modification time. As part of the cache key, it causes a changed file to be read again."""
    return path.stat().st_mtime_ns if path.is_file() else 0


@lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> list[Row]:
    if path.suffix == ".xlsx":
        with _opened(path) as book:
            rows = [list(map(_cell, row)) for row in book.worksheets[0].iter_rows(values_only=True)]
    else:
        separator, lines = _separator_and_lines(_text(path))
        rows = [row if separator == "," else list(map(_with_point, row)) for row in _fields(lines, separator)]
    rows = [row for row in rows if any(row)]
    if not rows:
        return []
    names = [name.lstrip(COMMENT + " ") for name in rows[0]]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise _of_one_name(path, twice)
    for row in rows[1:]:
        if any(row[len(names) :]):
            raise RequestError(
                "row-longer-than-names", f"{path} has a row with more values than columns", seen=" | ".join(row),
                expected=f"{len(names)} values: {' | '.join(names)}; with decimal points if commas separate the values",
            )  # fmt: skip
    return [dict(zip(names, row, strict=False)) for row in rows[1:]]


@lru_cache(maxsize=16)
def _indexed(path: Path, changed: int, column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in _read(path, changed):
        found.setdefault(case_key(row.get(column, "")), []).append(row)
    return found


def _separator_and_lines(text: str) -> tuple[str, list[str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (said := re.fullmatch(r'"?sep=(.)"?', lines[0])):  # a line for Excel
        return said[1], lines[1:]
    if not lines:
        return ",", []
    comments = next((place for place, line in enumerate(lines) if line.lstrip()[0] not in COMMENT), len(lines))
    separator = _separator(lines[comments : comments + SEPARATED_BY])
    own = _fields(lines[max(0, comments - 1) : comments + 1], separator)
    has_number = any(as_number(_with_point(value)) is not None for value in own[-1])
    if comments and (has_number or len(own[0]) == len(own[-1])):
        comments -= 1  # the last comment line has the names
    return separator, lines[comments:]


def _separator(lines: list[str]) -> str:
    """Return the separator that splits the rows into the fewest different lengths; if several do, the first of them."""
    lengths = {mark: [len(row) for row in _fields(lines, mark)] for mark in SEPARATORS}
    splits = [mark for mark, own in lengths.items() if own and own[0] > 1]
    return min(splits, key=lambda mark: len(set(lengths[mark])), default=",")


def _fields(lines: list[str], separator: str) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [[value.strip() for value in row] for row in rows]


def _with_point(value: str) -> str:
    return value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value


def other_sheets(path: Path) -> list[str]:
    """Return the names of a workbook's sheets that `read_table` does not read; [] for a CSV."""
    if path.suffix != ".xlsx":
        return []
    with _opened(path) as book:
        return [sheet.title for sheet in book.worksheets[1:]]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import openpyxl
    except ImportError as error:
        raise RequestError(
            "openpyxl-not-installed",
            f"{path} cannot be read: Excel's tables are read through openpyxl, which is not installed here",
            seen=str(error),
            expected="noether, installed with its extra `mesh`, or the table as CSV",
            fix="pip install pyvista meshio h5py openpyxl      (or, in noether's checkout: pip install '.[mesh]')",
        ) from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        yield book
        book.close()
    except Exception as error:  # If the file is not a workbook, zipfile, expat or openpyxl may raise anything.
        raise _unreadable(path, one_line(error), "an Excel workbook (.xlsx)") from None


def _cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value).strip()


def _text(path: Path, content: bytes | None = None) -> str:
    try:
        content = path.read_bytes() if content is None else content
    except OSError as error:
        raise _unreadable(path, str(error), "a table") from None
    encodings = ("utf-16",) if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "cp1252")  # as Excel saves
    for encoding in encodings:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            problem = str(error)
    raise _unreadable(path, problem, "text in UTF-8")


def as_number(value: Any) -> float | None:
    """Return a number or a text as a float; None if it is not a number."""
    with suppress(TypeError, ValueError):
        return float(value)
    return None


def _of_one_name(path: Path, names: list[str]) -> RequestError:
    return RequestError("columns-of-one-name", f"{path} has several columns with the same name", seen=", ".join(names),
                        expected="a different name for each column")  # fmt: skip


def _unreadable(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError("table-unreadable", f"{path} cannot be read", seen=seen, expected=expected)


def read_cloud(path: Path, coordinates: Sequence[str] = ()) -> Any:
    """Return a table's rows as points (pyvista's PointSet), with the other columns of numbers as arrays of the points.

    coordinates: names of the columns of x, y and z (empty: usual names). Without a column of z, z is 0 for positions
    and vectors. RequestError: the table cannot be read, or lacks a column of coordinates.
    """
    columns = read_columns(path)
    own = coordinates or guessed_coordinates(list(columns))
    if len(own) not in (2, 3) or not set(own) <= set(columns):
        raise RequestError(
            "no-coordinates",
            f"{path} has no columns of coordinates",
            seen=", ".join(columns) or "no columns of numbers",
            expected=", ".join(coordinates) or "x, y and z; for a plane, x and y",
            fix="name its columns x, y, z in its first line      (or coordinates: [their, own, names] in the map)",
        )
    places = [columns.pop(name) for name in own]
    zero = np.zeros_like(places[0])
    cloud = import_pyvista().PointSet(np.stack([*places, zero][:3], axis=-1))
    if len(units := {name_and_unit(name)[1] for name in own}) == 1 and all(map(is_length, units)):
        cloud.field_data["length"] = [*units]
    for name, values in together(columns, dimensions=len(own)).items():
        is_plane = values.ndim > 1 and values.shape[1] == len(own) == 2
        cloud.point_data[name] = np.column_stack([values, zero]) if is_plane else values
    return cloud


def together(columns: Mapping[str, np.ndarray], dimensions: int) -> dict[str, np.ndarray]:
    """Return columns (N,) as arrays; columns whose names differ only in x, y, z or 0, 1, 2 become one array (N, C)."""
    groups: dict[str, dict[int, str]] = {}
    for column in columns:
        name, unit = name_and_unit(column)
        if part := COMPONENT.match(name):
            letter = (part["letter"] or part["bracket"] or "x").lower()
            index = int(part["digit"] or "xyzijk".index(letter) % 3)
            groups.setdefault(f"{part['name']} [{unit}]" if unit else part["name"], {})[index] = column
    whole = {name: [own[index] for index in sorted(own)] for name, own in groups.items()
             if len(own) >= dimensions and sorted(own) == list(range(len(own))) and name not in columns}  # fmt: skip
    within = {column for own in whole.values() for column in own}
    arrays = {name: np.stack([columns[part] for part in own], axis=-1) for name, own in whole.items()}
    return arrays | {column: values for column, values in columns.items() if column not in within}


def guessed_coordinates(columns: Sequence[str]) -> list[str]:
    """Return the columns of coordinates, named like x, Points:0, x-coordinate or X (m); [] if x or y is missing."""
    found: list[str] = []
    for digit, letter in enumerate("xyz"):
        usual = re.compile(rf"(?:{PLACE}[\s:_.-]*)?{letter}(?:[\s_-]?{PLACE})?$|{PLACE}[\s:_.-]{digit}$", re.IGNORECASE)
        named = [column for column in columns if usual.match(name_and_unit(column)[0])][:1]
        if not named and letter != "z":
            return []
        found += named
    return found if len(set(found)) == len(found) else []


def is_cloud(path: Path) -> bool:
    """Return whether a table is a point cloud: its first lines have coordinates and more than one row of numbers."""
    with path.open("rb") as file:
        head = b"".join(islice(file, 100))
    try:
        columns = read_columns(path, head, rows=3)
    except RequestError:
        return False
    return bool(guessed_coordinates(list(columns))) and len(next(iter(columns.values()))) > 1


def read_values(path: Path) -> dict[str, np.ndarray]:
    """Return a table's columns as arrays (N,) or (N, C), as `together` groups them. RequestError: it is unreadable.

    The first column of consecutive integers, if there is one, is not an array; the rows are sorted by it.
    """
    columns = read_columns(path)
    counting = next((name for name, values in columns.items() if _counts(values)), None)
    order = slice(None) if counting is None else np.argsort(columns.pop(counting))
    return {name: values[order] for name, values in together(columns, dimensions=3).items()}


def _counts(values: np.ndarray) -> bool:
    counted = np.sort(values)
    return len(values) > 1 and counted[0] % 1 == 0 and bool((np.diff(counted) == 1).all())


def add_values(mesh: Any, at: str, path: Path) -> None:
    """Add a table's arrays to a mesh, at its points or cells. RequestError: the table has too few or too many rows."""
    count, data = (mesh.n_cells, mesh.cell_data) if at == "cells" else (mesh.n_points, mesh.point_data)
    for name, values in read_values(path).items():
        if len(values) != count:
            raise RequestError(
                "values-do-not-fit", f"{path} does not have one row for each of the mesh's {at}",
                seen=f"{len(values)} rows, {mesh.n_points} points, {mesh.n_cells} cells", expected=f"{count} rows",
                fix=f"at: {'points' if at == 'cells' else 'cells'}      (in the map, if the values are given there)",
            )  # fmt: skip
        data[name] = values


def read_numbers(path: Path) -> dict[str, float]:
    """Return the numbers in a case's file by name: of a JSON or YAML object, a table's only row, or a .dat's last row.

    Names in nested objects are joined by dots (`inlet.speed`); values that are not numbers are left out. RequestError:
    the file is missing, does not have the format of its suffix, or is a table of several rows.
    """
    if path.suffix == ".dat":
        return _last_row(path)
    if path.suffix in TABLE_SUFFIXES:
        rows = read_table(path)
        if len(rows) != 1:
            raise RequestError(
                "table-of-several-rows", f"{path} is a table of several rows", seen=f"{len(rows)} rows",
                expected="one row, or `row: COLUMN` in the map, where COLUMN holds the cases' names",
            )  # fmt: skip
        return _numbers_of(rows[0].items())
    try:
        content = json.loads(_text(path)) if path.suffix == ".json" else parse_yaml(_text(path), str(path))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, one_line(error), "one object") from None
    entries = flat(content) if isinstance(content, Mapping) else ()
    return _numbers_of((name, value) for name, value in entries if not isinstance(value, bool))


def case_number(about: NumberMap, name: str, case: str, root: Path) -> float:
    """Return one number of a case, scaled. RequestError: the number is not where the map states, or is not finite."""
    column = about.column or name
    if about.file is None:
        raise RequestError("number-without-file", f"{name} has no file in the map", seen="no file",
                           expected="file: PATH, with {case} in it")  # fmt: skip
    path = _one_file(root, about.file.replace(CASE, case), name)
    row: Mapping[str, Any]
    if about.row is None:
        row = read_numbers(path)
    else:
        rows = rows_by_case(path, about.row).get(case_key(case), [])
        if len(rows) != 1:
            raise RequestError(
                "case-rows-in-table",
                f"{path} has no row for case {case}" if not rows else f"{path} has {len(rows)} rows for case {case}",
                seen=f"column {about.row!r} of {len(read_table(path))} rows",
                expected=f"exactly one row for case {case}",
            )
        row = rows[0]
    numbers = _numbers_of(row.items())
    if column in row and column not in numbers:
        raise RequestError("not-a-number", f"{column} of case {case} in {path} is not a number",
                           seen=repr(row[column]) if row[column] else "an empty cell",
                           expected="a number in every row")  # fmt: skip
    if column not in numbers:
        raise RequestError("no-such-column", f"{path} has no number {column!r}",
                           seen=", ".join(numbers) or "no numbers",
                           expected=f"column: {nearest(column, list(numbers)) or 'NAME'}")  # fmt: skip
    value = numbers[column] * about.scale
    if not math.isfinite(value):
        raise RequestError(
            "number-not-finite", f"{column} in {path} is not finite", seen=str(numbers[column]), expected="a number"
        )
    return value


def _one_file(root: Path, relative: str, name: str) -> Path:
    found = sorted(root.glob(relative)) if "*" in relative else [root / relative]
    if len(found) != 1 or not found[0].is_file():
        raise RequestError("number-file-missing",
                           f"the file with {name} is missing" if len(found) < 2 else f"several files may hold {name}",
                           seen=", ".join(map(str, found[:3])) if len(found) > 1 else f"no file {root / relative}",
                           expected="one file")  # fmt: skip
    return found[0]


def _last_row(path: Path) -> dict[str, float]:
    lines = [line.strip() for line in _text(path).splitlines() if line.strip()]
    comments = [line.lstrip("# ").strip() for line in lines if line.startswith("#")]
    data = [line for line in lines if not line.startswith("#")]
    # force.dat puts vectors in brackets, "(total_x total_y total_z)", which are removed; "Cd(f)" keeps its brackets.
    names = [name if "(" in name[1:] else name.strip("()") for name in comments[-1].split()] if comments else []
    values = re.sub(r"[()]", " ", data[-1]).split() if data else []
    if not values or (names and len(names) != len(values)):
        raise RequestError(
            "not-an-openfoam-table",
            f"{path} is not an OpenFOAM table", seen=f"{len(names)} names, {len(values)} values in its last row",
            expected="a line '# Time name ...', and rows with a number for each name",
        )  # fmt: skip
    return _numbers_of(zip(names or [f"column_{i}" for i in range(len(values))], values, strict=True))


def _numbers_of(entries: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Return, by name and as floats, the values that are numbers or texts of numbers."""
    return {name: number for name, value in entries if (number := as_number(value)) is not None}
