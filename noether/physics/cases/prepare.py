"""Prepares a folder of cases into the store: in parallel, each case whole or absent, current ones kept.

Any number of processes, on one host or many, may prepare one folder at once: each claims the cases that it makes
(`claims.py`), returns when all are there, and writes the same `dataset.json`.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.core.data.shared_work import Progress, locked, silent, surviving_map
from noether.physics.cars.shapenet_car import CarJob, car_jobs, shortfalls, split_cars
from noether.physics.cases.case_map import CaseMap, SplitMap, parse_map
from noether.physics.cases.claims import Claims
from noether.physics.cases.layout import find_cases, in_order, natural, run_of
from noether.physics.cases.make_case import CaseJob
from noether.physics.cases.metadata import gather, implausible, write_metadata
from noether.physics.cases.preflight import of_case, refuse_at_once, skippable
from noether.physics.cases.store import case_folder, read_case_file
from noether.physics.cases.survey import cases_in_another_unit
from noether.physics.cases.tables import case_key, rows_by_case

Job = CaseJob | CarJob
"""A case to prepare, whatever reads it: meshes by a map, or a data set's own files."""
LOOK_AGAIN = 1.0  # seconds between looks at the cases that other processes prepare
SHOWN = 5  # unknown names of a split
NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation",
         "val": "validation", "valid": "validation"}  # fmt: skip


@dataclass
class PreparedCases:
    """What a preparation did.

    cases: {case: its case.json} of all that are there. Cases that were made: by this process; kept: were there before;
    others: made meanwhile by other processes. broken: the cases that were refused, with the reason.
    """

    cases: dict[str, Any] = field(default_factory=dict)
    made: int = 0
    kept: int = 0
    others: int = 0
    broken: dict[str, RequestError] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def plan_cases(
    root: Path, out: Path, about: CaseMap, workers: int = 1, *, skip_broken: bool = True
) -> tuple[list[Job], dict[str, Any]]:
    """Returns the cases to make, and what is there and current: {case: its case.json}.

    RequestError as `find_cases`, and, where broken cases are not to be skipped, `refuse_at_once`.
    """
    jobs: list[Job] = []
    there = {}
    for job in _every_job(root, out, about, workers):
        if made := _current(job):
            there[job.case] = made
        else:
            jobs.append(job)
    if not skip_broken:
        problems = ((job.case, error) for job in jobs for error in job.problems())
        refuse_at_once(problems, unknown_names(about, [*there, *(job.case for job in jobs)], root))
    return jobs, there


def _every_job(root: Path, out: Path, about: CaseMap, workers: int) -> Sequence[Job]:
    if about.reader == "shapenet_car":
        return car_jobs(root, out)
    return [CaseJob(case, files, about, root, out) for case, files in find_cases(root, about, workers).items()]


def _current(job: Job) -> dict[str, Any] | None:
    made = read_case_file(case_folder(job.out, job.case))
    return made if made is not None and made.get("mark") == job.mark else None


