"""A run of each model has the same losses as the stored curve of that model."""

import json

import pytest
from physics.models.make_curves import HERE, MODELS, losses, words_of

RELATIVE = 1e-6
"""The relative tolerance: processors and torch versions round differently, by less than 1e-9 after 20 updates."""


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_stored_curve_is_reproduced(model: str, noether, tmp_path) -> None:
    noether("train", *words_of(model), f"output_path={tmp_path}", "run_id=curve", code=0)
    found = losses(tmp_path / "curve" / "metrics.jsonl")
    stored = json.loads((HERE / f"{model}.json").read_text())
    assert len(stored) == 20
    assert found == pytest.approx(stored, rel=RELATIVE), "if intended: python -m tests.physics.models.make_curves"
    assert min(stored[10:]) < stored[0], "the loss must fall"
