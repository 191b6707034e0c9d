"""Run a series of seeded cases and record the finished ones; shared by the harnesses' command lines."""

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

Case = Callable[[int], tuple[str, list[str]]]
"""A function that runs the case of a given number; it returns a description and a list of failures."""


def options(description: str | None, cases: int) -> argparse.ArgumentParser:
    """Return the argument parser of a harness; `cases` is the default number of cases."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=cases, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first")
    parser.add_argument("--record", type=Path, default=None, help="a file of the cases that are done")
    return parser


def harness(description: str | None, cases: int, scene: Callable[[Path], Case], summary: str) -> int:
    """Run a harness with one process from its command line; `scene` makes the case function in a scratch folder."""
    given = options(description, cases).parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        return run_series(given, scene(Path(scratch)), summary=summary)


def run_series(given: argparse.Namespace, run_case: Case, *, summary: str, jobs: int = 1) -> int:
    """Run the cases that the record does not have yet, and print them. A case that raises has failed.

    Args:
        given: the command line.
        run_case: runs one case.
        summary: the rest of the last line, after the number of cases; {failed} is the number of failed cases.
        jobs: number of forks of this process, which must not have started threads.

    Returns:
        1 if any case failed, else 0.
    """
    record: Path | None = given.record
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    left = [number for number in range(given.first, given.first + given.cases) if number not in done]

    def is_sound(number: int) -> bool:
        try:
            story, wrong = run_case(number)
        except Exception:
            story, wrong = "raised", [traceback.format_exc()]
        print(f"{'FAIL' if wrong else 'ok  '} {number} {story}", *wrong, sep="\n  ", flush=True)
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps({"number": number, "story": story, "wrong": wrong}) + "\n")
        return not wrong

    processes = []
    for job in range(jobs):
        pid = os.fork()
        if not pid:
            failed = 1
            try:
                failed = sum(not is_sound(number) for number in left[job::jobs])
            finally:
                os._exit(min(failed, 255))
        processes.append(pid)
    failed = sum(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in processes)
    print(f"{given.cases} {summary.format(failed=failed)}", flush=True)
    return 1 if failed else 0
