"""A survey of a folder of cases → a draft of its map, commented, which `prepare` takes as it is or edited."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from statistics import mode
from typing import get_args

import numpy as np

from noether.data.cases.case_map import RESERVED, SetKind
from noether.data.cases.layout import CASE
from noether.data.cases.numbers import same_case
from noether.data.cases.survey import ArrayFacts, BlockFacts, Survey, arrays_of

BACKGROUND = re.compile(
    r"inlet|outlet|sym|side|top|ground|floor|far|front|back|bottom|roof|domain|empty|wall_?\d*$", re.I
)
"""Patches that are rarely the body: what is left out of a draft's surface, with a comment."""
OUTPUTS = re.compile(r"(average[ _]?)?(cd|cl|cs|cm\w*|nu)$|drag|lift|force|moment|coeff|heat", re.I)
KNOWN_FIELDS = {
    "pressure": (re.compile(r"p(ressure)?(_?mean)?(_?trim)?$|static_pressure"), 1, "Pa"),
    "velocity": (re.compile(r"(u|velocity|v)(_?mean)?(_?trim)?$"), 3, "m/s"),
    "wall_shear": (re.compile(r".*wall_?shear|wss"), 3, "Pa"),
    "temperature": (re.compile(r"(t|temp|temperature)(_?mean)?$"), 1, "K"),
}
"""What usual fields are called in files, their components and their unit."""
KNOWN_NUMBERS = {
    "drag_coefficient": re.compile(r"(average_)?cd$"),
    "lift_coefficient": re.compile(r"(average_)?cl$"),
    "reference_area": re.compile(r"(frontal_area|ref(erence)?_?area|a_?ref)$"),
    "wind_speed": re.compile(r"(wind_?speed|inlet_velocity|freestream_velocity|(mag_)?u_?inf)$"),
}
NUMBER_UNITS = {"drag_coefficient": "1", "lift_coefficient": "1", "reference_area": "m²", "wind_speed": "m/s"}
LONGEST = 500.0  # of a body, in m


@dataclass(frozen=True)
class _Set:
    name: str
    template: str
    kind: SetKind
    at: str
    patches: list[str]
    fields: dict[str, ArrayFacts]
    others: list[str]


def draft_map(survey: Survey) -> str:
    """Returns the text of a map for what was found."""
    foam = any(template.endswith("polyMesh") for template, _ in survey.blocks)
    sets = _sets(survey)
    kinematic = foam and any("pressure" in field for own in sets for field in own.fields)
    parameters, outputs = _numbers(survey)
    lines = [
        "# A draft, by noether data inspect. Check it, and: noether data prepare CASES OUT --map cases.yaml",
        f"# {len(survey.grouping.cases)} cases, {len(survey.looked_at)} of them looked at.",
        *[f"# odd: {words}" for words in survey.odd[:20]],
        "",
        *_axes(sets),
        *_length(survey, sets),
        "constants:            # the same in all cases; a field can be multiplied with one (times: NAME)",
        "  density: 1.225      # kg/m³",
        "parameters:           # numbers of each case that a model is given",
        *(parameters or ["  {}"]),
        "outputs:              # numbers of each case that a model can predict",
        *(outputs or ["  {}"]),
        "sets:                 # sets of points; every field becomes SET_FIELD of a sample",
        *[line for own in sets for line in _set_lines(own, sets, kinematic)],
        *_forces(sets),
        "split: {test: 0.15, validation: 0.1, seed: 0}   # fractions; or lists of cases; or a file and its column",
    ]
    return "\n".join(lines) + "\n"


def _sets(survey: Survey) -> list[_Set]:
    found: list[_Set] = []
    for template in dict.fromkeys(template for template, _ in survey.blocks):
        blocks = {block: cases for (own, block), cases in survey.blocks.items() if own == template}
        for kind in get_args(SetKind):
            chosen = {name: cases for name, cases in blocks.items() if mode(f.kind for f in cases.values()) == kind}
            if not chosen:
                continue
            body = [name for name in chosen if not BACKGROUND.search(name)] or list(chosen)
            wanted = body if kind == "surface" else list(chosen)
            arrays = _common([chosen[name] for name in wanted])
            if kind == "surface" and not arrays and len(survey.blocks) > 1:
                continue  # a shape alone, beside the same with fields
            at_cells = not arrays or any(array.at == "cells" for array in arrays)
            at = "cells" if kind != "points" and at_cells else "points"
            fields = _named(array for array in arrays if array.at == at)
            kept = {array.name for array in fields.values()}
            others = [array.name for array in arrays if array.at != at and array.name not in kept]
            patches = wanted if any(wanted) else []
            name = _set_name(kind, template, found)
            found.append(_Set(name, template, kind, at, patches=patches, fields=fields, others=others))
    return found


def _set_name(kind: SetKind, template: str, found: list[_Set]) -> str:
    names = {own.name for own in found}
    name = kind if kind not in names else _plain(PurePosixPath(template).stem) or kind
    while name in names or any(name.startswith(f"{other}_") or other.startswith(f"{name}_") for other in names):
        name += "2" if name in names else "x"
    return name


def _common(blocks: list[dict[str, BlockFacts]]) -> list[ArrayFacts]:
    """The arrays that more than half of the cases have in every block, with the range over all of them."""
    total = sum(len(cases) for cases in blocks)
    found = []
    for every in arrays_of(blocks).values():
        if len(every) > total / 2:
            components = mode(array.components for _, array in every)
            same = [array for _, array in every if array.components == components]
            low, high = min(array.low for array in same), max(array.high for array in same)
            mean = tuple(np.mean([array.mean for array in same], axis=0).tolist())
            found.append(replace(same[0], low=low, high=high, mean=mean))
    return found


