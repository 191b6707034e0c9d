"""Prepares a folder of cases into the store: in parallel, each case whole or absent, current ones kept."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noether.common.strict_json import strict_json
from noether.data.cases.case_map import parse_map
from noether.data.cases.layout import find_cases
from noether.data.cases.make_case import CaseJob, make_case
from noether.data.cases.metadata import DATASET_FILE, gather
from noether.data.cases.plausible import implausible
from noether.data.cases.splits import split_cases
from noether.data.cases.store import case_folder, read_case_file, remove_leftovers
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


def plan_cases(root: Path, out: Path, map_text: str, map_name: str) -> tuple[list[CaseJob], dict[str, Any]]:
    """Returns the cases to make, and what is there and current: {case: its case.json}. RequestError as `find_cases`."""
    about = parse_map(map_text, map_name)
    jobs, there = [], {}
    for case, files in find_cases(root, about).items():
        job = CaseJob(case, files, about, map_name, root, out)
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
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
        with locked(out):
            return _prepare(root, out, (map_text, map_name), workers, skip_broken, progress)
    except OSError as error:
        raise RequestError(
            f"cannot write the cases to {out}",
            seen=f"{type(error).__name__}: {error}",
            expected="a folder this user can write to, with room",
        ) from error


def _prepare(
    root: Path,
    out: Path,
    mapped: tuple[str, str],
    workers: int,
    skip_broken: bool,
    progress: Callable[[int, int], None],
) -> PreparedCases:
    about = parse_map(*mapped)
    remove_leftovers(out)
    jobs, cases = plan_cases(root, out, *mapped)
    order = list(find_cases(root, about))
    done = PreparedCases(kept=len(cases))
    progress(len(cases), len(jobs) + len(cases))
    for job, result in surviving_map(make_case, jobs, max(1, min(workers, len(jobs)))):
        if isinstance(result, RequestError):
            # An earlier map or file made this one: it is out of date.
            shutil.rmtree(case_folder(out, job.case), ignore_errors=True)
            done.broken[job.case] = result
            if not skip_broken:
                raise _with_skip(job.case, result)
        else:
            cases[job.case] = result
            done.made += 1
        progress(len(cases) + len(done.broken), len(order))
    if not cases:
        raise next(iter(done.broken.values()))
    done.splits = split_cases(about.split, list(cases), root)
    metadata = gather(about, mapped[0], {case: cases[case] for case in order if case in cases}, done.splits)
    metadata["broken"] = {case: str(error) for case, error in done.broken.items()}
    done.warnings = implausible(metadata)
    _write(out / DATASET_FILE, metadata)
    return done


def _with_skip(case: str, error: RequestError) -> RequestError:
    summary = error.summary if case in error.summary else f"case {case}: {error.summary}"
    fix = "\n".join(
        line for line in (error.fix, "--skip-broken      (goes on without such cases, and names them)") if line
    )
    return RequestError(summary, seen=error.seen, expected=error.expected, fix=fix)


def _write(path: Path, metadata: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(strict_json(dict(metadata), indent=1) + "\n")
    partial.replace(path)
