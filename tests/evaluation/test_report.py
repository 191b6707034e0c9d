"""The report of a run: every section is there, nothing is loaded from elsewhere, no gap in a run breaks it."""

import io
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from noether.data.ellipsoid_car import DYNAMIC_PRESSURE, EllipsoidCar, draw_car, make_sample
from noether.evaluation import pictures
from noether.evaluation.pictures import number, percent, tick_labels
from noether.evaluation.report import Run, _by_update, batch_arithmetic, read_run, render_report, verdict, write_report
from noether.run_folder import RunFolder, write_json

UNITS = {"surface_pressure": "Pa", "volume_velocity": "m/s"}
SECTIONS = ("errors", "cases", "scalars", "distributions", "curves", "plan", "environment", "configuration")
CONFIG = """\
run_id: {run_id}
seed: 0
dataset: {{kind: ellipsoid, train_shapes: 600, test_shapes: 100, surface_points: 1024, volume_points: 1024}}
task:
  kind: fields
  fields:
    surface_pressure: {{unit: Pa, points: surface_points, weight: 1.0}}
    volume_velocity: {{unit: m/s, points: volume_points, weight: 1.0}}
trainer: {{effective_batch_size: 8, max_epochs: 60}}
"""


# --- a run folder made of exact flow --------------------------------------------------------------------------


