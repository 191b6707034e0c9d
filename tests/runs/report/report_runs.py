"""Run folders made of exact flow, as training and evaluation leave them, for the tests of the report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.whole_file import write_json
from noether.physics.cars.ellipsoid_car import DYNAMIC_PRESSURE, EllipsoidCar, draw_car, make_sample
from noether.physics.fields.field_errors import field_metrics
from noether.physics.fields.fields import FieldsTask
from noether.physics.fields.scalars import scalar_metrics
from noether.runs.folder import RunFolder
from noether.runs.metrics import Metrics
from noether.runs.report.chosen_cases import choose_cases
from noether.runs.report.run import ReportedRun

UNITS = {"surface_pressure": "Pa", "volume_velocity": "m/s"}
COMPONENTS = {"volume_velocity": {axis: f"{axis} component" for axis in "xyz"}}


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
            arrays[f"metrics/{name}/{figure}"] = np.array([row[figure] for row in rows])
        error = np.concatenate([(predicted - truth).ravel() for predicted, truth in pairs])
        limit = float(np.quantile(np.abs(error), 0.995))
        edges = np.linspace(-limit, limit, 81)
        arrays[f"histogram/{name}/edges"] = edges
        arrays[f"histogram/{name}/counts"] = np.histogram(np.clip(error, -limit, limit), edges)[0]
    for part in ("prediction", "truth", "integral_of_truth"):
        arrays[f"metrics/lift_coefficient/{part}"] = np.array([predicted[part] for predicted in predictions])

    cases = choose_cases(arrays["metrics/surface_pressure/relative_l2"])
    for k, (_, _, index) in enumerate(cases):
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
                "place": place,
                "index": index,
                "relative_l2": {name: float(arrays[f"metrics/{name}/relative_l2"][index]) for name in UNITS},
            }
            for label, place, index in cases
        ],
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
    metrics = {
        f"{name}/{measure}": float((np.max if measure == "max" else np.mean)(arrays[f"metrics/{name}/{measure}"]))
        for name in UNITS
        for measure in ("relative_l2", "mse", "mae", "max")
    }
    metrics |= {f"{name}/pooled_relative_l2": 0.9 * metrics[f"{name}/relative_l2"] for name in UNITS}
    baselines = {
        baseline: {name: factor * value for name, value in metrics.items()}
        for baseline, factor in (("mean_field", 10.0), ("nearest_shape", 4.0))
    }
    velocity = "volume_velocity"
    metrics |= {f"{velocity}/{axis}/{one}": metrics[f"{velocity}/{one}"] for axis in "xyz" for one in ("mse", "mae")}
    known = [
        *(metric for name in UNITS for metric in field_metrics(name, UNITS[name], COMPONENTS.get(name, {}))),
        *scalar_metrics("lift_coefficient", ""),
    ]
    lift, true_lift = (arrays[f"metrics/lift_coefficient/{part}"] for part in ("prediction", "truth"))
    spread = float(np.sum((true_lift - true_lift.mean()) ** 2))
    scores = {
        "r2": 1 - float(np.sum((lift - true_lift) ** 2)) / spread if spread else None,
        "spearman": 0.9912 if spread else None,
        "mae": float(np.mean(np.abs(lift - true_lift))),
        "floor_r2": 0.99991 if spread else None,
    }
    return {
        "version": 2,
        "split": "test",
        "weights": "ema",
        "checkpoint": f"update-{updates:09d}",
        "updates": updates,
        "parameters": 567890,
        "samples_per_second": 101.3,
        "world_size": 2,
        "seconds": 318.2,
        "trained_on": {
            "points": {"surface_points": {"low": [-1.2, 0.0, -2.5], "high": [1.2, 1.6, 2.5], "count": 1024}},
            "parameters": {"wind_speed": {"low": [20.0], "high": [40.0], "unit": "m/s"}},
        },
        "fields": list(UNITS),
        "metrics": metrics | {f"lift_coefficient/{name}": value for name, value in scores.items()},
        "described": Metrics.of(*known).records(),
        "report_parts": list(FieldsTask.report_parts),
        "baselines": baselines,
        "scalars": {
            "lift_coefficient": {
                "dynamic_pressure": 245.0,
                "density": 1.225,
                "speed": 20.0,
                "reference_area": "reference area of each sample",
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
        "restarts": 0,
        "workers": [{"rank": k, "local_rank": k, "node_rank": 0, "device": f"cuda:{k}"} for k in range(world_size)],
        "batch": {"effective": 8, "per_rank": share, "micro": share, "accumulation_steps": 1},
        "reasons": {"launcher": "no scheduler’s variables are set", "world_size": "one rank for each visible device"},
        "length": {"updates_per_epoch": 67, "total_updates": updates, "epochs": updates / 67},
        "data": {"training": 540, "validation": 60, "test": 100},
        "model": {"kind": "upt", "parameters": 567890},
        "report_parts": list(FieldsTask.report_parts),
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
        spent = {"data": 0.2, "forward": 0.6, "backward": 0.9, "optimizer": 0.1, "other": 0.2}
        more = {"gradient_norm": 1.2, "memory_mib": 812.0, "time_use": spent}
        rows.append({**position, "kind": "training", **values, **more})
        for weights, factor in (("ema", 1.0), ("raw", 1.22)) if update % 100 == 0 else ():
            loss = factor * (level + 0.003)
            metrics = {
                "loss": loss,
                "lift_coefficient/r2": 1 - 3 * loss,
                **{f"{name}/relative_l2": 0.5 * loss**0.5 / (1 + k) for k, name in enumerate(UNITS)},
            }
            kind = {"kind": "evaluation", "split": "validation", "weights": weights, "selected": factor == 1.0}
            rows.append({**position, **kind, "metrics": metrics})
    return rows


def without_cases(run: ReportedRun) -> ReportedRun:
    return replace(run, meta={**run.meta, "cases": []})


def resumed(run: ReportedRun) -> ReportedRun:
    again = [{**row, "loss": 77.0} for row in run.rows if row["kind"] == "training" and row["update"] > 200]
    return replace(run, rows=[*run.rows, *again], plan={**run.plan, "restarts": 2})
