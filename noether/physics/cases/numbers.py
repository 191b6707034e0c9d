"""Numbers beside a case's meshes: tables, JSON, YAML, and the .dat files of OpenFOAM's function objects."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from noether.common.errors import RequestError, one_line
from noether.common.suggest import nearest
from noether.config.section import flat
from noether.physics.cases.case_map import NumberMap
from noether.physics.cases.layout import CASE
from noether.physics.cases.tables import TABLE_SUFFIXES, as_number, case_key, read_table, rows_by_case

NUMBER_SUFFIXES = (*TABLE_SUFFIXES, ".json", ".yaml", ".yml", ".dat")


def read_numbers(path: Path) -> dict[str, float]:
    """The numbers of one case's file by name: a JSON or YAML object, a table of one row, the last row of a .dat.

    Objects within objects give names with dots (`inlet.speed`); what is not a number is left out.

    Raises:
        RequestError: the file is missing, is not of its format, or is a table of several rows.
    """
    if path.suffix == ".dat":
        return _last_row(path)
    if path.suffix in TABLE_SUFFIXES:
        rows = read_table(path)
        if len(rows) != 1:
            raise RequestError(
                "table-of-several-rows",
                f"{path} is a table of several rows",
                seen=f"{len(rows)} rows",
                expected="one row, or `row: COLUMN` in the map, the column with the cases' names",
            )
        return _numbers_of(rows[0].items())
    try:
        content = json.loads(_text(path)) if path.suffix == ".json" else yaml.safe_load(_text(path))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise RequestError(
            "table-unreadable", f"{path} cannot be read", seen=one_line(error), expected="one object"
        ) from None
    entries = flat(content) if isinstance(content, Mapping) else ()
    return _numbers_of((name, value) for name, value in entries if not isinstance(value, bool))


def case_number(about: NumberMap, name: str, case: str, root: Path) -> float:
    """One number of a case, scaled. RequestError: it is not where the map says, or not a finite number."""
    column = about.column or name
    if about.file is None:
        raise RequestError(
            "number-without-file",
            f"{name} has no file in the map",
            seen="no file",
            expected="file: PATH, with {case} in it",
        )
    path = _one_file(root, about.file.replace(CASE, case), name)
    if about.row is None:
        numbers = read_numbers(path)
    else:
        rows = rows_by_case(path, about.row).get(case_key(case), [])
        if len(rows) != 1:
            raise RequestError(
                "case-rows-in-table",
                f"{path} has no row for case {case}" if not rows else f"{path} has {len(rows)} rows for case {case}",
                seen=f"column {about.row!r} of {len(read_table(path))} rows",
                expected=f"one row with {case}",
            )
        numbers = _numbers_of(rows[0].items())
        if column in rows[0] and column not in numbers:
            raise RequestError(
                "not-a-number",
                f"{column} of case {case} in {path} is not a number",
                seen=repr(rows[0][column]) if rows[0][column] else "an empty cell",
                expected="a number in every row",
            )
    if column not in numbers:
        raise RequestError(
            "no-such-column",
            f"{path} has no number {column!r}",
            seen=", ".join(numbers) or "no numbers",
            expected=f"column: {nearest(column, list(numbers)) or 'NAME'}",
        )
    value = numbers[column] * about.scale
    if not math.isfinite(value):
        raise RequestError(
            "number-not-finite", f"{column} in {path} is not finite", seen=str(numbers[column]), expected="a number"
        )
    return value


def _one_file(root: Path, relative: str, name: str) -> Path:
    found = sorted(root.glob(relative)) if "*" in relative else [root / relative]
    if len(found) != 1 or not found[0].is_file():
        raise RequestError(
            "number-file-missing",
            f"the file of {name} is missing" if len(found) < 2 else f"several files could hold {name}",
            seen=", ".join(map(str, found[:3])) if len(found) > 1 else f"no file {root / relative}",
            expected="one file",
        )
    return found[0]


def _last_row(path: Path) -> dict[str, float]:
    lines = [line.strip() for line in _text(path).splitlines() if line.strip()]
    comments = [line.lstrip("# ").strip() for line in lines if line.startswith("#")]
    data = [line for line in lines if not line.startswith("#")]
    # force.dat puts its vectors in brackets, "(total_x total_y total_z)"; "Cd(f)" keeps its own.
    names = [name if "(" in name[1:] else name.strip("()") for name in comments[-1].split()] if comments else []
    values = re.sub(r"[()]", " ", data[-1]).split() if data else []
    if not values or (names and len(names) != len(values)):
        raise RequestError(
            "not-an-openfoam-table",
            f"{path} is not a table of OpenFOAM", seen=f"{len(names)} names, {len(values)} values in its last row",
            expected="a line '# Time name ...' and rows of as many numbers",
        )  # fmt: skip
    return _numbers_of(zip(names or [f"column_{i}" for i in range(len(values))], values, strict=True))


def _numbers_of(entries: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Those entries that are numbers, or texts of one."""
    return {name: number for name, value in entries if (number := as_number(value)) is not None}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            "table-unreadable", f"{path} cannot be read", seen=str(error), expected="a text file"
        ) from None
