"""Files → cases, by their names: which part of a path is the case's name, and the templates that follow from it."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from statistics import median

from noether.physics.cases.layout import CASE, NUMBER, STEP, match_template, natural
from noether.physics.cases.mesh_blocks import DECKS, SHAPES, SUFFIXES
from noether.physics.cases.numbers import NUMBER_SUFFIXES
from noether.physics.cases.tables import TABLE_SUFFIXES


@dataclass(frozen=True)
class Grouping:
    """What a folder holds: mesh files and number files by template ({case} in it), and tables of all cases.

    meshes, numbers: {template: {case: path}}, paths relative to the folder, of steps in time the last; steps: {template
    with {step}: {case: the numbers of its steps}}; tables: files that name no case.
    """

    cases: list[str]
    meshes: dict[str, dict[str, str]]
    numbers: dict[str, dict[str, str]]
    tables: list[str]
    steps: dict[str, dict[str, list[float]]]


MOST_MERGED = 100  # folders of categories: where there are more, each is a case's
Namer = Callable[[str], str | None]
"""From a path to its template, or None where it has no such part."""


def group_files(files: Sequence[str], inside: Collection[str] = ()) -> Grouping:
    """Groups files into cases: the part of their paths is chosen that leaves the fewest templates for all meshes.

    inside: files that are meshes by what they hold. A single one would be a table of all cases.
    """
    meshes = _results([file for file in files if is_mesh(file) or (file in inside and len(inside) > 1)])
    best = max(_namers(meshes), key=lambda namer: _fitness(namer, meshes), default=None)
    if best is None:
        return Grouping([], {}, {}, [], {})
    matched = {template: match_template(template, meshes)
               for template in _merged(_with_steps(_templates(best, meshes), meshes), meshes)}  # fmt: skip
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
    return Grouping(cases, found, numbers, tables, steps)


def is_mesh(file: str) -> bool:
    """Whether a file is a mesh by its name; the parts of a .vtm lie in a folder of its name and are not."""
    return file.endswith("constant/polyMesh") or (
        file.lower().endswith(SUFFIXES)
        and not file.endswith(".foam")  # ParaView's mark in the folder of an OpenFOAM case
        and "constant/triSurface" not in file
        and not re.search(r"_\d+_\d+\.vt[pu]$", file)
    )


def _results(meshes: Sequence[str]) -> list[str]:
    """Meshes without the pieces of a .pvtu, .pvd, .vtm or .series, and without decks where there are results."""
    wholes = [re.escape(file.removesuffix(".series").rpartition(".")[0]) for file in meshes
              if file.endswith((".pvtu", ".pvd", ".vtm", ".series"))]  # fmt: skip
    piece = re.compile(rf"(?:{'|'.join(wholes)})(?:[_/.-].*\d|/.*)\.vt[a-z]$") if wholes else None
    whole = [file for file in meshes if piece is None or not piece.match(file)]
    return [file for file in whole if not file.lower().endswith(DECKS)] or whole


def _namers(meshes: Sequence[str]) -> Iterator[Namer]:
    """The parts of a path that can name a case, the likelier first: a folder, the file, a number in either."""
    depth = max((file.count("/") for file in meshes), default=0)
    for place in range(depth):
        yield partial(_by_folder, place=place)
    yield _by_stem
    for place in range(depth):
        yield partial(_by_number, place=place)
    yield partial(_by_number, place=-1)


def _by_folder(file: str, place: int) -> str | None:
    parts = file.split("/")
    if place >= len(parts) - 1 or "polyMesh" in parts[place] or parts[place] == "constant":
        return None
    own = parts[place]
    alone = rf"(?<![^\W_]){re.escape(own)}(?![^\W_])"
    return "/".join(CASE if i == place else re.sub(alone, CASE, part) if i > place and own in part else part
                    for i, part in enumerate(parts))  # fmt: skip


def _by_stem(file: str) -> str | None:
    path = PurePosixPath(file)
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".series" else path.suffix
    return None if path.name == "polyMesh" else str(path.with_name(CASE + suffix))


def _by_number(file: str, place: int) -> str | None:
    parts = file.split("/")
    if not -len(parts) <= place < len(parts):
        return None
    own = parts[place] if place >= 0 else PurePosixPath(parts[-1]).stem
    numbers = re.findall(r"\d+", own)
    if not numbers:
        return None
    alone = rf"(?<!\d){numbers[-1]}(?!\d)"
    first = place if place >= 0 else len(parts) - 1
    return "/".join(re.sub(alone, CASE, part) if i >= first else part for i, part in enumerate(parts))


def _templates(namer: Namer, files: Sequence[str]) -> Counter[str]:
    """The templates that files follow, in order, with the number of files of each."""
    return Counter(template for file in files if (template := namer(file)) is not None)


def _with_steps(templates: Counter[str], meshes: Sequence[str]) -> Counter[str]:
    """Templates that differ in one number alone as one with {step}, where most cases have three or more of them."""
    groups: dict[str, list[str]] = {}
    for template in templates:
        head, _, rest = template.rpartition(CASE)
        name, dot, suffix = rest.rpartition(".")
        numbers = list(re.finditer(NUMBER, name)) if f".{suffix}" not in SHAPES else []
        steps = (
            f"{head}{CASE}{name[: numbers[-1].start()]}{STEP}{name[numbers[-1].end() :]}{dot}{suffix}"
            if numbers
            else template
        )
        groups.setdefault(steps, []).append(template)
    found: Counter[str] = Counter()
    for steps, own in groups.items():
        if len(own) > 2 and median(map(len, match_template(steps, meshes).values())) > 2:
            found[steps] = sum(templates[template] for template in own)
        else:
            found.update({template: templates[template] for template in own})
    return found


def _fitness(namer: Namer, meshes: Sequence[str]) -> tuple[float, int, bool]:
    named = _with_steps(_templates(namer, meshes), meshes)
    together = sum(count for count in named.values() if count > 1) / max(len(meshes), 1)
    templates = list(named) if len(named) > MOST_MERGED else _merged(named, meshes)
    return together, -len(templates or meshes), not any(STEP in template for template in templates)


def _merged(templates: Iterable[str], meshes: Sequence[str]) -> list[str]:
    """Templates that differ in a folder between (a category of cases) as one with **, where no case is in two."""
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
