"""Find the cases in a folder, and their steps, by matching the files against paths with {case} and {step}."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path, PurePosixPath
from shlex import quote

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.common.suggest import nearest
from noether.core.data.shared_work import surviving_map
from noether.physics.cases import openfoam
from noether.physics.cases.case_map import CASE, PIECE, STEP, AtTime, CaseMap, Step
from noether.physics.cases.mesh_blocks import PIECES, STEPS, SUFFIXES, chosen, files_behind, read_times

NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
Files = dict[str, list[Path]]
"""The files of each set of a case, by the set's name: a single file, or the pieces of one mesh."""
Steps = dict[float | None, list[Path]]
"""The files of each step of a set, by the step's number in the file names; None if the names have no number."""


def list_files(root: Path) -> list[str]:
    """Return the relative paths of all files under the folder, sorted; an OpenFOAM mesh (polyMesh) is one entry.

    Links to folders are followed, because a selection of cases may consist of links. Hidden folders, the folder of
    failed OpenFOAM cases, and processor folders are left out. RequestError: there is no such folder.
    """
    if not root.is_dir():
        folders = [path.name for path in root.parent.iterdir() if path.is_dir()] if root.parent.is_dir() else []
        near = nearest(root.name, folders)
        listed = f"ls {quote(str(root.parent))}      (lists the folders there)"
        raise RequestError(
            "cases-root-not-a-folder",
            f"{root} is not a folder",
            seen="a file" if root.exists() else "no such folder",
            expected="the folder that holds the cases",
            fix=f"noether data inspect {quote(str(root.parent / near))}" if near else listed,
        )
    found: list[str] = []
    for folder, names, files in os.walk(root, followlinks=True):
        here = os.path.relpath(folder, root)
        above = os.path.realpath(folder)
        names[:] = sorted(
            name for name in names
            if not name.startswith(".") and (here, name) != (".", "failed")
            # Following a link to a folder that contains the link would never end.
            and not f"{above}/".startswith(f"{os.path.realpath(os.path.join(folder, name))}/")
        )  # fmt: skip
        if here == "." and os.path.isdir(root / "failed"):  # cases that noether's example script could not solve
            found.append("failed (folder)")
        if "constant" in names or "system" in names:  # a case of OpenFOAM
            names[:] = [name for name in names if not openfoam.PROCESSOR.match(name)]
            found += [os.path.relpath(path, root) for path in openfoam.meshes_in(Path(folder))]
        names[:] = [name for name in names if name != openfoam.MESH]
        found += [os.path.normpath(os.path.join(here, name)) for name in files if not name.startswith(".")]
    return sorted(found)


def unlisted(root: Path, files: list[str]) -> list[str]:
    """Return the files that no other file lists; a .pvtu, for example, lists pieces, and a .pvd lists steps."""
    top = root.resolve()
    lists = [top / file for file in files if file.lower().endswith((*PIECES, *STEPS))]
    listed = {os.path.relpath(own, top) for path in lists for own in files_behind(path)[1:]}
    return [file for file in files if file not in listed]


def pattern_of(template: str) -> re.Pattern[str]:
    """Compile a template to a pattern for relative paths.

    Every {case} in a template matches the same text, and every {step} the same number. * and {piece} match any
    characters within a name, and **/ matches any folders.
    """
    parts, named = [], {CASE: "(?P<case>[^/]+)", STEP: f"(?P<step>{NUMBER})"}
    path = (os.path.normpath(template) if "**" not in template else template).replace(PIECE, "*")
    for piece in re.split(r"(\{case\}|\{step\}|\*\*/|\*)", path):
        if piece in (CASE, STEP):
            parts.append(named[piece])
            named[piece] = f"(?P={piece[1:-1]})"
        else:
            parts.append({"**/": "(?:.*/)?", "*": "[^/]*"}.get(piece, re.escape(piece)))
    return re.compile("".join(parts) + "$")


def match_template(template: str, files: Iterable[str]) -> dict[str, dict[float | None, list[str]]]:
    """Return the files that fit a template, {case: {step number: files}}, in the order of the steps.

    If the template has no {case}, the only case is ""; if it has no {step}, the only step number is None.
    """
    pattern = pattern_of(template)
    found: dict[str, dict[float | None, list[str]]] = {}
    for file in files:
        if matched := pattern.match(file):
            step = float(matched["step"]) if STEP in template else None
            found.setdefault(matched["case"] if CASE in template else "", {}).setdefault(step, []).append(file)
    return {case: dict(sorted(own.items(), key=lambda item: item[0] or 0.0)) for case, own in found.items()}


def files_of(template: str, files: Iterable[str]) -> set[str]:
    """Return the files that fit a template."""
    pattern = pattern_of(template)
    return {file for file in files if pattern.match(file)}


