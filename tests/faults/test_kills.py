"""A few of the seeded kills; `make faults` runs 200."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_bit_for_bit_as_if_nothing_had_happened() -> None:
    """The first seeds strike a process alone, both of two nodes at once, and a launcher; by KILL and by TERM."""
    command = [sys.executable, "-m", "tests.faults.kill", "--seeds", "6", "--jobs", "2", "--ranks", "1,2"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 seeds ended bit for bit" in done.stdout
    for word in ("alone", "node", "launcher", "SIGKILL", "SIGTERM twice", "operation"):
        assert word in done.stdout
