"""Make one case: read its files' arrays, scale them, rotate them to noether's axes, check, shuffle and write them."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from noether.common.errors import RequestError
from noether.core.tasks.angles import Period, as_pair
from noether.physics.cases.case_map import CASE, STEP, AtTime, CaseMap, FieldMap, NumberMap, SetMap, invariant, turned
from noether.physics.cases.cells import UNUSED
from noether.physics.cases.layout import Files, run_of, step_of
from noether.physics.cases.mesh_blocks import files_behind, results_elsewhere, unreadable
from noether.physics.cases.mesh_files import Unfit
from noether.physics.cases.mesh_source import Arrays, RawSet, read_set, refuse_array
from noether.physics.cases.store import WHOLE, Column, case_folder, whole_folder, write_case_file, write_set
from noether.physics.cases.tables import case_number

SHOWN = 20
GOES_ON = "--skip-broken      (continues without such cases, and lists them)"
XML = (".vtp", ".vtu", ".vti", ".vtr", ".vts", ".pvtu", ".pvtp")
LONGEST = 1_000_000  # size in bytes of the longest header that is read; in text files, the header includes the numbers
END, NUMBERS = b"</VTKFile>", b"<AppendedData"
PLACES = {"CellData": "cells", "PCellData": "cells", "PointData": "points", "PPointData": "points"}


def of_case(case: str, error: RequestError) -> RequestError:
    """Return the error with a summary that names the case."""
    return RequestError(**error.parts | {"summary": f"case {case}: {error.summary}"})


def skippable(error: RequestError) -> RequestError:
    """Return the error with a fix that also offers to leave such cases out."""
    return RequestError(**error.parts | {"fix": f"{error.fix}\n{GOES_ON}".lstrip()})


def refuse_at_once(problems: Iterable[tuple[str, RequestError]], unknown: Sequence[str]) -> None:
    """Raise one RequestError for all problems of cases and all unknown names in the split, if there are any.

    problems: pairs (case, error), of which the first twenty are listed; unknown: descriptions of the unknown names.
    """
    found = list({(case, error.summary, error.seen): (case, error) for case, error in problems}.values())
    lines = [f"case {case}: {error.summary} ({error.seen})" for case, error in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more, in {len({case for case, _ in found})} cases")
    if not found and unknown:
        raise RequestError("split-names-no-case", "the map's split names an unknown case", seen="\n".join(unknown),
                           expected="names of cases", fix=GOES_ON)  # fmt: skip
    if len(found) == 1 and not unknown:
        raise skippable(of_case(*found[0]))
    if found:
        fixes = dict.fromkeys(error.fix for _, error in found if error.fix)
        raise RequestError(found[0][1].code, f"{len(found) + len(unknown)} problems, and nothing was prepared",
                           seen="\n".join([*lines, *unknown]), expected="in every case, everything that the map names",
                           fix="\n".join([*list(fixes)[:3], GOES_ON]))  # fmt: skip


def header_problems(path: Path, about: SetMap) -> Iterator[RequestError]:
    """Yield the errors that the header of a set's file shows: the file is empty or cut short, or lacks an array."""
    try:
        there = read_header(path)
    except RequestError as error:
        yield error
        return
    at = "points" if about.kind == "points" else about.at
    if there is None or about.values:
        return
    for name, own in about.fields.items():
        yield from refusals(partial(refuse_array, path, name, own, at, there))


def refusals(check: Callable[[], object]) -> Iterator[RequestError]:
    """Run a check; yield the RequestError that it raises, if any."""
    try:
        check()
    except RequestError as error:
        yield error


