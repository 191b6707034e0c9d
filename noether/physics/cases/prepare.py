"""Prepare a folder of cases into the store in parallel, each case completely or not at all; keep up-to-date cases."""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from operator import methodcaller
from pathlib import Path
from typing import Any, Self

import numpy as np

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.common.processes import this_process, was_alive
from noether.common.suggest import nearest
from noether.core.data.shared_work import Progress, locked, silent, surviving_map
from noether.physics.cars.shapenet_car import CarJob, car_jobs, shortfalls, split_cars
from noether.physics.cases.case_map import CaseMap, SplitMap, parse_map
from noether.physics.cases.cells import in_no_set
from noether.physics.cases.dataset import gather, implausible, write_metadata
from noether.physics.cases.layout import files_of, find_cases, in_order, leftovers, list_files, natural, run_of
from noether.physics.cases.make_case import CaseJob, of_case, refuse_at_once, skippable
from noether.physics.cases.mesh_blocks import files_behind
from noether.physics.cases.openfoam import MESH, folder_of
from noether.physics.cases.store import case_folder, read_case_file
from noether.physics.cases.survey import cases_in_another_unit
from noether.physics.cases.tables import case_key, rows_by_case

FOLDER = ".preparing"
HEARTBEAT = 20.0
EXPIRED = 200.0  # several heartbeats, plus the minute for which an NFS client may cache an old modification time


@dataclass
class Claims:
    """A process's claims on cases of a store, released when the context exits. All processes must use the same map."""

    out: Path
    map_digest: str
    _held: dict[str, Path] = field(default_factory=dict)
    _watched: dict[tuple[Path, int], float] = field(default_factory=dict)
    """When claims of other processes were first seen in their present state, {(path, modification time): when}."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        (self.out / FOLDER).mkdir(exist_ok=True)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for case in list(self._held):
            self.release(case)
        for path in (self.out / FOLDER).iterdir():  # claims left by processes that completed a case and then died
            if _is_gone(_content(path)):
                path.unlink(missing_ok=True)

    def take(self, case: str) -> bool:
        """Claim a case; return False if another process holds it. RequestError: that process uses another map."""
        there = self._on(case)
        if there and not self._is_dead(there[-1]):
            return False
        path = self._path(case, len(there) + 1)
        try:
            with path.open("x") as file:
                file.write(json.dumps({"map": self.map_digest, **this_process()}))
        except FileExistsError:
            return False
        self._held[case] = path
        return True

    def release(self, case: str) -> None:
        """Remove this process's claim on a case, and the stale claims of dead processes on it."""
        if held := self._held.pop(case, None):
            for number in range(int(held.name.rpartition("-")[2]), 0, -1):
                self._path(case, number).unlink(missing_ok=True)

    def refuse(self, case: str, error: RequestError) -> None:
        """Record in this process's claim that the case is broken, so that other processes know; keep the claim."""
        path = self._held[case]
        path.write_text(json.dumps({**json.loads(path.read_text()), "refused": error.parts}))

    def refusal(self, case: str) -> RequestError | None:
        """Return the error that another process recorded for a case, if any."""
        refused = (_content(path).get("refused") for path in self._on(case))
        return next((RequestError(**parts) for parts in refused if parts), None)

    def _on(self, case: str) -> list[Path]:
        """Return the claims on a case: the last is the present one, and the others are from processes that died."""
        return list(takewhile(Path.exists, (self._path(case, number) for number in count(1))))

    def _path(self, case: str, number: int) -> Path:
        return self.out / FOLDER / f"{case.replace('/', '-')}-{number}"

    def _is_dead(self, path: Path) -> bool:
        content = _content(path)
        try:
            changed = path.stat().st_mtime_ns
        except FileNotFoundError:
            return False  # The claim was released; the next check of the case shows why.
        if _is_gone(content):
            return True
        now = time.monotonic()
        if now - self._watched.setdefault((path, changed), now) > EXPIRED:
            return True
        if content.get("map", self.map_digest) != self.map_digest:
            raise RequestError("store-prepared-by-another-map", f"{self.out} is being prepared with another map",
                               seen=f"process {content['pid']} on {content['host']}",
                               expected="the same map in all processes that share a folder",
                               fix="use another OUT, or wait until that process has ended")  # fmt: skip
        return False

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            for path in list(self._held.values()):
                with suppress(OSError):
                    os.utime(path)


