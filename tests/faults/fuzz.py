"""Feed mutated files to every reader of foreign files: each file must be read, or refused with a message.

    python -m tests.faults.fuzz --cases 100000 [--only idx,yaml,packed,records,checkpoints,archives,forged] [--first 0]

A case mutates one original file and calls the reader once, in this process. It fails if the reader raises anything
but a RequestError, or takes longer than LIMIT_S.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from noether.common.errors import RequestError

from .forged_run import ForgedRun
from .fuzz_subjects import SUBJECTS as READERS
from .fuzz_subjects import Subject

SUBJECTS: dict[str, type[Subject]] = {**READERS, "forged": ForgedRun}
MOST = {"forged": 3000}
"""The maximum number of cases of each slow subject; a case of `forged` copies a run."""

LIMIT_S = 10.0


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread after the given time."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(name: str, seeds: range, folder: Path) -> dict[str, Any]:
    """Run one subject's cases; return the counts of read, refused and failed files, and each kind's first failure."""
    subject, read, refused = SUBJECTS[name](folder), 0, 0
    kinds: dict[str, str] = {}
    failed = 0
    for seed in seeds:
        try:
            with limit(LIMIT_S):
                subject.run(random.Random(f"{name} {seed}"))
            read += 1
        except RequestError:
            refused += 1
        except Exception as error:
            failed += 1
            frames = traceback.extract_tb(error.__traceback__)
            where = next((f for f in reversed(frames) if f"{os.sep}noether{os.sep}" in f.filename), frames[-1])
            kinds.setdefault(
                f"{type(error).__name__} at {where.filename}:{where.lineno}", f"seed {seed}: {error}"[:300]
            )
    return {"subject": name, "read": read, "refused": refused, "failed": failed, "kinds": kinds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="number of cases per reader")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default=",".join(SUBJECTS), help="the readers, separated by commas")
    given = parser.parse_args()
    failed = 0
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # Half a million files need not outlast a power cut.
    for name in given.only.split(","):
        folder, began = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-")), time.monotonic()
        try:
            found = fuzz(name, range(given.first, given.first + min(given.cases, MOST.get(name, given.cases))), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failed += found["failed"]
        print(json.dumps({**found, "seconds": round(time.monotonic() - began)}, indent=1), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
