"""The report has every section, loads nothing, escapes text, and explains what is missing in a run."""

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from noether.common.console import Console
from noether.config.compose import load_config
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metric, Metrics
from noether.runs.report.cases import field_cases
from noether.runs.report.page import render_report, write_report
from noether.runs.report.run import ReportedRun, read_run
from noether.runs.report.tables import choose_cases
from noether.training.evaluation import report_run


def without_cases(run: ReportedRun) -> ReportedRun:
    return replace(run, meta={**run.meta, "cases": []})


def resumed(run: ReportedRun) -> ReportedRun:
    again = [{**row, "loss": 77.0} for row in run.rows if row["kind"] == "training" and row["update"] > 4]
    return replace(run, rows=[*run.rows, *again], plan={**run.plan, "restarts": 2})


SECTIONS = ("errors", "cases", "scalars", "distributions", "use", "curves", "time")
SECTIONS += ("plan", "environment", "configuration")


class Page(HTMLParser):
    """The elements of a page, and its text by section; creation fails if the elements do not nest properly."""

    VOID = ("meta", "img", "br", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.section = ""
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts[self.section] = self.texts.get(self.section, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="session")
def folder(train_in, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Return a run folder after training and evaluation."""
    return train_in(tmp_path_factory.mktemp("runs"), "cars", "devices=2", "dataset.test_shapes=7")


@pytest.fixture(scope="session")
def page(folder: RunFolder) -> str:
    return write_report(folder).read_text()


@pytest.fixture(scope="session")
def run(folder: RunFolder) -> ReportedRun:
    """Return the run of `folder` with only its first case, because drawing cases takes most of the time."""
    run = read_run(folder)
    return replace(run, meta={**run.meta, "cases": run.meta["cases"][:1]})


def test_page_has_every_section_in_order(page: str) -> None:
    read = Page(page)
    assert [attributes["id"] for tag, attributes in read.tags if tag == "section"] == list(SECTIONS)
    assert all(read.texts[section].strip() for section in SECTIONS)
    assert "absent" not in [attributes.get("class") for _, attributes in read.tags]
    assert read.count("img") == 5 * 2 * 3  # cases × fields × columns
    assert read.count("svg") == 2 + 2 * 2 + 5 + 1  # parities, distributions, curves, time


def test_page_loads_nothing(page: str) -> None:
    read = Page(page)
    assert {"script", "link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in read.tags)
    links = [value for _, attributes in read.tags for key, value in attributes.items() if key in ("href", "src")]
    assert links
    assert all(link and link.startswith(("#", "data:image/webp;base64,")) for link in links)
    assert "://" not in page
    assert not re.search(r"url\((?!#)|@import|srcset|\son\w+=", page)


def test_ids_are_unique_and_references_resolve(page: str) -> None:
    ids = [attributes["id"] for _, attributes in Page(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_same_run_is_made_again_by_the_line_of_the_page(tmp_path: Path, folder: RunFolder) -> None:
    run = RunFolder(shutil.copytree(folder.path, tmp_path / "a run, with commas"))
    (line,) = re.findall(r"noether train --hp .*", Page(write_report(run).read_text()).texts["use"])
    words = shlex.split(line)
    again = load_config(words[words.index("--hp") + 2 :], words[words.index("--hp") + 1])
    assert (again.run_id, again.resume, again.trainer.max_updates) == ("a run, with commas-again", None, 8)


def test_the_spread_over_the_seeds_of_a_sweep_is_shown(tmp_path: Path, folder: RunFolder) -> None:
    seeds = RunFolder(shutil.copytree(folder.path, tmp_path / "seeds-1"))
    error = {"mean": 0.05, "std": 0.004, "n": 3}
    groups = {"model=upt": {"surface_pressure/relative_l2": error, "loss": {"mean": 1, "std": None, "n": 1}}}
    runs = [{"run": f"runs/seeds-{k}", "group": "model=upt", "overrides": [], "metrics": {}} for k in range(3)]
    sweep = tmp_path / "seeds.sweep.json"
    sweep.write_text(json.dumps({"groups": groups, "runs": runs}))
    text = Page(write_report(seeds).read_text()).texts["use"]
    assert "5.00\u202f% ± 0.40\u202f% (3 seeds)" in text
    assert "loss" not in text
    sweep.write_text("{")
    assert "one seed" in Page(write_report(seeds).read_text()).texts["use"]


def test_the_spread_is_written_as_in_the_table_of_the_sweep(run: ReportedRun) -> None:
    described = [Metric("mass/mae", "kg", label="MAE", of="mass", headline=True),
                 Metric("chord/mae", "m", label="MAE", of="chord", headline=True),
                 Metric("drag/r2", label="R²", of="drag", headline=True, score=True)]  # fmt: skip
    found = {"mass/mae": (12.345, 0.01235), "chord/mae": (-1.2e-5, 2e-6), "drag/r2": (0.999, 0.0)}
    spread = {name: {"mean": mean, "std": std, "n": 2} for name, (mean, std) in found.items()}
    result = {**run.result, "described": Metrics.of(*described).records()}
    text = Page(render_report(replace(without_cases(run), result=result, spread=spread))).texts["use"]
    power = "\u202f×\u202f10"
    for own in ("12.35 ± 0.01 kg", f"−1.200{power}⁻⁵ ± 2.000{power}⁻⁶ m", "R²0.9990"):
        assert f"{own} (2 seeds)" in text


def test_a_headline_that_is_of_no_field_is_shown_beside_the_fields(run: ReportedRun) -> None:
    own = Metrics.of(Metric("my_score", better="higher", label="my score", headline=True)).records()
    metrics = {**run.metrics, "my_score": 0.125, "loss": 0.375}
    result = {**run.result, "metrics": metrics, "described": [*run.result["described"], *own]}
    page = render_report(replace(without_cases(run), result=result))
    header, errors = page.partition('<section id="errors">')[0], Page(page).texts["errors"]
    assert "my score <b>0.1250</b>" in header
    assert "<dt>my score</dt>" in header
    assert "0.1250" in errors
    assert "0.3750" in errors


def test_pace_and_device_use_are_written_as_in_the_table_of_the_result(run: ReportedRun) -> None:
    result = {**run.result, "samples_per_second": 1234.56, "device_use": 0.85123}
    text = Page(render_report(replace(without_cases(run), result=result))).texts[""]
    for words in ("1,235 samples/s", "devices busy 85.12 %"):
        assert words in text


def test_a_number_of_a_case_has_one_tile_where_there_is_no_field(run: ReportedRun) -> None:
    page = render_report(replace(without_cases(run), result={**run.result, "fields": []}))
    assert "<dt>lift coefficient</dt>" in page
    assert "<dt>lift coefficient: R²</dt>" not in page


def test_report_needs_no_torch_and_no_pyplot(folder: RunFolder) -> None:
    code = (
        "import sys, pathlib; from noether.runs.report.page import write_report; "
        "from noether.runs.folder import RunFolder; write_report(RunFolder(pathlib.Path(sys.argv[1]))); "
        "print([name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, folder.path], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


NASTY = "<script>alert('$x$ & \"q\"')</script>"


def test_text_from_the_run_is_escaped(tmp_path: Path, run: ReportedRun) -> None:
    scalars = {NASTY: {"note": NASTY}, "lift_coefficient": {"note": NASTY}}
    result = {**run.result, "checkpoint": NASTY, "scalars": scalars}
    fields = {name: {**own, "unit": NASTY} for name, own in run.meta["fields"].items()}
    meta = {**run.meta, "fields": fields, "cases": [{**run.meta["cases"][0], "sample": NASTY, "label": NASTY}]}
    plan = {**run.plan, "launcher": NASTY, "nodes": [NASTY], "reasons": {NASTY: NASTY}, "warnings": [NASTY]}
    plan |= {"model": {"kind": NASTY}, "data": {NASTY: 3}}
    rows = [*run.rows, {"kind": "evaluation", "update": 8, "weights": "raw", "metrics": {f"{NASTY}/relative_l2": 1}}]
    hostile = replace(run, run_id=NASTY, config=NASTY, environment={NASTY: [NASTY]})
    text = render_report(replace(hostile, result=result, meta=meta, plan=plan, rows=rows))
    read = Page(text)
    assert "script" not in [tag for tag, _ in read.tags]
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    for section in ("", "cases", "scalars", "plan", "environment", "configuration"):
        assert NASTY in read.texts[section], section


MISSING = {
    "result.json": ({"result": {}}, {"errors": "the run has not been evaluated."}),
    "plan.json": ({"plan": {}}, {"plan": "how the run was spread over devices is not known."}),
    "environment.json": ({"environment": {}}, {"environment": "versions and host are not known."}),
    "metrics.jsonl": ({"rows": []}, {"curves": "no training row was logged."}),
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
    assert "plan.json cannot be read (ValueError: a list instead of an object)" in texts["plan"]
    assert "The run has made 1 update and has not been evaluated" in texts[""]


def test_the_parts_of_a_page_are_those_of_its_task_before_there_is_a_result(run: ReportedRun) -> None:
    plan = {**run.plan, "report_parts": ["errors", "classes"]}
    early = replace(run, plan=plan, result={}, meta={}, arrays={})
    assert list(Page(render_report(early)).texts)[1:4] == ["errors", "classes", "use"]


def no_lift(run: ReportedRun) -> ReportedRun:
    arrays = {key: value for key, value in run.arrays.items() if "lift" not in key}
    return replace(run, result={**run.result, "scalars": {}}, arrays=arrays)


def truth_by_integration(run: ReportedRun) -> ReportedRun:
    """Remove the floors, as in a run whose true coefficients are integrals of the true field."""
    metrics = {name: value for name, value in run.metrics.items() if "floor" not in name}
    return replace(run, result={**run.result, "metrics": metrics})


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
    truth_by_integration: [("scalars", "Lift coefficient")],
    no_validation: [("curves", "No validation split was evaluated, so only the training loss is shown."),
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
    assert not re.search("nan(?!_policy)", "".join(read.texts.values()).lower())


def test_the_median_and_the_worst_of_the_finite_errors_are_one_number_each(run: ReportedRun) -> None:
    errors = np.array([0.4, np.nan, 0.1, np.inf, 0.3, np.nan, 0.2])
    arrays = {**run.arrays, "metrics/surface_pressure/relative_l2": errors}
    texts = Page(render_report(replace(without_cases(run), arrays=arrays))).texts
    assert choose_cases(errors)[1] == ("median", 1, list(errors).index(0.3))
    assert "Median 30.00\u202f%, worst 40.00\u202f% of 4 cases" in texts["distributions"]
    assert "worst unseen case40.00\u202f% (surface pressure)" in texts["use"]


def cases_alone(run: ReportedRun) -> ReportedRun:
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
    turn = [[0, 1, 0], [0, 0, 1], [-1, 0, 0]]  # the files have wind -x and up +z
    space = {"wind": [0, 0, 1], "up": [0, 1, 0], "files": {"metres": 0.001, "rotation": turn}}
    box = {"low": [-1.2, 0.0, -2.5], "high": [1.2, 1.6, 2.5], "count": 1024}
    speeds = {"wind_speed": {"low": [20.0], "high": [40.0], "unit": "m/s"}}
    result = {**run.result, "trained_on": {"points": {"surface_points": box}, "parameters": speeds}}
    half = replace(run, rows=[], arrays=arrays, result=result, meta={**run.meta, "space": space})
    read = Page(render_report(half))
    assert read.count("img") == 6
    assert "The plane of symmetry, the wind (−x) from the left, +z up" in read.texts["cases"]
    assert "the arrow is the wind (−x), +z is up" in read.texts["cases"]
    assert "x −2,500 to 2,500, y −1,200 to 1,200, z 0 to 1,600 mm" in read.texts["use"]
    assert "x along the wind, backwards, y across, z up" in read.texts["use"]
    assert "20 to 40 m/s" in read.texts["use"]


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
        (lambda points: points * [1, 0, 0], "Not drawn: "),
        (lambda points: points[:, :2], "Only points in three dimensions can be drawn."),
    ],
    ids=["three points", "all in a line", "two dimensions"],
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
    assert "of the wrong type" in run.troubles["result.json"]
    assert "of the wrong type" in render_report(run)


def folder_gone(folder: RunFolder) -> None:
    """Replace the folder with a file."""
    shutil.rmtree(folder.path)
    folder.path.touch()


def folder_in_the_way(folder: RunFolder) -> None:
    folder.config.write_text("seed: 1\n")
    folder.report.mkdir()


@pytest.mark.parametrize(
    ("spoil", "error"), [(folder_gone, "FileExistsError"), (folder_in_the_way, "IsADirectoryError")]
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
