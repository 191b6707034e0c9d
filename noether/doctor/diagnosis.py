"""What a check found: its level, and the hosts and ranks that it concerns."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from noether.common.errors import RequestError, shown

Level = Literal["error", "warning", "skipped", "ok"]
LEVELS = get_args(Level)
"""Worst first. With an error a run cannot work; with a warning it works, but not as well as it could."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    `fix` is the line that fixes it. `hosts` and `ranks` say where it was found;
    both are empty if it concerns the whole run.
    """

    check: str
    level: Level
    seen: str
    expected: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


def skipped(check: str, reason: str) -> Diagnosis:
    """Return the result of a check that could not run."""
    return Diagnosis(check, "skipped", reason)


def first_of_problems(check: str, works: str, *problems: tuple[object, Level, str, str, str]) -> Diagnosis:
    """Return the first problem that is there, of (is there, level, seen, expected, fix); else "ok" and what `works`."""
    for is_there, *words in problems:
        if is_there:
            return Diagnosis(check, *words)  # type: ignore[arg-type]
    return Diagnosis(check, "ok", works)


def refused(check: str, error: RequestError) -> Diagnosis:
    """Return a RequestError as a finding: it would end a run, but the doctor continues."""
    summary = shown(error.summary, error.code)
    seen = f"{summary} ({error.seen})" if error.seen else summary
    return Diagnosis(check, "error", seen, error.expected, error.fix)


def merged(findings: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the findings, worst first, with the same finding from several hosts or ranks merged into one."""
    together: dict[Diagnosis, Diagnosis] = {}
    for finding in findings:
        key = replace(finding, hosts=(), ranks=())
        before = together.get(key, key)
        hosts = tuple(dict.fromkeys((*before.hosts, *finding.hosts)))
        ranks = tuple(sorted({*before.ranks, *finding.ranks}))
        together[key] = replace(before, hosts=hosts, ranks=ranks)
    return sorted(together.values(), key=lambda finding: LEVELS.index(finding.level))