def files_of_cases(root: Path, about: CaseMap) -> dict[str, dict[str, Steps]]:
    """Return the files by case, set and step, {case: {set: {step: paths}}}.

    RequestError: the folder is missing, a set's path lacks {case}, no file fits, several files fit the same case, set
    and step, or a case has several steps but the map does not state `step`.
    """
    every = list_files(root)
    files = unlisted(root, every)
    cases: dict[str, dict[str, Steps]] = {}
    for name, own in about.sets.items():
        if CASE not in own.file:
            raise RequestError("set-file-names-no-case", f"sets.{name}.file has no {{case}}", seen=own.file,
                               expected="a path with {case} in place of the case's name",
                               fix=f"file: '{{case}}/{own.file}'")  # fmt: skip
        matched = match_template(own.file, files) or match_template(own.file, every)
        if "step" not in about.model_fields_set and any(len(steps) > 1 for steps in matched.values()):
            case = next(case for case, steps in matched.items() if len(steps) > 1)
            listed = [paths[0] for paths in matched[case].values()]
            raise RequestError(
                "step-not-said",
                f"the files of the set {name} have names that differ in a number, and the map does not state why",
                seen=f"{len(listed)} files in case {case}: {first_of(listed, 3)}",
                expected="`step`, if they are steps in time; {piece} in the path, if they are pieces of one mesh",
                fix=f"step: last      (or each, or {{time: T}}; or file: '{own.file.replace(STEP, PIECE)}')",
            )
        for case, steps in matched.items():
            for paths in steps.values():
                if len(paths) > 1 and PIECE not in own.file:
                    raise RequestError(
                        "ambiguous-set-file",
                        f"several files match the set {name} of case {case}",
                        seen=", ".join(paths[:4]),
                        expected=f"one file that fits {own.file}",
                        fix="write {step} in the set's path for time steps, or {piece} for the pieces of one mesh",
                    )
            cases.setdefault(case, {})[name] = {
                step: [root / path for path in sorted(paths, key=natural)] for step, paths in steps.items()
            }
    if not cases:
        raise RequestError(
            "no-file-fits-map",
            f"no file in {root} fits the map",
            seen=f"{len(files)} files, like {', '.join(files[:3]) or 'none'}",
            expected=", ".join(dict.fromkeys(own.file for own in about.sets.values())),
            fix=f"noether data inspect {quote(str(root))}      (writes a map that fits these files)",
        )
    return dict(sorted(cases.items(), key=lambda item: natural(item[0])))


def leftovers(files: Iterable[str], taken: AbstractSet[str], cases: Iterable[str]) -> list[str]:
    """Describe the files that are not read: meshes by name, other files by suffix.

    taken: files that are read, and folders in which every file is read.
    """
    left = [file for file in files if taken.isdisjoint({file, *map(str, PurePosixPath(file).parents)} - {"."})]
    names, meshes, others = {*cases}, Counter[str](), Counter[str]()
    for file in left:
        if file.lower().endswith((*SUFFIXES, f"/{openfoam.MESH}")):
            meshes["/".join(CASE if part in names else part for part in file.split("/"))] += 1
        else:
            others[os.path.splitext(file)[1] or os.path.basename(file)] += 1
    said = [f"{name} ({count:,} files)" if count > 1 else name for name, count in meshes.most_common()]
    kinds = [f"{count:,} {suffix}" for suffix, count in others.most_common()]
    return [f"not read: {found.total():,} {what}: {first_of(words, 8)}" for found, what, words in
            ((meshes, "files with meshes", said), (others, "other files", kinds)) if found]  # fmt: skip


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts run_2 before run_10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name) if piece]


def find_cases(root: Path, about: CaseMap, workers: int = 1) -> dict[str, Files]:
    """Return the files by case and set, {case: {set: files}}; a set of which a case has no file is left out.

    With `step: each`, a case is called RUN@TIME, which `run_of` and `step_of` split; a run without steps keeps its
    name. Only `step: each` opens files, in `workers` processes. RequestError as for `files_of_cases`.
    """
    found = files_of_cases(root, about)
    if about.step == "each":
        return _case_of_each_step(found, workers)
    cases: dict[str, Files] = {case: {} for case in found}
    for case, sets in found.items():
        for name, own in sets.items():
            with suppress(RequestError):
                cases[case][name] = list(own.values())[chosen(list(own), about.step, case)]
    return cases


def run_of(about: CaseMap, case: str) -> str:
    """Return the name of a case in files and tables: with `step: each`, it is the case's name without the time."""
    return _run_and_time(about, case)[0]


def in_order(about: CaseMap, case: str) -> tuple[list[tuple[int, str]], float, str]:
    """Return a sort key that puts run_2 before run_10, and the steps of a run in the order of their times."""
    run, time = _run_and_time(about, case)
    return natural(run), time or 0.0, case


def step_of(about: CaseMap, case: str) -> Step:
    """Return the step at which a case's files are read; with `step: each`, the time in its name."""
    if about.step != "each":
        return about.step
    time = _run_and_time(about, case)[1]
    return "last" if time is None else AtTime(time=time)


def _run_and_time(about: CaseMap, case: str) -> tuple[str, float | None]:
    if about.step == "each" and "@" in case:
        run, _, time = case.rpartition("@")
        with suppress(ValueError):
            return run, float(time)
    return case, None


def _case_of_each_step(found: dict[str, dict[str, Steps]], workers: int) -> dict[str, Files]:
    alone = {own[None][0] for sets in found.values() for own in sets.values() if None in own}
    inside = dict(surviving_map(read_times, sorted(alone), min(workers, len(alone))))
    cases: dict[str, Files] = {}
    for run, sets in found.items():
        steps = {name: _steps(own, inside) for name, own in sets.items()}
        several = [set(own) for own in steps.values() if len(own) > 1]
        # A set with a single step, such as a shape, is used at every step of the other sets.
        common = set.intersection(*several) if several else max(map(set, steps.values()), key=len)
        for time in sorted(common, key=float) or [""]:
            cases[f"{run}@{time}" if time else run] = {
                name: steps[name].get(time, next(iter(own.values()))) for name, own in sets.items()
            }
    return cases


def _steps(own: Steps, inside: dict[Path, list[float] | RequestError]) -> Files:
    """Return the files of each step of a set, by the step's time as text."""
    if None not in own:
        return {f"{step:.12g}": paths for step, paths in own.items()}
    times = inside[own[None][0]]
    # If a file is unreadable, its error is raised later, when the case is made.
    return {} if isinstance(times, RequestError) else {f"{time:.12g}": own[None] for time in times}
