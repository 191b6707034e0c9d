"""Tables beside the meshes of cases: CSV with any of the usual separators, and Excel's .xlsx."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line

TABLE_SUFFIXES = (".csv", ".tsv", ".xlsx")
SEPARATORS = ("\t", ";", ",")
SEPARATED_BY = 1_000  # lines show which mark separates values
COMMENT = "#%"  # begins lines in front of the names, or the names
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")

Row = Mapping[str, str]
"""A row of a table by column; a number has a decimal point whatever the file had."""


def read_table(path: Path) -> list[Row]:
    """Returns the rows of a table, by the names in its first line; names and values without spaces around.

    CSV: the separator is a tab, a semicolon or a comma. With the first two, as a spreadsheet writes them where the
    decimal mark is a comma, `0,35` is a number. Excel: the first sheet, with the results of its formulas.

    Raises:
        RequestError: the table cannot be read, two columns have one name, or a row has more values than there are
            columns.
    """
    return _read(path, _changed(path))


def read_columns(path: Path, text: bytes | None = None, rows: int | None = None) -> dict[str, np.ndarray]:
    """Returns a CSV's columns of numbers (N,) by name; those whose first value is none are left out.

    text: what to read in place of the file; rows: how many at most. RequestError: a line has another number of values,
    or other values.
    """
    separator, lines = _separator_and_lines(_text(path, text))
    lines = lines if rows is None else lines[: rows + 1]
    if len(lines) < 2:
        return {}
    names = [name.lstrip(COMMENT + " ") for name in _fields(lines[:1], separator)[0]]
    if separator != ",":
        lines = [line.replace(",", ".") for line in lines]
    own = [place for place, value in enumerate(_fields(lines[1:2], separator)[0]) if as_number(value) is not None]
    try:
        values = (
            np.loadtxt(lines[1:], delimiter=separator, usecols=own, ndmin=2, quotechar='"') if own else np.empty((0, 0))
        )
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
    """Returns the rows of a table by the `case_key` of what a column holds. RequestError: it cannot be read."""
    return _indexed(path, _changed(path), column)


def case_key(name: str) -> str:
    """Returns what the names of one case have in common: `7`, `007` and `_7` are one number, `-7` is another."""
    digits = name.strip(" _")
    return str(int(digits)) if digits.isdecimal() else name


def _changed(path: Path) -> int:
    """When a file was changed: a part of the key under which it is kept, for a file may be read again after that."""
    return path.stat().st_mtime_ns if path.is_file() else 0


@lru_cache(maxsize=16)
def _read(path: Path, changed: int) -> list[Row]:
    lines = _sheet(path) if path.suffix == ".xlsx" else _separated(_text(path))
    rows = [row for row in lines if any(row)]
    if not rows:
        return []
    names = [name.lstrip(COMMENT + " ") for name in rows[0]]
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise _of_one_name(path, twice)
    for row in rows[1:]:
        if any(row[len(names) :]):
            raise RequestError(
                "row-longer-than-names",
                f"{path} has a row of more values than columns",
                seen=" | ".join(row),
                expected=f"{len(names)} values: {' | '.join(names)}; decimal points where commas separate the values",
            )
    return [dict(zip(names, row, strict=False)) for row in rows[1:]]


@lru_cache(maxsize=16)
def _indexed(path: Path, changed: int, column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in _read(path, changed):
        found.setdefault(case_key(row.get(column, "")), []).append(row)
    return found


def _separated(text: str) -> Iterable[list[str]]:
    separator, lines = _separator_and_lines(text)
    rows = _fields(lines, separator)
    return rows if separator == "," else [[_with_point(value) for value in row] for row in rows]


def _separator_and_lines(text: str) -> tuple[str, list[str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (said := re.fullmatch(r'"?sep=(.)"?', lines[0])):  # Excel's own first line
        return said[1], lines[1:]
    comments = next((place for place, line in enumerate(lines) if line.lstrip()[0] not in COMMENT), len(lines))
    separator = _separator(lines[comments : comments + SEPARATED_BY])
    own = _fields(lines[max(0, comments - 1) : comments + 1], separator)
    if comments and (
        len(own[0]) == len(own[-1]) or any(as_number(_with_point(value)) is not None for value in own[-1])
    ):
        comments -= 1  # the last of them has the names
    return separator, lines[comments:]


def _separator(lines: list[str]) -> str:
    """The separator by which all rows have as many values as there are names; a tab or semicolon before a comma."""
    lengths = {mark: [len(row) for row in _fields(lines, mark)] for mark in SEPARATORS}
    splits = [mark for mark, own in lengths.items() if own and own[0] > 1]
    return min(splits, key=lambda mark: len(set(lengths[mark])), default=",")


def _fields(lines: list[str], separator: str) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [[value.strip() for value in row] for row in rows]


def _with_point(value: str) -> str:
    return value.replace(",", ".") if DECIMAL_COMMA.fullmatch(value) else value


def _sheet(path: Path) -> Iterable[list[str]]:
    with _opened(path) as book:
        return [[_cell(value) for value in row] for row in book.worksheets[0].iter_rows(values_only=True)]


def other_sheets(path: Path) -> list[str]:
    """Returns the names of a workbook's sheets that `read_table` does not read; of CSV there are none."""
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
            expected="noether with its extra `mesh`, or the table as CSV",
            fix="pip install pyvista meshio h5py openpyxl      (or, in noether's checkout: pip install '.[mesh]')",
        ) from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        yield book
        book.close()
    except Exception as error:  # A file that is no workbook ends in whatever zipfile, expat or openpyxl came upon.
        raise _unreadable(path, one_line(error), "a workbook of Excel (.xlsx)") from None


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
    """Returns the number that a value is, or that its text says; None where it is none."""
    with suppress(TypeError, ValueError):
        return float(value)
    return None


def _of_one_name(path: Path, names: list[str]) -> RequestError:
    return RequestError(
        "columns-of-one-name",
        f"{path} has several columns of one name",
        seen=", ".join(names),
        expected="a name of its own for each column",
    )


def _unreadable(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError("table-unreadable", f"{path} cannot be read", seen=seen, expected=expected)
