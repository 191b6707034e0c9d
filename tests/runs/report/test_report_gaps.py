"""No gap in a run breaks its report, and no report that cannot be written breaks a run: each is said in words."""

import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_runs import SECTIONS, Page, resumed, without_cases

from noether.common.console import Console
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.cases import field_cases
from noether.runs.report.page import render_report, write_report
from noether.runs.report.run import ReportedRun, read_run
from noether.runs.report.tables import choose_cases
from noether.training.evaluation import report_run

pytest_plugins = ("report_fixtures",)


MISSING = {
    "result.json": ({"result": {}}, {"errors": "the run has not been evaluated."}),
    "plan.json": ({"plan": {}}, {"plan": "how the run was spread over devices is not known."}),
    "environment.json": ({"environment": {}}, {"environment": "versions and host are not known."}),
    "metrics.jsonl": ({"rows": []}, {"curves": "no line of training was written."}),
    "test.npz": ({"meta": {}, "arrays": {}}, {"cases": "no fields of single samples were kept.",
                 "distributions": "no errors of single points or samples were kept."}),
}  # fmt: skip


@pytest.mark.parametrize("file", MISSING)
def test_missing_file_is_said_where_it_is_missed(run: ReportedRun, file: str) -> None:
    gap, sentences = MISSING[file]
    missing = replace(without_cases(run), **gap, troubles={file: f"There is no {file}"})
    texts = Page(render_report(missing)).texts
    assert all(texts[other].strip() for other in SECTIONS)
    for section, sentence in sentences.items():
        assert f"There is no {file}: {sentence}" in texts[section]


def test_damaged_files_are_named(tmp_path: Path, folder: RunFolder) -> None:
    damaged = RunFolder(tmp_path / "damaged")
    damaged.create()
    damaged.evaluation.mkdir()
    damaged.config.write_text("seed: [1\n")
    damaged.result.write_text('{"fields": {')
    damaged.plan.write_text("[1, 2]")
    damaged.metrics.write_text('{"kind": "training", "update": 1, "loss": 2.0}\n{"kind": "tra')
    (damaged.evaluation / "test.npz").write_bytes((folder.evaluation / "test.npz").read_bytes()[:5000])
    texts = Page(write_report(damaged).read_text()).texts
    assert "result.json cannot be read" in texts["errors"]
    assert "test.npz cannot be read" in texts["cases"]
    assert "plan.json cannot be read (ValueError: a list where an object should be)" in texts["plan"]
    assert "The run has made 1 update and has not been evaluated" in texts[""]


def test_the_parts_of_a_page_are_those_of_its_task_before_there_is_a_result(run: ReportedRun) -> None:
    plan = {**run.plan, "report_parts": ["errors", "classes"]}
    early = replace(run, plan=plan, result={}, meta={}, arrays={})
    assert list(Page(render_report(early)).texts)[1:4] == ["errors", "classes", "use"]


def no_lift(run: ReportedRun) -> ReportedRun:
    arrays = {key: value for key, value in run.arrays.items() if "lift" not in key}
    return replace(run, result={**run.result, "scalars": {}}, arrays=arrays)


def no_validation(run: ReportedRun) -> ReportedRun:
    return replace(run, rows=[row for row in run.rows if row["kind"] == "training"])


def null_metrics(run: ReportedRun) -> ReportedRun:
    rows = [{**row, "loss": None, "samples_per_second": None} for row in run.rows]
    rows = [{**row, "metrics": dict.fromkeys(row["metrics"])} if "metrics" in row else row for row in rows]
    facts = {"lift_coefficient": {"note": "the truth does not vary"}}
    metrics = {name: float("inf") if "/max" in name else None for name in run.metrics}
    arrays = {key: value * np.nan if key.startswith("metrics/") else value for key, value in run.arrays.items()}
    result = {**run.result, "metrics": metrics, "scalars": facts}
    return replace(run, result=result, rows=rows, arrays=arrays)


