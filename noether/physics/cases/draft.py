"""Draft a commented map from a survey of a folder of cases; `prepare` accepts the draft, unchanged or edited."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from statistics import median, mode
from typing import NamedTuple, get_args

import numpy as np

from noether.physics.cases import vocabulary
from noether.physics.cases.case_map import RESERVED, SetKind, TensorOrder, metres_of, unfit_for_forces
from noether.physics.cases.openfoam import MESH
from noether.physics.cases.survey import ArrayFacts, BlockFacts, Survey, arrays_of
from noether.physics.cases.vocabulary import FLOW_UNITS, Physics, is_length, name_and_unit, number_name, plain_name

BACKGROUND = re.compile(
    r"inlet|outlet|sym|side|top|ground|floor|far|front|back|bottom|roof|domain|empty|wall_?\d*$", re.I
)
"""Names of patches that are rarely the body. A draft's surface set leaves them out, and a comment names them."""
BOOKKEEPING = re.compile(
    r"vtk_.*|(.*_)?((gmsh|medit|nastran|tetgen|avsucd|cell_sets)_.*|(flac3d|su2)_(group|tag))|(.*_)?ids?|numbers?"
    r"|(.*_)?(mat(erial)?|part|elem(ent)?|node|region|cell|point|object|block|entity|fac(e|et)|dim)_?"
    r"(ids?|numbers?|nums?|tags?|types?)"
    r"|(mpi_)?rank|partition|regions|normals|tcoords|texture_coordinates|(str_?)?error|stlsolid_labeling"
)
"""Plain names of arrays that hold a format's bookkeeping, such as node ids, or that are only for display."""
LONGEST: dict[Physics, float] = {"flow": 500.0, "solid": 20.0, "heat": 20.0, "unknown": 500.0}
"""Longest usual model in m, by physics. A longer model is assumed to be in mm, unless a name states the unit."""

COLDEST = 150.0
"""Lowest usual temperature in K: if most cases have lower values, temperatures are assumed to be in °C."""
ALONG = 0.1
"""Smallest ratio of mean to largest velocity in a flow that has a direction; a circulating flow has no direction."""
ROUND_IT = "by their names surroundings of the body, or without arrays"
GUESS = "# A guess: time steps, because the file names differ only in a number. If so, uncomment this line:"
DOUBT = (
    "# Files whose names differ only in numbers: are they sets, cases, time steps ({step} in the path) or pieces of\n"
    "# one mesh ({piece})? Uncomment what applies."
)
_DENSITY = [
    "constants:            # the same in all cases; a field can be multiplied by a constant (times: NAME)",
    "  density: 1.225      # kg/m³, of air",
]
FLAT = 1e-6
"""Largest ratio of a box's shortest to its longest side if all points lie in a plane; not 0 because of rounding."""
EXACT = 1e-4
"""Relative tolerance within which a number is equal to a field's extreme or mean, or to another number."""
NOISE = 1e-4
"""A component of a result is the solver's noise around zero if its ratio to another component is smaller than this.
Noise cannot be learned, but its spread would weigh as much in the loss as the spread of any other component."""


@dataclass(frozen=True)
class _Set:
    name: str
    template: str
    kind: SetKind
    at: str
    patches: list[str]
    fields: dict[str, ArrayFacts]
    others: dict[str, ArrayFacts]
    """Fields of the same meshes that are only at the other location: at points if `at` is cells, or vice versa."""
    round_it: list[str]
    """Blocks that are left out: blocks without arrays, or, judging by their names, surroundings of the body."""
    left: list[str]
    """Arrays of these meshes that are not fields."""
    values: str = ""
    """The template of the tables with a row for each point or cell; "" if there are no such tables."""


