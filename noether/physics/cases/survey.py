"""What the files of a folder of cases hold: sets, arrays with ranges, numbers beside them, and what is odd."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from statistics import mode

import numpy as np

from noether.common.errors import RequestError
from noether.common.numbers import finite, first_of
from noether.core.data.shared_work import Progress, silent
from noether.core.data.surviving_pool import surviving_map
from noether.physics.cases.beside import read_values
from noether.physics.cases.case_map import SetKind
from noether.physics.cases.grouping import Grouping, group_files
from noether.physics.cases.layout import list_files
from noether.physics.cases.mesh_blocks import (
    BY_CONTENT,
    LISTS,
    SUFFIXES,
    files_behind,
    is_mesh_inside,
    is_surface,
    read_times_and_blocks,
)
from noether.physics.cases.numbers import read_numbers
from noether.physics.cases.spread import spans_decades
from noether.physics.cases.tables import Row, as_number, case_key, other_sheets, read_table
from noether.physics.cases.unlike import in_another_unit, unlike
from noether.physics.cases.vocabulary import name_and_unit

READ_BYTES = 4_000_000_000  # of meshes in all: beyond that, cases spread evenly over the folder stand for the others
MOST_LABELS = 50
ROWS_LOOKED_AT = 2_000_000  # of an array, spread evenly


@dataclass(frozen=True)
class ArrayFacts:
    """One array of one block in one case, or, with `of_cases`, those of all cases together.

    decades: whether its values span decades, as `spans_decades` says; labels: whether they are a few whole numbers by
    their type, such as those of materials.
    """

    at: str
    name: str
    components: int
    low: float
    high: float
    mean: tuple[float, ...]
    not_finite: int
    decades: bool = False
    labels: bool = False
    of_cases: tuple["ArrayFacts", ...] = ()


@dataclass(frozen=True)
class BlockFacts:
    """One mesh in one file: its block's name, whether it is a surface, a volume or points, its box, its arrays.

    length: the unit of length that the names of coordinates state; "" where none does.
    """

    name: str
    kind: SetKind
    length: str
    points: int
    cells: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    arrays: tuple[ArrayFacts, ...]


@dataclass(frozen=True)
class TableFacts:
    """One table with a row for each case.

    row: the column with the cases' names, "" where none has those of more than half of the cases; numbers: {column:
    {case: value}} of the columns with a number for more than half of those cases.
    """

    columns: list[str]
    rows: int
    row: str
    numbers: dict[str, dict[str, float]]


@dataclass
class Survey:
    """All that was found.

    blocks: {(template, block): {case: facts}}; numbers: {template: {case: {name: value}}}; tables: {file: facts};
    steps: {template: {case: times}} of files of several; values: {template: (template of a table, at)} of meshes beside
    which a table has a row for each of their points or cells; looked_at: the cases whose meshes were read; odd: what is
    odd, in words.
    """

    root: Path
    grouping: Grouping
    looked_at: list[str]
    blocks: dict[tuple[str, str], dict[str, BlockFacts]] = field(default_factory=dict)
    numbers: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    tables: dict[str, TableFacts] = field(default_factory=dict)
    steps: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    values: dict[str, tuple[str, str]] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)


def survey_folder(root: Path, *, workers: int = 1, progress: Progress = silent) -> Survey:
    """Looks through a folder of cases. RequestError: it is missing, or holds no mesh of a known format."""
    files = _without_named(root, list_files(root))
    grouping = group_files(files, {file for file in files if file.endswith(BY_CONTENT) and is_mesh_inside(root / file)})
    if not grouping.cases:
        raise RequestError(
            "no-cases-found",
            f"{root} holds no cases",
            seen=f"{len(files)} files, like {', '.join(files[:3])}" if files else "no files",
            expected=f"meshes: {' '.join(SUFFIXES)}, OpenFOAM's constant/polyMesh, or .csv with columns of x and y",
            fix=f"ls {quote(str(root))}/*      (shows what lies there; the folder above the cases is asked for)",
        )
    survey = Survey(root, grouping, _within_budget(root, grouping), steps=grouping.steps)
    jobs = [(template, case, str(root / path)) for template, own in grouping.meshes.items()
            for case, path in own.items() if case in survey.looked_at]  # fmt: skip
    for done, ((template, case, path), found) in enumerate(surviving_map(look_at, jobs, min(workers, len(jobs))), 1):
        if isinstance(found, RequestError):
            survey.odd.append(f"case {case}: {found.summary if path in found.summary else f'{path}: {found.summary}'} "
                              f"({found.seen})")  # fmt: skip
        else:
            times, blocks = found
            if len(times) > 1:
                survey.steps.setdefault(template, {})[case] = times
            for facts in blocks:
                survey.blocks.setdefault((template, facts.name), {})[case] = facts
        progress(done, len(jobs))
    _read_numbers(survey)
    survey.odd += _odd(survey)
    return survey


def _without_named(root: Path, files: list[str]) -> list[str]:
    """Files without those that others list, as a .pvd does its steps: they are read through the list."""
    top = root.resolve()
    lists = [top / file for file in files if file.endswith(LISTS)]
    named = {os.path.normpath(own) for path in lists for own in files_behind(path)[1:]}
    return [file for file in files if str(top / file) not in named]


def look_at(job: tuple[str, str, str]) -> tuple[list[float], list[BlockFacts]]:
    """The times of one file's steps, and the facts of every block at the last. RequestError: it cannot be read."""
    times, blocks = read_times_and_blocks(Path(job[2]))
    facts = []
    for block in blocks:
        mesh = block.mesh
        arrays = [_array_facts(at, name, np.asarray(data[name])) for at, data in
                  (("cells", mesh.cell_data), ("points", mesh.point_data)) for name in list(data)]  # fmt: skip
        kind: SetKind = "surface" if is_surface(mesh) else "volume" if _has_volume(mesh) else "points"
        points = np.asarray(mesh.points)
        low, high = (tuple(map(float, side)) for side in (points.min(axis=0), points.max(axis=0)))
        found = tuple(sorted((a for a in arrays if a is not None), key=lambda a: (a.at, a.name)))
        length = str(mesh.field_data["length"][0]) if "length" in mesh.field_data else ""
        facts.append(
            BlockFacts(block.name, kind, length, mesh.n_points, mesh.n_cells, low=low, high=high, arrays=found)
        )
    return times, facts


