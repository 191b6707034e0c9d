"""Each validation keeps the prediction of one case, for a user who watches the run."""

from types import SimpleNamespace

import numpy as np
import pytest

from noether.config.section import FieldConfig
from noether.core.evaluate import ShownCase, write_cases
from noether.runs.metrics import Metric
from noether.runs.report.run import read_evaluation
from noether.training.evaluation import Validation


def test_the_median_case_is_kept_while_the_run_trains(noether, tmp_path) -> None:
    words = ("+experiment/ellipsoid=quick", f"output_path={tmp_path}", "run_id=kept", "trainer.max_updates=2")
    small = ("dataset.train_shapes=20", "dataset.test_shapes=5", "model.dim=32", "model.heads=2")
    noether("train", *words, *small, "trainer.evaluate_every=2 updates", code=0)
    meta, arrays = read_evaluation(tmp_path / "kept" / "evaluation" / "latest.npz")
    assert (meta["split"], meta["updates"], [case["label"] for case in meta["cases"]]) == ("validation", 2, ["median"])
    errors = arrays["metrics/surface_pressure/relative_l2"]
    assert meta["cases"][0]["index"] == np.argsort(errors, kind="stable")[len(errors) // 2]
    assert arrays["case/0/surface_pressure/prediction"].shape == arrays["case/0/surface_pressure/truth"].shape


@pytest.mark.parametrize(("most", "kept"), [(None, 1000), (1000, 1000), (300, 250)])
def test_a_case_of_many_points_is_thinned(most, kept, tmp_path) -> None:
    import torch

    task = SimpleNamespace(fields={"pressure": FieldConfig(points="surface_points", unit="Pa")})
    points = torch.rand(1, 1000, 3)
    batch = {"surface_points": points, "surface_normals": points, "pressure": points[..., 0]}
    shown = ShownCase("median", 1, 0, {"pressure": points[..., :1]}, batch)
    write_cases(
        tmp_path / "a.npz", task, {"pressure/relative_l2": np.zeros(1)}, errors={}, shown=[shown],
        names=["car"], about={}, most_points=most,
    )  # fmt: skip
    _, arrays = read_evaluation(tmp_path / "a.npz")
    shapes = {name.rpartition("/")[2]: array.shape for name, array in arrays.items() if name.startswith("case/")}
    three, one = (kept, 3), (kept, 1)
    assert shapes == {"points": three, "truth": one, "prediction": one, "normals": three}


def test_a_metric_that_is_nan_and_selects_no_weights_is_told_once_with_the_sample() -> None:
    warned: list[str] = []
    run = SimpleNamespace(
        selected_by=Metric("loss"),
        problem=SimpleNamespace(splits=SimpleNamespace(train=[]), validation_indices=[4, 7]),
        console=SimpleNamespace(warn=warned.append),
    )
    validation = Validation(run, None)  # type: ignore[arg-type]
    samples = {"loss": np.array([0.5, np.nan])}
    validation._warn_of_nan({"loss": 0.5}, samples)
    assert not warned
    for _ in range(2):
        validation._warn_of_nan({"loss": float("nan")}, samples)
    assert len(warned) == 1
    assert "trainer.select_by=loss is NaN, because it is NaN of sample 7 of the training split" in warned[0]