def _content(path: Path) -> dict[str, Any]:
    """Return a claim's contents; {} if the claim is gone or is being written."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _is_gone(content: Mapping[str, Any]) -> bool:
    """Return whether a claim's process has certainly ended."""
    return bool(content) and was_alive(*(content[key] for key in ("host", "boot", "pid", "started"))) is False


Job = CaseJob | CarJob
"""A case to prepare: from meshes by a map, or from a data set's own files."""
LOOK_AGAIN = 1.0  # seconds between checks of the cases that other processes prepare
SHOWN = 5  # unknown names shown per split
NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation",
         "val": "validation", "valid": "validation"}  # fmt: skip


@dataclass
class PreparedCases:
    """The result of a preparation.

    cases: {case: its case.json} of all complete cases; made, kept, others: counts of the cases that this process made,
    that were already up to date, and that other processes made; broken: {refused case: reason}; notes: descriptions of
    files that are not read, and of contents of files that are in no set.
    """

    cases: dict[str, Any] = field(default_factory=dict)
    made: int = 0
    kept: int = 0
    others: int = 0
    broken: dict[str, RequestError] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skip_broken: bool = True

    def refuse(self, case: str, error: RequestError) -> None:
        """Record that a case is broken. RequestError: `skip_broken` is false."""
        self.broken[case] = error
        if not self.skip_broken:
            raise skippable(error)


def plan_cases(
    root: Path, out: Path, about: CaseMap, workers: int = 1, *, skip_broken: bool = True
) -> tuple[list[Job], dict[str, Any], list[str]]:
    """Return the cases to make, the up-to-date cases {case: its case.json}, and descriptions of unread files.

    RequestError as for `find_cases` and, if `skip_broken` is false, as for `refuse_at_once`.
    """
    jobs: list[Job] = []
    there = {}
    every: Sequence[Job] = car_jobs(root, out) if about.reader == "shapenet_car" else [
        CaseJob(case, files, about, root, out) for case, files in find_cases(root, about, workers).items()
    ]  # fmt: skip
    for job in every:
        if made := _current(job):
            there[job.case] = made
        else:
            jobs.append(job)
    if not skip_broken:
        problems = ((job.case, error) for job in jobs for error in job.problems())
        refuse_at_once(problems, unknown_names(about, [*there, *(job.case for job in jobs)], root))
    return jobs, there, _unread(root, about, every)


def _unread(root: Path, about: CaseMap, jobs: Sequence[Job]) -> list[str]:
    """Describe the files of the folder that a map does not read."""
    files, taken = list_files(root) if about.reader == "meshes" else [], set[str]()
    for job in jobs:
        if isinstance(job, CaseJob):
            paths = [path for name in job.files for own in job.files[name]
                     for path in ([folder_of(own)] if own.name == MESH else files_behind(own))]  # fmt: skip
            tables = [table for name in job.files if (table := job.values(name))]
            taken.update(os.path.relpath(path, root) for path in (*paths, *tables))
    named = [about.split.file, *(own.file for own in (*about.parameters.values(), *about.outputs.values()))]
    lists = [own for own in (about.split.test, about.split.validation) if isinstance(own, str)]
    for template in dict.fromkeys(filter(None, (*named, *lists))):
        taken |= files_of(template, files)
    return leftovers(files, taken, {run_of(about, job.case) for job in jobs})


def _left_out(cases: Mapping[str, Any]) -> list[str]:
    """Describe, once for all cases, what their files contain that is in no set, and where other results are."""
    left: dict[str, dict[str, dict[tuple[str, str], int]]] = {}
    elsewhere: dict[str, list[str]] = {}
    for case, made in cases.items():
        for file, what, block, number in made.get("left", ()):
            left.setdefault(file, {}).setdefault(case, {})[what, block] = number
        for words in made.get("elsewhere", ()):
            elsewhere.setdefault(words, []).append(case)
    said = [
        f"{file}: {in_no_set(list(own.values()))}, in {len(own)} of {len(cases)} cases" for file, own in left.items()
    ]
    return said + [f"{first_of(own, SHOWN)}: {words}" for words, own in elsewhere.items()]


def _current(job: Job) -> dict[str, Any] | None:
    made = read_case_file(case_folder(job.out, job.case))
    return made if made is not None and made.get("mark") == job.fingerprint else None


