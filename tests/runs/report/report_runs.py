"""Run folders of exact flow, evaluated as a run is, and a reader of their pages, for the tests of the report."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noether.common.whole_file import write_json
from noether.core.evaluate import ShownCase, point_errors, write_cases
from noether.physics.cars.ellipsoid import DYNAMIC_PRESSURE, EllipsoidCar, draw_car, make_sample
from noether.physics.fields.fields import FieldsTask
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metrics
from noether.runs.report.run import ReportedRun
from noether.runs.report.tables import choose_cases

UNITS = {"surface_pressure": "Pa", "volume_velocity": "m/s"}
FIELDS = {name: {"unit": unit, "points": f"{name.split('_')[0]}_points"} for name, unit in UNITS.items()}
LIFT = {"direction": (0.0, 1.0, 0.0), "dynamic_pressure": DYNAMIC_PRESSURE, "truth": "lift_coefficient"}
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


def smooth_noise(points: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    waves, phases = rng.normal(size=(6, 3)) * 1.5, rng.uniform(0, 2 * np.pi, 6)
    return scale * np.sin(points @ waves.T + phases).mean(axis=1) * 2.4


def predict(car: EllipsoidCar, sample: dict[str, np.ndarray], rng: np.random.Generator, off: float) -> list[np.ndarray]:
    """What a decent model would say of both fields: the flow about a slightly different car, and smooth noise."""
    sizes = np.array([car.half_length, car.height, car.half_width])
    other = EllipsoidCar(*sizes * (1 + off * rng.normal(size=3)), car.yaw + 0.3 * off * rng.normal())
    surface, volume = (
        other.to_world(car.to_body(sample[key].astype(float)) / car.semi_axes * other.semi_axes * (1 + 1e-6))
        for key in ("surface_points", "volume_points")
    )
    velocity = other.velocity(volume) + np.stack([smooth_noise(volume, 20 * off, rng) for _ in range(3)], axis=-1)
    return [(other.pressure(surface) + smooth_noise(surface, 180 * off, rng))[:, None], velocity]


def make_run(folder: Path, *, shapes: int = 7, points: int = 240, updates: int = 402, off: float = 0.02) -> RunFolder:
    """A run folder as training and evaluation leave it."""
    run, rng = RunFolder(folder), np.random.default_rng(0)
    run.create()
    run.evaluation.mkdir()
    cars = [draw_car(0, "test", k) for k in range(shapes)]
    arrays = [make_sample(car, points, points, k) for k, car in enumerate(cars)]
    found = [predict(car, own, rng, off * rng.gamma(4) / 4) for car, own in zip(cars, arrays, strict=True)]
    samples = [{key: torch.from_numpy(value) for key, value in own.items()} for own in arrays]
    batch = {key: torch.stack([own[key] for own in samples]) for key in samples[0]}
    fields = (torch.from_numpy(np.stack(own)) for own in zip(*found, strict=True))
    write_json(run.result, evaluated(run, samples, batch, dict(zip(FIELDS, fields, strict=True)), updates))
    run.config.write_text(CONFIG.format(run_id=json.dumps(folder.name)))
    write_json(run.plan, plan_of(updates))
    packages = {"torch": "2.13.0", "numpy": "2.4.1"}
    made = {"noether": "0.1.0", "host": "node001", "packages": packages, "lock_sha256": None}
    write_json(run.environment, {**made, "command": ["noether", "train", "trainer.max_epochs=60", "note=a b"]})
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in history(updates, rng)))
    return run


def evaluated(
    run: RunFolder,
    samples: list[dict[str, Tensor]],
    batch: dict[str, Tensor],
    physical: dict[str, Tensor],
    updates: int,
) -> dict[str, Any]:
    """Writes the cases that the page shows; returns the content of result.json."""
    task = FieldsTask(FIELDS, scalars={"lift_coefficient": LIFT})
    task.fit(samples)
    found = task.of_physical(physical, batch) | task.details(physical, batch)
    of_samples = {name: values.double().numpy() for name, values in found.items()}
    shown = [
        ShownCase(*case, *({key: own[case[2]][None] for key, own in every.items()} for every in (physical, batch)))
        for case in choose_cases(of_samples["surface_pressure/relative_l2"])
    ]
    about = {"split": "test", "weights": "ema", "checkpoint": f"update-{updates:09d}", "updates": updates}
    errors = {name: [own] for name, own in point_errors(task, physical, batch).items()}
    names = [f"test-{k:04d}" for k in range(len(samples))]
    write_cases(run.evaluation / "test.npz", task, of_samples, errors=errors, shown=shown, names=names, about=about)
    metrics = task.summarise(of_samples)
    whole = {name: value for name, value in metrics.items() if name.count("/") == 1 and not name.startswith("lift")}
    facts = task.results(of_samples, metrics)
    note = {"note": "the drag of potential flow is 0 for every shape: nothing to rank"}
    return {
        "version": 2, **about, "parameters": 567890, "samples_per_second": 101.3, "world_size": 2, "metrics": metrics,
        "described": Metrics.of(*task.describe_metrics()).records(), "report_parts": list(task.report_parts),
        "baselines": {label: {name: factor * value for name, value in whole.items()}
                      for label, factor in (("mean_field", 10.0), ("nearest_shape", 4.0))},
        **facts, "scalars": {**facts["scalars"], "drag_coefficient": note},
        "trained_on": {
            "points": {"surface_points": {"low": [-1.2, 0.0, -2.5], "high": [1.2, 1.6, 2.5], "count": 1024}},
            "parameters": {"wind_speed": {"low": [20.0], "high": [40.0], "unit": "m/s"}},
        },
    }  # fmt: skip


def plan_of(updates: int, world_size: int = 2) -> dict[str, Any]:
    share = 8 // min(world_size, 8)
    return {
        "launcher": "local", "world_size": world_size, "nodes": ["node001"], "node_rank": 0, "restarts": 0,
        "workers": [{"rank": k, "local_rank": k, "node_rank": 0, "device": f"cuda:{k}"} for k in range(world_size)],
        "batch": {"effective": 8, "per_rank": share, "micro": share, "accumulation_steps": 1},
        "reasons": {"launcher": "no scheduler’s variables are set", "world_size": "one rank for each visible device"},
        "length": {"updates_per_epoch": 67, "total_updates": updates, "epochs": updates / 67},
        "data": {"training": 540, "validation": 60, "test": 100},
        "model": {"kind": "upt", "parameters": 567890},
        "report_parts": list(FieldsTask.report_parts),
    }  # fmt: skip


def history(updates: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for update in range(25, updates + 1, 25):
        level = float(np.exp(-5.2 * (update / updates) ** 0.6))
        position = {"time": 1.77e9 + 0.08 * update, "update": update, "epoch": update / 67, "samples": 8 * update}
        values = {
            "loss": 1.1 * level * float(np.exp(0.12 * rng.normal())) + 0.002, "learning_rate": 1e-3 * level,
            "samples_per_second": float(100 + 3 * rng.normal()), "gradient_norm": 1.2, "memory_mib": 812.0,
            "time_use": {"data": 0.2, "forward": 0.6, "backward": 0.9, "optimizer": 0.1, "other": 0.2},
        }  # fmt: skip
        rows.append({**position, "kind": "training", **values})
        for weights, factor in (("ema", 1.0), ("raw", 1.22)) if update % 100 == 0 else ():
            loss = factor * (level + 0.003)
            metrics = {"loss": loss, "lift_coefficient/r2": 1 - 3 * loss}
            metrics |= {f"{name}/relative_l2": 0.5 * loss**0.5 / (1 + k) for k, name in enumerate(UNITS)}
            kind = {"kind": "evaluation", "split": "validation", "weights": weights, "selected": factor == 1.0}
            rows.append({**position, **kind, "metrics": metrics})
    return rows


def without_cases(run: ReportedRun) -> ReportedRun:
    return replace(run, meta={**run.meta, "cases": []})


def resumed(run: ReportedRun) -> ReportedRun:
    again = [{**row, "loss": 77.0} for row in run.rows if row["kind"] == "training" and row["update"] > 200]
    return replace(run, rows=[*run.rows, *again], plan={**run.plan, "restarts": 2})


SECTIONS = (
    *("errors", "cases", "scalars", "distributions", "use", "curves", "time"),
    *("plan", "environment", "configuration"),
)


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
