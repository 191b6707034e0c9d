"""A length that a resumed run has passed is refused, and what a failed dry run names is there."""

import re
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_length_that_is_passed_is_refused_and_the_fix_goes_on(train, noether) -> None:
    folder = train("run", "trainer.max_updates=6")
    words = ("train", "--hp", str(folder.config), f"resume={folder.path}")
    refused = noether(*words, "trainer.max_updates=5")
    assert refused.code == 2, refused.out + refused.err
    assert "6 are done" in refused.err
    fix = re.search(r"fix +(trainer\.max_updates=\d+)", refused.err)
    assert fix, refused.err
    assert fix[1] == "trainer.max_updates=11"
    done = noether(*words, fix[1])
    assert done.code == 0, done.out + done.err
    assert "already complete" in noether(*words, fix[1]).out


MODEL = """
from torch import nn
class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, batch):
        raise RuntimeError("as it was written")
"""


@pytest.mark.slow
def test_the_logs_that_a_failed_dry_run_names_are_there(noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODEL)
    done = noether("train", "--dry-run", "model.kind=own.Fails", "accelerator=cpu", "devices=2", cwd=tmp_path)
    assert done.code == 1, done.out + done.err
    assert "as it was written" in done.err
    named = re.search(r"logs +(\S+)", done.err)
    assert named, done.err
    assert (Path(named[1]) / "rank-1.log").is_file()
