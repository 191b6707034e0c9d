"""Group files into cases by name, and survey the cases: their sets, arrays, ranges, numbers, and irregularities."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from pathlib import Path, PurePosixPath
from shlex import quote
from statistics import median, mode
from typing import Any

import numpy as np

from noether.common.errors import RequestError
from noether.common.numbers import LENGTHS, finite, first_of
from noether.core.data.shared_work import Progress, silent, surviving_map
from noether.physics.cases import mesh_blocks, openfoam
from noether.physics.cases.case_map import CASE, STEP, SetKind
from noether.physics.cases.decks import DECKS
from noether.physics.cases.layout import NUMBER, files_of, leftovers, list_files, match_template, natural, unlisted
from noether.physics.cases.mesh_blocks import SUFFIXES, is_mesh_inside
from noether.physics.cases.tables import (
    NUMBER_SUFFIXES,
    TABLE_SUFFIXES,
    Row,
    as_number,
    case_key,
    other_sheets,
    read_numbers,
    read_table,
    read_values,
)
from noether.physics.cases.vocabulary import name_and_unit

MOST_MERGED = 100  # most folders that can be categories; if there are more, each folder is taken for a case
Namer = partial[str | None]
"""A function from a path to a template (None if no part of the path names a case); its `why` describes the part."""
READ_BYTES = 4_000_000_000  # if all meshes together are larger, only a sample of cases, spread evenly, is read
MOST_LABELS = 50
MOST_REFUSED = 10  # most errors shown if no mesh can be read
ROWS_LOOKED_AT = 2_000_000  # rows sampled per array, spread evenly
FEWEST_ROWS = 200  # with fewer rows, the largest hundredth of an array is not meaningful
DECADE = 10.0
PEAKS = 0.5
FEWEST_CASES, FEWEST_LENGTHS = 8, 5  # the minimum number of cases for finding outliers
UNLIKE, FLOOR = 12, 0.04
UNITS = [one / other for one, other in permutations(LENGTHS.values(), 2) if not 1 / 9 < one / other < 9]
"""Factors by which a case in another unit is too long; smaller factors may be due to the shape of the case."""
MARGIN = 1.05  # factor by which a case in the same unit may exceed the range of the other cases


@dataclass(frozen=True)
class Grouping:
    """The contents of a folder: mesh files and number files by template (with {case}), and tables of all cases.

    meshes, numbers: {template: {case: path relative to the folder}}, where the path is that of the last step; steps:
    {template with {step}: {case: step numbers}}; tables: files that name no case; why: a text on how paths name cases.
    """

    cases: list[str]
    meshes: dict[str, dict[str, str]]
    numbers: dict[str, dict[str, str]]
    tables: list[str]
    steps: dict[str, dict[str, list[float]]]
    why: str = ""


def group_files(files: Sequence[str], inside: Collection[str] = ()) -> Grouping:
    """Group files into cases by the part of their paths that scores best in `_fitness`.

    inside: files that are meshes by their contents, not by name; a single such file is taken for a table of all cases.
    """
    meshes = _results([file for file in files if is_mesh(file) or (file in inside and len(inside) > 1)])
    best = max(_namers(meshes), key=lambda namer: _fitness(namer, meshes), default=None)
    if best is None:
        return Grouping([], {}, {}, [], {})
    matched = {template: match_template(template, meshes)
               for template in _merged(_with_steps(_templates(best, meshes), meshes), meshes)}  # fmt: skip
    every = {case for own in matched.values() for case in own}
    # Drop templates that at most half of the cases have, unless none remains.
    matched = {template: own for template, own in matched.items() if 2 * len(own) > len(every)} or matched
    found = {template: {case: list(steps.values())[-1][0] for case, steps in own.items()}
             for template, own in matched.items()}  # fmt: skip
    steps = {template: {case: [step for step in steps if step is not None] for case, steps in own.items()}
             for template, own in matched.items() if STEP in template}  # fmt: skip
    cases = sorted({case for own in found.values() for case in own}, key=natural)
    beside = [file for file in files if file.endswith(NUMBER_SUFFIXES) and file not in meshes]
    numbers: dict[str, dict[str, str]] = {}
    for template in _templates(best, beside):
        own = {case: steps[None][0] for case, steps in match_template(template, beside).items() if case in cases}
        if len(own) > len(cases) // 2:
            numbers[template] = own
    used = {path for own in numbers.values() for path in own.values()}
    tables = [file for file in beside if file not in used and "/" not in file and file.endswith(TABLE_SUFFIXES)]
    return Grouping(cases, found, numbers, tables, steps, best.keywords["why"])


def is_mesh(file: str) -> bool:
    """Return whether a file, judging by its name, is a mesh."""
    return file.endswith(f"/{openfoam.MESH}") or (
        file.lower().endswith(SUFFIXES)
        and not file.endswith(".foam")  # ParaView's marker in an OpenFOAM case's folder
        and "constant/triSurface" not in file
    )


def _results(meshes: Sequence[str]) -> list[str]:
    """Return the meshes, leaving out stale pieces of list files and, if there are results, decks.

    A stale piece is named like the pieces of a list file, but the list file no longer lists it.
    """
    lists = [re.escape(file.removesuffix(".series").rpartition(".")[0]) for file in meshes
             if file.lower().endswith((*mesh_blocks.PIECES, *mesh_blocks.STEPS))]  # fmt: skip
    piece = re.compile(rf"(?:{'|'.join(lists)})(?:[_/.-].*\d|/.*)\.vt[a-z]$") if lists else None
    whole = [file for file in meshes if piece is None or not piece.match(file)]
    return [file for file in whole if not file.lower().endswith(DECKS)] or whole


def _namers(meshes: Sequence[str]) -> Iterator[Namer]:
    """Yield namers for the parts of a path that may name a case, in order: folders, the file, numbers in the names."""
    depth = max((file.count("/") for file in meshes), default=0)
    for place in range(depth):
        yield partial(_by_folder, place=place, why="each a folder")
    yield partial(_by_stem, why="each a file")
    for place, nth in ((place, nth) for nth in (-1, -2) for place in (*range(depth), -1)):
        yield partial(_by_number, place=place, nth=nth, why="each a number in the names")


def _by_folder(file: str, place: int, why: str) -> str | None:
    parts = file.split("/")
    if place >= len(parts) - 1 or "constant" in parts[: place + 1]:
        return None
    own = parts[place]
    alone = rf"(?<![^\W_]){re.escape(own)}(?![^\W_])"
    return "/".join(CASE if i == place else re.sub(alone, CASE, part) if i > place and own in part else part
                    for i, part in enumerate(parts))  # fmt: skip


def _by_stem(file: str, why: str) -> str | None:
    path = PurePosixPath(file)
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".series" else path.suffix
    return None if path.name == openfoam.MESH else str(path.with_name(CASE + suffix))


def _by_number(file: str, place: int, nth: int, why: str) -> str | None:
    parts = file.split("/")
    if not -len(parts) <= place < len(parts):
        return None
    own = parts[place] if place >= 0 else PurePosixPath(parts[-1]).stem
    numbers = re.findall(r"\d+", own)
    if len(numbers) < -nth:
        return None
    alone = rf"(?<!\d){numbers[nth]}(?!\d)"
    first = place if place >= 0 else len(parts) - 1
    return "/".join(re.sub(alone, CASE, part) if i >= first else part for i, part in enumerate(parts))


def _templates(namer: Namer, files: Sequence[str]) -> Counter[str]:
    """Count the files of each template, {template: count}, in the order of the files."""
    return Counter(template for file in files if (template := namer(file)) is not None)


def _with_steps(templates: Counter[str], meshes: Sequence[str]) -> Counter[str]:
    """Merge templates that differ only in one number into one with {step}, if most cases have three steps or more."""
    groups: dict[str, list[str]] = {}
    for template in templates:
        head, _, rest = template.rpartition(CASE)
        name, dot, suffix = rest.rpartition(".")
        numbers = list(re.finditer(NUMBER, name)) if f".{suffix}" not in mesh_blocks.SHAPES else []
        if numbers:
            last = numbers[-1]
            steps = f"{head}{CASE}{name[: last.start()]}{STEP}{name[last.end() :]}{dot}{suffix}"
        groups.setdefault(steps if numbers else template, []).append(template)
    found: Counter[str] = Counter()
    for steps, own in groups.items():
        if len(own) > 2 and median(map(len, match_template(steps, meshes).values())) > 2:
            found[steps] = sum(templates[template] for template in own)
        else:
            found.update({template: templates[template] for template in own})
    return found


def _fitness(namer: Namer, meshes: Sequence[str]) -> tuple[float, float, int, bool]:
    """Score a namer by: the share of meshes in shared templates, the completeness of cases, few templates, no steps."""
    named = _with_steps(_templates(namer, meshes), meshes)
    together = sum(count for count in named.values() if count > 1) / max(len(meshes), 1)
    templates = list(named) if len(named) > MOST_MERGED else _merged(named, meshes)
    own = [match_template(template, meshes).keys() for template in templates[:MOST_MERGED]]
    whole = sum(map(len, own)) / max(len(own) * len(set().union(*own)), 1)
    return together, round(whole, 1), -len(templates or meshes), not any(STEP in template for template in templates)


def _merged(templates: Iterable[str], meshes: Sequence[str]) -> list[str]:
    """Merge templates that differ only in their middle folders (categories) into one with **, if no case repeats."""
    groups: dict[tuple[str, str], list[str]] = {}
    for template in templates:
        first, _, rest = template.partition("/")
        groups.setdefault((first, rest.rpartition("/")[2]), []).append(template)
    found = []
    for (first, name), own in groups.items():
        cases = [case for template in own for case in match_template(template, meshes)]
        if len(own) > 1 and CASE in name and CASE not in first and len(set(cases)) == len(cases):
            found.append(f"{first}/**/{name}")
        else:
            found += own
    return found


@dataclass(frozen=True)
class ArrayFacts:
    """One array of one block in a single case, or, if `of_cases` is not empty, in all cases together.

    decades: whether `spans_decades` is true for the array's values; labels: whether the values are integers, with only
    few distinct values, such as ids of materials.
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
    """One mesh in one file: its block's name, its kind (surface, volume or points), its bounding box, and its arrays.

    length: the unit of length stated in the names of coordinates, or ""; beside: counts of the mesh's contents that
    a set of this kind leaves out.
    """

    name: str
    kind: SetKind
    length: str
    points: int
    cells: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    arrays: tuple[ArrayFacts, ...]
    beside: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """One table with a row for each case.

    row: the column with the cases' names, or "" if no column names more than half of the cases; numbers: {column:
    {case: value}} of the columns that have a number for more than half of the cases that the table names.
    """

    columns: list[str]
    rows: int
    row: str
    numbers: dict[str, dict[str, float]]


