"""The numbers of a survey → the lines of a draft's parameters and outputs."""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from noether.physics.cases.survey import Survey, arrays_of
from noether.physics.cases.vocabulary import FLOW_UNITS, is_of_results, is_result, name_and_unit, number_name

EXACT = 1e-4
"""A number that differs by less from what a field spans, or from another number, in every case, is determined by it."""
NOISE = 1e-4
"""A component of a result that is never more than this of another one is what the solver leaves of zero: its spread
cannot be learned, and would weigh in the loss as much as that of any other."""


class Number(NamedTuple):
    """A number that cases have: its name and values, its file, and of a table the column with the names of cases."""

    column: str
    values: Mapping[str, float]
    file: str
    row: str = ""


def keys(texts: Mapping[str, object]) -> str:
    """Returns keys with texts, or lists of texts, as YAML has them."""
    return ", ".join(f"{key}: {json.dumps(text, ensure_ascii=False)}" for key, text in texts.items())


def draft_numbers(survey: Survey) -> tuple[list[str], list[str]]:
    """The lines of parameters, and those of outputs."""
    parameters: dict[str, str] = {}
    outputs: dict[str, str] = {}
    peaks: dict[str, float] = {}
    seen: dict[str, Mapping[str, float]] = {}
    numbers = list(numbers_of(survey))
    of_results = {number.file for number in numbers if is_of_results(number.file)}
    if of_results == {number.file for number in numbers}:
        of_results = set()  # a table of everything
    for column, values, file, row in numbers:
        name, unit = number_name(column), name_and_unit(column)[1]
        if not name or not np.isfinite(list(values.values())).all() or seen.get(column) == values:
            continue
        while name in peaks:
            name += "_2"
        own = {"column": column} if column != name else {}
        about = keys({"file": file} | ({"row": row} if row else {}) | own | {"unit": unit or FLOW_UNITS.get(name, "")})
        into = outputs if is_result(column) or file in of_results else parameters
        span = f"{min(values.values()):.4g} to {max(values.values()):.4g}"
        of = _determined_by(survey, values, seen) if into is parameters else ""
        seen[column] = values
        doubt = f"; it is {of} in every case: a result? then it belongs to outputs" if of else ""
        into[name] = f"  {name}: {{{about}}}      # {span}{doubt}"
        peaks[name] = max(map(abs, values.values()))
    for name, line in outputs.items():
        if of := _negligible_beside(name, {other: peaks[other] for other in outputs}):
            outputs[name] = f"  # {line.strip()}: nothing beside {of}, and left out"
    return list(parameters.values()), list(outputs.values())


def _negligible_beside(name: str, peaks: Mapping[str, float]) -> str:
    """Names the component of the same vector beside which this one is noise; "" where there is none."""
    stem, _, axis = name.rpartition("_")
    components = [f"{stem}_{other}" for other in "xyz"] if axis in ("x", "y", "z") else []
    return next((other for other in components if peaks[name] < NOISE * peaks.get(other, 0)), "")


def _determined_by(survey: Survey, values: Mapping[str, float], others: Mapping[str, Mapping[str, float]]) -> str:
    """Says which field's largest, smallest or mean value, or which other number, a number is in every case; or ""."""
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
        arrays = facts.values()
        for words, side in (
            ("largest", [array.high for array in arrays]),
            ("smallest", [array.low for array in arrays]),
            ("mean", [array.mean[0] for array in arrays]),
        ):
            if np.allclose(side, [values[case] for case in facts], rtol=EXACT, atol=0):
                return f"the {words} value of {name}"
    return ""


def numbers_of(survey: Survey) -> Iterator[Number]:
    """The numbers that all cases have."""
    for template, cases in survey.numbers.items():
        columns = [column for column in next(iter(cases.values()), {}) if all(column in own for own in cases.values())]
        if template.endswith(".dat"):
            columns = [column for column in columns if column in ("Cd", "Cl", "Cs")] if "oeff" in template else []
        for column in columns:
            yield Number(column, {case: own[column] for case, own in cases.items()}, template)
    for file, facts in survey.tables.items():
        for column, values in facts.numbers.items():
            yield Number(column, values, file, facts.row)