def read_header(path: Path) -> Arrays | None:
    """Return the arrays named in the header of a VTK XML file; None for another format or a very long header.

    RequestError: the file is empty, or is an XML file that is cut short or has an invalid header.
    """
    try:
        size = path.stat().st_size
        if not size:
            raise Unfit("an empty file")
        if path.suffix.lower() not in XML:
            return None
        with path.open("rb") as file:
            file.seek(max(0, size - 64))
            if END not in file.read():
                raise Unfit(f"it ends without {END.decode()}: it was cut short")
            file.seek(0)
            head = b""
            while NUMBERS not in head and len(head) < LONGEST and (more := file.read(65_536)):
                head += more
        is_whole = NUMBERS in head or len(head) == size
        return _arrays(head.partition(NUMBERS)[0]) if is_whole else None
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise unreadable(path, error) from None


def _arrays(head: bytes) -> Arrays:
    parser: Any = ElementTree.XMLPullParser(["start", "end"])
    parser.feed(head)
    there: dict[str, dict[str, int]] = {"cells": {}, "points": {}}
    at = ""
    for event, element in parser.read_events():
        if element.tag in PLACES:
            at = PLACES[element.tag] if event == "start" else ""
        elif at and element.tag in ("DataArray", "PDataArray"):
            there[at][element.get("Name", "")] = int(element.get("NumberOfComponents", 1))
    return there


LARGEST_BODY = 500.0  # m: if the map states no unit, a longer body is most likely in millimetres


@dataclass(frozen=True)
class CaseJob:
    """A case to make: its name, the files of each set, the map, and the folders of the source and the store."""

    case: str
    files: Files
    about: CaseMap
    root: Path
    out: Path

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the map, the case's numbers, and its files: when it changes, the case must be made again.

        It covers files' names, sizes and modification times, but no units or scalings: prepared files contain neither.
        """
        about = self.about.model_dump(mode="json", exclude={"split", "reader"}, exclude_defaults=True)
        described = [*about.get("parameters", {}).values(), *about.get("outputs", {}).values()]
        described += [field for own in about["sets"].values() for field in own.get("fields", {}).values()]
        for own in described:
            own.pop("unit", None)
            own.pop("scaling", None)
        digest = hashlib.sha256(json.dumps([about, self._numbers_or_refusal()]).encode())
        for name in sorted(self.files):
            table = self.values(name)
            behind = [file for own in self.files[name] for file in files_behind(own)]
            for file in [*behind, *([table] if table else [])]:
                stat = file.stat() if file.exists() else None
                state = f"{stat.st_size} {stat.st_mtime_ns}" if stat else "gone"
                digest.update(f"{name} {os.path.relpath(file, self.root)} {state}\n".encode())
        return digest.hexdigest()

    def values(self, name: str) -> Path | None:
        """Return the path of a set's table of values; None if the map names no table."""
        values = self.about.sets[name].values
        return self.root / values.replace(CASE, run_of(self.about, self.case)) if values else None

    def problems(self) -> Iterator[RequestError]:
        """Yield the errors that are found without reading a mesh: missing files and numbers, and `header_problems`."""
        yield from refusals(partial(refuse_missing_sets, self))
        for name, described in (*self.about.parameters.items(), *self.about.outputs.items()):
            yield from refusals(partial(_number, self, name, described))
        for name in self.files:
            for path in self.files[name]:
                yield from header_problems(path, self.about.sets[name])

    def make(self) -> dict[str, Any]:
        """Make the case, and return the contents of its `case.json`.

        RequestError: a file is missing, cannot be read, does not fit the map, or holds impossible values; the error
        names the file.
        """
        refuse_missing_sets(self)
        parameters, outputs = numbers_of(self)
        factors = {**self.about.constants, **parameters}
        sets: dict[str, Any] = {}
        left: dict[str, list[dict[tuple[str, str], int]]] = {}
        forces: dict[str, list[float]] = {}
        surfaces: dict[str, np.ndarray] = {}
        # Surfaces come first, because other sets need the distance from them.
        with whole_folder(case_folder(self.out, self.case)) as folder:
            for name, own in sorted(self.about.sets.items(), key=lambda item: item[1].kind != "surface"):
                raw = self._read(name)
                left.setdefault(own.file, []).append(raw.left)
                if own.kind == "surface":
                    surfaces[name] = turned(self.about.rotation, self.about.metres)(np.asarray(raw.points, np.float64))
                    _check_size(self, name, surfaces[name])
                    if self.about.forces and self.about.forces.set == name:
                        forces = _forces(raw, surfaces[name], self.about, factors)
                columns = _columns(self, name, own, raw, factors)
                if own.distance_to:
                    columns |= _distances(columns[f"{name}_points"], name, surfaces[own.distance_to])
                sets[name], _ = write_set(folder, self.case, name, columns, len(raw.points), own.most_points)
                sets[name]["parts"] = raw.parts
            made = {"case": self.case, "mark": self.fingerprint, "parameters": parameters, "outputs": outputs,
                    "forces": forces, "sets": sets, "left": _left_of_files(left),
                    "elsewhere": sorted({self._elsewhere(name) for name in self.files} - {""})}  # fmt: skip
            return write_case_file(folder, made)

    def _read(self, name: str) -> RawSet:
        path = self.files[name][0]
        try:
            step = step_of(self.about, self.case)
            return read_set(path, self.about.sets[name], step, self.values(name), self.files[name])
        except RequestError as error:
            if not (hint := self._elsewhere(name)):
                raise
            raise RequestError(**error.parts | {"fix": f"{hint}\n{error.fix}".strip()}) from None

    def _elsewhere(self, name: str) -> str:
        return results_elsewhere(self.files[name][0]) if self.about.step in ("last", "each") else ""

    def _numbers_or_refusal(self) -> Any:
        try:
            return numbers_of(self)
        except RequestError as error:
            return error.seen