@dataclass
class Survey:
    """All findings about a folder.

    blocks: {(template, block): {case: facts}}; numbers: {template: {case: {name: value}}}; tables: {file: facts};
    steps: {template: {case: times}} of files with several steps; values: {a mesh's template: (a table's template, at)},
    where the table has a row for each point or cell (`at`) of the mesh; looked_at: the cases whose meshes were read;
    odd: descriptions of irregularities; unread: descriptions of the files that are not read.
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
    unread: list[str] = field(default_factory=list)


def survey_folder(root: Path, *, workers: int = 1, progress: Progress = silent) -> Survey:
    """Survey a folder of cases. RequestError: the folder is missing, or holds no readable mesh."""
    every = list_files(root)
    files = unlisted(root, every)
    inside = {file for file in files if is_mesh_inside(root / file)}
    grouping = group_files(files, inside)
    if not grouping.cases:
        raise RequestError(
            "no-cases-found",
            f"{root} holds no cases",
            seen=f"{len(files)} files, like {', '.join(files[:3])}" if files else "no files",
            expected=f"meshes: {' '.join(SUFFIXES)}, OpenFOAM's constant/polyMesh, or .csv with columns of x and y",
            fix=f"ls {quote(str(root))}/*      (lists files; the folder must hold the cases)",
        )
    survey = Survey(root, grouping, _within_budget(root, grouping), steps=dict(grouping.steps))
    looked_at = {*survey.looked_at}
    jobs = [(template, case, str(root / path)) for template, own in grouping.meshes.items()
            for case, path in own.items() if case in looked_at]  # fmt: skip
    refused: list[str] = []
    elsewhere: dict[str, set[str]] = {}
    for done, ((template, case, path), found) in enumerate(surviving_map(look_at, jobs, min(workers, len(jobs))), 1):
        if isinstance(found, RequestError):
            words = found.summary if path in found.summary else f"{path}: {found.summary}"
            refused.append(f"case {case}: {words} ({found.seen})" + (f": {found.fix}" if found.fix else ""))
        else:
            times, blocks = found
            if len(times) > 1:
                survey.steps.setdefault(template, {})[case] = times
            for facts in blocks:
                survey.blocks.setdefault((template, facts.name), {})[case] = facts
        if words := mesh_blocks.results_elsewhere(Path(path)):
            elsewhere.setdefault(words, set()).add(case)
        progress(done, len(jobs))
    if not survey.blocks:
        raise RequestError("no-mesh-readable", f"no mesh in {root} can be read", expected="a mesh in each case",
                           seen=first_of(refused, MOST_REFUSED, "\n"))  # fmt: skip
    survey.odd += refused + [f"{_some(sorted(cases, key=natural))}: {words}" for words, cases in elsewhere.items()]
    _read_numbers(survey)
    survey.odd += _odd(survey)
    survey.unread = leftovers(every, {*every} - {*files} | _read_by(survey, every), grouping.cases)
    return survey


def _read_by(survey: Survey, files: Sequence[str]) -> set[str]:
    """Return the files, and the folders of OpenFOAM cases, that the drafted map would read."""
    grouping = survey.grouping
    templates = [*grouping.meshes, *survey.numbers, *(table for table, _ in survey.values.values())]
    found = set[str]().union(*(files_of(template, files) for template in templates))
    tables = {file for file, facts in survey.tables.items() if facts.row}
    folders = {str(openfoam.folder_of(Path(file))) for file in found if file.endswith(f"/{openfoam.MESH}")}
    return found | tables | folders


def look_at(job: tuple[str, str, str]) -> tuple[list[float], list[BlockFacts]]:
    """Return a file's times, and the facts of its blocks at the last time. RequestError: the file is unreadable."""
    times, blocks = mesh_blocks.read_times_and_blocks(Path(job[2]))
    facts = []
    for block in blocks:
        mesh = block.mesh
        arrays = [_array_facts(at, name, np.asarray(data[name])) for at, data in
                  (("cells", mesh.cell_data), ("points", mesh.point_data)) for name in list(data)]  # fmt: skip
        points = np.asarray(mesh.points)
        low, high = (tuple(map(float, side)) for side in (points.min(axis=0), points.max(axis=0)))
        found = tuple(sorted((a for a in arrays if a is not None), key=lambda a: (a.at, a.name)))
        length = str(mesh.field_data["length"][0]) if "length" in mesh.field_data else ""
        counts = {"points": mesh.n_points, "cells": mesh.n_cells}
        kind, beside = block.kind, block.beside(block.kind)
        facts.append(BlockFacts(block.name, kind, length, **counts, low=low, high=high, arrays=found, beside=beside))
    return times, facts


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
    meshes = grouping.meshes.values()
    sizes = {case: sum(_size(root / own[case]) for own in meshes if case in own) for case in grouping.cases}
    total = sum(sizes.values())
    if total <= READ_BYTES:
        return grouping.cases
    share = max(1, int(len(grouping.cases) * READ_BYTES / total))
    places = np.unique(np.linspace(0, len(grouping.cases) - 1, share).round().astype(int))
    return [grouping.cases[place] for place in places]


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(os.path.getsize(file) for file in path.rglob("*") if file.is_file()) * 2  # doubled for the fields
    return path.stat().st_size if path.exists() else 0  # missing if the case is decomposed