def prepare_cases(
    root: Path, out: Path, map_text: str, map_name: str, *, workers: int, skip_broken: bool, progress: Progress = silent
) -> PreparedCases:
    """Makes the cases that the store lacks, and `dataset.json`.

    Args:
        root: the folder of the cases.
        out: the store's folder, which `dataset_root` then names.
        map_text, map_name: the map, and what it is called in errors.
        workers: processes; each holds one case at a time.
        skip_broken: leave out the cases that are refused, and name them, in place of ending with the first.
        progress: called with (cases done, cases in all).

    RequestError: the map does not fit, a case is broken, or the folder cannot be written.
    """
    about = parse_map(map_text, map_name)
    # First, so that a wrong path leaves nothing behind.
    jobs, cases = plan_cases(root, out, about, workers, skip_broken=skip_broken)
    with _writing_to(out):
        make, done, total = methodcaller("make"), PreparedCases(cases, kept=len(cases)), len(jobs) + len(cases)
        progress(len(cases), total)
        with Claims(out, hashlib.sha256(map_text.encode()).hexdigest()) as claims:
            while left := [job for job in jobs if job.case not in cases and job.case not in done.broken]:
                for job, result in surviving_map(make, _claimed(left, claims, done), min(workers, len(left))):
                    if isinstance(result, RequestError):
                        # An earlier map or file made this one: it is out of date.
                        shutil.rmtree(case_folder(out, job.case), ignore_errors=True)
                        done.broken[job.case] = of_case(job.case, result)
                        claims.refuse(job.case, done.broken[job.case])
                    else:
                        cases[job.case] = result
                        done.made += 1
                        claims.release(job.case)
                    _refuse_broken(done, skip_broken)
                    progress(len(cases) + len(done.broken), total)
                _refuse_broken(done, skip_broken)
                progress(len(cases) + len(done.broken), total)
                if len(cases) + len(done.broken) < total:
                    time.sleep(LOOK_AGAIN)
        if not cases:
            raise next(iter(done.broken.values()))
        alone = cases_in_another_unit(cases)  # Or really so large, which only the user knows.
        done.broken |= alone if skip_broken else {}
        done.cases = {case: cases[case] for case in sorted(cases.keys() - done.broken, key=partial(in_order, about))}
        done.splits, noticed = _splits(about, done, root)
        metadata = gather(about, map_text, done.cases, done.splits)
        metadata["broken"] = {case: str(error) for case, error in sorted(done.broken.items())}
        done.warnings = [str(skippable(error)) for error in alone.values() if not skip_broken]
        done.warnings += implausible(metadata) + noticed
        write_metadata(out, metadata)
    return done


