"""A series of seeded cases, with a record of those that are done: what the harnesses' command lines share."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

Case = Callable[[int], tuple[str, list[str]]]
"""Runs the case of a number; returns what was done, and what went wrong."""


def options(description: str | None, cases: int, *, named: bool = False) -> argparse.Namespace:
    """Reads the command line of a harness that makes so many cases unless told otherwise.

    named: its cases have names, by which they can be chosen.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=cases, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first")
    parser.add_argument("--record", type=Path, default=None, help="a file of the cases that are done")
    if named:
        parser.add_argument("--only", default="", help="a regular expression: the cases whose names it fits")
    return parser.parse_args()


def run_series(given: argparse.Namespace, run_case: Case, *, summary: str) -> int:
    """Runs the cases that the record does not name as done, and prints them.

    Args:
        given: the command line.
        run_case: runs one.
        summary: the last line after the number of cases, with {failed} for the number of failures.

    Returns:
        1 where anything went wrong, else 0.
    """
    record: Path | None = given.record
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    failed = 0
    for number in range(given.first, given.first + given.cases):
        if number in done:
            continue
        story, wrong = run_case(number)
        print(f"{'FAIL' if wrong else 'ok  '} {number} {story}", *wrong, sep="\n  ", flush=True)
        failed += len(wrong)
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps({"number": number, "story": story, "wrong": wrong}) + "\n")
    print(f"{given.cases} {summary.format(failed=failed)}", flush=True)
    return 1 if failed else 0