@dataclass(frozen=True)
class _Meaning:
    """The physics and the unit of positions, inferred from all names and sizes in a folder; why: the unit's source."""

    physics: Physics
    length: str
    why: str

    def unit(self, array: ArrayFacts) -> tuple[str, str]:
        """Return an array's unit, and words that explain the unit if it is not obvious (otherwise "")."""
        stated = name_and_unit(array.name)[1]
        known = vocabulary.known_field(array.name, array.components, self.physics)
        unit = known.unit if known else ""
        if stated or not unit:
            return stated, ""
        if known is not None and known.name == "temperature":
            cold = sum(own.low < COLDEST for own in array.of_cases)
            unit = "°C" if 2 * cold > len(array.of_cases) else "K"
            why = f"; {unit}, because {cold} of {len(array.of_cases)} cases go below {COLDEST:g}"
            return unit, why
        by_length = {vocabulary.LENGTH: self.length, vocabulary.STRESS: vocabulary.STRESSES.get(self.length, "Pa")}
        return by_length.get(unit, unit), ""


def draft_map(survey: Survey) -> str:
    """Return the text of a map that fits a survey."""
    is_openfoam = any(template.endswith("polyMesh") for template, _ in survey.blocks)
    meaning = _meaning(survey, is_openfoam)
    sets = _sets(survey, meaning.physics)
    alike = Counter(re.sub(r"\d+", "#", template) for template in {own.template for own in sets})
    doubtful = [own for own in sets if alike[re.sub(r"\d+", "#", own.template)] > 1]
    sets = [own for own in sets if own not in doubtful]
    is_kinematic = is_openfoam and any("pressure" in field for own in sets for field in own.fields)
    parameters, outputs = draft_numbers(survey)
    kept = sorted({name for _, name in arrays_of(survey.blocks.values()) if is_bookkeeping(name)})
    lines = [
        "# A draft by noether data inspect. Check it, then: noether data prepare CASES OUT --map cases.yaml",
        f"# {len(survey.grouping.cases)} cases, {survey.grouping.why}, {len(survey.looked_at)} of them looked at. "
        f"Physics, by the names of fields and numbers: {meaning.physics}.",
        "# Units are guesses, unless a name in the files states them.",
        *([f"# Bookkeeping arrays of the formats, never fields: {', '.join(kept)}"] if kept else []),
        *[f"# odd: {words}" for words in survey.odd[:20]],
        "",
        *(_axes(survey, sets) if meaning.physics == "flow" else []),
        *_length(survey, sets, meaning),
        *_step(survey),
        *(_DENSITY if is_kinematic and not any(line.startswith("  density:") for line in parameters) else []),
        "parameters:           # numbers of each case that are given to a model",
        *(parameters or ["  {}"]),
        "outputs:              # numbers of each case that a model can predict",
        *(outputs or ["  {}"]),
        "sets:                 # sets of points; every field becomes the array SET_FIELD of a sample",
        *([DOUBT] if doubtful else []),
        *[f"# {line}" if own in doubtful else line for own in (*sets, *doubtful)
          for line in _set_lines(own, sets, meaning, "openfoam" if is_openfoam else "vtk", is_kinematic)],
        *_forces(survey, sets, meaning),
        "split: {test: 0.15, validation: 0.1, seed: 0}   # fractions; or lists of cases; or a file and its column",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _meaning(survey: Survey, is_openfoam: bool) -> _Meaning:
    arrays = {(array.name, array.components) for cases in survey.blocks.values() for facts in cases.values()
              for array in facts.arrays}  # fmt: skip
    columns = [number.column for number in numbers_of(survey)]
    physics = vocabulary.physics_of(sorted(arrays), columns, is_openfoam=is_openfoam)
    blocks = [facts for cases in survey.blocks.values() for facts in cases.values()]
    if len(of_positions := {facts.length for facts in blocks if facts.length}) == 1:
        return _Meaning(physics, of_positions.pop(), "as the names state")
    size = _size(survey.blocks.values())
    stated = [(name_and_unit(number.column)[1], number.values.values()) for number in numbers_of(survey)]
    metres = {unit: metres_of(unit) for unit in ("m", "mm", *(unit for unit, _ in stated if is_length(unit)))}
    lengths = [max(map(abs, values)) * metres[unit] for unit, values in stated if unit in metres]
    if size and lengths and (longest := max(lengths)):
        # Choose the unit in which the body is about as long as the largest length among the numbers.
        unit = min(metres, key=lambda unit: round(abs(np.log(size * metres[unit] / longest))))
        return _Meaning(physics, unit, "a guess from the lengths among the numbers")
    in_names = set(filter(is_length, (name_and_unit(name)[1] for name, _ in arrays)))
    if len(in_names) == 1:
        return _Meaning(physics, in_names.pop(), "a guess from the units in names")
    return _Meaning(physics, "mm" if size > LONGEST[physics] else "m", "a guess")


def _size(blocks: Iterable[Mapping[str, BlockFacts]]) -> float:
    """Return the length of the largest block: the median over the cases, because one case may be in another unit."""
    boxes = [[float(max(np.subtract(own.high, own.low))) for own in cases.values()] for cases in blocks]
    return max((median(sizes) for sizes in boxes if sizes), default=0.0)


def _sets(survey: Survey, physics: Physics) -> list[_Set]:
    found: list[_Set] = []
    for template in dict.fromkeys(template for template, _ in survey.blocks):
        blocks = {block: cases for (own, block), cases in survey.blocks.items() if own == template}
        for kind in get_args(SetKind):
            chosen = {name: cases for name, cases in blocks.items() if mode(f.kind for f in cases.values()) == kind}
            if not chosen:
                continue
            body = [name for name in chosen if not BACKGROUND.search(name)] or list(chosen)
            wanted = body if kind == "surface" else list(chosen)
            wanted = [own for own in wanted if any(facts.arrays for facts in chosen[own].values())] or wanted
            arrays = _common([chosen[name] for name in wanted])
            if kind == "surface" and not arrays and any(other != template for other, _ in survey.blocks):
                continue  # a shape without fields; another file probably holds this shape with fields
            at_points, at_cells = (_named((array for array in arrays if array.at == place), physics)
                                   for place in ("points", "cells"))  # fmt: skip
            more_vary = _varying(at_points) > _varying(at_cells)
            at = "points" if kind == "points" or more_vary or not (at_cells or not at_points) else "cells"
            fields = at_cells if at == "cells" else at_points
            kept = {array.name for array in fields.values()}
            others = _named((array for array in arrays if array.at != at and array.name not in kept), physics)
            patches = wanted if any(wanted) else []
            every = {name for _, name in arrays_of(blocks[own] for own in wanted) if not is_bookkeeping(name)}
            name = _set_name(kind, template, found)
            table, place = survey.values.get(template, ("", ""))
            values = table if place == ("points" if kind == "points" else at) else ""
            found.append(_Set(name, template, kind, at, patches=patches, fields=fields, others=others, values=values,
                              round_it=[own for own in chosen if own not in wanted],
                              left=sorted(every - {array.name for array in (fields | others).values()})))  # fmt: skip
    return found


def _varying(fields: Mapping[str, ArrayFacts]) -> int:
    return sum(array.low != array.high for array in fields.values())


def _set_name(kind: SetKind, template: str, found: list[_Set]) -> str:
    names = {own.name for own in found}
    path = PurePosixPath(template)  # for a region of OpenFOAM, the region's name is used
    name = kind if kind not in names else plain_name(path.parent.name if path.name == MESH else path.stem) or kind
    while name in names or any(name.startswith(f"{other}_") or other.startswith(f"{name}_") for other in names):
        name = name.replace("_", "", 1) if "_" in name else f"{name}2"
    return name


def _common(blocks: list[dict[str, BlockFacts]]) -> list[ArrayFacts]:
    """Return the arrays found in more than half of the blocks of all cases, with their range over all cases."""
    total = sum(len(cases) for cases in blocks)
    found = []
    for every in arrays_of(blocks).values():
        if len(every) > total / 2:
            components = mode(array.components for _, array in every)
            same = [array for _, array in every if array.components == components]
            low, high = min(array.low for array in same), max(array.high for array in same)
            mean = tuple(np.mean([array.mean for array in same], axis=0).tolist())
            found.append(replace(same[0], low=low, high=high, mean=mean, of_cases=tuple(same)))
    return found


def _named(arrays: Iterable[ArrayFacts], physics: Physics) -> dict[str, ArrayFacts]:
    named: dict[str, ArrayFacts] = {}
    for array in arrays:
        is_known = vocabulary.known_field(array.name, array.components, physics) is not None
        if is_bookkeeping(array.name) or array.low == array.high == 0 or (array.labels and not is_known):
            continue
        name = field_name(array, physics)
        named[name if name not in named else plain_name(array.name) + "_2"] = array
    return named


def is_bookkeeping(name: str) -> bool:
    """Return whether an array, judging by its name, is bookkeeping or only for display, and so never a field."""
    return BOOKKEEPING.fullmatch(plain_name(name)) is not None


def field_name(array: ArrayFacts, physics: Physics) -> str:
    """Return the name of an array's field in a draft: the usual name if the field is known, else its plain name."""
    if known := vocabulary.known_field(array.name, array.components, physics):
        return known.name
    plain = plain_name(name_and_unit(array.name)[0])
    return f"{plain}_field" if plain in RESERVED else plain


def _set_lines(own: _Set, sets: list[_Set], meaning: _Meaning, order: TensorOrder, is_kinematic: bool) -> list[str]:
    lines = [f"  {own.name}:", f"    {keys({'file': own.template})}"]
    if own.values:
        lines.append(f"    {keys({'values': own.values})}      # a row for each of the {own.at}")
    lines += [f"    kind: {own.kind}", f"    at: {own.at}"]
    if own.patches:
        others = f"      # not {', '.join(own.round_it)}: {ROUND_IT}" if own.round_it else ""
        lines.append(f"    {keys({'patches': own.patches})}{others}")
    surfaces = sorted((other.template != own.template, other.name) for other in sets if other.kind == "surface")
    surface = surfaces[0][1] if surfaces else None
    if own.kind == "volume" and surface:
        lines.append(f"    distance_to: {surface}      # adds {own.name}_sdf and {own.name}_normals")
    if own.left:
        lines.append(f"    # not fields: zero, a few whole numbers, or missing in some cases: {', '.join(own.left)}")
    lines.append("    fields:" if own.fields else "    fields: {}")
    for name, array in own.fields.items():
        unit, why = meaning.unit(array)
        angle = vocabulary.period_of(array.name, array.low, array.high) if array.components == 1 else None
        unit = unit or (angle[0] if angle else "")
        about = [keys({"array": array.name, "unit": unit})]
        if array.components == vocabulary.TENSOR:
            about.append(f"tensor: {order}")
        else:  # stated, so that a case with other components is refused as soon as it is read
            about.append(f"components: {array.components}")
        if angle:
            about.append(f"period: [{', '.join(f'{end:.10g}' for end in angle[1])}]")
            why += "; it wraps around, so its cosine and sine are learned"
        elif 2 * (decades := sum(case.decades for case in array.of_cases)) > len(array.of_cases):
            about.append("scaling: symmetric_log")
            why += f"; spans decades in {decades} of {len(array.of_cases)} cases"
        if is_kinematic and name in ("pressure", "wall_shear"):
            about += ["times: density"] + (["scale: -1"] if name == "wall_shear" else [])
        lines.append(f"      {name}: {{{', '.join(about)}}}      # {array.low:.4g} to {array.high:.4g}{why}")
    if own.others and own.kind != "points":
        at = "points" if own.at == "cells" else "cells"
        second = replace(own, name=f"{at}_of_{own.name}", at=at, fields=own.others, others={})
        lines += [f"  # Fields that are only at {at} can be a set beside this one, or replace it:",
                  *(f"  # {line[2:]}" for line in _set_lines(second, sets, meaning, order, is_kinematic))]  # fmt: skip
    return lines


def _axes(survey: Survey, sets: list[_Set]) -> list[str]:
    """Return the lines for the map's axes. If all points are in a plane, wind and up are the axes of that plane."""
    boxes = [np.subtract(own.high, own.low) for cases in survey.blocks.values() for own in cases.values()]
    plane = [axis for axis in range(3) if any(box[axis] > FLAT * box.max() for box in boxes)]
    others = plane if len(plane) == 2 else [0, 1, 2]
    velocities = [own.fields["velocity"] for own in sets if "velocity" in own.fields]
    winds = [own.mean for own in velocities if max(map(abs, own.mean)) > ALONG * max(-own.low, own.high)]
    if velocities and not winds:
        return []
    if not winds:
        guess = "# The directions of the wind and of up are a guess; null keeps the files' axes."
        return [guess, f"axes: {{wind: +{'xyz'[others[0]]}, up: +{'xyz'[others[-1]]}}}"]
    along = int(np.argmax(np.abs(winds[0])))
    wind = ("+" if winds[0][along] >= 0 else "-") + "xyz"[along]
    up = "+" + "xyz"[next(axis for axis in reversed(others) if axis != along)]
    mean = ", ".join(f"{value:.3g}" for value in winds[0])
    return [f"# The mean velocity is ({mean}). The direction of up is a guess.", f"axes: {{wind: {wind}, up: {up}}}"]


def _length(survey: Survey, sets: list[_Set], meaning: _Meaning) -> list[str]:
    templates = {own.template for own in sets if own.kind == "surface"} or {own.template for own in sets}
    size = _size(cases for (template, _), cases in survey.blocks.items() if template in templates)
    words = f"unit of the positions, {meaning.why}: m, mm, cm, in, ft; the median case is {size:.4g} long"
    return [f"length: {meaning.length:<14}# {words}"]


def words_of_steps(survey: Survey) -> str:
    """Describe, for each template with several steps, the number of steps, and the first and the last time."""
    said = []
    for template, cases in survey.steps.items():
        counts = sorted(map(len, cases.values()))
        count = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        first, last = (side(side(times) for times in cases.values()) for side in (min, max))
        said.append(f"{template} has {count} steps, time {first:g} to {last:g}")
    return "; ".join(said)


def _step(survey: Survey) -> list[str]:
    if not survey.steps:
        return []
    names = [plain_name(own.column) for own in numbers_of(survey)]
    are_modes = any("eigen" in name or "natural_freq" in name for name in names)
    modes = (
        "# The sign of a vibration mode is arbitrary in each case: no model can learn modes, only their frequencies."
    )
    each = "step: last        # or a number from 0, or {time: T}; or each: every step is a case, time a parameter"
    pieces = "# If the files are pieces of one mesh, write {piece} instead of {step} in the path."
    lines = [GUESS, f"# {each}", pieces] if survey.grouping.steps else [each]
    return [f"# {words_of_steps(survey)}", *([modes] if are_modes else []), *lines]


def _forces(survey: Survey, sets: list[_Set], meaning: _Meaning) -> list[str]:
    for own in sets:
        if own.kind == "surface" and "pressure" in own.fields and "velocity" not in own.fields:  # not a plane flow
            fields = [name for name in ("pressure", "wall_shear") if name in own.fields]
            shear = ", shear: wall_shear" if "wall_shear" in fields else ""
            numbers = {number_name(number.column): name_and_unit(number.column)[1] for number in numbers_of(survey)}
            unfit = unfit_for_forces({name: meaning.unit(own.fields[name])[0] for name in fields}, numbers)
            line = f"forces: {{set: {own.name}, pressure: pressure{shear}}}   # integrals of the true fields"
            return [f"# {line}: {unfit}; correct its `scale` and `unit`" if unfit else line]
    return []


class Number(NamedTuple):
    """A number of the cases: name, values {case: value}, file, and the column of case names if the file is a table."""

    column: str
    values: Mapping[str, float]
    file: str
    row: str = ""


def keys(texts: Mapping[str, object]) -> str:
    """Write keys with texts, or lists of texts, as a YAML flow mapping without its braces."""
    return ", ".join(f"{key}: {json.dumps(text, ensure_ascii=False)}" for key, text in texts.items())


def draft_numbers(survey: Survey) -> tuple[list[str], list[str]]:
    """Return the lines of the parameters, and the lines of the outputs."""
    parameters: dict[str, str] = {}
    outputs: dict[str, str] = {}
    peaks: dict[str, float] = {}
    seen: dict[str, Mapping[str, float]] = {}
    numbers = list(numbers_of(survey))
    of_results = {number.file for number in numbers if vocabulary.is_of_results(number.file)}
    if of_results == {number.file for number in numbers}:
        of_results = set()  # e.g. a single table: its name does not separate inputs from results
    for column, values, file, row in numbers:
        name, unit = number_name(column), name_and_unit(column)[1]
        if not name or not np.isfinite(list(values.values())).all() or seen.get(column) == values:
            continue
        while name in peaks:
            name += "_2"
        own = {"column": column} if column != name else {}
        about = keys({"file": file} | ({"row": row} if row else {}) | own | {"unit": unit or FLOW_UNITS.get(name, "")})
        into = outputs if vocabulary.is_result(column) or file in of_results else parameters
        span = f"{min(values.values()):.4g} to {max(values.values()):.4g}"
        of = _determined_by(survey, values, seen) if into is parameters else ""
        seen[column] = values
        doubt = f"; it is {of} in every case: if it is a result, move it to outputs" if of else ""
        into[name] = f"  {name}: {{{about}}}      # {span}{doubt}"
        peaks[name] = max(map(abs, values.values()))
    for name, line in outputs.items():
        if of := _negligible_beside(name, {other: peaks[other] for other in outputs}):
            outputs[name] = f"  # {line.strip()}: negligible beside {of}, so left out"
    return list(parameters.values()), list(outputs.values())


def _negligible_beside(name: str, peaks: Mapping[str, float]) -> str:
    """Return a component of the same vector compared with which `name` is only noise; "" if there is none."""
    stem, _, axis = name.rpartition("_")
    components = [f"{stem}_{other}" for other in "xyz"] if axis in ("x", "y", "z") else []
    return next((other for other in components if peaks[name] < NOISE * peaks.get(other, 0)), "")


def _determined_by(survey: Survey, values: Mapping[str, float], others: Mapping[str, Mapping[str, float]]) -> str:
    """Name another number, or a field's extreme or mean, that equals `values` in every case; return "" if none does."""
    if len(set(values.values())) < 3:
        return ""
    for name, other in others.items():
        if other.keys() == values.keys() and np.allclose(
            np.abs([other[case] for case in values]), np.abs(list(values.values())), rtol=EXACT, atol=0
        ):
            return name
    for (_, name), found in arrays_of(survey.blocks.values()).items():
        facts = {case: array for case, array in found if case in values}
        if len(facts) < 3:
            continue
        own = [values[case] for case in facts]
        sides = zip(*((array.high, array.low, array.mean[0]) for array in facts.values()), strict=True)
        for words, side in zip(("largest", "smallest", "mean"), sides, strict=True):
            if np.allclose(side, own, rtol=EXACT, atol=0):
                return f"the {words} value of {name}"
    return ""


def numbers_of(survey: Survey) -> Iterator[Number]:
    """Yield the numbers that the files of all cases have, and the numbers of the tables."""
    for template, cases in survey.numbers.items():
        columns = [column for column in next(iter(cases.values()), {}) if all(column in own for own in cases.values())]
        if template.endswith(".dat"):
            columns = [column for column in columns if column in ("Cd", "Cl", "Cs")] if "oeff" in template else []
        for column in columns:
            yield Number(column, {case: own[column] for case, own in cases.items()}, template)
    for file, facts in survey.tables.items():
        for column, values in facts.numbers.items():
            yield Number(column, values, file, facts.row)
