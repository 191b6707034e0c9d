"""A run that was stopped or killed resumes bit for bit."""

import json
import signal

import pytest
from conftest import TINY, final_hashes
from processes import wait_for
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints
from noether.common.errors import ExitCode
from noether.runs.folder import RunFolder
from noether.runs.records import last_update, read_metrics

# The learning rate is constant, so that the first updates of a run of 8 and of a run of thousands are the same.
EVERY_PART = ("trainer.ema_decay=0.9", "optimizer.learning_rate=1e-2", "schedule=constant")


KILLED = {
    "at-an-epoch-boundary": (4, ()),
    "in-mid-epoch-accumulated-fp16-and-its-scaler": (3, ("trainer.max_batch_size=1", "trainer.precision=fp16")),
    "in-mid-epoch-lion-loader-worker": (3, ("optimizer=lion", "num_workers=1")),
    "in-mid-epoch-muon": (3, ("optimizer=muon",)),
    "in-mid-epoch-bf16": (3, ("trainer.precision=bf16",)),
}


def updates_kept(folder: RunFolder) -> list[int]:
    return [checkpoint.updates for checkpoint in list_checkpoints(folder.checkpoints)]


@pytest.mark.slow
# tests/faults/test_harness.py kills and resumes a run of one rank.
@pytest.mark.parametrize(
    ("killed_at", "options"),
    in_every_push(KILLED, "at-an-epoch-boundary", "in-mid-epoch-accumulated-fp16-and-its-scaler", "in-mid-epoch-muon"),
)
def test_k_updates_and_k_updates_are_2k_updates(killed_at, options, train, start, tmp_path) -> None:
    common = ("devices=2", *EVERY_PART, *options, f"trainer.checkpoint_every={killed_at} updates")
    undisturbed = train("undisturbed", *common)
    assert updates_kept(undisturbed)[-1] == 8
    # Start the same run again. As soon as the checkpoint exists, kill its launcher, and thereby all ranks.
    process = start(
        "train", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=killed", *common, "trainer.max_updates=8000"
    )
    killed = RunFolder(tmp_path / "killed")
    wait_for("the checkpoint", lambda: killed_at in updates_kept(killed), 180, process=process)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    later = [c for c in list_checkpoints(killed.checkpoints) if c.updates > killed_at]
    for checkpoint in later:  # The resumed run must not start at a later checkpoint.
        (checkpoint.path / "meta.json").unlink()
    resumed = train("killed", *common, "resume=auto")
    assert updates_kept(resumed)[-1] == 8
    assert final_hashes(resumed) == final_hashes(undisturbed)


@pytest.mark.slow
def test_a_run_of_three_ranks_adds_gradients_as_before(train) -> None:
    """With three or more ranks, the sum of gradients depends on the order of addition."""
    common = ("devices=3", "trainer.effective_batch_size=12", "trainer.evaluate_every=null", *EVERY_PART)
    undisturbed = train("undisturbed", *common)
    train("cut", *common, "trainer.max_updates=3")
    assert final_hashes(train("cut", *common, "resume=auto")) == final_hashes(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ranks"),
    [pytest.param(signal.SIGTERM, "2", id="SIGTERM-2"), pytest.param(signal.SIGINT, "1", id="Ctrl-C-1")],
)
def test_a_signal_stops_at_an_update_boundary_saves_and_says_how_to_go_on(
    ranks, number, train, start, tmp_path
) -> None:
    common = (f"devices={ranks}", *EVERY_PART, "trainer.max_updates=4000", "trainer.evaluate_every=null")
    process = start("train", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=stopped", *common)
    stopped = RunFolder(tmp_path / "stopped")
    wait_for("rows", lambda: stopped.metrics.exists() and len(read_metrics(stopped.metrics)) > 2, 180, process=process)
    process.send_signal(number)
    if number == signal.SIGTERM:
        process.send_signal(number)  # A second signal, as Slurm sends, must change nothing.
    out, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.CHECKPOINTED, out + err
    assert "everything is saved" in out
    assert "Traceback" not in out + err
    at = updates_kept(stopped)[-1]
    assert 0 < at < 4000
    goal = f"trainer.max_updates={at + 3}"
    resumed = train("stopped", *common, goal, "resume=auto")
    assert updates_kept(resumed)[-1] == at + 3
    rows = [row["update"] for row in read_metrics(resumed.metrics) if row["kind"] == "training"]
    assert rows == sorted(set(rows)), "metrics.jsonl has duplicates"
    assert rows == [*range(2, at + 3, 2), at + 3][: len(rows)], "metrics.jsonl has gaps"


@pytest.mark.slow
def test_resume_auto_starts_goes_on_and_leaves_a_finished_run_alone(train, tmp_path) -> None:
    first = train("auto", "resume=auto")
    result = json.loads(first.result.read_text())
    files = (first.result, first.plan, first.metrics)
    before = final_hashes(first), [path.read_bytes() for path in files]
    again = train("auto", "resume=auto")
    assert (final_hashes(again), [path.read_bytes() for path in files]) == before
    longer = train("auto", "resume=latest", "trainer.max_updates=12")
    assert updates_kept(longer)[-1] == 12
    assert (result["updates"], json.loads(longer.result.read_text())["updates"]) == (8, 12)


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_in_words(train, noether, tmp_path) -> None:
    train("small", "trainer.max_updates=4")
    words = ["train", "--hp", str(TINY), f"output_path={tmp_path}", "run_id=small", "resume=auto"]
    refused = noether(*words, "trainer.max_updates=6", "model.dim=48")
    assert refused.code == ExitCode.REQUEST, refused.err
    assert "model.dim: 32 → 48   these weights do not fit another model" in refused.err
    assert "resume=null run_id=ANOTHER_NAME" in refused.err
    done = noether(*words, "trainer.max_updates=6", "model.dim=48", "accept_changes=[model]")
    assert (done.code, "was written by another model" in done.err) == (ExitCode.REQUEST, True), done.err
    assert "small/checkpoints/update-000000004/meta.json" in done.err  # This file has the old settings.
    assert "Traceback" not in done.err
    # The refused attempt has not changed the run, so the command that the error advises works.
    noether("train", f"resume={tmp_path}/small", "trainer.max_updates=6", code=0)


@pytest.mark.slow
def test_resuming_from_an_older_checkpoint_leaves_the_other_history(train, tmp_path) -> None:
    folder = train("branch", "trainer.max_updates=12")
    older = next(c for c in list_checkpoints(folder.checkpoints) if c.updates == 4)
    train("branch", f"resume={older.path}", "trainer.max_updates=6", "optimizer.learning_rate=1e-6")
    assert updates_kept(folder) == [4, 6]
    assert json.loads(folder.result.read_text())["updates"] in (4, 6)
    # A run resumed at its very end drops later history, too: rows, checkpoints, settings and result stay consistent.
    train("branch", f"resume={older.path}", "trainer.max_updates=4", "optimizer.learning_rate=1e-6")
    assert updates_kept(folder) == [4]
    assert last_update(read_metrics(folder.metrics)) == 4
    assert json.loads(folder.result.read_text())["updates"] == 4
    assert json.loads(folder.plan.read_text())["length"]["total_updates"] == 4
    assert "max_updates: 4" in folder.config.read_text()