def classification(run: ReportedRun) -> ReportedRun:
    result = {"split": "test", "samples": 360, "metrics": {"loss": 0.12, "top_1_accuracy": 0.97}}
    return replace(run, result=result, meta={}, arrays={})


UNUSUAL = {
    no_lift: [("scalars", "The task derives no scalar from its fields.")],
    no_validation: [("curves", "No validation split was evaluated: the loss is the training loss alone."),
                    ("curves", "Not drawn: no validation split was evaluated.")],
    resumed: [("plan", "restarts2")],
    null_metrics: [("", "The error of the surface pressure and volume velocity is not finite."),
                   ("scalars", "The truth does not vary."), ("curves", "Not drawn: no finite value was logged.")],
    classification: [("", "On 360 unseen samples: loss 0.1200, top 1 accuracy 0.9700."),
                     ("errors", "Top 1 accuracy0.9700")],
}  # fmt: skip


@pytest.mark.parametrize("change", UNUSUAL)
def test_unusual_runs(run: ReportedRun, change: Callable[[ReportedRun], ReportedRun]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = Page(render_report(change(without_cases(run))))
    for section, words in UNUSUAL[change]:
        assert words in read.texts[section]
    assert all(read.texts[other].strip() for other in SECTIONS)
    assert "nan" not in "".join(read.texts.values()).lower()


def test_the_median_and_the_worst_of_the_finite_errors_are_one_number_each(run: ReportedRun) -> None:
    errors = np.array([0.4, np.nan, 0.1, np.inf, 0.3, np.nan, 0.2])
    arrays = {**run.arrays, "metrics/surface_pressure/relative_l2": errors}
    texts = Page(render_report(replace(without_cases(run), arrays=arrays))).texts
    assert choose_cases(errors)[1] == ("median", 1, list(errors).index(0.3))
    assert "Median 30.00\u202f%, worst 40.00\u202f% of 4 cases" in texts["distributions"]
    assert "worst unseen40.00\u202f% (surface pressure)" in texts["use"]


def cases_alone(run: ReportedRun) -> ReportedRun:
    """The run without its charts."""
    arrays = {key: value for key, value in run.arrays.items() if key.startswith("case/")}
    return replace(run, rows=[], arrays=arrays)


def diverged(run: ReportedRun) -> ReportedRun:
    arrays = {key: value * np.nan if key.endswith("prediction") else value for key, value in run.arrays.items()}
    return replace(run, arrays=arrays)


def partly_diverged(run: ReportedRun) -> ReportedRun:
    arrays = {
        key: np.where(np.arange(len(value)) % 9, value.T, np.nan).T
        for key, value in run.arrays.items()
        if key.startswith("case/") and key.endswith("prediction")
    }
    return replace(run, arrays={**run.arrays, **arrays})


def no_normals(run: ReportedRun) -> ReportedRun:
    return replace(run, arrays={key: value for key, value in run.arrays.items() if "normals" not in key})


def no_surface(run: ReportedRun) -> ReportedRun:
    arrays = {key: value for key, value in run.arrays.items() if "surface" not in key}
    return replace(run, arrays=arrays, result={**run.result, "fields": ["volume_velocity"]})


@pytest.mark.parametrize(("change", "drawn"), [(diverged, 6), (partly_diverged, 6), (no_normals, 6), (no_surface, 3)])
def test_unusual_cases_are_drawn(run: ReportedRun, change: Callable[[ReportedRun], ReportedRun], drawn: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Page(render_report(change(cases_alone(run)))).count("img") == drawn


def test_half_a_car_in_millimetres_is_drawn_at_its_plane_of_symmetry(run: ReportedRun) -> None:
    arrays = {key: np.abs(value) if key.endswith("points") else value for key, value in cases_alone(run).arrays.items()}
    space = {"wind": [0, 0, 1], "up": [0, 1, 0], "files": {"metres": 0.001}}
    read = Page(render_report(replace(run, rows=[], arrays=arrays, meta={**run.meta, "space": space})))
    assert read.count("img") == 6
    assert "The plane of symmetry, the wind from the left" in read.texts["cases"]
    assert "x −1,200 to 1,200, y 0 to 1,600, z −2,500 to 2,500 mm" in read.texts["use"]


def test_a_surface_has_any_name(run: ReportedRun) -> None:
    fields = {"volume_velocity": {"unit": "m/s", "points": "hull_points"}}
    space = {"sets": {"hull": {"kind": "surface", "at": "points"}}}
    found = field_cases(replace(run, meta={**run.meta, "fields": fields, "space": space}), "volume_velocity")
    assert (found.on_surface, found.quantity) == (True, "magnitude")


def test_headlines_have_a_chart_for_each_unit_by_label_or_name(run: ReportedRun) -> None:
    score = Metric("drag/r2", "", "higher", "R²", "drag", headline=True, score=True)
    described = Metrics.of(Metric("top_5", "%", "higher", headline=True), score).records()
    row = {"kind": "evaluation", "split": "validation", "update": 9, "weights": "raw", "selected": True,
           "metrics": {"loss": 1, "top_5": 0.9, "drag/r2": -0.5}}  # fmt: skip
    other = replace(classification(run), plan={**run.plan, "described": described}, rows=[*run.rows[:2], row])
    curves = Page(render_report(other)).texts["curves"]
    assert "Top 5Validation split, raw weights." in curves
    assert "R²Validation split, raw weights." in curves


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (lambda points: points[:3], "Not drawn: "),
        (lambda points: points * [1, 1, 0], "Not drawn: "),
        (lambda points: points[:, :2], "Pictures are drawn of points in three dimensions only."),
    ],
    ids=["three points", "all in a plane", "two dimensions"],
)
def test_points_that_make_no_picture(run: ReportedRun, points: Callable[[np.ndarray], np.ndarray], words: str) -> None:
    arrays, own = dict(cases_alone(run).arrays), "case/0/volume_velocity/"
    arrays[f"{own}points"] = points(arrays[f"{own}points"])
    kept = len(arrays[f"{own}points"])
    arrays |= {f"{own}{part}": arrays[f"{own}{part}"][:kept] for part in ("truth", "prediction")}
    assert words in Page(render_report(replace(run, rows=[], arrays=arrays))).texts["cases"]


