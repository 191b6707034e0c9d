"""All ranks stop with a message: for a signal during a long step, a time limit, or numbers that are not finite."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import REPOSITORY, final_hashes
from processes import read_until, torchrun, wait_for

from noether.checkpoints.format import list_checkpoints
from noether.common.errors import ExitCode
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempts
from noether.runs.records import read_metrics

OWN = REPOSITORY / "tests" / "faults" / "own"
NOETHER = (sys.executable, "-m", "noether")
COMMON = ("trainer.evaluation_batch_size=1", "trainer.evaluate_every=20 updates", "resume=auto")


def words(output: Path, name: str, *overrides: str) -> list[str]:
    return ["--hp", str(OWN / "lines.yaml"), f"output_path={output}", f"run_id={name}", *COMMON, *overrides]


@pytest.fixture
def begin(environ, tmp_path, start_process) -> Callable[..., subprocess.Popen[str]]:
    def run(*overrides: str, before: Sequence[str] = NOETHER, **variables: str) -> subprocess.Popen[str]:
        own = {**environ, "PYTHONPATH": f"{REPOSITORY}:{OWN}", **variables}
        command = [*before, "train", *words(tmp_path, "run", *overrides)]
        return start_process(command, env=own, cwd=OWN, stderr=subprocess.STDOUT)

    return run


@pytest.fixture
def finish(noether, tmp_path) -> Callable[..., str]:
    def run(name: str, *overrides: str) -> str:
        done = noether("train", *words(tmp_path, name, *overrides), cwd=OWN, PYTHONPATH=f"{REPOSITORY}:{OWN}", code=0)
        return done.out

    return run


def wait_for_row(process: subprocess.Popen[str], folder: RunFolder, kind: str, update: int) -> None:
    def is_there() -> bool:
        rows = read_metrics(folder.metrics) if folder.metrics.exists() else ()
        return any((row["kind"], row["update"]) == (kind, update) for row in rows)

    wait_for(f"{kind} {update}", is_there, 180, process=process)


@pytest.mark.slow
def test_a_signal_cuts_an_evaluation_short_and_the_next_start_makes_it_first(begin, finish, tmp_path) -> None:
    length = ("trainer.max_updates=24", "devices=2")
    folder = RunFolder(tmp_path / "run")
    process = begin(*length, PAUSE_EVALUATION_S="0.7")  # It takes at least 11 s for two kinds of weights.
    wait_for_row(process, folder, "training", 20)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == ExitCode.CHECKPOINTED, out
    assert "stopped by SIGTERM after update 20 of 24, everything is saved" in out
    saved = list_checkpoints(folder.checkpoints)[-1]
    assert saved.updates == 20
    assert json.loads((saved.path / "state.json").read_text())["progress"]["evaluation_pending"] is True
    finish("run", *length)
    finish("calm", *length)
    assert final_hashes(folder) == final_hashes(RunFolder(tmp_path / "calm"))
    histories = [
        [(row["update"], row["weights"], row["metrics"]) for row in read_metrics(path) if row["kind"] == "evaluation"]
        for path in (folder.metrics, tmp_path / "calm" / "metrics.jsonl")
    ]
    assert histories[0] == histories[1]
    assert [row[0] for row in histories[0]] == [20, 20, 24, 24]


@pytest.mark.slow
def test_a_signal_cuts_the_final_evaluation_short_and_the_next_start_makes_it(begin, finish, tmp_path) -> None:
    length = ("trainer.max_updates=4", "devices=2")
    folder = RunFolder(tmp_path / "run")
    process = begin(*length, PAUSE_EVALUATION_S="0.4")  # It takes 13 s, and validation 6 s.
    wait_for_row(process, folder, "evaluation", 4)
    time.sleep(1.0)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == ExitCode.CHECKPOINTED, out
    assert not folder.result.exists()
    out = finish("run", *length)
    assert folder.result.is_file()
    assert [row.outcome for row in read_attempts(folder)] == ["SIGTERM", "done"]
    assert "the run is already complete" in finish("run", *length)


@pytest.mark.slow
def test_a_time_limit_stops_the_run_early_enough_and_says_who_set_it(begin, finish, tmp_path) -> None:
    length = ("trainer.max_updates=400",)
    process = begin(*length, "trainer.timeout_min=0.6", PAUSE_S="0.2")
    started = time.time()
    out = process.communicate(timeout=120)[0]
    assert process.returncode == ExitCode.CHECKPOINTED, out
    assert "(trainer.timeout_min=0.6): the run stops before it, with everything saved" in out
    assert "stopped by the time limit after update" in out
    assert time.time() - started < 36, "the run must stop before the limit"
    folder = RunFolder(tmp_path / "run")
    assert read_attempts(folder)[-1].outcome == "the time limit"
    assert list_checkpoints(folder.checkpoints)[-1].damage() is None


HANGUPS = {
    "one rank": (NOETHER, "devices=1", 75),
    "two ranks": (NOETHER, "devices=2", 75),
    "nohup": (("nohup", *NOETHER), "devices=2", None),
    "nohup torchrun": (("nohup", *torchrun(), str(REPOSITORY / "entrypoint.py")), "devices=null", 1),
}


@pytest.mark.slow
@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="nohup: SIGHUP is ignored")
@pytest.mark.parametrize(("before", "devices", "code"), HANGUPS.values(), ids=HANGUPS)
def test_a_closed_terminal_is_a_stop_unless_nohup_ignores_it(before, devices, code, begin, tmp_path) -> None:
    """torchrun forwards SIGHUP, even under nohup, and turns every exit code into 1."""
    process = begin(devices, "trainer.max_updates=60", before=before, PAUSE_S="0.1")
    folder = RunFolder(tmp_path / "run")
    wait_for_row(process, folder, "training", 1)
    process.send_signal(signal.SIGHUP)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == (code or 0), out
    assert [row.outcome for row in read_attempts(folder)] == ["SIGHUP" if code else "done"]
    assert folder.stopped.exists() == bool(code)


HANGS = """
import time
from slow_lines import Lines
from torch.utils.data import get_worker_info


