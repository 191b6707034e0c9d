"""What a check says: one finding, its level, and on which hosts and ranks it holds."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from noether.errors import RequestError

LEVELS = ("error", "warning", "skipped", "ok")
"""Worst first. An error keeps a run from working; a warning lets it work worse than it could."""


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    `level` is one of `LEVELS`; of a skipped check `expected` says what would have been needed. `fix` is the line to
    write. `hosts` and `ranks` are where it was found; both are empty for what concerns the whole run.
    """

    check: str
    level: str
    seen: str
    expected: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding for JSON."""
        return {**asdict(self), "hosts": list(self.hosts), "ranks": list(self.ranks)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Finding":
        """Returns what `as_dict` was made of."""
        return cls(**{**fields, "hosts": tuple(fields["hosts"]), "ranks": tuple(fields["ranks"])})


def skipped(check: str, reason: str) -> Finding:
    """Returns the finding of a check that could not be made."""
    return Finding(check, "skipped", reason)


def refused(check: str, error: RequestError) -> Finding:
    """Returns a refusal as a finding: the doctor goes on where a run would end."""
    seen = f"{error.summary} ({error.seen})" if error.seen else error.summary
    return Finding(check, "error", seen, error.expected, error.fix)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings worst first, those that say the same of several hosts or ranks as one."""
    together: dict[Finding, Finding] = {}
    for finding in findings:
        key = replace(finding, hosts=(), ranks=())
        before = together.get(key, key)
        hosts = tuple(dict.fromkeys((*before.hosts, *finding.hosts)))
        ranks = tuple(sorted({*before.ranks, *finding.ranks}))
        together[key] = replace(before, hosts=hosts, ranks=ranks)
    return sorted(together.values(), key=lambda finding: LEVELS.index(finding.level))
