"""Ranks, accumulation and loader workers change where a batch is computed, not what is learned."""

import json

import pytest
import torch
from learned import difference, weights

from noether.runs.folder import RunFolder
from noether.runs.records import read_metrics

PROOF = ("trainer.precision=float64", "optimizer=sgd", "optimizer.learning_rate=0.05", "trainer.ema_decay=0.9")

WAYS = {
    "1-rank-accumulated": ("trainer.max_batch_size=1",),
    "1-rank-accumulated-unevenly": ("trainer.max_batch_size=3",),
    "1-rank-with-loader-workers": ("num_workers=2",),
    "2-ranks": ("devices=2",),
    "2-ranks-recomputed": ("devices=2", "trainer.recompute=true"),
    "2-ranks-accumulated": ("devices=2", "trainer.max_batch_size=1"),
    "2-ranks-accumulated-recomputed": ("devices=2", "trainer.max_batch_size=1", "trainer.recompute=true"),
    "4-ranks": ("devices=4",),
}


@pytest.fixture(scope="module")
def reference(train_in, tmp_path_factory) -> RunFolder:
    return train_in(tmp_path_factory.mktemp("reference"), "one", *PROOF)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_same_weights_however_a_batch_is_spread(way, train, reference) -> None:
    other = train("other", *PROOF, *way)
    for name in ("model.safetensors", "ema.safetensors"):
        found = weights(other, name)
        assert {value.dtype for value in found.values() if value.is_floating_point()} == {torch.float64}
        assert difference(weights(reference, name), found) < 1e-10
    assert difference(weights(reference, which=0), weights(reference)) > 1e-4, "nothing was learned"
    # Two ranks share five test samples, and must neither count a sample twice nor leave one out.
    one, two = (json.loads(folder.result.read_text()) for folder in (reference, other))
    assert one["samples"] == two["samples"] == 5
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-9)
    rows = (row for row in read_metrics(other.metrics) if row["kind"] == "evaluation")
    assert [row["update"] for row in rows] == [4, 4, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_compiled_model_learns_the_same(ranks, train) -> None:
    """The weights agree to single precision, because the compiler fuses operations and so rounds in another order."""
    short = ("trainer.max_updates=4", "trainer.evaluate_every=null", "optimizer=sgd", f"devices={ranks}")
    plain = train("plain", *short)
    compiled = train("compiled", *short, "trainer.compile=true", timeout=500)  # The compiler is slow on busy cores.
    assert difference(weights(plain), weights(compiled)) < 1e-5