def _splits(about: CaseMap, done: PreparedCases, root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The cases of each split, and what to notice of them, in words."""
    if about.reader == "shapenet_car":
        return split_cars(list(done.cases)), shortfalls(done.cases)
    unknown = unknown_names(about, [*done.cases, *done.broken], root)
    return split_cases(about, list(done.cases), root), unknown


def _claimed(jobs: Sequence[Job], claims: Claims, done: PreparedCases) -> Iterator[Job]:
    """Yields the cases that this process is to make, each once it is claimed; notes what others made or refused."""
    for job in jobs:
        refused = claims.refusal(job.case)
        taken = not refused and not _current(job) and claims.take(job.case)
        if refused:
            done.broken[job.case] = refused
        elif made := _current(job):  # perhaps by a process that gave its claim back between the two looks
            done.cases[job.case] = made
            done.others += 1
            claims.release(job.case)
        elif taken:
            yield job


def _refuse_broken(done: PreparedCases, skip_broken: bool) -> None:
    for error in () if skip_broken else done.broken.values():
        raise skippable(error)


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    """Removes what killed processes left, and says as a RequestError where the disk refuses."""
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
        with locked(out, "cases/.*.partial"):
            pass
        yield
    except OSError as error:
        raise RequestError(
            "cases-not-written",
            f"cannot write the cases to {out}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with room",
        ) from error


def split_cases(about: CaseMap, cases: Sequence[str], root: Path) -> dict[str, list[str]]:
    """Returns {train, validation, test}: the cases of each, in their natural order.

    A fraction is of all cases, drawn by the seed: the same for the same cases, whatever their order. Names in lists
    that are not among the cases (broken ones, or those not fetched) are left out. With `step: each`, runs are split:
    all steps of one are in the same split. RequestError: a list's file or the column cannot be read, a case is in two
    lists, or too few remain.
    """
    runs: dict[str, list[str]] = {}
    for case in cases:
        runs.setdefault(run_of(about, case), []).append(case)
    chosen = _split_runs(about.split, list(runs), root)
    if about.step == "each" and not chosen["validation"]:
        raise RequestError(
            "no-run-held-out",
            "no run is held out to validate on: training would hold out single steps of runs that it learns from",
            seen=f"split.validation: {about.split.validation}" if not about.split.column else "no run for validation",
            expected="runs of their own for validation, with step: each",
            fix="split: {test: 0.15, validation: 0.1}      (in the map)",
        )
    return {name: [case for run in own for case in runs[run]] for name, own in chosen.items()}


def _split_runs(about: SplitMap, runs: Sequence[str], root: Path) -> dict[str, list[str]]:
    ordered = sorted(runs, key=natural)
    if about.column:
        chosen = _by_column(about, ordered, root)
    else:
        wanted = {"test": about.test, "validation": about.validation}
        listed = {name: set() if isinstance(value, float) else set(_names_in(value, root))
                  for name, value in wanted.items()}  # fmt: skip
        chosen = {name: [case for case in ordered if case in own] for name, own in listed.items()}
        if both := [case for case in chosen["test"] if case in chosen["validation"]]:
            raise RequestError(
                "case-in-two-splits",
                "a case is in both the test and the validation split",
                seen=", ".join(both[:5]),
                expected="each case in one split",
            )
        free = [case for case in ordered if case not in chosen["test"] and case not in chosen["validation"]]
        drawn = [free[i] for i in np.random.default_rng(about.seed).permutation(len(free))]
        for name, value in wanted.items():
            if isinstance(value, float):
                count = _share(name, value, len(ordered))
                chosen[name], drawn = sorted(drawn[:count], key=natural), drawn[count:]
    held = {*chosen["test"], *chosen["validation"]}
    train = [case for case in ordered if case not in held]
    if len(train) < 2 or not chosen["test"]:
        fraction = 0.1 if len(ordered) > 3 else 0  # of three, none is left to validate with
        raise RequestError(
            "too-few-cases",
            "there are too few cases for this split",
            seen=f"{len(train)} to train on, {len(chosen['test'])} to test on, of {len(ordered)}",
            expected="at least 2 to train on and 1 to test on",
            fix=f"split: {{test: 0.2, validation: {fraction}}}      (or lists, in the map)" if len(ordered) > 2 else "",
        )
    return {"train": train, "validation": chosen["validation"], "test": chosen["test"]}


def _share(name: str, fraction: float, cases: int) -> int:
    if not 0 <= fraction < 1:
        raise RequestError(
            "split-not-a-fraction",
            f"split.{name} is not a fraction",
            seen=f"{fraction:g}",
            expected="0 to 1, or a list of cases",
        )
    return max(1, round(fraction * cases)) if fraction else 0


def _names_in(value: list[str] | str, root: Path) -> list[str]:
    """The cases that a list names, or a file with one a line."""
    if isinstance(value, str):
        path = root / value
        if not path.is_file():
            raise RequestError(
                "split-list-missing",
                "the list of a split is missing",
                seen=f"no file {path}",
                expected="a file with one case on each line",
            )
        value = [line.strip().removesuffix(",") for line in path.read_text().splitlines()]
    return value


def unknown_names(about: CaseMap, cases: Sequence[str], root: Path) -> list[str]:
    """Says which names in the lists of a split are of no case, each with the nearest that is: a typing error, or a case
    that was not fetched."""
    words, there = [], {run_of(about, case) for case in cases}
    for name, value in (("test", about.split.test), ("validation", about.split.validation)):
        named = [] if about.split.column or isinstance(value, float) else _names_in(value, root)
        if unknown := [case for case in named if case and case not in there]:
            near = {case: nearest(case, there) for case in unknown[:SHOWN]}
            said = [f"{case} (is it {meant}?)" if meant else case for case, meant in near.items()]
            more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
            words.append(f"split.{name} names no case: {', '.join(said)}{more}")
    return words


def _by_column(about: SplitMap, ordered: Sequence[str], root: Path) -> dict[str, list[str]]:
    rows = rows_by_case(root / (about.file or ""), about.row)
    found: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for case in ordered:
        own = [row.get(about.column or "", "") for row in rows.get(case_key(case), [])]
        name = NAMES.get(own[0].lower()) if len(own) == 1 else None
        if name is None:
            raise RequestError(
                "case-without-split",
                f"{about.file} does not say where case {case} belongs",
                seen=", ".join(own) or f"no row with {case} in column {about.row!r}",
                expected="train, validation or test",
            )
        found[name].append(case)
    return {name: found[name] for name in ("validation", "test")}
