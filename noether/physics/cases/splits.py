"""Which cases are trained on, which select the weights, and which are tested on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.physics.cases.case_map import CaseMap, SplitMap
from noether.physics.cases.layout import natural
from noether.physics.cases.steps import run_of
from noether.physics.cases.tables import case_key, rows_by_case

SHOWN = 5  # unknown names of a split
NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test", "validation": "validation",
         "val": "validation", "valid": "validation"}  # fmt: skip


def split_cases(about: CaseMap, cases: Sequence[str], root: Path) -> dict[str, list[str]]:
    """Returns {train, validation, test}: the cases of each, in their natural order.

    A fraction is of all cases, drawn by the seed: the same for the same cases, whatever their order. Names in lists
    that are not among the cases (broken ones, or those not fetched) are left out. With `step: each`, runs are split:
    all steps of one are in the same split.

    Raises:
        RequestError: a list's file or the column cannot be read, a case is in two lists, or too few remain.
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
        chosen = {name: [] if isinstance(value, float) else _listed(value, ordered, root)
                  for name, value in wanted.items()}  # fmt: skip
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


def _listed(value: list[str] | str, ordered: Sequence[str], root: Path) -> list[str]:
    """The cases that a list names, or a file with one a line."""
    listed = set(_names_in(value, root))
    return [case for case in ordered if case in listed]


def _names_in(value: list[str] | str, root: Path) -> list[str]:
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
