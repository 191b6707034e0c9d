"""The step in time of its files that each case is: the one that the map asks for or, with `each`, every one."""

from contextlib import suppress
from pathlib import Path

from noether.common.errors import RequestError
from noether.core.data.surviving_pool import surviving_map
from noether.physics.cases.case_map import AtTime, CaseMap, Step
from noether.physics.cases.layout import files_of_cases, natural
from noether.physics.cases.mesh_blocks import chosen, read_times

Files = dict[str, Path]
"""The file of each set of a case."""


def find_cases(root: Path, about: CaseMap, workers: int = 1) -> dict[str, Files]:
    """The file of each set of each case: {case: {set: path}}; a set that a case lacks is not among them.

    With `step: each` a case is called RUN@TIME, and `run_of` and `step_of` say what that means; a run without steps
    keeps its name. Only then are files opened, by `workers` processes. RequestError as `files_of_cases`.
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
    """What files and tables call a case: with `step: each`, its name without the time."""
    return _run_and_time(about, case)[0]


def in_order(about: CaseMap, case: str) -> tuple[list[tuple[int, str]], float, str]:
    """A key by which run_2 comes before run_10, and the steps of a run follow their times."""
    run, time = _run_and_time(about, case)
    return natural(run), time or 0.0, case


def step_of(about: CaseMap, case: str) -> Step:
    """The step at which a case's files are read; with `step: each`, the time in its name."""
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


def _case_of_each_step(found: dict[str, dict[str, dict[float | None, Path]]], workers: int) -> dict[str, Files]:
    alone = {own[None] for sets in found.values() for own in sets.values() if None in own}
    inside = dict(surviving_map(read_times, sorted(alone), min(workers, len(alone))))
    cases: dict[str, Files] = {}
    for run, sets in found.items():
        steps = {name: _steps(own, inside) for name, own in sets.items()}
        several = [set(own) for own in steps.values() if len(own) > 1]
        # A set of one step, such as a shape, is the same at every step of the others.
        common = set.intersection(*several) if several else max(map(set, steps.values()), key=len)
        for time in sorted(common, key=float) or [""]:
            cases[f"{run}@{time}" if time else run] = {
                name: steps[name].get(time, next(iter(own.values()))) for name, own in sets.items()
            }
    return cases


def _steps(own: dict[float | None, Path], inside: dict[Path, list[float] | RequestError]) -> dict[str, Path]:
    """The file of each step of a set, by its time in words."""
    if None not in own:
        return {f"{step:.12g}": path for step, path in own.items()}
    times = inside[own[None]]
    # What is wrong with a file is told when it is read.
    return {} if isinstance(times, RequestError) else {f"{time:.12g}": own[None] for time in times}