def prepare_cases(
    root: Path, out: Path, map_text: str, map_name: str, *, workers: int, skip_broken: bool, progress: Progress = silent
) -> PreparedCases:
    """Make the cases that the store lacks, and `dataset.json`.

    map_name: the map's name in errors; skip_broken: leave out broken cases, and name them, instead of raising the first
    error; progress: called with (cases done, cases in all). RequestError: the map does not fit, a case is broken, or
    the folder cannot be written.
    """
    about = parse_map(map_text, map_name)
    # Nothing is written before the plan is made, so that a wrong path leaves nothing behind.
    jobs, cases, not_read = plan_cases(root, out, about, workers, skip_broken=skip_broken)
    with _writing_to(out):
        done = PreparedCases(cases, kept=len(cases), skip_broken=skip_broken)
        make, total = methodcaller("make"), len(jobs) + len(cases)
        progress(len(cases), total)
        with Claims(out, hashlib.sha256(map_text.encode()).hexdigest()) as claims:
            while left := [job for job in jobs if job.case not in cases and job.case not in done.broken]:
                for job, result in surviving_map(make, _claimed(left, claims, done), min(workers, len(left))):
                    if isinstance(result, RequestError):
                        # If the case has a folder from an earlier preparation, that folder is out of date.
                        shutil.rmtree(case_folder(out, job.case), ignore_errors=True)
                        refused = of_case(job.case, result)
                        claims.refuse(job.case, refused)
                        done.refuse(job.case, refused)
                    else:
                        cases[job.case] = result
                        done.made += 1
                        claims.release(job.case)
                    progress(len(cases) + len(done.broken), total)
                progress(len(cases) + len(done.broken), total)
                if len(cases) + len(done.broken) < total:
                    time.sleep(LOOK_AGAIN)
        if not cases:
            raise next(iter(done.broken.values()))
        alone = cases_in_another_unit(cases)  # Only the user knows whether these cases really are that large.
        done.broken |= alone if skip_broken else {}
        done.cases = {case: cases[case] for case in sorted(cases.keys() - done.broken, key=partial(in_order, about))}
        if about.reader == "shapenet_car":
            done.splits, noticed = split_cars(list(done.cases)), shortfalls(done.cases)
        else:
            noticed = unknown_names(about, [*done.cases, *done.broken], root)
            done.splits = split_cases(about, list(done.cases), root)
        metadata = gather(about, map_text, done.cases, done.splits)
        metadata["broken"] = {case: str(error) for case, error in sorted(done.broken.items())}
        done.warnings = [str(skippable(error)) for error in alone.values() if not skip_broken]
        done.warnings += implausible(metadata) + noticed
        done.notes = _left_out(done.cases) + not_read
        write_metadata(out, metadata)
    return done


def _claimed(jobs: Sequence[Job], claims: Claims, done: PreparedCases) -> Iterator[Job]:
    """Claim and yield the cases that this process is to make; record the cases that others have made or refused."""
    for job in jobs:
        refused = claims.refusal(job.case)
        taken = not refused and not _current(job) and claims.take(job.case)
        if refused:
            done.refuse(job.case, refused)
        elif made := _current(job):  # perhaps by a process that released its claim between the two checks
            done.cases[job.case] = made
            done.others += 1
            claims.release(job.case)
        elif taken:
            yield job


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    """Remove the partial folders of killed processes, and turn an OSError in the context into a RequestError."""
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
        with locked(out, "cases/.*.partial"):
            pass
        yield
    except OSError as error:
        raise RequestError("cases-not-written", f"cannot write the cases to {out}",
                           seen=f"{type(error).__name__}: {error}",
                           expected="a folder that this user can write to, with free space") from error  # fmt: skip


def split_cases(about: CaseMap, cases: Sequence[str], root: Path) -> dict[str, list[str]]:
    """Return the cases of each split, {train, validation, test: [case]}, in their natural order.

    A fraction of all cases is drawn with the seed, independently of their order. A listed name that is not a case is
    ignored. With `step: each`, all steps of a run are in the same split. RequestError: a list's file or the column
    cannot be read, a case is in two lists, too few cases remain, or `step: each` leaves no run for validation.
    """
    runs: dict[str, list[str]] = {}
    for case in cases:
        runs.setdefault(run_of(about, case), []).append(case)
    chosen = _split_runs(about.split, list(runs), root)
    if about.step == "each" and not chosen["validation"]:
        raise RequestError(
            "no-run-held-out",
            "no run is held out for validation: training would hold out single steps of the runs it trains on",
            seen=f"split.validation: {about.split.validation}" if not about.split.column else "no run for validation",
            expected="separate runs for validation, with step: each",
            fix="split: {test: 0.15, validation: 0.1}      (in the map)",
        )
    return {name: [case for run in own for case in runs[run]] for name, own in chosen.items()}