def _has_volume(mesh: object) -> bool:
    kinds = set(np.unique(mesh.celltypes).tolist()) if hasattr(mesh, "celltypes") else set()
    return bool(kinds - {0, 1, 2, 3, 4})


def _array_facts(at: str, name: str, values: np.ndarray) -> ArrayFacts | None:
    if values.dtype.kind not in "fiub" or not len(values):
        return None
    rows = values.reshape(len(values), -1)[:: max(1, len(values) // ROWS_LOOKED_AT)]
    finite = np.isfinite(rows)
    bad = int((~finite).any(axis=1).sum())
    good = rows[finite.all(axis=1)].astype(np.float64)
    if not len(good):
        good = np.zeros((1, rows.shape[1]))
    low, high = (float(side) for side in (good.min(), good.max()))
    labels = values.dtype.kind in "iub" and len(np.unique(good)) <= MOST_LABELS
    mean = tuple(map(float, good.mean(axis=0)))
    return ArrayFacts(at, name, rows.shape[1], low, high, mean, bad, decades=spans_decades(good), labels=labels)


def _within_budget(root: Path, grouping: Grouping) -> list[str]:
    sizes = {
        case: sum(_size(root / own[case]) for own in grouping.meshes.values() if case in own) for case in grouping.cases
    }
    total = sum(sizes.values())
    if total <= READ_BYTES:
        return grouping.cases
    share = max(1, int(len(grouping.cases) * READ_BYTES / total))
    places = np.unique(np.linspace(0, len(grouping.cases) - 1, share).round().astype(int))
    return [grouping.cases[place] for place in places]


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(os.path.getsize(file) for file in path.rglob("*") if file.is_file()) * 2  # and the fields beside it
    return path.stat().st_size


def _read_numbers(survey: Survey) -> None:
    for template, own in survey.grouping.numbers.items():
        refused: dict[str, RequestError] = {}
        for case, path in own.items():
            try:
                survey.numbers.setdefault(template, {})[case] = read_numbers(survey.root / path)
            except RequestError as error:
                refused[case] = error
        if refused:  # .dat and .csv are many things: where none could be read, it is one of them
            if len(refused) == len(own) and _take_values(survey, template, own):
                continue
            which = f"{template} is not used" if len(refused) == len(own) else f"{_some(list(refused))}: no {template}"
            survey.odd.append(f"{which}: {_unread(next(iter(refused.values())))}")
    for file in survey.grouping.tables:
        try:
            rows = read_table(survey.root / file)
            if unread := other_sheets(survey.root / file):
                survey.odd.append(f"{file}: only the first sheet is read, and not {', '.join(unread)}")
        except RequestError as error:
            survey.odd.append(f"{error.summary} ({error.seen})")
            continue
        if rows:
            survey.tables[file] = _table_facts(file, rows, survey)


def _take_values(survey: Survey, template: str, own: Mapping[str, str]) -> bool:
    """Adds the arrays of tables to the facts of the meshes that have a point or a cell for each of their rows."""
    try:
        tables = {case: read_values(survey.root / own[case]) for case in survey.looked_at if case in own}
    except RequestError:
        return False
    rows = {case: len(next(iter(arrays.values()))) for case, arrays in tables.items() if arrays}
    for mesh, block in list(survey.blocks):
        cases = survey.blocks[mesh, block]
        both = rows.keys() & cases.keys()
        counts = {
            "points": {case: cases[case].points for case in both},
            "cells": {case: cases[case].cells for case in both},
        }
        fits = [at for at, of in counts.items() if both and all(of[case] == rows[case] for case in both)]
        if not fits or mesh in survey.values or survey.steps.get(mesh):
            continue
        if fits[0] == "points" and mesh.lower().endswith(".stl"):
            survey.odd.append(
                f"{template} is not used: it has a row for each point of {mesh}, and STL keeps no order of points: "
                "give it columns of coordinates, or the shape as .vtp or .ply"
            )
            return True
        survey.values[mesh] = template, fits[0]
        for case in both:
            found = (_array_facts(fits[0], name, values) for name, values in tables[case].items())
            more = tuple(array for array in found if array is not None)
            cases[case] = replace(cases[case], arrays=(*cases[case].arrays, *more))
        return True
    return False


def _unread(error: RequestError) -> str:
    if error.code == "table-of-several-rows":
        return f"{error.seen}, and no columns of coordinates; values at a mesh's points or cells belong into its file"
    return f"its numbers cannot be read ({error.seen})"


def _table_facts(file: str, rows: Sequence[Row], survey: Survey) -> TableFacts:
    columns, cases = list(rows[0]), survey.grouping.cases
    keys = {case_key(case): case for case in cases}
    named = {column: [keys.get(case_key(row.get(column, ""))) for row in rows] for column in columns}
    by = max(columns, key=lambda column: len({*named[column]} - {None}))
    own = [(case, row) for case, row in zip(named[by], rows, strict=True) if case is not None]
    found = Counter(case for case, _ in own)
    if len(found) <= len(cases) // 2:
        survey.odd.append(f"{file} is not used: no column has the names of the cases, such as {cases[0]}")
        return TableFacts(columns, len(rows), "", {})
    if missing := [case for case in cases if case not in found]:
        survey.odd.append(f"{_some(missing)} without a row in {file} (column {by})")
    if several := [case for case, count in found.items() if count > 1]:
        survey.odd.append(f"{_some(several)} with several rows in {file} (column {by})")
    numbers = {}
    # The numbers that name the cases are one of them, too, where they do more than count.
    counts = not name_and_unit(by)[1] and all(row.get(by, "").isdecimal() for row in rows)
    for column in [name for name in columns if name != by or not counts]:
        values = {case: number for case, row in own if (number := finite(as_number(row.get(column)))) is not None}
        if len(values) > len(found) // 2:
            numbers[column] = values
            if lacking := [case for case in found if case not in values]:
                survey.odd.append(f"{_some(lacking)} without a number for {column} in {file}")
    return TableFacts(columns, len(rows), by, numbers)


def arrays_of(blocks: Iterable[Mapping[str, BlockFacts]]) -> dict[tuple[str, str], list[tuple[str, ArrayFacts]]]:
    """{(at, name): [(case, facts)]} of the arrays that some blocks, {case: facts} each, have."""
    arrays: dict[tuple[str, str], list[tuple[str, ArrayFacts]]] = {}
    for cases in blocks:
        for case, facts in cases.items():
            for array in facts.arrays:
                arrays.setdefault((array.at, array.name), []).append((case, array))
    return arrays


def _odd(survey: Survey) -> Iterator[str]:
    for template, paths in survey.grouping.meshes.items():
        if missing := [case for case in survey.grouping.cases if case not in paths]:
            yield f"{_some(missing)} without {template}"
    for (template, block), cases in survey.blocks.items():
        where = f"{template}" + (f" ({block})" if block else "")
        sizes = {case: max(np.subtract(facts.high, facts.low)) for case, facts in cases.items()}
        too_long = in_another_unit(sizes)
        for times in dict.fromkeys(too_long.values()):
            own_unit = [case for case in too_long if too_long[case] == times]
            yield (f"{_some(own_unit)}: about {times:.4g} times as long as the others in {where}: in another unit? "
                   "prepare --skip-broken leaves such cases out")  # fmt: skip
        if odd := [case for case in unlike(sizes) if case not in too_long]:
            yield f"{_some(odd)}: of another size than the others in {where}"
        for (at, name), own in arrays_of([cases]).items():
            having = {case for case, _ in own}
            if without := [case for case in cases if case not in having]:
                yield f"{_some(without)} without {name} at {at} in {where}"
            usual = mode(array.components for _, array in own)
            if others := [case for case, array in own if array.components != usual]:
                yield f"{_some(others)}: {name} has another number of components than {usual} in {where}"
            if odd := unlike({case: max(abs(array.low), abs(array.high)) for case, array in own if not array.labels}):
                yield f"{_some(odd)}: {name} is unlike that of the others in {where}: in another unit?"
            if bad := [case for case, array in own if array.not_finite]:
                yield f"{_some(bad)}: {name} is not finite in {where}"


def _some(cases: Sequence[str]) -> str:
    return f"case{'s' * (len(cases) > 1)} {first_of(cases, 4)}"
