"""A resumed run refuses a length that is shorter than its progress; a dry run leaves no files, however it ends."""

import re
import shutil
import signal
from pathlib import Path

import pytest
from conftest import TINY

from noether.checkpoints.format import list_checkpoints
from noether.runs.records import read_metrics


@pytest.mark.slow
def test_a_length_that_is_passed_is_refused_and_the_fix_goes_on(train, noether) -> None:
    folder = train("run", "trainer.max_updates=6")
    words = ("train", "--hp", str(folder.config), f"resume={folder.path}")
    refused = noether(*words, "trainer.max_updates=5")
    assert (refused.code, "with 6 done" in refused.err) == (2, True), refused.out + refused.err
    fix = re.search(r"fix +(trainer\.max_updates=\d+)", refused.err)
    assert fix, refused.err
    assert fix[1] == "trainer.max_updates=11"
    noether(*words, fix[1], code=0)
    assert "already complete" in noether(*words, fix[1]).out


@pytest.mark.slow
def test_a_dry_run_goes_on_from_the_checkpoint_as_the_run_does(train, noether, tmp_path: Path) -> None:
    """Regression: the dry run required the file of the run's initial weights, and did not use the checkpoint."""
    weights = tmp_path / "weights.safetensors"
    first = list_checkpoints(train("first", "trainer.max_updates=2").checkpoints)[-1]
    shutil.copy(first.path / "model.safetensors", weights)
    folder = train("run", "trainer.max_updates=6", f"initial_weights={weights}")
    weights.unlink()
    words = ("train", "--dry-run", f"resume={folder.path}")
    tried = noether(*words, "trainer.max_updates=8")
    assert (tried.code, "after update 6" in tried.out) == (0, True), tried.out + tried.err
    refused = noether(*words, "trainer.max_updates=5")
    assert (refused.code, "with 6 done" in refused.err) == (2, True), refused.err


MODEL = """
import os, signal, time
from torch import nn
class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, batch):
        raise RuntimeError("as it was written")
class Told(Fails):
    def forward(self, batch):
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(60)
"""


NO_HANGUP = pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="nohup: SIGHUP is ignored")


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks", "code"), [("Fails", 2, 1), pytest.param("Told", 1, 129, marks=NO_HANGUP)])
def test_a_dry_run_that_fails_leaves_nothing(model: str, ranks: int, code: int, noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODEL)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("train", "--dry-run", "--hp", str(TINY), f"model.kind=own.{model}", f"devices={ranks}")
    done = noether(*words, cwd=tmp_path, TMPDIR=str(scratch))
    assert done.code == code, done.out + done.err
    assert ("as it was written" if code == 1 else "SIGHUP") in done.err
    assert str(scratch) not in done.err
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_the_loss_of_a_dry_run_is_that_of_the_first_update(train, noether) -> None:
    first = next(row for row in read_metrics(train("first", "trainer.max_updates=1").metrics) if "loss" in row)
    done = noether("train", "--dry-run", "--hp", str(TINY), "devices=1")
    assert f"loss   {first['loss']:.4g} before training" in done.out
