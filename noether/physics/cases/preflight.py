"""What can be known to be wrong before a mesh is read: all problems of all cases are told at once."""

from collections.abc import Iterable, Sequence

from noether.common.errors import RequestError

SHOWN = 20
GOES_ON = "--skip-broken      (goes on without such cases, and names them)"


def of_case(case: str, error: RequestError) -> RequestError:
    """Returns what is wrong with a case, which its summary names."""
    return RequestError(**error.parts | {"summary": f"case {case}: {error.summary}"})


def skippable(error: RequestError) -> RequestError:
    """Returns a refusal whose fix offers to leave such cases out, too."""
    return RequestError(**error.parts | {"fix": f"{error.fix}\n{GOES_ON}".lstrip()})


def refuse_at_once(problems: Iterable[tuple[str, RequestError]], unknown: Sequence[str]) -> None:
    """Refuses cases that lack a file, a number or an array that the map names, and `unknown` names of splits, in words.

    problems: each with its case.

    Raises:
        RequestError: naming the first twenty problems, each with its reason.
    """
    found = list({(case, error.summary, error.seen): (case, error) for case, error in problems}.values())
    lines = [f"case {case}: {error.summary} ({error.seen})" for case, error in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more, in {len({case for case, _ in found})} cases")
    if not found and unknown:
        raise RequestError(
            "split-names-no-case",
            "the map's split names what is no case",
            seen="\n".join(unknown),
            expected="names of cases",
            fix=GOES_ON,
        )
    if len(found) == 1 and not unknown:
        raise skippable(of_case(*found[0]))
    if found:
        fixes = dict.fromkeys(error.fix for _, error in found if error.fix)
        raise RequestError(
            found[0][1].code,
            f"{len(found) + len(unknown)} problems, and nothing was prepared",
            seen="\n".join([*lines, *unknown]),
            expected="in every case what the map names",
            fix="\n".join([*list(fixes)[:3], GOES_ON]),
        )
