"""Freeze one attempt at a run while another attempt trains, then thaw it: it must not change the run's files.

    python -m tests.faults.frozen --cases 100 [--first 0] [--record FILE]

This happens on a node that the scheduler believes dead. SIGSTOP freezes the first attempt right after its n-th check of
whether it may still write, or right before its n-th operation on the run folder. A second attempt, on another host,
trains to the end; then SIGCONT thaws the first attempt. At the end, the last checkpoint and the history's rows must be
those of an undisturbed run, and the first attempt must have ended with a message.
"""

import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from noether.checkpoints.format import list_checkpoints
from noether.common.processes import is_stopped
from noether.runs.lease import Lease, read_attempt
from noether.runs.records import parse_record
from tests.processes import wait_for

from .room import LIMIT_S, NO_TRACEBACK, CalmRoom, final_hashes, history
from .series import harness
from .victim import Operations, Victim, fork


class Scene(CalmRoom):
    """A test folder with an undisturbed run, and the counts of this run's checks and operations."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        counted = folder / "looks"
        self.train("counted", lambda: count_checks(lambda number: counted.write_text(str(number)))).wait(LIMIT_S)
        self.looks = int(counted.read_text())

    def train(self, name: str, before: Callable[[], object]) -> Victim:
        def act() -> None:
            from noether.cli.entry import main

            before()
            main(["train", "--hp", str(self.settings), f"run_id={name}", "resume=auto"])

        return fork(act, self.log(name), self.environ)

    def run_case(self, seed: int) -> tuple[str, list[str]]:
        """Freeze one attempt while another trains, then thaw it; return a description and a list of failures."""
        rng, name = random.Random(seed), f"frozen-{seed}"
        if seed % 2:
            number = rng.randint(1, self.looks)
            story = f"frozen after check {number} of {self.looks}"
            older = self.train(name, lambda: count_checks(lambda n: freeze() if n == number else None))
        else:
            number = rng.randint(1, self.calm.operations)
            story = f"frozen before operation {number} of {self.calm.operations}"
            run = self.run_folder(name).path
            older = self.train(name, lambda: Operations(run, lambda n: freeze() if n == number else None))
        wait_for("its frost", lambda: is_stopped(older.pid) or older.wait(0) is not None, LIMIT_S)
        frozen = older.code is None
        newer = self.train(f"{name}", lambda: setattr(socket, "gethostname", lambda: "other"))
        code = newer.wait(LIMIT_S)
        older.kill(signal.SIGCONT)
        older_code = older.wait(LIMIT_S)
        if older_code is None:
            older.end()
        wrong = self._wrong(name, older_code, code)
        if not wrong:
            shutil.rmtree(self.run_folder(name).path)
        return f"{story} ({'' if frozen else 'not '}frozen): {older_code}, {code}", wrong

    def _wrong(self, name: str, older: int | None, newer: int | None) -> list[str]:
        folder, said, wrong = self.run_folder(name), self.log(name).read_text(errors="replace"), []
        if NO_TRACEBACK in said or newer != 0 or older not in (0, 1):
            wrong.append("a traceback, or an unexpected exit code")
        if final_hashes(folder) != self.calm.hashes:
            wrong.append("different weights")
        if history(folder) != self.calm.rows:
            wrong.append("a different history")
        if any(checkpoint.damage() for checkpoint in list_checkpoints(folder.checkpoints)):
            wrong.append("a damaged checkpoint")
        holder = read_attempt(folder)
        # An attempt that was frozen before it read the folder finds the run complete when it is thawed.
        looked_later = older == 0 and "the run is already complete" in said
        if holder is None or (holder.host != "other" and not looked_later) or not parse_record(folder.result):
            wrong.append("the records are not those of the second attempt")
        return [f"{text}\n{said}" for text in wrong]


def freeze() -> None:
    """Stop this process until it receives SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def count_checks(then: Callable[[int], object]) -> None:
    """After each check of whether this process may still write, call `then` with the number of checks so far."""
    check, lock, looks = Lease.check, threading.Lock(), [0]

    def counted(self: Lease) -> None:
        check(self)
        with lock:
            looks[0] += 1
        then(looks[0])

    Lease.check = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    words = "frozen starts, {failed} differences or tracebacks"
    sys.exit(harness(__doc__, 100, lambda folder: Scene(folder).run_case, words))
