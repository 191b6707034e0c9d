"""What can be known to be wrong before a mesh is read, by files, numbers and headers: told of all cases at once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from noether.common.errors import RequestError
from noether.physics.cases.case_map import SetMap
from noether.physics.cases.mesh_blocks import unreadable
from noether.physics.cases.mesh_source import Arrays, refuse_array

SHOWN = 20
GOES_ON = "--skip-broken      (goes on without such cases, and names them)"
XML = (".vtp", ".vtu", ".vti", ".vtr", ".vts", ".pvtu")
LONGEST = 1_000_000  # bytes of a header; where numbers stand among the names, as in a file of text, of the whole file
END, NUMBERS = b"</VTKFile>", b"<AppendedData"
PLACES = {"CellData": "cells", "PCellData": "cells", "PointData": "points", "PPointData": "points"}


def of_case(case: str, error: RequestError) -> RequestError:
    """Returns what is wrong with a case, which its summary names."""
    return RequestError(**error.parts | {"summary": f"case {case}: {error.summary}"})


def skippable(error: RequestError) -> RequestError:
    """Returns a refusal whose fix offers to leave such cases out, too."""
    return RequestError(**error.parts | {"fix": f"{error.fix}\n{GOES_ON}".lstrip()})


def refuse_at_once(problems: Iterable[tuple[str, RequestError]], unknown: Sequence[str]) -> None:
    """Refuses cases that lack a file, a number or an array that the map names, and `unknown` names of splits, in words.

    problems: each with its case.

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


def header_problems(path: Path, about: SetMap) -> Iterator[RequestError]:
    """Yields what is wrong with a file of a set: it is empty or cut short, or lacks arrays of the map."""
    try:
        there = read_header(path)
    except RequestError as error:
        yield error
        return
    at = "points" if about.kind == "points" else about.at
    if there is None or about.values:
        return
    for name, own in about.fields.items():
        yield from refusals(partial(refuse_array, path, name, own, at, there))


def refusals(check: Callable[[], object]) -> Iterator[RequestError]:
    """Yields what a check raises."""
    try:
        check()
    except RequestError as error:
        yield error


def read_header(path: Path) -> Arrays | None:
    """Returns the arrays that one of VTK's XML files names, or None: another format, or names among many numbers.

    RequestError: the file is empty; a file of XML is cut short, or its header is none.
    """
    try:
        size = path.stat().st_size
        if not size:
            raise ValueError("an empty file")
        if path.suffix.lower() not in XML:
            return None
        with path.open("rb") as file:
            file.seek(max(0, size - 64))
            if END not in file.read():
                raise ValueError(f"it ends without {END.decode()}: it was cut short")
            file.seek(0)
            head = b""
            while NUMBERS not in head and len(head) < LONGEST and (more := file.read(65_536)):
                head += more
        is_whole = NUMBERS in head or len(head) == size
        return _arrays(head.partition(NUMBERS)[0]) if is_whole else None
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise unreadable(path, error) from None


def _arrays(head: bytes) -> Arrays:
    parser: Any = ElementTree.XMLPullParser(["start", "end"])
    parser.feed(head)
    there: dict[str, dict[str, int]] = {"cells": {}, "points": {}}
    at = ""
    for event, element in parser.read_events():
        if element.tag in PLACES:
            at = PLACES[element.tag] if event == "start" else ""
        elif at and element.tag in ("DataArray", "PDataArray"):
            there[at][element.get("Name", "")] = int(element.get("NumberOfComponents", 1))
    return there