def _read_numbers(survey: Survey) -> None:
    for template, own in survey.grouping.numbers.items():
        refused: dict[str, RequestError] = {}
        for case, path in own.items():
            try:
                survey.numbers.setdefault(template, {})[case] = read_numbers(survey.root / path)
            except RequestError as error:
                refused[case] = error
        if refused:  # .dat and .csv files have many uses: if none can be read, they are not files of numbers
            none = len(refused) == len(own)
            if none and _take_values(survey, template, own):
                continue
            which = f"{template} is not used" if none else f"{_some(list(refused))}: no {template}"
            survey.odd.append(f"{which}: {_unread(next(iter(refused.values())))}")
    for file in survey.grouping.tables:
        try:
            rows = read_table(survey.root / file)
            if unread := other_sheets(survey.root / file):
                survey.odd.append(f"{file}: only the first sheet is read, not {', '.join(unread)}")
        except RequestError as error:
            survey.odd.append(f"{error.summary} ({error.seen})")
            continue
        if rows:
            survey.tables[file] = _table_facts(file, rows, survey)


def _take_values(survey: Survey, template: str, own: Mapping[str, str]) -> bool:
    """Add the arrays of tables to the facts of a mesh with a point or cell for each row; return False if none fits."""
    try:
        tables = {case: read_values(survey.root / own[case]) for case in survey.looked_at if case in own}
    except RequestError:
        return False
    rows = {case: len(next(iter(arrays.values()))) for case, arrays in tables.items() if arrays}
    for mesh, block in list(survey.blocks):
        cases = survey.blocks[mesh, block]
        both = rows.keys() & cases.keys()
        fits = [
            at for at in ("points", "cells") if both and all(getattr(cases[case], at) == rows[case] for case in both)
        ]
        if not fits or mesh in survey.values or survey.steps.get(mesh):
            continue
        if fits[0] == "points" and mesh.lower().endswith(".stl"):
            survey.odd.append(
                f"{template} is not used: it has a row for each point of {mesh}, but STL keeps no order of points; "
                "add columns of coordinates to it, or save the shape as .vtp or .ply"
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
        return f"{error.seen}, and no columns of coordinates; values at a mesh's points or cells belong in its file"
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
    # A column of numbers that names the cases is also a number of each case, unless it only counts the cases.
    counts = not name_and_unit(by)[1] and all(row.get(by, "").isdecimal() for row in rows)
    for column in [name for name in columns if name != by or not counts]:
        values = {case: number for case, row in own if (number := finite(as_number(row.get(column)))) is not None}
        if len(values) > len(found) // 2:
            numbers[column] = values
            if lacking := [case for case in found if case not in values]:
                survey.odd.append(f"{_some(lacking)} without a number for {column} in {file}")
    return TableFacts(columns, len(rows), by, numbers)


def arrays_of(blocks: Iterable[Mapping[str, BlockFacts]]) -> dict[tuple[str, str], list[tuple[str, ArrayFacts]]]:
    """Return the arrays in some blocks, {(at, name): [(case, facts)]}; blocks: {case: facts} of each block."""
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
        kind = mode(facts.kind for facts in cases.values())
        if others := [case for case, facts in cases.items() if facts.kind != kind]:
            yield f"{_some(others)}: no {kind}, unlike the other cases, in {where}"
        too_long = in_another_unit(sizes)
        for times in dict.fromkeys(too_long.values()):
            own_unit = [case for case in too_long if too_long[case] == times]
            yield (f"{_some(own_unit)}: about {times:.4g} times as long as the others in {where} (in another unit?); "
                   "prepare --skip-broken leaves such cases out")  # fmt: skip
        if odd := [case for case in unit_outliers(sizes) if case not in too_long]:
            yield f"{_some(odd)}: of a different size from the other cases in {where}"
        for (at, name), own in arrays_of([cases]).items():
            having = {case for case, _ in own}
            if without := [case for case in cases if case not in having]:
                yield f"{_some(without)} without {name} at {at} in {where}"
            usual = mode(array.components for _, array in own)
            if others := [case for case, array in own if array.components != usual]:
                yield f"{_some(others)}: {name} has an unusual number of components (not {usual}) in {where}"
            peaks = {case: max(abs(array.low), abs(array.high)) for case, array in own if not array.labels}
            if odd := unit_outliers(peaks):
                yield f"{_some(odd)}: {name} differs greatly from the other cases in {where}: in another unit?"
            if bad := [case for case, array in own if array.not_finite]:
                yield f"{_some(bad)}: {name} has values that are not finite in {where}"


def _some(cases: Sequence[str]) -> str:
    return f"case{'s' * (len(cases) > 1)} {first_of(cases, 4)}"


def spans_decades(rows: np.ndarray) -> bool:
    """Return whether one case's values (n, C) span decades, judged by their norms, so that signs do not matter.

    A field spans decades if the 1 % of points farthest from the mean have more than half of the variance, and the 99th
    percentile of |x| is more than ten times the median: a few points then dominate a loss in standardised units. If the
    median is 0, the result is False, because a logarithm would not spread a field that is zero except in one place.
    """
    if len(rows) < FEWEST_ROWS:
        return False
    sizes = np.sqrt(np.square(rows).sum(axis=1))
    middle, large = np.quantile(sizes, [0.5, 0.99])
    if not large > DECADE * middle > 0:
        return False
    far = np.square(rows - rows.mean(axis=0)).sum(axis=1)
    first = len(far) - len(far) // 100
    return bool(np.partition(far, first)[first:].sum() > PEAKS * far.sum())


def unit_outliers(sizes: Mapping[str, float], fewest: int = FEWEST_CASES) -> list[str]:
    """Return the few cases whose size is far from the median, in difference and in ratio; [] if cases are too few.

    Far means farther than UNLIKE times the median distance of all cases, and farther than UNLIKE * FLOOR medians.
    """
    own = {case: size for case, size in sizes.items() if size > 0}
    found = set(own) if len(own) >= fewest else set()
    for values in (own, {case: float(np.log(size)) for case, size in own.items()}) if found else ():
        middle = median(values.values())
        usual = median(abs(value - middle) for value in values.values())
        floor = FLOOR * middle if values is own else FLOOR
        found &= {case for case, value in values.items() if abs(value - middle) > UNLIKE * max(usual, floor)}
    return sorted(found) if len(found) <= max(1, len(own) / 10) else []


def in_another_unit(lengths: Mapping[str, float]) -> dict[str, float]:
    """Return cases that, in another unit, would be as long as the others, {case: factor by which it is too long}."""
    odd, found = unit_outliers(lengths, FEWEST_LENGTHS), {}
    usual = [length for case, length in lengths.items() if case not in odd]
    for case in odd:
        fits = [unit for unit in UNITS if min(usual) / MARGIN <= lengths[case] / unit <= max(usual) * MARGIN]
        if fits:
            found[case] = min(fits, key=lambda unit: abs(np.log(lengths[case] / unit / median(usual))))
    return found


def cases_in_another_unit(cases: Mapping[str, Any]) -> dict[str, RequestError]:
    """Return an error for each case whose unit of length seems to be another one; cases: {case: its case.json}."""
    refused = {}
    for name in next(iter(cases.values()))["sets"]:
        boxes = {case: own["sets"][name]["arrays"][f"{name}_points"] for case, own in cases.items()}
        lengths = {case: float(np.subtract(box["high"], box["low"]).max()) for case, box in boxes.items()}
        for case, times in in_another_unit(lengths).items():
            refused[case] = RequestError(
                "case-in-another-unit",
                f"case {case}: its set {name} is about {times:.4g} times as long as in the other cases",
                seen=f"{lengths[case]:.4g} m; the median of all cases is {median(lengths.values()):.4g} m",
                expected="the same unit of length in all cases",
                fix=f"multiply the positions in its files by {1 / times:.4g}",
            )
    return refused
