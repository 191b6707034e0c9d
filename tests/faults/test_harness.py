"""A few cases of each fault harness; `make faults` runs many more."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from noether.common.errors import RequestError
from tests.processes import lacking, needs_namespaces

from .fuzz import SUBJECTS, fuzz, limit
from .hostile import READERS, YAML

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("subject", [name for name in SUBJECTS if name != "forged"])
def test_a_mutated_file_is_read_or_refused_in_words(subject, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    cases = 120 if subject == "checkpoints" else 200
    found = fuzz(subject, range(cases), tmp_path)
    assert found["kinds"] == {}
    assert found["read"] + found["refused"] == cases


def test_a_forged_run_imports_nothing_and_blocks_nobody(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = fuzz("forged", range(60), tmp_path)
    assert found["kinds"] == {}
    assert found["refused"] > 30


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", YAML)
def test_endless_yaml_is_refused_at_once(text: str, reader: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(YAML[text](100))
    with limit(10), suppress(RequestError):
        READERS[reader](file)
        assert text.startswith("interpolated") or reader in ("the page", "numbers")


def run(module: str, *words: str) -> str:
    command = [sys.executable, "-m", f"tests.faults.{module}", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_bit_for_bit_as_if_nothing_had_happened() -> None:
    """The six seeds disturb a single process, two nodes at once, and a launcher, by SIGKILL and by SIGTERM."""
    said = run("kill", "--cases", "6", "--jobs", "2", "--ranks", "1,2")
    assert "6 kills, 0 differences" in said
    for word in ("alone", "node", "launcher", "SIGKILL", "SIGTERM twice", "operation"):
        assert word in said


@pytest.mark.slow
def test_what_is_damaged_is_named_and_makes_no_traceback() -> None:
    """The damage is a checkpoint copied under a later update's name, a duplicated row, a pipe or a flipped bit."""
    ways = "copied to|metrics.jsonl: a line doubled|a pipe|flip"
    assert "8 damages, 0 tracebacks or silent differences" in run("damage", "--cases", "8", "--only", ways)
    # The damage is in a row of a completed run, in which only `train` reads that row.
    assert "1 damages, 0 tracebacks or silent differences" in run("damage", "--first", "711", "--cases", "1")


@pytest.mark.slow
def test_hostile_yaml_and_variables_are_told_in_words() -> None:
    assert "20 hostile cases, 0 endless or tracebacks" in run("hostile", "--cases", "20")


@pytest.mark.slow
def test_users_of_a_group_go_on_with_each_others_runs() -> None:
    """The umask admits the group in one case; in the other, it locks the second user out, who gets a message."""
    needs_namespaces("become other users", "--mount", "true")
    assert "2 group folders, 0 differences or tracebacks" in run("groups", "--first", "2", "--cases", "2")


@pytest.mark.slow
def test_changed_data_are_refused_by_their_code() -> None:
    """The only case here is a user's own data set whose length has changed."""
    assert "1 changes, 0 unreported or tracebacks" in run("changed", "--first", "4", "--cases", "1")


@pytest.mark.slow
def test_a_run_of_another_program_is_told_so_or_goes_on() -> None:
    """The only case here is a field whose standard deviation is stored as a string."""
    assert "1 old programs, 0 tracebacks" in run("old_programs", "--first", "141", "--cases", "1")


@pytest.mark.slow
def test_a_start_that_is_frozen_while_another_trains_changes_nothing() -> None:
    """Seed 32 freezes an attempt between creating its folder and writing into it."""
    assert "2 frozen starts, 0 differences or tracebacks" in run("frozen", "--first", "31", "--cases", "2")


@pytest.mark.slow
def test_a_disk_that_refuses_anything_is_told_in_words() -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        lacking("there is no C compiler here, which the library of failing calls needs")
    assert "6 disks, 0 differences or tracebacks" in run("disks", "--cases", "6")
