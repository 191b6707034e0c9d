"""A process tree, read and ended: made-up tables for the reading, real processes for the ending."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noether.common.processes import ProcessEntry, descendants, living_descendants
from noether.launch.processes.death_signal import end_descendants

ROOT = Path(__file__).parents[3]

linux = pytest.mark.skipif(sys.platform != "linux", reason="death signals and /proc are Linux's")


def table_of(**parents: int) -> dict[int, ProcessEntry]:
    return {int(pid[1:]): ProcessEntry(int(pid[1:]), parent, 0, "S") for pid, parent in parents.items()}


@pytest.mark.parametrize(
    ("table", "below"),
    [
        pytest.param(table_of(p2=1, p3=1), set(), id="nobody"),
        pytest.param(table_of(p2=1, p11=10, p12=11, p13=12, p14=10), {11, 12, 13, 14}, id="three floors"),
        pytest.param(table_of(p10=1, p11=10), {11}, id="not itself"),
    ],
)
def test_descendants(table: dict[int, ProcessEntry], below: set[int]) -> None:
    assert {entry.pid for entry in descendants(table, 10)} == below


@linux
def test_descendants_are_ended_and_bystanders_spared() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    spared = {entry.identity for entry in living_descendants(os.getpid())}
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while len(living_descendants(os.getpid(), spared)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
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
    {early}
    die_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=child).start()
    {late}
"""


def reads_end_of_output(pipe: int, seconds: float) -> bool:
    os.set_blocking(pipe, False)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if not os.read(pipe, 4096):
                return True
        except BlockingIOError:
            time.sleep(0.01)
    return False


@linux
@pytest.mark.parametrize(
    ("early", "late"),
    [
        pytest.param("", "time.sleep(60)", id="the parent ends afterwards"),
        pytest.param("time.sleep(0.5)", "os.kill(os.getpid(), 9)", id="the parent was gone before"),
    ],
)
def test_a_child_dies_with_its_parent(early: str, late: str) -> None:
    code = PARENT.format(root=str(ROOT), early=early or "pass", late=late)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        if not early:
            assert int(parent.stdout.readline()) > 0
            parent.send_signal(signal.SIGKILL)
        # The child holds the other end of this pipe for as long as it lives.
        assert reads_end_of_output(parent.stdout.fileno(), seconds=5)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
