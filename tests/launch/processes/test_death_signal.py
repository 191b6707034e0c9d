"""Process trees are read from made-up tables, and trees of real processes are ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import wait_for

from noether.common.processes import ProcessEntry, descendants, living_descendants
from noether.launch.processes.death_signal import end_descendants

ROOT = Path(__file__).parents[3]

linux = pytest.mark.skipif(sys.platform != "linux", reason="death signals and /proc are Linux's")


def test_descendants_of_three_floors_without_itself() -> None:
    parents = {2: 1, 10: 1, 11: 10, 12: 11, 13: 12, 14: 10}
    table = {pid: ProcessEntry(pid, parent, 0, "S") for pid, parent in parents.items()}
    assert {entry.pid for entry in descendants(table, 10)} == {11, 12, 13, 14}


@linux
def test_descendants_are_ended_and_bystanders_spared() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    spared = {entry.identity for entry in living_descendants(os.getpid())}
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], start_new_session=True)
    try:
        wait_for("all three", lambda: len(living_descendants(os.getpid(), spared)) >= 3, 10)
        ended = end_descendants(os.getpid(), spared)
        assert len(ended) == 3
        assert child.pid in ended
        assert bystander.poll() is None
        assert living_descendants(os.getpid(), spared) == []
    finally:
        bystander.kill()
        bystander.wait()
        child.wait()


@linux
def test_a_process_that_ends_by_itself_in_time_is_not_killed() -> None:
    spared = {entry.identity for entry in living_descendants(os.getpid())}
    child = subprocess.Popen(["sleep", "0.2"])
    assert end_descendants(os.getpid(), spared, patience_s=5.0) == []
    assert child.wait(timeout=5) == 0


PARENT = """
import multiprocessing, os, sys, time
sys.path.insert(0, {root!r})
from noether.launch.processes.death_signal import die_with_parent

def child():
    time.sleep(0.5)
    die_with_parent()
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=child).start()
    os.kill(os.getpid(), 9)
"""


@linux
def test_a_child_whose_parent_was_gone_before_it_asked_to_die_with_it_dies() -> None:
    """The call returns only when the child has ended, because the child keeps the pipe open."""
    subprocess.run([sys.executable, "-c", PARENT.format(root=str(ROOT))], stdout=subprocess.PIPE, timeout=20)
