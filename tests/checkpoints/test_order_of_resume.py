"""A run that is resumed on another number of ranks sees the same samples in the same order."""

import json
from pathlib import Path

import pytest
from conftest import REPOSITORY
from learned import difference, weights

from noether.runs.folder import RunFolder

OWN = REPOSITORY / "tests" / "faults" / "own"
# The learning rate is constant, because other schedules depend on a run's length and the parts differ in length.
PROOF = ("trainer.precision=float64", "optimizer=sgd", "schedule=constant", "model.dropout=0.0", "resume=auto")


def global_batches(folder: Path, ranks: int) -> list[list[int]]:
    """Return the indices of each update's samples, concatenated in the order of the ranks."""
    # Skip the trial of the first sample and, with more than two ranks, the two passes that settle DDP's buckets.
    passes = 3 if ranks > 2 else 1
    shares = [(folder / str(rank)).read_text().splitlines()[passes:] for rank in range(ranks)]
    shares[0].pop()  # At the end, rank 0 makes one more pass to count its operations.
    return [[index for share in update for index in json.loads(share)] for update in zip(*shares, strict=True)]


@pytest.mark.slow
def test_two_then_one_then_four_ranks_go_on_with_the_next_unseen_sample(noether, tmp_path) -> None:
    def train(name: str, ranks: int, until: int) -> list[list[int]]:
        record = tmp_path / f"{name}-{ranks}"
        record.mkdir()
        words = ["--hp", str(OWN / "lines.yaml"), f"output_path={tmp_path}", f"run_id={name}", *PROOF]
        variables = {"PYTHONPATH": f"{REPOSITORY}:{OWN}", "RECORD": str(record)}
        done = noether("train", *words, f"devices={ranks}", f"trainer.max_updates={until}", cwd=OWN, **variables)
        assert done.code == 0, done.err
        if until > 4 and name == "parts":
            assert "the order of samples continues" in done.out + done.err
        return global_batches(record, ranks)

    whole = train("whole", 1, 13)
    # Updates 4 and 9 are inside epochs of 6 updates: each part begins mid-epoch.
    parts = train("parts", 2, 4) + train("parts", 1, 9) + train("parts", 4, 13)
    assert len(whole) == 13
    assert parts == whole
    one, other = (weights(RunFolder(tmp_path / name)) for name in ("whole", "parts"))
    assert difference(one, other) < 1e-12