def smooth_noise(points: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    waves, phases = rng.normal(size=(6, 3)) * 1.5, rng.uniform(0, 2 * np.pi, 6)
    return scale * np.sin(points @ waves.T + phases).mean(axis=1) * 2.4


def predict(car: EllipsoidCar, sample: dict[str, np.ndarray], rng: np.random.Generator, off: float) -> dict[str, Any]:
    """What a decent model would say: the flow about a slightly different car, and smooth noise."""
    sizes = np.array([car.half_length, car.height, car.half_width])
    other = EllipsoidCar(*sizes * (1 + off * rng.normal(size=3)), car.yaw + 0.3 * off * rng.normal())
    surface, volume = (
        other.to_world(car.to_body(sample[key].astype(float)) / car.semi_axes * other.semi_axes * (1 + 1e-6))
        for key in ("surface_points", "volume_points")
    )
    velocity = other.velocity(volume) + np.stack([smooth_noise(volume, 20 * off, rng) for _ in range(3)], axis=-1)
    pressure = other.pressure(surface) + smooth_noise(surface, 180 * off, rng)
    facing = sample["surface_normals"][:, 1] * sample["surface_area"]
    force = -DYNAMIC_PRESSURE * float(sample["reference_area"][0])
    return {
        "surface_pressure": pressure[:, None],
        "volume_velocity": velocity,
        "prediction": float(pressure @ facing) / force,
        "integral_of_truth": float(sample["surface_pressure"] @ facing) / force,
        "truth": float(sample["lift_coefficient"][0]),
    }


def errors_of(prediction: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    error = prediction - truth
    return {
        "relative_l2": float(np.linalg.norm(error) / np.linalg.norm(truth)),
        "mse": float(np.mean(error**2)),
        "mae": float(np.mean(np.abs(error))),
        "max": float(np.max(np.abs(error))),
    }


def make_run(folder: Path, *, shapes: int = 7, points: int = 240, updates: int = 402, off: float = 0.02) -> RunFolder:
    """A run folder as training and evaluation leave it."""
    run = RunFolder(folder)
    run.create()
    run.evaluation.mkdir()
    rng = np.random.default_rng(0)
    cars = [draw_car(0, "test", k) for k in range(shapes)]
    samples = [make_sample(car, points, points, k) for k, car in enumerate(cars)]
    predictions = [predict(car, sample, rng, off * rng.gamma(4) / 4) for car, sample in zip(cars, samples, strict=True)]
    arrays: dict[str, Any] = {}
    for name in UNITS:
        truths = [sample[name].reshape(points, -1) for sample in samples]
        pairs = [(predicted[name], truth) for predicted, truth in zip(predictions, truths, strict=True)]
        rows = [errors_of(*pair) for pair in pairs]
        for figure in rows[0]:
            arrays[f"figures/{name}/{figure}"] = np.array([row[figure] for row in rows])
        error = np.concatenate([(predicted - truth).ravel() for predicted, truth in pairs])
        limit = float(np.quantile(np.abs(error), 0.995))
        edges = np.linspace(-limit, limit, 81)
        arrays[f"histogram/{name}/edges"] = edges
        arrays[f"histogram/{name}/counts"] = np.histogram(np.clip(error, -limit, limit), edges)[0]
    for part in ("prediction", "truth", "integral_of_truth"):
        arrays[f"figures/lift_coefficient/{part}"] = np.array([predicted[part] for predicted in predictions])

    order = np.argsort(arrays["figures/surface_pressure/relative_l2"])
    chosen = {"best": order[0], "median": order[shapes // 2], "worst": order[-1]}
    chosen |= {f"{rank}. worst": order[-rank] for rank in (2, 3) if shapes >= 5}
    cases: dict[int, str] = {}
    for label, index in chosen.items():
        cases.setdefault(int(index), label)
    for k, index in enumerate(cases):
        for name in UNITS:
            prefix = name.split("_")[0]
            arrays[f"case/{k}/{name}/points"] = samples[index][f"{prefix}_points"]
            arrays[f"case/{k}/{name}/truth"] = samples[index][name].reshape(points, -1)
            arrays[f"case/{k}/{name}/prediction"] = predictions[index][name].astype(np.float32)
        arrays[f"case/{k}/surface_pressure/normals"] = samples[index]["surface_normals"]
    meta = {
        "split": "test",
        "weights": "ema",
        "checkpoint": f"update-{updates:09d}",
        "updates": updates,
        "names": [f"test-{k:04d}" for k in range(shapes)],
        "fields": {name: {"unit": unit, "points": f"{name.split('_')[0]}_points"} for name, unit in UNITS.items()},
        "cases": [
            {
                "sample": f"test-{index:04d}",
                "label": label,
                "index": index,
                "relative_l2": {name: float(arrays[f"figures/{name}/relative_l2"][index]) for name in UNITS},
            }
            for index, label in cases.items()
        ],
        "scalars": ["lift_coefficient"],
    }
    np.savez(run.evaluation / "test.npz", meta=np.array(json.dumps(meta)), **arrays)
    run.config.write_text(CONFIG.format(run_id=json.dumps(folder.name)))
    write_json(run.result, result_of(arrays, updates))
    write_json(run.plan, plan_of(updates))
    write_json(
        run.environment,
        {
            "noether": "0.1.0",
            "host": "node001",
            "packages": {"torch": "2.13.0", "numpy": "2.4.1"},
            "lock_sha256": None,
            "command": ["noether", "train", "trainer.max_epochs=60", "note=a b"],
        },
    )
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in history(updates, rng)))
    return run


def result_of(arrays: dict[str, np.ndarray], updates: int) -> dict[str, Any]:
    fields = {
        name: {
            figure: float((np.max if figure == "max" else np.mean)(arrays[f"figures/{name}/{figure}"]))
            for figure in ("relative_l2", "mse", "mae", "max")
        }
        for name in UNITS
    }
    lift, true_lift = (arrays[f"figures/lift_coefficient/{part}"] for part in ("prediction", "truth"))
    spread = float(np.sum((true_lift - true_lift.mean()) ** 2))
    worse = {"mean_field": 10.0, "nearest_shape": 4.0}
    return {
        "split": "test",
        "weights": "ema",
        "checkpoint": f"update-{updates:09d}",
        "updates": updates,
        "parameters": 567890,
        "samples_per_second": 101.3,
        "world_size": 2,
        "seconds": 318.2,
        "fields": fields,
        "baselines": {
            baseline: {name: {figure: factor * value for figure, value in row.items()} for name, row in fields.items()}
            for baseline, factor in worse.items()
        },
        "scalars": {
            "lift_coefficient": {
                "r2": 1 - float(np.sum((lift - true_lift) ** 2)) / spread if spread else None,
                "spearman": 0.9912 if spread else None,
                "mae": float(np.mean(np.abs(lift - true_lift))),
                "floor_r2": 0.99991 if spread else None,
            },
            "drag_coefficient": {"note": "the drag of potential flow is 0 for every shape: nothing to rank"},
        },
    }


def plan_of(updates: int, world_size: int = 2) -> dict[str, Any]:
    share = 8 // min(world_size, 8)
    return {
        "launcher": "local",
        "world_size": world_size,
        "nodes": ["node001"],
        "node_rank": 0,
        "endpoint": {"host": "127.0.0.1", "port": 0},
        "attempt": 0,
        "workers": [{"rank": k, "local_rank": k, "node_rank": 0, "device": f"cuda:{k}"} for k in range(world_size)],
        "batch": {"effective": 8, "per_rank": share, "micro": share, "accumulation_steps": 1},
        "reasons": {"launcher": "no scheduler’s variables are set", "world_size": "one rank for each visible device"},
        "length": {"updates_per_epoch": 67, "total_updates": updates, "epochs": updates / 67},
        "data": {"training": 540, "validation": 60, "test": 100},
        "model": {"kind": "upt", "parameters": 567890},
    }


def history(updates: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for update in range(25, updates + 1, 25):
        part = update / updates
        level = float(np.exp(-5.2 * part**0.6))
        position = {"time": 1.77e9 + 0.08 * update, "update": update, "epoch": update / 67, "samples": 8 * update}
        values = {
            "loss": 1.1 * level * float(np.exp(0.12 * rng.normal())) + 0.002,
            "learning_rate": 1e-3 * min(part / 0.05, 0.5 * (1 + float(np.cos(np.pi * max(0, part - 0.05) / 0.95)))),
            "samples_per_second": float((100 + 3 * rng.normal()) * (0.6 if update == 25 else 1)),
        }
        rows.append({**position, "kind": "training", **values, "gradient_norm": 1.2, "memory_mib": 812.0})
        for weights, factor in (("ema", 1.0), ("raw", 1.22)) if update % 100 == 0 else ():
            loss = factor * (level + 0.003)
            figures = {
                "loss": loss,
                **{f"{name}/relative_l2": 0.5 * loss**0.5 / (1 + k) for k, name in enumerate(UNITS)},
            }
            kind = {"kind": "evaluation", "split": "validation", "weights": weights}
            rows.append({**position, **kind, "figures": figures})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs") / "2026-01-31_12-00-00_ab12")


@pytest.fixture(scope="module")
def page(folder: RunFolder) -> str:
    return write_report(folder).read_text()


@pytest.fixture(scope="module")
def run(folder: RunFolder) -> Run:
    """The run with its first case alone: drawing is what takes time."""
    run = read_run(folder)
    return replace(run, meta={**run.meta, "cases": run.meta["cases"][:1]})


# --- reading a page -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, checked to be nested properly, and its text by section."""

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


def test_page_has_every_section_in_order(page: str) -> None:
    read = Page(page)
    assert [attributes["id"] for tag, attributes in read.tags if tag == "section"] == list(SECTIONS)
    assert all(read.texts[section].strip() for section in SECTIONS)
    assert "absent" not in [attributes.get("class") for _, attributes in read.tags]
    assert read.count("img") == 5 * 2 * 3  # cases, fields, columns
    assert read.count("svg") == 1 + 2 * 2 + 4  # parity, two distributions of each field, curves


def test_page_loads_nothing(page: str) -> None:
    read = Page(page)
    assert {"script", "link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in read.tags)
    links = [value for _, attributes in read.tags for key, value in attributes.items() if key in ("href", "src")]
    assert links
    assert all(link and link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert "://" not in page
    assert not re.search(r"url\((?!#)|@import|srcset|\son\w+=", page)


def test_ids_are_unique_and_references_resolve(page: str) -> None:
    ids = [attributes["id"] for _, attributes in Page(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_page_follows_the_dark_theme(page: str) -> None:
    charts = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "prefers-color-scheme: dark" in page
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", charts)) == set()
    assert set(re.findall(r"var\(--(\w+)\)", charts)) <= set(pictures.COLOURS)


def test_page_is_small_and_written_whole(folder: RunFolder, page: str) -> None:
    assert len(page) < 4_000_000
    assert [path.name for path in folder.path.glob("*report*")] == ["report.html"]
    assert list(folder.path.glob(".report*")) == []


def test_page_says_the_numbers(page: str, folder: RunFolder) -> None:
    result = json.loads(folder.result.read_text())
    text = Page(page).texts
    pressure = result["fields"]["surface_pressure"]
    assert percent(pressure["relative_l2"]) in text[""]
    assert all(number(pressure[figure]) in text["errors"] for figure in ("mse", "mae", "max"))
    assert "nearest training shape" in text["errors"]
    assert "(m/s)²" in text["errors"]
    assert "8 samples per update = 2 ranks × 4; per rank 1 micro-batch of 4" in text["plan"]
    assert "402 updates = 6 epochs of 67 updates" in text["plan"]
    assert "noether train trainer.max_epochs=60 'note=a b'" in text["environment"]
    assert "nothing to rank" in text["scalars"]
    assert "effective_batch_size: 8" in text["configuration"]
    assert "nan" not in "".join(text.values()).lower()


def test_report_needs_no_torch_and_no_pyplot(folder: RunFolder) -> None:
    code = (
        "import sys, pathlib; from noether.evaluation.report import read_run; "
        "from noether.run_folder import RunFolder; read_run(RunFolder(pathlib.Path(sys.argv[1]))); "
        "print([name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, folder.path], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_drawing_leaves_matplotlib_as_it_was(run: Run) -> None:
    before = dict(matplotlib.rcParams)
    render_report(replace(run, meta={**run.meta, "cases": []}))
    assert dict(matplotlib.rcParams) == before


# --- hostile text ---------------------------------------------------------------------------------------------

NASTY = "<script>alert('$x$ & \"q\"')</script>"


def test_text_from_the_run_is_escaped(tmp_path: Path, run: Run) -> None:
    result = {
        **run.result,
        "checkpoint": NASTY,
        "scalars": {NASTY: {"note": NASTY}, "lift_coefficient": {"r2": 0.5, "spearman": 0.5, "note": NASTY}},
    }
    about = run.meta["cases"][0]
    meta = {
        **run.meta,
        "fields": {name: {"unit": NASTY, "points": f"{name.split('_')[0]}_points"} for name in UNITS},
        "cases": [{**about, "sample": NASTY, "label": NASTY}],
    }
    plan = {**run.plan, "launcher": NASTY, "nodes": [NASTY], "reasons": {NASTY: NASTY}, "warnings": [NASTY]}
    plan |= {"model": {"kind": NASTY}, "data": {NASTY: 3}}
    rows = [*run.rows, {"kind": "evaluation", "update": 402, "weights": "raw", "figures": {f"{NASTY}/relative_l2": 1}}]
    hostile = replace(
        run, run_id=NASTY, config=NASTY, result=result, meta=meta, plan=plan, environment={NASTY: [NASTY]}, rows=rows
    )
    text = render_report(hostile)
    read = Page(text)
    assert "script" not in [tag for tag, _ in read.tags]
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    for section in ("", "cases", "scalars", "plan", "environment", "configuration"):
        assert NASTY in read.texts[section], section


def test_nasty_folder_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "<script>${x}")
    folder.create()
    folder.config.write_text("run_id: $title ${body} </pre><script>\n")
    text = write_report(folder).read_text()
    assert "<script" not in text
    assert "$title ${body} </pre><script>" in Page(text).texts["configuration"]


# --- what may be missing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "gap", "sentences"),
    [
        ("result.json", {"result": {}}, {"errors": "the run has not been evaluated."}),
        ("plan.json", {"plan": {}}, {"plan": "how the run was spread over devices is not known."}),
        ("environment.json", {"environment": {}}, {"environment": "versions and host are not known."}),
        ("metrics.jsonl", {"rows": []}, {"curves": "no line of training was written."}),
        (
            "test.npz",
            {"meta": {}, "arrays": {}},
            {
                "cases": "no fields of single samples were kept.",
                "distributions": "no errors of single points or samples were kept.",
            },
        ),
    ],
    ids=["result", "plan", "environment", "metrics", "evaluation"],
)
def test_missing_file_is_said_where_it_is_missed(
    run: Run, file: str, gap: dict[str, Any], sentences: dict[str, str]
) -> None:
    missing = replace(without_cases(run), **gap, troubles={file: f"There is no {file}"})
    texts = Page(render_report(missing)).texts
    assert all(texts[other].strip() for other in SECTIONS)
    for section, sentence in sentences.items():
        assert f"There is no {file}: {sentence}" in texts[section]


def test_only_a_configuration(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "young")
    folder.create()
    folder.config.write_text("seed: 1\n")
    read = Page(write_report(folder).read_text())
    assert "The run has made no update yet." in read.texts[""]
    absent = [attributes for _, attributes in read.tags if attributes.get("class") == "absent"]
    assert len(absent) == len(SECTIONS) - 1


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
    assert "plan.json cannot be read (ValueError: not a JSON object)" in texts["plan"]
    assert "The run has made 1 update and has not been evaluated" in texts[""]


def without_cases(run: Run) -> Run:
    return replace(run, meta={**run.meta, "cases": []})


def no_lift(run: Run) -> Run:
    arrays = {key: value for key, value in run.arrays.items() if "lift" not in key}
    return replace(run, result={**run.result, "scalars": {}}, meta={**run.meta, "scalars": []}, arrays=arrays)


def no_validation(run: Run) -> Run:
    return replace(run, rows=[row for row in run.rows if row["kind"] == "training"])


def raw_weights_only(run: Run) -> Run:
    return replace(run, rows=[row for row in run.rows if row.get("weights") != "ema"])


def resumed(run: Run) -> Run:
    again = [{**row, "loss": 77.0} for row in run.rows if row["kind"] == "training" and row["update"] > 200]
    return replace(run, rows=[*run.rows, *again], plan={**run.plan, "attempt": 2})


def null_figures(run: Run) -> Run:
    figures = {"relative_l2": None, "mse": float("nan"), "mae": None, "max": float("inf")}
    rows = [{**row, "loss": None, "samples_per_second": None} for row in run.rows]
    rows = [{**row, "figures": dict.fromkeys(row["figures"])} if "figures" in row else row for row in rows]
    scores = {"lift_coefficient": {"r2": None, "spearman": None, "mae": None, "note": "the truth does not vary"}}
    arrays = {key: value * np.nan if key.startswith("figures/") else value for key, value in run.arrays.items()}
    result = {**run.result, "fields": dict.fromkeys(UNITS, figures), "scalars": scores}
    return replace(run, result=result, rows=rows, arrays=arrays)


def one_sample(run: Run) -> Run:
    arrays = {key: value[:1] if key.startswith("figures/") else value for key, value in run.arrays.items()}
    return replace(run, arrays=arrays, meta={**run.meta, "names": run.meta["names"][:1]})


def classification(run: Run) -> Run:
    result = {"split": "test", "samples": 360, "figures": {"loss": 0.12, "top_1_accuracy": 0.97}}
    return replace(run, result=result, meta={}, arrays={})


def many_ranks(run: Run) -> Run:
    return replace(run, plan=plan_of(402, world_size=20) | {"world_size": 40})


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (no_lift, [("scalars", "The task derives no scalar from its fields.")]),
        (
            no_validation,
            [
                ("curves", "No validation split was evaluated: the loss is the training loss alone."),
                ("curves", "Not drawn: no validation split was evaluated."),
            ],
        ),
        (raw_weights_only, [("curves", "Validation split, raw weights.")]),
        (resumed, [("plan", "2 (the run was started again)")]),
        (
            null_figures,
            [
                ("", "The error of the surface pressure and volume velocity is not finite."),
                ("scalars", "The truth does not vary."),
                ("curves", "Not drawn: no finite value was logged."),
            ],
        ),
        (one_sample, [("distributions", "One sample, with")]),
        (
            classification,
            [
                ("", "On 360 unseen samples: loss 0.120, top 1 accuracy 0.970."),
                ("errors", "Top 1 accuracy0.970"),
            ],
        ),
        (many_ranks, [("plan", "4 more ranks"), ("plan", "The ranks that were started on node001.")]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_unusual_runs(run: Run, change: Callable[[Run], Run], sentences: list[tuple[str, str]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = Page(render_report(change(without_cases(run))))
    for section, words in sentences:
        assert words in read.texts[section]
    assert all(read.texts[other].strip() for other in SECTIONS)
    assert "nan" not in "".join(read.texts.values()).lower()


def test_a_resumed_run_shows_what_was_made_anew(run: Run) -> None:
    rows = [row for row in resumed(run).rows if row["kind"] == "training"]
    shown = _by_update(rows)
    assert [row["update"] for row in shown] == sorted({row["update"] for row in rows})
    assert [row["loss"] for row in shown if row["update"] > 200] == [77.0] * 8


def cases_alone(run: Run) -> Run:
    """The run without its charts."""
    arrays = {key: value for key, value in run.arrays.items() if key.startswith("case/")}
    return replace(run, rows=[], arrays=arrays)


def diverged(run: Run) -> Run:
    arrays = {key: value * np.nan if key.endswith("prediction") else value for key, value in run.arrays.items()}
    return replace(run, arrays=arrays)


def partly_diverged(run: Run) -> Run:
    arrays = {
        key: np.where(np.arange(len(value)) % 9, value.T, np.nan).T
        for key, value in run.arrays.items()
        if key.startswith("case/") and key.endswith("prediction")
    }
    return replace(run, arrays={**run.arrays, **arrays})


def no_normals(run: Run) -> Run:
    return replace(run, arrays={key: value for key, value in run.arrays.items() if "normals" not in key})


def no_surface(run: Run) -> Run:
    arrays = {key: value for key, value in run.arrays.items() if "surface" not in key}
    fields = {"volume_velocity": run.result["fields"]["volume_velocity"]}
    return replace(run, arrays=arrays, result={**run.result, "fields": fields})


@pytest.mark.parametrize(
    ("change", "drawn"),
    [(diverged, 6), (partly_diverged, 6), (no_normals, 6), (no_surface, 3)],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_unusual_cases_are_drawn(run: Run, change: Callable[[Run], Run], drawn: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Page(render_report(change(cases_alone(run)))).count("img") == drawn


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (lambda points: points[:3], "Not drawn: "),
        (lambda points: points * [1, 1, 0], "Not drawn: "),
        (lambda points: points[:, :2], "Pictures are drawn of points in three dimensions only."),
    ],
    ids=["three points", "all in a plane", "two dimensions"],
)
def test_points_that_make_no_picture(run: Run, points: Callable[[np.ndarray], np.ndarray], words: str) -> None:
    arrays = dict(cases_alone(run).arrays)
    for part in ("points", "truth", "prediction"):
        key = f"case/0/volume_velocity/{part}"
        arrays[key] = points(arrays[key]) if part == "points" else arrays[key]
    kept = len(arrays["case/0/volume_velocity/points"])
    for part in ("truth", "prediction"):
        arrays[f"case/0/volume_velocity/{part}"] = arrays[f"case/0/volume_velocity/{part}"][:kept]
    assert words in Page(render_report(replace(run, rows=[], arrays=arrays))).texts["cases"]


# --- words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "nearest", "mean", "ending"),
    [
        (0.03, 0.2, 0.9, "R² <b>0.993</b>."),
        (0.3, 0.2, 0.9, "It does not beat the nearest training shape in surface pressure."),
        (0.9, 0.2, 0.9, "in surface pressure and the mean field in surface pressure."),
    ],
    ids=["beats both", "loses to the nearest shape", "no better than the mean"],
)
def test_verdict_names_a_baseline_that_is_not_beaten(
    run: Run, own: float, nearest: float, mean: float, ending: str
) -> None:
    result = {
        "samples": 100,
        "fields": {"surface_pressure": {"relative_l2": own}},
        "baselines": {
            "nearest_shape": {"surface_pressure": {"relative_l2": nearest}},
            "mean_field": {"surface_pressure": {"relative_l2": mean}},
        },
        "scalars": {"lift_coefficient": {"r2": 0.9931}},
    }
    words = verdict(replace(run, result=result))
    assert words.startswith(f"On 100 unseen shapes the model misses the surface pressure by <b>{percent(own)}</b>")
    assert words.endswith(ending)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.14159, "3.14"),
        (0.0312, "0.0312"),
        (9.999, "10.0"),
        (1234.6, "1,230"),
        (-0.5, "−0.500"),
        (0.0, "0"),
        (0.9996, "1.00"),
        (1.5e-5, "1.50\u202f×\u202f10⁻⁵"),
        (2.5e7, "2.50\u202f×\u202f10⁷"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (None, "–"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.8, 1.0, 1.2000000000000002], ["0.8", "1.0", "1.2"]),
        ([-50, 0, 50], ["−50", "0", "50"]),
        ([0, 0.00025, 0.001], ["0", "0.00025", "0.00100"]),
        ([1e-6, 2.5e-6], ["10⁻⁶", "2.5·10⁻⁶"]),
        ([1000, 20000], ["1,000", "20,000"]),
    ],
    ids=["common decimals", "negative", "small", "powers", "thousands"],
)
def test_tick_labels(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels


@pytest.mark.parametrize(
    ("batch", "ranks", "text"),
    [
        ((8, 4, 4, 1), 2, "8 samples per update = 2 ranks × 4; per rank 1 micro-batch of 4"),
        ((1, 1, 1, 1), 1, "1 sample per update = 1 rank × 1; per rank 1 micro-batch of 1"),
        ((14, 7, 4, 2), 2, "14 samples per update = 2 ranks × 7; per rank 2 micro-batches of at most 4"),
    ],
    ids=["whole share", "single", "unequal micro-batches"],
)
def test_batch_arithmetic(batch: tuple[int, ...], ranks: int, text: str) -> None:
    parts = dict(zip(("effective", "per_rank", "micro", "accumulation_steps"), batch, strict=True))
    assert batch_arithmetic(parts, ranks) == text


# --- pictures -------------------------------------------------------------------------------------------------


def sphere(count: int) -> np.ndarray:
    """Evenly spread points (count, 3) of the unit sphere (Fibonacci lattice)."""
    up = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (1 + 5**0.5) * np.arange(count)
    radius = np.sqrt(1 - up**2)
    return np.stack([radius * np.cos(angle), up, radius * np.sin(angle)], axis=-1)


@pytest.mark.parametrize("with_normals", [True, False], ids=["normals", "points alone"])
def test_the_viewer_sees_the_near_side_of_a_sphere(with_normals: bool) -> None:
    points = sphere(1000)
    towards = points @ pictures.TOWARDS_VIEWER
    seen = np.isin(np.arange(1000), pictures.visible(points, points if with_normals else None))
    assert seen[towards > 0.15].mean() == 1
    assert not seen[towards < -0.1].any()


def test_a_shape_hides_what_is_behind_it() -> None:
    near, far = sphere(600) * 0.5 + 3 * pictures.TOWARDS_VIEWER, sphere(600) * 0.3
    seen = pictures.visible(np.vstack([near, far]), np.vstack([sphere(600), sphere(600)]))
    assert (seen < 600).any()
    assert not (seen >= 600).any()


def test_a_bay_in_the_outline_stays_open() -> None:
    across, up = np.meshgrid(np.linspace(0, 4, 41), np.linspace(0, 2, 21))
    points = np.stack([across.ravel(), up.ravel()], axis=-1)
    step = points[(points[:, 0] >= 2) | (points[:, 1] <= 1)]  # a bonnet before a cabin
    step += 1e-6 * np.random.default_rng(0).normal(size=step.shape)
    triangles = step[pictures._shape_triangles(step)]
    a, b = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    area = 0.5 * np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum()
    assert area == pytest.approx(6, rel=0.05)  # the convex hull has 7


def test_section_interpolates_linear_fields_exactly() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform([-1, 0, -2], [1, 2, 3], size=(900, 3))
    frame = pictures.Frame(np.array([-1.5, 0.3]), np.array([2.5, 1.7]))
    view = pictures.section_view(points, None, frame)
    field = 3 + points @ [5.0, -2.0, 0.7]
    along, up = np.meshgrid(*frame.axes())
    drawn = np.sum(field[view.vertices] * view.weights, axis=1).reshape(frame.grid_shape)
    np.testing.assert_allclose(drawn, 3 - 2 * up + 0.7 * along, atol=1e-9)


def test_section_refuses_points_on_one_side() -> None:
    points = sphere(200) + np.array([5, 0, 0])
    with pytest.raises(ValueError, match="one side of the mid-plane"):
        pictures.section_view(points, None, pictures.frame_around([pictures.side(points)], 0.0))


def test_picture_has_the_colours_of_the_scale() -> None:
    points = sphere(800)
    frame = pictures.frame_around([pictures.surface_extent(points)], 0.02)
    scale = pictures.Scale(0.0, 10.0, pictures.VALUE_MAP)
    view = pictures.surface_view(points, points, frame)
    image = imread(io.BytesIO(pictures.field_picture(view, np.full(800, 7.5), scale)))
    rows, columns = frame.grid_shape
    assert image.shape == (2 * rows, 2 * columns, 4)
    # Picture rows run downwards, the frame's coordinate up.
    place = (pictures.project(np.zeros((1, 3)))[0] - frame.low) / (frame.high - frame.low)
    centre = image[round((1 - place[1]) * 2 * rows), round(place[0] * 2 * columns)]
    np.testing.assert_allclose(centre, matplotlib.colormaps[pictures.VALUE_MAP](0.75), atol=0.02)
    assert image[2, 2, 3] == 0  # nothing is drawn in the corner


def test_scales() -> None:
    values = np.concatenate([np.linspace(-100, 300, 1000), [1e6]])
    scale = pictures.value_scale([values], [np.full(10, 1e9)])
    assert scale.low == pytest.approx(-98, abs=2)
    assert 300 < scale.high < 375  # neither the one wild point nor the wild prediction stretch it far
    errors = pictures.error_scale([np.linspace(-3, 1, 1000), np.full(5, np.nan)])
    assert errors.low == -errors.high
    assert errors.high == pytest.approx(2.97, abs=0.05)
    assert pictures.value_scale([np.full(4, 5.0)], [np.full(4, 5.0)]).low < 5
    assert pictures.error_scale([np.zeros(4)]).high > 0