class Hangs(Lines):
    read = 0

    def __getitem__(self, index):
        self.read += get_worker_info() is not None
        if self.read > 24:
            time.sleep(600)
        return super().__getitem__(index)
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_stop_is_obeyed_while_a_loader_gives_no_batch(devices, begin, tmp_path) -> None:
    """A single rank saves its state. With two ranks, one rank waits inside the update, so the state cannot be saved."""
    (tmp_path / "hangs.py").write_text(HANGS)
    words = ["dataset.kind=hangs.Hangs", "dataset.count=64", "num_workers=1", f"devices={devices}"]
    process = begin(*words, PYTHONPATH=f"{REPOSITORY}:{OWN}:{tmp_path}")
    folder = RunFolder(tmp_path / "run")
    wait_for_row(process, folder, "training", 1)
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == ExitCode.CHECKPOINTED, out
    saved = list_checkpoints(folder.checkpoints)
    assert (saved[-1].updates > 0) if devices == 1 else "a batch that did not come" in out
    assert [row.outcome for row in read_attempts(folder)] == ["SIGTERM"]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_stop_during_a_long_first_update_is_said_at_once_and_its_kill_at_the_next_start(
    devices, begin, finish, noether, tmp_path
) -> None:
    """The first update takes longer than the time between SIGTERM and SIGKILL that a scheduler leaves."""
    process = begin(f"devices={devices}", PAUSE_S="8")
    read_until(process, "length 60 updates")
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    read_until(process, "SIGTERM: the run saves and stops as soon as its current work is done (update 1)")
    assert time.monotonic() - sent < 5
    process.kill()
    process.wait(timeout=30)
    killed = r"attempt 1 was asked to stop \(SIGTERM, 20.*\) and killed in update 1, which could not be saved"
    assert re.search(killed, noether("status", "--output-path", str(tmp_path), "--json").out)
    assert re.search(f"before {killed}", finish("run", f"devices={devices}", "trainer.max_updates=2"))


BAD = """
import torch
from slow_lines import Lines


class Holes(Lines):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        # Finite, so that the checks before training let it pass; its squared error is not.
        return {**sample, "y": sample["y"] * 1e30} if index == 7 else sample
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_bad_numbers_at_one_rank_are_seen_by_all_and_the_sample_is_named(policy, noether, tmp_path) -> None:
    """The rank that did not read the bad sample must make the same decision and name the same sample."""
    (tmp_path / "holes.py").write_text(BAD)
    variables = {"PYTHONPATH": f"{REPOSITORY}:{OWN}:{tmp_path}"}
    overrides = ["dataset.kind=holes.Holes", "dataset.count=64", "devices=2", "trainer.max_updates=6"]
    overrides.append(f"trainer.nan_policy={policy}")
    # Sample 7 is in the training split, so validation uses only finite samples.
    done = noether("train", *words(tmp_path, "run", *overrides), cwd=tmp_path, **variables)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    if policy == "stop":
        assert (done.code, "is not finite" in done.err) == (ExitCode.FAILED, True), done.err
        assert ("sample 7, loss inf" in done.err, "Traceback" in done.err) == (True, False)
    else:
        assert done.code == 0, done.err
        (note,) = [row["text"] for row in rows if row["kind"] == "note"]
        assert "is skipped" in note
        assert "sample 7, loss inf" in note


def test_a_start_told_to_save_keeps_its_code_when_srun_ends_the_rest_of_the_step(begin) -> None:
    """`--kill-on-bad-exit` sends SIGTERM to tasks that are still exiting, and srun returns the highest exit code."""
    process = begin("devices=2", PAUSE_S="0.05")  # Slow enough to be training when the signal comes.
    wait_for("the handler", lambda: is_caught(process.pid, signal.SIGUSR2), 60, process=process)
    time.sleep(0.5)
    process.send_signal(signal.SIGUSR2)
    for _ in range(20):
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=60)[0]
    assert process.returncode in (128 + signal.SIGUSR2, ExitCode.CHECKPOINTED), out
    assert "Traceback" not in out


def is_caught(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)
