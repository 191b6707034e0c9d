"""Run a series of numbered cases and record the finished cases; shared by the command lines of the harnesses."""

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

Case = Callable[[int], tuple[str, list[str]]]
"""A function that runs the case with a given number; it returns a description and a list of failures."""


def options(description: str | None, cases: int) -> argparse.ArgumentParser:
    """Return the argument parser of a harness; `cases` is the default number of cases."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=cases, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--record", type=Path, default=None, help="file that records the finished cases")
    return parser


def harness(description: str | None, cases: int, scene: Callable[[Path], Case], summary: str) -> int:
    """Run a harness from its command line, in one process; `scene` returns the case function for a scratch folder."""
    given = options(description, cases).parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        return run_series(given, scene(Path(scratch)), summary=summary)


def run_series(given: argparse.Namespace, run_case: Case, *, summary: str, jobs: int = 1) -> int:
    """Run and print the cases that are not yet in the record; a case that raises an exception has failed.

    Args:
        given: the arguments of the command line.
        run_case: the function that runs a case.
        summary: the text after the number of cases in the last line; {failed} is replaced by the count of failed cases.
        jobs: the number of forks among which the cases are divided; this process must not have started threads.

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
