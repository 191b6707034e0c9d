"""Intervals from several runs: their coverage, the output of `predict`, and the refused runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import pyvista
from processes import lay

from noether import load_run
from noether.physics.fields.fields import FieldsTask
from noether.physics.predict.inference import TrainedModel
from noether.physics.predict.shape_request import interval_level
from noether.physics.uncertainty.ensemble import (
    LEVELS,
    Ensemble,
    Prediction,
    conformal_quantiles,
    covered_shares,
    distances,
    fit_distance,
    highest_level,
    interval_table,
    kept_scores,
)
from noether.physics.uncertainty.ensemble_members import named_runs
from tests.notebooks import run_notebook
from tests.refusal import refusal

REPOSITORY = Path(__file__).parents[3]
CAR = str(REPOSITORY / "examples" / "car.stl")


def test_one_value_a_case_gives_the_ordinary_quantile() -> None:
    found = conformal_quantiles([np.array([float(k)]) for k in range(19)])
    # The quantile is the k-th of 19 values, k = ⌈20 · level⌉; above 95 %, 19 values are too few.
    assert [found[level - 1] for level in (5, 50, 90, 95)] == [0.0, 9.0, 17.0, 18.0]
    assert np.isinf(found[95:]).all()
    assert highest_level(19) == 95


def test_the_share_is_covered_on_average_over_cases_of_any_size_and_difficulty() -> None:
    rng = np.random.default_rng(0)

    def cases(count: int) -> list[np.ndarray]:
        hard = rng.lognormal(0, 0.7, count)
        return [kept_scores(np.abs(rng.normal(0, own, rng.integers(50, 400)))) for own in hard]

    for held in (5, 14, 40):
        shares = np.mean([covered_shares(cases(40), conformal_quantiles(cases(held))) for _ in range(60)], axis=0)
        assert [shares[level - 1] for level in (50, 80, 90)] == pytest.approx([0.5, 0.8, 0.9], abs=0.025)


def test_several_runs_have_an_interval_unless_it_is_refused() -> None:
    wanted = {None: [None, 90], "none": [None, None], "80": [80, 80], "80%": [80, 80]}
    assert {asked: [interval_level(asked, runs) for runs in (1, 2)] for asked in wanted} == wanted


def test_many_scores_of_a_case_are_kept_by_rank() -> None:
    kept = kept_scores(np.arange(100_000.0)[::-1])
    assert (len(kept), kept[-1], (np.diff(kept) > 0).all()) == (2048, 99_999.0, True)


def test_a_shape_off_the_training_shapes_is_far() -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(6, 24))
    train, near = rng.uniform(-1, 1, (400, 6)) @ mix, rng.uniform(-1, 1, (50, 6)) @ mix
    off = near + 0.3 * rng.normal(size=near.shape)
    fitted = fit_distance(train + 0.01 * rng.normal(size=train.shape))
    assert distances(fitted, off).min() > distances(fitted, near).max()


@pytest.fixture(scope="module")
def runs(train_in, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, held = tmp_path_factory.mktemp("ensemble"), "dataset.validation_fraction=0.5"
    own = [train_in(folder, f"cars-{seed}", held, f"seed={seed}").path for seed in (1, 2)]
    other = train_in(folder, "other", held, "dataset.seed=1").path
    (folder / "cars.sweep.json").write_text(json.dumps({"runs": [{"run": f"runs/{run.name}"} for run in own]}))
    return [*map(str, own), str(other), str(folder / "cars.sweep.json")]


def test_the_runs_of_a_sweep_are_named_by_it(runs: list[str]) -> None:
    assert named_runs([runs[3]]) == runs[:2]
    assert named_runs([runs[3].removesuffix(".sweep.json")]) == runs[:2]
    assert named_runs([runs[0], "runs/nothing"]) == [runs[0], "runs/nothing"]
    assert named_runs([str(Path(runs[0]).parent)]) == sorted(runs[:3])


def test_a_run_of_a_folder_that_saved_nothing_is_left_out_and_named(runs: list[str], tmp_path: Path, capsys) -> None:
    for name in ("died", "failed"):  # These runs have no checkpoint.
        lay(tmp_path / name, {"config.yaml": "seed: 0\n"})
    assert named_runs([str(tmp_path)]) == [str(tmp_path / "died"), str(tmp_path / "failed")], (
        "the runs are refused later"
    )
    (tmp_path / "cars").symlink_to(runs[0])
    assert named_runs([str(tmp_path)]) == [str(tmp_path / "cars")]
    assert "have no checkpoint: died, failed" in " ".join(capsys.readouterr().err.split())


def test_a_name_of_a_run_and_of_a_sweep_is_told(runs: list[str], tmp_path: Path, capsys) -> None:
    shutil.copytree(runs[2], tmp_path / "cars")
    shutil.copy(runs[3], tmp_path)
    assert named_runs([str(tmp_path / "cars")]) == [str(tmp_path / "cars")]
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path}/cars names a run and a sweep: the run is used; for the sweep's runs, give" in said


@pytest.mark.parametrize("content", ['{"runs": [{"run": "a"}', '{"groups": {}}', '{"runs": [7]}'])
def test_a_damaged_sweep_names_no_runs(content: str, tmp_path: Path) -> None:
    (tmp_path / "cars.sweep.json").write_text(content)
    with refusal("sweep-damaged"):
        named_runs([str(tmp_path / "cars")])


def test_several_runs_write_mean_spread_and_interval(runs: list[str], noether, tmp_path: Path) -> None:
    out = tmp_path / "car.vtu"
    done = noether("predict", runs[3], "--mesh", CAR, "--out", str(out))
    assert done.code == 0, done.err
    assert "90 % interval" in done.out
    assert f"predicted by {', '.join(runs[:2])}" in " ".join(done.out.split())
    data = pyvista.read(out).point_data
    low, high, mean = (data[f"surface_pressure_{part}"] for part in ("low", "high", "prediction"))
    assert ((low < mean) & (mean < high)).all()
    single = []
    for run in runs[:2]:
        assert noether("predict", run, "--mesh", CAR, "--out", str(out)).code == 0
        single.append(pyvista.read(out).point_data["surface_pressure_prediction"])
    np.testing.assert_allclose(mean, np.mean(single, axis=0), rtol=1e-4, atol=1e-3)
    (record,) = (Path(runs[0]) / "evaluation").glob("intervals-*.json")
    outputs = json.loads(record.read_text())["outputs"]
    assert set(outputs) == {"surface_pressure", "volume_velocity", "lift_coefficient", "yawing_moment_coefficient"}
    assert len(outputs["volume_velocity"]["quantiles"]) == 3
    assert len(outputs["surface_pressure"]["covered"]) == len(LEVELS)
    assert noether("report", runs[0]).code == 0
    page = (Path(runs[0]) / "report.html").read_text()
    section = page.partition('<section id="intervals">')[2].partition("</section>")[0]
    assert section.count("<svg") == len(outputs)
    again = noether("predict", *runs[:2], "--mesh", CAR, "--out", str(out), "--interval", "80")
    assert (again.code, "calibrating" in again.out, "80 % interval" in again.out) == (0, False, True)
    assert "intervals" in load_run(*runs[:2]).predict(CAR)
    for words, code in (([*runs[:2], "--interval", "95"], "too-few-to-calibrate"),
                        ([runs[0], runs[2]], "runs-do-not-fit-together")):  # fmt: skip
        refused = noether("predict", *words, "--mesh", CAR, "--out", str(out))
        assert (refused.code, code in refused.err) == (2, True), refused.err


def test_a_coefficient_that_could_not_be_calibrated_has_a_row_without_an_interval() -> None:
    task = FieldsTask({"surface_pressure": {"points": "surface_points", "unit": "Pa"}})
    trained = TrainedModel(None, None, task, None, None)
    spreads = {"drag": np.array(0.01), "lift": np.array(0.02)}
    found = Prediction({}, {"drag": 0.3, "lift": -0.1}, spreads, {"lift": np.array(0.05)}, None)
    covered = {"lift": {"covered": [0.5] * len(LEVELS)}}
    table = interval_table(trained, found, Ensemble((), {"outputs": covered, "cases": {"test": 5}}), 90)
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    lift = ("lift", "-0.1000", "0.02000", "-0.1500 to -0.05000", "50.0%")
    assert rows == [lift, ("drag", "0.3000", "0.01000", "–", "–")]


def test_the_notebook_goes_from_intervals_to_what_to_change(runs: list[str], monkeypatch) -> None:
    monkeypatch.setenv("NOETHER_RUNS", " ".join(runs[:2]))
    names = run_notebook("how_sure_and_what_to_change.ipynb")
    found, change = names["found"], names["change"]
    assert set(found["intervals"]) == {"lift_coefficient", "yawing_moment_coefficient"}
    assert change["outwards"].shape == (1200,)
