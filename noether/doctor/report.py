"""Prints the doctor's findings as a table, with the worst first, or as one JSON object."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from rich.table import Column, Table
from rich.text import Text

from noether import __version__
from noether.common.console import Console
from noether.common.errors import RequestError, shown
from noether.common.numbers import counted, first_of
from noether.launch.detect.placement import Placement

Level = Literal["error", "warning", "skipped", "ok"]
LEVELS = get_args(Level)
"""The levels, worst first. An error stops every run from working; a warning means that runs work less well."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    `fix`: the line that fixes the problem. `hosts` and `ranks`: where the problem was found; both are empty if it
    concerns the whole run.
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
    """Return the first problem (exists, level, seen, expected, fix) that exists, else "ok" with the text `works`."""
    for is_there, *words in problems:
        if is_there:
            return Diagnosis(check, *words)  # type: ignore[arg-type]
    return Diagnosis(check, "ok", works)


def refused(check: str, error: RequestError) -> Diagnosis:
    """Return a RequestError, which would end a run, as a finding, because the doctor must continue."""
    summary = shown(error.summary, error.code)
    seen = f"{summary} ({error.seen})" if error.seen else summary
    return Diagnosis(check, "error", seen, error.expected, error.fix)


def merged(findings: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Merge equal findings of several hosts or ranks into one; return the findings, worst first."""
    together: dict[Diagnosis, Diagnosis] = {}
    for finding in findings:
        key = replace(finding, hosts=(), ranks=())
        before = together.get(key, key)
        hosts = tuple(dict.fromkeys((*before.hosts, *finding.hosts)))
        ranks = tuple(sorted({*before.ranks, *finding.ranks}))
        together[key] = replace(before, hosts=hosts, ranks=ranks)
    return sorted(together.values(), key=lambda finding: LEVELS.index(finding.level))


STYLES = {"error": "bold red", "warning": "yellow", "skipped": "dim", "ok": "green"}
HOSTS_SHOWN = 4


@dataclass
class DoctorReport:
    """Everything that the doctor has found so far. The watchdog can print it at any time."""

    findings: list[Diagnosis] = field(default_factory=list)
    placement: Placement | None = None
    host: str = ""
    hosts: list[dict[str, Any]] = field(default_factory=list)
    to_stderr: bool = False
    started: float = field(default_factory=time.monotonic)

    def add(self, told: dict[str, Any]) -> None:
        """Add the report of a process. A host with several processes has one entry, with all ranks of the host."""
        facts, ranks = told["facts"], told["ranks"]
        found = [Diagnosis(*words) for words in told["findings"]]
        self.findings += [replace(finding, hosts=(facts["host"],), ranks=tuple(ranks)) for finding in found]
        for entry in self.hosts:
            if entry["facts"]["host"] == facts["host"] and entry["facts"]["boot"] == facts["boot"]:
                entry["ranks"] = sorted({*entry["ranks"], *ranks})
                return
        self.hosts.append({"ranks": list(ranks), "facts": facts})

    def as_follower(self) -> None:
        """Keep only errors and warnings, and print to standard error, because rank 0 prints to standard output."""
        self.to_stderr = True
        self.findings = [finding for finding in self.findings if finding.level in ("error", "warning")]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            "noether": __version__, "host": self.host, "launcher": self.placement.launcher if self.placement else "",
            "world_size": self.placement.world_size if self.placement else 0,
            "nodes": list(self.placement.nodes) if self.placement else [],
            "seconds": round(time.monotonic() - self.started, 1), "hosts": self.hosts,
            "findings": [asdict(finding) for finding in merged(self.findings)],
        }  # fmt: skip


def print_report(report: DoctorReport, as_json: bool) -> None:
    """Print the report: to standard output or, in a process that did not reach rank 0, to standard error."""
    stream = sys.stderr if report.to_stderr else sys.stdout
    if as_json and not report.to_stderr:
        print(json.dumps(report.as_dict(), indent=2), file=stream, flush=True)
        return
    findings, hosts = merged(report.findings), len(report.hosts)
    head, place = f"noether doctor: no ranks on {report.host}", report.placement
    if place is not None:
        ranks = counted(place.world_size, "rank")
        head = f"noether doctor: {place.launcher}, {ranks} on {', '.join(place.nodes[:HOSTS_SHOWN])}"
    if report.to_stderr:
        head = f"noether doctor on {report.host}, which could not report to rank 0"
    table = Table.grid(Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for finding in findings:
        is_of_some = finding.hosts and (not hosts or len(finding.hosts) < hosts)
        where = f"{first_of(finding.hosts, HOSTS_SHOWN)}: " if is_of_some else ""
        seen = Text.assemble((where, "bold"), finding.seen)
        table.add_row(Text(finding.level, style=STYLES[finding.level]), finding.check, seen)
        if finding.level in ("error", "warning"):
            for label, text in (("expected", finding.expected), ("fix", finding.fix)):
                if text:
                    table.add_row("", Text(label, style="dim"), Text(text))
    counts = Counter(finding.level for finding in findings)
    parts = [*(counted(counts[level], level) for level in ("error", "warning")), f"{counts['ok']} ok"]
    summary = ", ".join(parts) + (f", {counts['skipped']} skipped" if counts["skipped"] else "")
    console, seconds = Console(None, speaks=True, stream=stream), time.monotonic() - report.started
    console.say(Text(head, style="bold"), table, f"{summary}; {seconds:.0f} s", sep="\n")
    stream.flush()