def _left_of_files(left: dict[str, list[dict[tuple[str, str], int]]]) -> list[tuple[str, str, str, int]]:
    """Return what the files contain that is in no set, as [(path in the map, what, block, count)]."""
    return [
        (file, what, block, min(own[what, block] for own in each))
        for file, each in left.items()
        for what, block in sorted(set.intersection(*map(set, each)))
        if what != UNUSED or len(each) == 1  # if sets share a file, a point that one set does not use may be in another
    ]


def refuse_missing_sets(job: CaseJob) -> None:
    """Raise RequestError if the case lacks a file or a table of values for a set of the map."""
    if missing := sorted(job.about.sets.keys() - job.files.keys()):
        absent = job.about.sets[missing[0]].file.replace(CASE, run_of(job.about, job.case))
        raise RequestError(
            "set-file-missing",
            f"no file for the set {missing[0]}",
            seen=f"no {absent}" + ("" if STEP not in absent else f" at the step of the map ({job.about.step})"),
            expected="a file for every set",
        )
    for name in job.about.sets:
        if (table := job.values(name)) is not None and not table.is_file():
            raise RequestError(
                "values-missing", f"no values for the set {name}", seen=f"no {table}", expected="a table for every case"
            )


def numbers_of(job: CaseJob) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parameters and the outputs of a case. RequestError: a number is not where the map states."""
    parameters = {name: _number(job, name, own) for name, own in job.about.parameters.items()}
    return parameters, {name: _number(job, name, own) for name, own in job.about.outputs.items()}


def _number(job: CaseJob, name: str, described: NumberMap) -> float:
    if job.about.step != "each" or name != "time" or described.file:
        return case_number(described, name, run_of(job.about, job.case), job.root)
    step = step_of(job.about, job.case)
    if not isinstance(step, AtTime):
        raise RequestError("case-without-steps", f"case {job.case} has no steps in time",
                           seen=", ".join(sorted(str(own[0]) for own in job.files.values())),
                           expected="times that the files of all sets share, for step: each",
                           fix="step: last")  # fmt: skip
    return step.time * described.scale


def _columns(job: CaseJob, name: str, own: SetMap, raw: RawSet, factors: dict[str, float]) -> dict[str, Column]:
    path, about = job.files[name][0], job.about
    known = {"points": (raw.points, about.metres), "normals": (raw.normals, 1.0),
             "area": (raw.area, about.metres**2), "cell_volume": (raw.cell_volume, about.metres**3)}  # fmt: skip
    columns = {
        f"{name}_{key}": Column(values, f"{key} of {path}", turned(about.rotation, factor))
        for key, (values, factor) in known.items()
        if values is not None
    }
    if raw.part is not None and len(raw.parts) > 1:
        columns[f"{name}_part"] = Column(raw.part, f"parts of {path}", dtype=WHOLE)
    for field, described in own.fields.items():
        where, factor = f"{described.array} in {path}", field_factor(described, factors)
        values, step = raw.fields[field], turned(about.rotation, factor, described.tensor)
        if described.tensor and described.take:  # invariant under rotation
            values, step = invariant(values, described.tensor, described.take), partial(np.multiply, factor)
        if described.period:
            step = partial(_as_pair, factor, described.period)
        columns[f"{name}_{field}"] = Column(values if values.shape[1] > 1 else values[:, 0], where, step)
    return columns


def _as_pair(factor: float, period: Period, block: np.ndarray) -> np.ndarray:
    return np.asarray(as_pair(np.asarray(factor * block, np.float64), period))


def field_factor(described: FieldMap, factors: dict[str, float]) -> float:
    """Return a field's factor: `scale`, multiplied by the constant or parameter that the setting `times` names."""
    return described.scale * (factors[described.times] if described.times else 1.0)


