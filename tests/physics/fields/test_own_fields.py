"""Users define fields without Python code; each case is a problem that a user had."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from noether.physics.export.exported_model import load_exported
from noether.runs.report.run import read_evaluation

pytestmark = pytest.mark.slow

DATA = ["dataset.kind=own_fields.Bodies", "dataset.geometry_points=32", "dataset.validation_fraction=0.25"]
SHORT = [
    "accelerator=cpu", "devices=1", "trainer.effective_batch_size=4", "trainer.max_updates=3",
    "trainer.max_epochs=null", "tracker.tensorboard=false", "tracker.report=false", "trainer.ema_decay=null",
]  # fmt: skip
MODELS = {
    "upt": ["model=upt", "model.dim=24", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1"],
    "ab_upt": ["model=ab_upt", "model.dim=24", "model.heads=2", "model.physics_depth=1", "model.branch_depth=1"],
}
HEAD = """
defaults: [/model: upt, /optimizer: adamw, /schedule: warmup_cosine, /trainer: default, /tracker: default, _self_]
"""
EVERYTHING = """
task:
  kind: fields
  fields:
    surface_pressure: {points: surface_points, unit: Pa}
    surface_wall_shear: {points: surface_points, unit: Pa}
    surface_temperature: {points: surface_points, unit: K, weight: 0.5}
    volume_velocity: {points: volume_points, unit: m/s}
    probe_turbulence: {points: probe_points, unit: m²/s², scaling: symmetric_log}
    drag: {points: case, unit: N}
  inputs: [surface_curvature]
  parameters: {wind_speed: {unit: m/s}}
  scalars:
    drag_coefficient:
      direction: [1.0, 0.0, 0.0]
      shear: surface_wall_shear
      dynamic_pressure: wind_speed
      density: 1.2
      reference_area: frontal_area
      truth: true_force
"""


@pytest.fixture
def ask(noether):
    """Return the fixture `noether` in an environment where this folder's data set can be imported."""
    return functools.partial(noether, PYTHONPATH=str(Path(__file__).parent))


@pytest.fixture
def train(ask, tmp_path: Path):
    (tmp_path / "all.yaml").write_text(HEAD + EVERYTHING)
    (tmp_path / "open.yaml").write_text(HEAD + "task: {kind: fields}\n")

    def run(*overrides: str, hp: str = "all", expect: int = 0):
        words = ("--hp", str(tmp_path / f"{hp}.yaml"), f"output_path={tmp_path}", "run_id=run", *DATA, *SHORT)
        done = ask("train", *words, *overrides)
        assert done.code == expect, done.out + done.err
        return done

    return run


def test_a_model_trains_on_fields_of_three_sets_and_its_export_has_them(train, ask, tmp_path: Path) -> None:
    train(*MODELS["upt"], "trainer.evaluation_chunk_size=7", "tracker.report=true")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    fields = {"surface_pressure", "surface_wall_shear", "surface_temperature", "volume_velocity", "probe_turbulence"}
    assert set(result["fields"]) == fields == {one["of"] for one in result["described"]} - set(result["scalars"])
    assert {"drag", "drag_coefficient"} == set(result["scalars"])
    assert all(f"surface_pressure/on {part}/pooled_relative_l2" in result["metrics"] for part in ("nose", "tail"))
    assert "surface_wall_shear/weighted_relative_l2" in result["metrics"]
    assert "surface temperature" in (tmp_path / "run" / "report.html").read_text().lower()
    ask("export", str(tmp_path / "run"), str(tmp_path / "out"), code=0)
    loaded = load_exported(tmp_path / "out", trust=True)
    arrays = {name: np.random.default_rng(0).normal(size=[33 if n < 0 else n for n in shape])
              for name, shape in loaded.inputs.items()}  # fmt: skip
    found = loaded(arrays)
    assert found["surface_wall_shear"].shape == (33, 3)
    assert found["drag"].shape == (1,)


def test_predict_writes_every_field_and_says_what_lies_outside_of_training(train, ask, tmp_path: Path) -> None:
    train(*MODELS["upt"], "task.inputs=[]")
    ball = np.random.default_rng(0).normal(size=(40, 3))
    np.save(tmp_path / "ball.npy", ball / np.linalg.norm(ball, axis=1, keepdims=True))
    words = ["predict", str(tmp_path / "run"), "--mesh", str(tmp_path / "ball.npy"), "--out", str(tmp_path / "p.vtu")]
    done = ask(*words, "--set", "wind_speed=32", code=0)
    assert all(f"{name}_prediction" in done.out for name in ("surface_wall_shear", "surface_temperature"))
    assert "drag:" in done.out
    assert "outside" not in done.out
    assert "wind_speed=90 lies outside" in ask(*words, "--set", "wind_speed=90").out
    missing = ask(*words)
    assert (missing.code, "--set wind_speed=" in missing.err) == (2, True)
    unknown = ask(*words, "--set", "wind_sped=32")
    assert (unknown.code, "--set wind_speed=32" in unknown.err) == (2, True)


