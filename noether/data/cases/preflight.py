"""What can be known to be wrong before a mesh is read: all problems of all cases are told at once."""

from collections.abc import Sequence

from noether.data.cases.job import PreparationJob
from noether.errors import RequestError

SHOWN = 20


def refuse_at_once(jobs: Sequence[PreparationJob]) -> None:
    """Refuses cases that lack a file of a set, or a number that the map names.

    Raises:
        RequestError: naming the first twenty of them, each with its reason.
    """
    found: dict[str, RequestError] = {}
    for job in jobs:
        try:
            job.check()
        except RequestError as error:
            found[job.case] = error
    if not found:
        return
    lines = [f"case {case}: {error.summary} ({error.seen})" for case, error in list(found.items())[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    first = next(iter(found.values()))
    fixes = [first.fix] if first.fix else []
    raise RequestError(
        first.code,
        lines[0].partition(" (")[0] if len(found) == 1 else f"{len(found)} cases lack what the map names",
        seen="\n".join(lines) if len(found) > 1 else first.seen,
        expected=first.expected,
        fix="\n".join([*fixes, "--skip-broken      (goes on without such cases, and names them)"]),
    )