@pytest.mark.parametrize(
    "content",
    [{"fields": [1]}, {"metrics": {"p/relative_l2": "x"}}, {"metrics": [1]}, {"scalars": {"d": 3}}, {"updates": "x"}],
    ids=str,
)
def test_a_result_of_another_shape_is_named_and_the_page_is_made_without_it(content, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.result.write_text(json.dumps(content))
    run = read_run(folder)
    assert run.result == {}
    assert "of another kind" in run.troubles["result.json"]
    assert "of another kind" in render_report(run)


def test_a_resumed_run_shows_what_was_made_anew(run: ReportedRun) -> None:
    again = resumed(run)
    updates, loss = again.history.curve("training", "", "loss")
    assert updates.tolist() == sorted({row["update"] for row in again.rows if row["kind"] == "training"})
    assert loss[updates > 200].tolist() == [77.0] * 8


def folder_gone(folder: RunFolder) -> None:
    """Leaves a file where the folder was."""
    shutil.rmtree(folder.path)
    folder.path.touch()


def folder_in_the_way(folder: RunFolder) -> None:
    folder.config.write_text("seed: 1\n")
    folder.report.mkdir()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [(folder_gone, "FileExistsError"), (folder_in_the_way, "IsADirectoryError")],
    ids=["no folder", "nowhere to write"],
)
def test_a_report_that_fails_is_a_warning(spoil, error: str, tmp_path: Path) -> None:
    folder, stream = RunFolder(tmp_path / "run 1"), io.StringIO()
    folder.create()
    spoil(folder)
    report_run(folder, Console(None, speaks=True, stream=stream))
    said = stream.getvalue()
    assert said.startswith(f"warning: the report could not be written ({error}: ")
    assert f"noether report '{folder.path}'" in said.replace("\n", "")
    assert "\nreport " not in said
