"""Only the newest attempt may write a run; attempts without progress are counted."""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TINY
from processes import wait_for

from noether.checkpoints.format import list_checkpoints, write_checkpoint
from noether.common.atomic_write import write_whole
from noether.runs import lease as lease_module
from noether.runs import records
from noether.runs.folder import RunFolder
from noether.runs.lease import (
    FencedError,
    Lease,
    attempts_so_far,
    have_ranks_met,
    read_attempt,
    read_attempts,
    record_attempt,
    record_meeting,
    record_outcome,
    take_lease,
)
from noether.runs.records import parse_record, read_metrics, write_record
from noether.runs.tracking.tracker import MetricsFile
from tests.refusal import refusal
from tests.saved import META


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path)


JOB = {"SLURM_JOB_ID": "13"}


def elsewhere(folder: RunFolder, **changes) -> None:
    """Rewrite the record of the attempt that has the lease, as if the attempt ran on another host."""
    write_record(folder.attempt, {**parse_record(folder.attempt), "host": "n9", **changes})


def test_a_later_start_shuts_out_every_earlier_one(folder) -> None:
    first = take_lease(folder, JOB)
    first.check()
    elsewhere(folder)
    second = take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": "1"})
    second.check()
    assert (first.own.number, second.own.number) == (1, 2)
    with pytest.raises(FencedError) as caught:
        first.check()
    assert "attempt 2 on" in str(caught.value)
    assert "attempt 1 on" in str(caught.value)


def test_a_stale_start_of_a_requeued_job_is_refused_at_once(folder) -> None:
    take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": "2"})
    elsewhere(folder)
    with refusal("stale-start", seen="requeue 1 of job 13; requeue 2 has"):
        take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": "1"})
    assert take_lease(folder, {"SLURM_JOB_ID": "14"}).own.number == 2, "the requeues of another job are counted from 0"