def _split_runs(about: SplitMap, runs: Sequence[str], root: Path) -> dict[str, list[str]]:
    ordered = sorted(runs, key=natural)
    wanted = _by_column(about, ordered, root) if about.column else {"test": about.test, "validation": about.validation}
    listed = {name: set(_names_in(value, root)) for name, value in wanted.items()}
    chosen = {name: [case for case in ordered if case in own] for name, own in listed.items()}
    if both := [case for case in chosen["test"] if case in listed["validation"]]:
        raise RequestError("case-in-two-splits", "a case is in both the test and the validation split",
                           seen=", ".join(both[:5]), expected="each case in one split")  # fmt: skip
    taken = listed["test"] | listed["validation"]
    free = [case for case in ordered if case not in taken]
    drawn = [free[i] for i in np.random.default_rng(about.seed).permutation(len(free))]
    for name, value in wanted.items():
        if not isinstance(value, float):
            continue
        if not 0 <= value < 1:
            raise RequestError("split-not-a-fraction", f"split.{name} is not a fraction", seen=f"{value:g}",
                               expected="a number from 0 to less than 1, or a list of cases")  # fmt: skip
        count = max(1, round(value * len(ordered))) if value else 0
        chosen[name], drawn = sorted(drawn[:count], key=natural), drawn[count:]
    held = {*chosen["test"], *chosen["validation"]}
    train = [case for case in ordered if case not in held]
    if len(train) < 2 or not chosen["test"]:
        fraction = 0.1 if len(ordered) > 3 else 0  # with three cases, none is left for validation
        raise RequestError(
            "too-few-cases",
            "there are too few cases for this split",
            seen=f"{len(train)} to train on, {len(chosen['test'])} to test on, of {len(ordered)}",
            expected="at least 2 to train on and 1 to test on",
            fix=f"split: {{test: 0.2, validation: {fraction}}}      (or lists, in the map)" if len(ordered) > 2 else "",
        )
    return {"train": train, "validation": chosen["validation"], "test": chosen["test"]}


def _names_in(value: float | list[str] | str, root: Path) -> list[str]:
    """Return the cases named in a list, or in a file with a case on each line; [] for a fraction."""
    if not isinstance(value, str):
        return value if isinstance(value, list) else []
    path = root / value
    if not path.is_file():
        raise RequestError("split-list-missing", "the list of a split is missing", seen=f"no file {path}",
                           expected="a file with one case on each line")  # fmt: skip
    return [line.strip().removesuffix(",") for line in path.read_text().splitlines()]


def unknown_names(about: CaseMap, cases: Sequence[str], root: Path) -> list[str]:
    """Describe the names in the map's split that are not cases; suggest the nearest case for each."""
    words, there = [], {run_of(about, case) for case in cases}
    for name, value in (("test", about.split.test), ("validation", about.split.validation)):
        named = [] if about.split.column else _names_in(value, root)
        if unknown := [case for case in named if case and case not in there]:
            near = [(case, nearest(case, there)) for case in unknown[:SHOWN]]
            said = [f"{case} (did you mean {meant}?)" if meant else case for case, meant in near]
            words.append(f"split.{name} names no case: {first_of(said + unknown[SHOWN:], SHOWN)}")
    return words


def _by_column(about: SplitMap, ordered: Sequence[str], root: Path) -> dict[str, list[str] | str | float]:
    rows = rows_by_case(root / (about.file or ""), about.row)
    found: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for case in ordered:
        own = [row.get(about.column or "", "") for row in rows.get(case_key(case), [])]
        name = NAMES.get(own[0].lower()) if len(own) == 1 else None
        if name is None:
            raise RequestError("case-without-split", f"{about.file} does not state which split case {case} is in",
                               seen=", ".join(own) or f"no row with {case} in column {about.row!r}",
                               expected="train, validation or test")  # fmt: skip
        found[name].append(case)
    return {name: found[name] for name in ("validation", "test")}