def _named(arrays: Iterable[ArrayFacts]) -> dict[str, ArrayFacts]:
    named: dict[str, ArrayFacts] = {}
    for array in arrays:
        if re.match(r"(vtk|Normals$|TCoords|GlobalIds|Ids?$)", array.name, re.I) or array.low == array.high == 0:
            continue
        name = field_name(array)
        named[name if name not in named else _plain(array.name) + "_2"] = array
    return named


def field_name(array: ArrayFacts) -> str:
    """What an array is called in a draft: the usual ones by their meaning, others by their own name."""
    plain = _plain(array.name)
    for name, (pattern, components, _) in KNOWN_FIELDS.items():
        if components == array.components and pattern.match(plain):
            return name
    return f"{plain}_field" if plain in RESERVED else plain


def _set_lines(own: _Set, sets: list[_Set], kinematic: bool) -> list[str]:
    lines = [f"  {own.name}:", f"    file: {json.dumps(own.template)}", f"    kind: {own.kind}", f"    at: {own.at}"]
    if own.patches:
        lines.append(f"    patches: {json.dumps(own.patches)}")
    surface = next((other.name for other in sets if other.kind == "surface"), None)
    if own.kind == "volume" and surface:
        lines.append(f"    distance_to: {surface}      # adds {own.name}_sdf and {own.name}_normals")
    lines.append("    fields:" if own.fields else "    fields: {}")
    for name, array in own.fields.items():
        unit = KNOWN_FIELDS[name][2] if name in KNOWN_FIELDS else ""
        about = [f"array: {json.dumps(array.name)}", f"unit: {json.dumps(unit)}"]
        if kinematic and name in ("pressure", "wall_shear"):
            about += ["times: density"] + (["scale: -1"] if name == "wall_shear" else [])
        values = f"{array.components} component{'s' * (array.components > 1)}, {array.low:.4g} to {array.high:.4g}"
        lines.append(f"      {name}: {{{', '.join(about)}}}      # {values}")
    if own.others:
        lines.append(f"      # not at {own.at}, and left out: {', '.join(own.others)}")
    return lines


def _axes(sets: list[_Set]) -> list[str]:
    winds = [own.fields["velocity"].mean for own in sets if "velocity" in own.fields]
    if not winds:
        return [
            "# Where the air blows to and which way is up: a guess; null keeps the files' axes.",
            "axes: {wind: +x, up: +z}",
        ]
    along = int(np.argmax(np.abs(winds[0])))
    wind = ("+" if winds[0][along] >= 0 else "-") + "xyz"[along]
    up = "+z" if along != 2 else "+y"
    mean = ", ".join(f"{value:.3g}" for value in winds[0])
    return [f"# The mean velocity is ({mean}). Which way is up is a guess.", f"axes: {{wind: {wind}, up: {up}}}"]


def _length(survey: Survey, sets: list[_Set]) -> list[str]:
    templates = {own.template for own in sets if own.kind == "surface"} or {own.template for own in sets}
    boxes = [
        facts for (template, _), cases in survey.blocks.items() if template in templates for facts in cases.values()
    ]
    size = max((max(np.subtract(own.high, own.low)) for own in boxes), default=0.0)
    unit = "mm" if size > LONGEST else "m"
    return [f"length: {unit}             # unit of the positions: m, mm, cm, in, ft; the longest is {size:.4g}"]


def _forces(sets: list[_Set]) -> list[str]:
    for own in sets:
        if own.kind == "surface" and "pressure" in own.fields:
            shear = ", shear: wall_shear" if "wall_shear" in own.fields else ""
            return [f"forces: {{set: {own.name}, pressure: pressure{shear}}}   # the true fields, integrated"]
    return []


def _numbers(survey: Survey) -> tuple[list[str], list[str]]:
    """The lines of parameters, and those of outputs."""
    parameters: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for column, values, where in _columns(survey):
        name = number_name(column)
        if not name or name in {*parameters, *outputs, "density"} or not np.isfinite(values).all():
            continue
        own = f", column: {json.dumps(column)}" if column != name else ""
        unit = json.dumps(NUMBER_UNITS.get(name, ""))
        into = outputs if OUTPUTS.search(column) else parameters
        into[name] = f"  {name}: {{{where}{own}, unit: {unit}}}      # {min(values):.4g} to {max(values):.4g}"
    return list(parameters.values()), list(outputs.values())


def _columns(survey: Survey) -> Iterator[tuple[str, list[float], str]]:
    """The numbers that every case has: what each is called, its values, and where it stands."""
    for template, cases in survey.numbers.items():
        columns = [column for column in next(iter(cases.values()), {}) if all(column in own for own in cases.values())]
        if template.endswith(".dat"):
            columns = [column for column in columns if column in ("Cd", "Cl", "Cs")] if "oeff" in template else []
        for column in columns:
            yield column, [own[column] for own in cases.values()], f"file: {json.dumps(template)}"
    every = survey.grouping.cases
    for file, (columns, rows) in survey.tables.items():
        named = {column: sum(any(same_case(r[column], case) for r in rows) for case in every) for column in columns}
        row = next((column for column in columns if named[column] > len(every) // 2), None)
        for column in columns if row else []:
            values = [float(r[column]) for r in rows if re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", r[column])]
            if column != row and len(values) == len(rows):
                yield column, values, f"file: {json.dumps(file)}, row: {json.dumps(row)}"


def number_name(column: str) -> str:
    """What a number is called in a draft: those that force coefficients are made with by their meaning."""
    plain = _plain(column)
    return next((name for name, pattern in KNOWN_NUMBERS.items() if pattern.match(plain)), plain)


def _plain(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace(CASE, ""))
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return plain if not plain or plain[0].isalpha() else f"a_{plain}"