def _distances(points: Column, name: str, surface: np.ndarray) -> dict[str, Column]:
    """Return lazy columns: the distance (N,) in m from the nearest surface point, and the direction (N, 3) from it."""
    from scipy.spatial import cKDTree

    tree, asked, answer = cKDTree(surface), np.empty(0), (np.empty(0), np.empty(0))

    def from_nearest(part: int, block: np.ndarray) -> np.ndarray:
        nonlocal asked, answer
        if not np.array_equal(asked, block):  # the second column reuses the answer for this block
            own = points.step(block)
            distance, nearest = map(np.asarray, tree.query(own))
            direction = (own - surface[nearest]) / np.maximum(distance, np.finfo(np.float32).tiny)[:, None]
            asked, answer = block, (distance, direction)
        return answer[part]

    return {f"{name}_{key}": Column(points.source, points.where, partial(from_nearest, part))
            for part, key in enumerate(("sdf", "normals"))}  # fmt: skip


def _forces(raw: RawSet, points: np.ndarray, about: CaseMap, factors: dict[str, float]) -> dict[str, list[float]]:
    """Integrate the true fields to forces (3,) in N and moments (3,) about the origin in N·m, in noether's axes."""
    assert about.forces is not None
    assert raw.normals is not None
    assert raw.area is not None
    fields = about.sets[about.forces.set].fields
    rotation, area = about.rotation, raw.area * about.metres**2
    pressure = raw.fields[about.forces.pressure][:, 0] * field_factor(fields[about.forces.pressure], factors)
    pushed = {"pressure": -(pressure * area)[:, None] * (raw.normals @ rotation.T)}
    if about.forces.shear:
        shear = raw.fields[about.forces.shear] * field_factor(fields[about.forces.shear], factors)
        pushed["friction"] = area[:, None] * (shear @ rotation.T)
    found = {}
    for kind, force in pushed.items():
        found[f"{kind}_force"] = force.sum(axis=0).tolist()
        found[f"{kind}_moment"] = np.cross(points, force).sum(axis=0).tolist()
    return found


def _check_size(job: CaseJob, name: str, points: np.ndarray) -> None:
    size = float((points.max(axis=0) - points.min(axis=0)).max())
    if size > LARGEST_BODY and "length" not in job.about.model_fields_set:
        raise RequestError("size-out-of-range", f"the set {name} in {job.files[name][0]} is {size:.4g} m long",
                           seen="no unit of length in the map, so metres are assumed",
                           expected=f"a body of at most {LARGEST_BODY:g} m, or its unit in the map",
                           fix="length: mm      (or length: m, if the body really is that long)")  # fmt: skip
