"""A user's own batches and losses that compare samples: the same on any number of ranks, and after a resume."""

import json
from pathlib import Path

import pytest
import torch
from conftest import final_hashes
from learned import difference, one_rank, weights

from noether.core.data.build import OwnStream
from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics
from noether.training.gathered import Together
from tests.refusal import refusal

CONFIG = """
defaults: [/optimizer: sgd, /schedule: constant, _self_]
dataset: {{kind: own_batches.{dataset}, validation_fraction: 0.25}}
model: {{kind: own_batches.{model}}}
task: {{kind: own_batches.{task}}}
optimizer: {{learning_rate: 0.05}}
accelerator: cpu
trainer: {{effective_batch_size: 8, max_updates: 7, precision: float64, evaluate_every: 7 updates,
          checkpoint_every: 4 updates}}
"""


@pytest.fixture
def own(noether, tmp_path: Path):
    """Return a function that trains the user's classes, with further settings, and returns the run's folder."""
    (tmp_path / "own_batches.py").write_text(Path(__file__).with_name("own_batches.py").read_text())

    def train(kinds: dict[str, str], name: str, *words: str) -> RunFolder:
        (tmp_path / "own.yaml").write_text(CONFIG.format(**kinds))
        noether("train", "--hp", "own.yaml", "output_path=runs", f"run_id={name}", *words, cwd=tmp_path, code=0)
        return RunFolder(tmp_path / "runs" / name)

    return train


def scores(folder: RunFolder) -> list[float]:
    """Return the losses of all evaluations, on the validation split and at the end on the test split."""
    rows = [row["metrics"]["loss"] for row in read_metrics(folder.metrics) if row["kind"] == "evaluation"]
    return [*rows, json.loads(folder.result.read_text())["metrics"]["loss"]]


CONTRAST = {"dataset": "Pairs", "model": "Encoders", "task": "Contrast"}
SERIES = {"dataset": "Series", "model": "Recurrent", "task": "Count"}
OWN = {
    "contrast": (CONTRAST, "trainer.across_ranks=gather", 4),
    "series": (SERIES, "num_workers=0", 2),
    "stream": (SERIES | {"dataset": "Stream"}, "num_workers=2", 4),
    "weighted": (SERIES | {"dataset": "Weighted"}, "num_workers=1", 4),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "word", "most"), OWN.values(), ids=OWN)
def test_own_batches_are_the_same_on_any_ranks_and_resumed_bit_for_bit(
    kinds, word, most, own, noether, tmp_path
) -> None:
    one = own(kinds, "one", word)
    assert difference(weights(one, which=0), weights(one)) > 1e-4, "nothing was learned"
    asked = ("evaluate", "runs/one", "--split", "validation", "--checkpoint", "latest", "--json")
    found = json.loads(noether(*asked, cwd=tmp_path, code=0).out)["metrics"]["loss"]
    assert found == pytest.approx(scores(one)[0], rel=1e-12), "a later evaluation must have the same batches"
    for ranks in (2, 4)[: most // 2]:
        other = own(kinds, f"on-{ranks}", word, f"devices={ranks}")
        assert difference(weights(one), weights(other)) < 1e-14
        assert scores(other) == pytest.approx(scores(one), rel=1e-12)
        assert min(scores(other)) > 0
    for ranks in (1, 2):
        own(kinds, f"cut-{ranks}", word, f"devices={ranks}", "trainer.max_updates=4")  # This is within an epoch.
        resumed = own(kinds, f"cut-{ranks}", word, f"devices={ranks}", "resume=auto")
        assert final_hashes(resumed) == final_hashes(one if ranks == 1 else RunFolder(one.path.parent / "on-2"))


def test_a_stream_is_read_on_or_anew_and_begins_again_where_it_ends() -> None:
    class Letters(str):
        __slots__ = ("begun",)

        def __iter__(self):
            self.begun += 1
            return super().__iter__()

    letters = Letters("abc")
    letters.begun = 0
    stream = OwnStream(letters, "Letters", 8, ["kept"])
    assert "".join(stream._read(at) for at in (0, 1, 4, 7)) == "abbb"
    assert letters.begun == 3
    assert [stream._read(at) for at in (8, 2, len(stream) - 1)] == ["kept", "c", "kept"]


def test_what_cannot_be_gathered_is_named() -> None:
    of_three = Together({"logits": torch.zeros(3, 2), "scale": torch.ones(())}, 3, one_rank())
    assert {**of_three}["logits"].shape == (3, 2)
    with refusal("cannot-gather", seen="weights (2, 5) of torch.float32 on rank 0"):
        Together({"weights": torch.zeros(2, 5)}, 3, one_rank())["weights"]
