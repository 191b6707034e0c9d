"""Prepares a folder of cases into the store: in parallel, each case whole or absent, current ones kept."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noether.data.cases.case_map import CaseMap, parse_map
from noether.data.cases.layout import find_cases, natural
from noether.data.cases.make_case import CaseJob, make_case
from noether.data.cases.metadata import gather, implausible, write_metadata
from noether.data.cases.splits import split_cases
from noether.data.cases.store import case_folder, read_case_file
from noether.data.cases.surviving_pool import surviving_map
from noether.data.shared_work import locked
from noether.errors import RequestError


@dataclass
class PreparedCases:
    """What a preparation did: the cases made, kept and broken (with the reason), the splits, and warnings."""

    made: int = 0
    kept: int = 0
    broken: dict[str, RequestError] = field(default_factory=dict)
    splits: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def plan_cases(root: Path, out: Path, about: CaseMap) -> tuple[list[CaseJob], dict[str, Any]]:
    """Returns the cases to make, and what is there and current: {case: its case.json}. RequestError as `find_cases`."""
    jobs, there = [], {}
    for case, files in find_cases(root, about).items():
        job = CaseJob(case, files, about, root, out)
        made = read_case_file(case_folder(out, case))
        if made is not None and made.get("mark") == job.mark():
            there[case] = made
        else:
            jobs.append(job)
    return jobs, there


def prepare_cases(
    root: Path,
    out: Path,
    map_text: str,
    map_name: str,
    *,
    workers: int,
    skip_broken: bool,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PreparedCases:
    """Makes the cases that the store lacks, and `dataset.json`.

    Args:
        root: the folder of the cases.
        out: the store's folder, which `dataset_root` then names.
        map_text, map_name: the map, and what it is called in errors.
        workers: processes; each holds one case at a time.
        skip_broken: leave out the cases that are refused, and name them, in place of ending with the first.
        progress: called with (cases done, cases in all).

    Raises:
        RequestError: the map does not fit, a case is broken, or the folder cannot be written.
    """
    about = parse_map(map_text, map_name)
    with _writing_to(out):
        jobs, cases = plan_cases(root, out, about)
        done, total = PreparedCases(kept=len(cases)), len(jobs) + len(cases)
        progress(len(cases), total)
        for job, result in surviving_map(make_case, jobs, max(1, min(workers, len(jobs)))):
            if isinstance(result, RequestError):
                # An earlier map or file made this one: it is out of date.
                shutil.rmtree(case_folder(out, job.case), ignore_errors=True)
                done.broken[job.case] = _named(job.case, result)
                if not skip_broken:
                    raise _named(job.case, result, "--skip-broken      (goes on without such cases, and names them)")
            else:
                cases[job.case] = result
                done.made += 1
            progress(len(cases) + len(done.broken), total)
        if not cases:
            raise next(iter(done.broken.values()))
        cases = {case: cases[case] for case in sorted(cases, key=lambda case: (natural(case), case))}
        done.splits = split_cases(about.split, list(cases), root)
        metadata = gather(about, map_text, cases, done.splits)
        metadata["broken"] = {case: str(error) for case, error in done.broken.items()}
        done.warnings = implausible(metadata)
        write_metadata(out, metadata)
    return done


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    """Holds the store's lock, once what killed processes left is gone. RequestError: the disk refuses."""
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
        with locked(out, "cases/.*.partial"):
            yield
    except OSError as error:
        raise RequestError(
            "cases-not-written",
            f"cannot write the cases to {out}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with room",
        ) from error


def _named(case: str, error: RequestError, *fixes: str) -> RequestError:
    fix = "\n".join(line for line in (error.fix, *fixes) if line)
    return RequestError(error.code, f"case {case}: {error.summary}", seen=error.seen, expected=error.expected, fix=fix)