def test_a_second_start_on_one_host_is_refused_while_the_first_lives(folder) -> None:
    script = (
        "import sys, pathlib\nfrom noether.runs.folder import RunFolder\nfrom noether.runs.lease import take_lease\n"
        "take_lease(RunFolder(pathlib.Path(sys.argv[1])), {})\nprint('taken', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(folder.path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "taken\n"
        with refusal(words=f"kill -TERM {other.pid}"):
            take_lease(folder, {})
    finally:
        other.kill()
        other.wait(timeout=10)
    assert take_lease(folder, {}).own.number == 2


@pytest.mark.parametrize("content", ["", "{", '{"number": 1}', "[]"], ids=["empty", "cut", "half", "other"])
def test_a_damaged_fence_stops_nobody(folder, content) -> None:
    folder.attempt.write_text(content)
    assert read_attempt(folder) is None
    take_lease(folder, {}).check()


def save(folder: RunFolder, updates: int) -> None:
    write_checkpoint(folder.checkpoints, updates, {}, META)


def test_starts_are_told_with_how_far_each_came(folder) -> None:
    record_attempt(folder, 1, 0, "n1")
    save(folder, 4)
    record_attempt(folder, 2, 4, "n2")  # Attempt 1 was killed, at the latest after update 4.
    record_outcome(folder, 2, 9, "SIGTERM")
    record_attempt(folder, 3, 9, "n1")
    with folder.attempts.open("a") as file:
        file.write('{"number": 3, "last')  # Attempt 3 was killed while it wrote this record.
    record_attempt(folder, 4, 9, "n1")
    rows = [(row.number, row.start_update, row.last_update, row.outcome) for row in read_attempts(folder)]
    assert rows == [(1, 0, 4, "killed"), (2, 4, 9, "SIGTERM"), (3, 9, 9, "killed"), (4, 9, None, None)]


def test_starts_that_end_before_their_ranks_meet_count(folder) -> None:
    for restart in range(3):
        take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": str(restart)}, start_update=4).release(75)
    found = [(row.number, row.start_update, row.job) for row in read_attempts(folder)]
    assert found == [(number, 4, "13") for number in (1, 2, 3)]
    record_meeting(folder, 2)
    assert [have_ranks_met(folder, number) for number in (1, 2, 3)] == [False, True, False]


def writes(lease, folder: RunFolder):
    """Return functions, by name, that write to a run's folder in each way in which an attempt may write."""
    checkpoint = folder.checkpoints / "update-000000004"
    return {
        "record": lambda: write_record(folder.result, {"of": "the older"}, lease),
        "history": lambda: MetricsFile(folder.metrics, 0, lease),
        "checkpoint": lambda: write_checkpoint(folder.checkpoints, 4, {}, META | {"of": "the older"}, writer=lease),
        "drop": lambda: lease.drop(checkpoint),
        "publish": lambda: lease.publish(lease.partial(folder.report), folder.report),
    }


@pytest.mark.parametrize("moment", ["before-it-looks", "after-its-look", "before-it-writes"])
def test_a_start_that_comes_too_late_leaves_the_run_to_the_one_that_has_it(moment, folder, monkeypatch) -> None:
    """After it had decided where to start, the attempt was frozen, or was busy preparing its data."""
    after, takers = attempts_so_far(folder), []

    def newer_takes(*given: object) -> None:
        monkeypatch.undo()
        takers.append(take_lease(folder, {}))
        elsewhere(folder)

    def first_newer(act):
        return lambda *given: newer_takes() or act(*given)

    if moment == "before-it-looks":
        newer_takes()
    else:
        act = "this_process" if moment == "after-its-look" else "write_record"
        monkeypatch.setattr(lease_module, act, first_newer(getattr(lease_module, act)))
    with pytest.raises(FencedError, match="started while this one was preparing"):
        take_lease(folder, {}, after=after)
    holder = read_attempt(folder)
    assert holder.id == takers[0].own.id
    assert [path.name for path in folder.path.glob(".attempt-*")] == [f".attempt-{holder.id}"]


@pytest.mark.parametrize("act", ["record", "history", "checkpoint", "drop", "publish"])
@pytest.mark.parametrize("moment", ["before-it", "after-its-look"])
def test_a_start_that_has_lost_the_run_changes_nothing(act, moment, folder, monkeypatch) -> None:
    """In "after-its-look", the attempt is frozen after its check, while another attempt takes the run and trains."""
    older = take_lease(folder, JOB)
    save(folder, 4)
    elsewhere(folder)

    def newer_trains() -> None:
        newer = take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": "1"})
        write_record(folder.result, {"of": "the newer"}, newer)
        write_whole(folder.report, "the newer's", newer)
        file = MetricsFile(folder.metrics, 0, newer)
        file.log({"kind": "training", "update": 1})
        file.close()

    if moment == "before-it":
        newer_trains()
    else:
        look, looks = Lease.check, []

        def frozen_after_its_look(self: Lease) -> None:
            look(self)
            if self is older and not looks:
                looks.append(1)
                newer_trains()

        monkeypatch.setattr(Lease, "check", frozen_after_its_look)
    with pytest.raises(FencedError):
        writes(older, folder)[act]()
    assert parse_record(folder.result) == {"of": "the newer"}
    assert folder.report.read_text() == "the newer's"
    assert [row["update"] for row in read_metrics(folder.metrics)] == [1]
    (checkpoint,) = list_checkpoints(folder.checkpoints)
    assert "of" not in checkpoint.meta()


def test_an_older_start_learns_from_either_file_that_it_has_lost_the_run(folder) -> None:
    older = take_lease(folder, JOB)
    elsewhere(folder)
    newer = take_lease(folder, {**JOB, "SLURM_RESTART_COUNT": "1"})
    folder.attempt.write_bytes(b"\xff")
    with pytest.raises(FencedError):
        older.check()
    newer.check()
    assert read_attempt(folder) == newer.own, "the newer attempt's record must be restored"
    folder.attempt.unlink()
    newer.check()
    folder.attempts.unlink()
    with pytest.raises(FencedError):
        older.check()


GONE = {
    "moved": (lambda run: run.rename(run.with_name("moved")), "runs/run is now .*runs/moved\n.*\n.*resume=.*/moved$"),
    "moved-with-the-folder-above": (lambda run: run.parent.rename(run.parents[1] / "old"), "runs is now .*old/run\n"),
    "removed": (shutil.rmtree, "is gone, or replaced\n.*\n.*move it back, then noether train resume="),
    "another-in-its-place": (lambda run: run.rename(run.with_name("moved")).with_name("run").mkdir(), "now .*moved\n"),
    "its-disk-away": (lambda run: run.rename(run.with_name("moved")), "its disk"),
}


@pytest.mark.parametrize(("leave", "told"), GONE.values(), ids=GONE)
def test_a_folder_that_is_gone_under_its_run_is_not_made_again(leave, told, tmp_path) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    run.path.mkdir(parents=True)
    lease = take_lease(run, {})
    if told == "its disk":
        lease = replace(lease, place=(lease.place[0] + 1, lease.place[1]))
    file = MetricsFile(run.metrics, 0, lease)
    leave(run.path)
    acts = [act for name, act in writes(lease, run).items() if name != "drop"]
    for act in (*acts, lambda: file.log({"kind": "training", "update": 1})):
        with pytest.raises(OSError if told == "its disk" else FencedError, match=told.removeprefix("its ")):
            act()
    assert not run.path.exists() or not list(run.path.iterdir())
    if told == "its disk":
        (tmp_path / "runs" / "moved").rename(run.path)
        file.log({"kind": "training", "update": 2})
        assert [row["update"] for row in read_metrics(run.metrics)] == [1, 2], "the row must be kept"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_that_is_renamed_while_it_trains_ends_and_is_found_again(start, noether, tmp_path) -> None:
    words = ["train", "--hp", str(TINY), f"output_path={tmp_path}", "resume=auto", "trainer.checkpoint_every=2 updates"]
    running = start(*words, "run_id=old", "trainer.max_updates=3000", "tracker.tensorboard=true")
    wait_for("a checkpoint", lambda: list(tmp_path.glob("old/checkpoints/update-*")), 60, process=running)
    (tmp_path / "old").rename(tmp_path / "new")
    assert running.wait(timeout=30) == 1
    assert not (tmp_path / "old").exists()
    begun = noether(*words, "run_id=old", "trainer.max_updates=2", code=0).out
    assert f"resume={tmp_path / 'new'} resumes it" in " ".join(begun.split()), begun
    assert "would continue from" in noether(*words, "run_id=new", "trainer.max_updates=3000", "--dry-run", code=0).out


def test_an_attempt_of_another_host_is_seen_before_a_start_decides(folder, monkeypatch) -> None:
    """On NFS, a host may cache the listing of a folder for a minute, or until it creates a file there itself."""
    views: dict[str, dict[Path, bytes]] = {"n1": {}, "n2": {}}
    read, make, probe = records.read_plain, Path.mkdir, tempfile.NamedTemporaryFile
    monkeypatch.setattr(records, "read_plain", lambda path, *most: views[host].setdefault(path, read(path, *most)))
    monkeypatch.setattr(Path, "mkdir", lambda path, *how, **more: (views[host].clear(), make(path, *how, **more)))
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **how: (views[host].clear(), probe(**how))[1])
    for number in range(1, 5):
        host = f"n{1 + (number - 1) % 2}"
        decided = attempts_so_far(folder)
        assert take_lease(folder, {}, after=decided).own.number == number, "the last attempt was killed"
