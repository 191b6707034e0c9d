"""What can be known to be wrong before a mesh is read: all problems of all cases are told at once."""

from collections.abc import Sequence

from noether.data.cases.job import PreparationJob
from noether.errors import RequestError

SHOWN = 20


def refuse_at_once(jobs: Sequence[PreparationJob], unknown: Sequence[str]) -> None:
    """Refuses cases that lack a file, a number or an array that the map names, and `unknown` names of splits, in words.

    Raises:
        RequestError: naming the first twenty problems, each with its reason.
    """
    found = [(job.case, error) for job in jobs for error in job.problems()]
    lines = [f"case {case}: {error.summary} ({error.seen})" for case, error in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more, in {len({case for case, _ in found})} cases")
    goes_on = "--skip-broken      (goes on without such cases, and names them)"
    if not found and unknown:
        raise RequestError(
            "split-names-no-case",
            "the map's split names what is no case",
            seen="\n".join(unknown),
            expected="names of cases",
            fix=goes_on,
        )
    if len(found) == 1 and not unknown:
        case, only = found[0]
        fix = "\n".join(filter(None, [only.fix, goes_on]))
        raise RequestError(only.code, f"case {case}: {only.summary}", seen=only.seen, expected=only.expected, fix=fix)
    if found:
        fixes = dict.fromkeys(error.fix for _, error in found if error.fix)
        raise RequestError(
            found[0][1].code,
            f"{len(found) + len(unknown)} problems, and nothing was prepared",
            seen="\n".join([*lines, *unknown]),
            expected="in every case what the map names",
            fix="\n".join([*list(fixes)[:3], goes_on]),
        )