def test_a_subclass_with_a_field_of_its_own_is_evaluated_in_chunks_and_predicts(train, ask, tmp_path: Path) -> None:
    fields = "task.fields={surface_temperature: {points: surface_points, unit: K}}"
    train(
        "model.kind=own_fields.RenamedUPT", fields, "task.scalars={}", "task.inputs=[]",
        "task.parameters={}", "trainer.evaluation_chunk_size=5", hp="open",
    )  # fmt: skip
    np.save(tmp_path / "ball.npy", np.random.default_rng(0).normal(size=(40, 3)))
    done = ask("predict", str(tmp_path / "run"), "--mesh", str(tmp_path / "ball.npy"), "--out", str(tmp_path / "p.vtu"))
    assert done.code == 0, done.err
    assert "surface_temperature_prediction" in done.out


@pytest.mark.parametrize(
    ("task", "more"), [("OnlyLoss", []), ("OwnError", ["task.fields={surface_temperature: {points: surface_points}}"])]
)
def test_a_task_that_measures_no_relative_l2_shows_cases_by_its_loss(task, more, train, tmp_path: Path) -> None:
    train("model.kind=own_fields.RenamedUPT", f"task.kind=own_fields.{task}", *more, hp="open")
    for split in ("latest", "test"):
        meta, arrays = read_evaluation(tmp_path / "run" / "evaluation" / f"{split}.npz")
        ranked = np.argsort(arrays["metrics/loss"], kind="stable").tolist()
        places = {"best": ranked[0], "median": ranked[len(ranked) // 2], "worst": ranked[-1]}
        first = [case for case in meta["cases"] if case["place"] == 1]
        assert {case["label"]: case["index"] for case in first}.items() <= places.items()
        assert [case["relative_l2"] for case in first] == [{}] * (3 if split == "test" else 1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task.fields.surface_temperature.points=surface_pts"], "did you mean 'surface_points'"),
        (["task.fields.surface_temperature.points=surfaces_points"], "surface_temperature.points=surface_points"),
        (["+task.fields.surface_shear={points: surface_points}"], "they have surface_wall_shear"),
        (["task.inputs=[surface_curvatures]"], "surface_curvature"),
        (["+task.fields.volume_velocity.components=2"], "task.fields.volume_velocity.components=3"),
        (["+dataset.bad=hole"], "body-00"),
        (["task.domain_low=-2.0", "task.domain_length=4.0", "+dataset.scale=1000.0"], "millimetres"),
        (["task.domain_low=-1.0", "task.domain_length=2.0"], "task.domain_low=null"),
    ],
    ids=["unknown-set", "misspelt-set", "misspelt-field", "misspelt-input", "components", "nan", "mm", "outside"],
)  # fmt: skip
def test_a_wrong_field_is_refused_before_training_with_the_line_to_change(overrides, words, train) -> None:
    done = train(*MODELS["upt"], *overrides, "--dry-run", expect=2)
    assert words in done.err, done.err


def test_models_that_read_what_samples_lack_are_refused_with_one_that_does_without(train) -> None:
    only_case = "task.fields={drag: {points: case, unit: N}}"
    done = train(*MODELS["ab_upt"], only_case, "task.inputs=[]", "task.scalars={}", hp="open", expect=2)
    assert "model=upt" in done.err


def test_geometry_points_of_the_samples_are_kept() -> None:
    from own_fields import Bodies

    from noether.core.data.order import SampleKey
    from noether.core.data.points import PointSampler

    sample = Bodies("train", bad="geometry")[0]
    for drawn in (PointSampler(0).for_training(sample, SampleKey(0, 0)), PointSampler(0).for_evaluation(sample)):
        assert torch.equal(drawn["geometry_points"].sort(dim=0).values, sample["geometry_points"].sort(dim=0).values)


ONLY_CASE = ["task.fields={drag: {points: case, unit: N}}", "task.inputs=[]", "task.parameters={}"]


@pytest.mark.parametrize(("words", "fields"), [([], {"surface_pressure"}), (ONLY_CASE, set())])
def test_neither_a_configuration_of_fields_nor_a_field_beside_an_output_is_needed(words, fields, train, tmp_path):
    train(*MODELS["upt"], *words, "task.scalars={}", hp="open")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (set(result["fields"]), set(result["scalars"])) == (fields, {"drag"})
