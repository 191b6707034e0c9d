"""The report of a run: every section is there, nothing is loaded from elsewhere, nothing breaks it."""

import json
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noether.data.ellipsoid_car import DYNAMIC_PRESSURE, EllipsoidCar, draw_car, make_sample
from noether.evaluation.report import write_report
from noether.run_folder import RunFolder, write_json

UNITS = {"surface_pressure": "Pa", "volume_velocity": "m/s"}
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
    waves = rng.normal(size=(6, 3)) * 1.5
    phases = rng.uniform(0, 2 * np.pi, 6)
    return scale * np.sin(points @ waves.T + phases).mean(axis=1) * 2.4


def predicted(car: EllipsoidCar, sample: dict[str, np.ndarray], rng: np.random.Generator, off: float) -> dict[str, Any]:
    """What a decent model would say: the flow about a slightly different car, and smooth noise."""
    sizes = np.array([car.half_length, car.height, car.half_width])
    other = EllipsoidCar(*sizes * (1 + off * rng.normal(size=3)), car.yaw + 0.3 * off * rng.normal())

    def moved(points: np.ndarray) -> np.ndarray:
        return other.to_world(car.to_body(points) / car.semi_axes * other.semi_axes * (1 + 1e-6))

    surface, volume = sample["surface_points"].astype(float), sample["volume_points"].astype(float)
    velocity = other.velocity(moved(volume))
    velocity += np.stack([smooth_noise(volume, 20 * off, rng) for _ in range(3)], axis=-1)
    pressure = other.pressure(moved(surface)) + smooth_noise(surface, 180 * off, rng)
    facing = sample["surface_normals"][:, 1] * sample["surface_area"]
    force = -DYNAMIC_PRESSURE * float(sample["reference_area"][0])
    return {
        "surface_pressure": pressure[:, None],
        "volume_velocity": velocity,
        "lift": float(pressure @ facing) / force,
        "floor": float(sample["surface_pressure"] @ facing) / force,
    }


def errors(prediction: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    error = prediction - truth
    return {
        "relative_l2": float(np.linalg.norm(error) / np.linalg.norm(truth)),
        "mse": float(np.mean(error**2)),
        "mae": float(np.mean(np.abs(error))),
        "max": float(np.max(np.abs(error))),
    }


def mean_errors(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: float((np.max if key == "max" else np.mean)([row[key] for row in rows])) for key in rows[0]}


def make_run(
    folder: Path,
    *,
    shapes: int = 6,
    points: int = 300,
    updates: int = 400,
    run_id: str = "2026-01-31_12-00-00_ab12",
    world_size: int = 2,
    attempt: int = 0,
    off: float = 0.02,
) -> RunFolder:
    """A run folder as training and evaluation leave it."""
    run = RunFolder(folder)
    run.create()
    run.evaluation.mkdir()
    rng = np.random.default_rng(0)
    run.config.write_text(CONFIG.format(run_id=json.dumps(run_id)))

    arrays: dict[str, Any] = {}
    samples, predictions, scores = [], [], {field: [] for field in UNITS}
    for k in range(shapes):
        car = draw_car(0, "test", k)
        samples.append(make_sample(car, points, points, k))
        predictions.append(predicted(car, samples[-1], rng, off * rng.gamma(4) / 4))
        for field in UNITS:
            truth = samples[-1][field].reshape(points, -1)
            scores[field].append(errors(predictions[-1][field], truth))
    for field in UNITS:
        for key in scores[field][0]:
            arrays[f"figures/{field}/{key}"] = np.array([row[key] for row in scores[field]])
        all_errors = np.concatenate(
            [(p[field] - s[field].reshape(points, -1)).ravel() for p, s in zip(predictions, samples, strict=True)]
        )
        limit = float(np.quantile(np.abs(all_errors), 0.995))
        counts, edges = np.histogram(np.clip(all_errors, -limit, limit), np.linspace(-limit, limit, 81))
        arrays[f"histogram/{field}/edges"], arrays[f"histogram/{field}/counts"] = edges, counts
    lift = np.array([float(sample["lift_coefficient"][0]) for sample in samples])
    arrays["figures/lift_coefficient/truth"] = lift
    arrays["figures/lift_coefficient/prediction"] = np.array([p["lift"] for p in predictions])
    arrays["figures/lift_coefficient/integral_of_truth"] = np.array([p["floor"] for p in predictions])

    total = np.sum([arrays[f"figures/{field}/relative_l2"] for field in UNITS], axis=0)
    order = np.argsort(total)
    chosen = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
    if shapes >= 5:
        chosen |= {"2. worst": order[-2], "3. worst": order[-3]}
    cases = []
    for k, (label, index) in enumerate(list(chosen.items())[:shapes]):
        sample, prediction = samples[index], predictions[index]
        relative = {field: scores[field][index]["relative_l2"] for field in UNITS}
        cases.append({"sample": f"test {index}", "label": label, "index": int(index), "relative_l2": relative})
        for field in UNITS:
            prefix = field.split("_")[0]
            arrays[f"case/{k}/{field}/points"] = sample[f"{prefix}_points"]
            arrays[f"case/{k}/{field}/truth"] = sample[field].reshape(points, -1)
            arrays[f"case/{k}/{field}/prediction"] = prediction[field].astype(np.float32)
        arrays[f"case/{k}/surface_pressure/normals"] = sample["surface_normals"]
    meta = {
        "split": "test",
        "weights": "ema",
        "checkpoint": f"update-{updates:09d}",
        "updates": updates,
        "names": [f"test {k}" for k in range(shapes)],
        "fields": {field: {"unit": unit, "points": f"{field.split('_')[0]}_points"} for field, unit in UNITS.items()},
        "cases": cases,
        "scalars": ["lift_coefficient"],
    }
    np.savez(run.evaluation / "test.npz", meta=np.array(json.dumps(meta)), **arrays)

    fields = {field: mean_errors(scores[field]) for field in UNITS}
    worse = {
        "mean_field": {"surface_pressure": 19.0, "volume_velocity": 5.1},
        "nearest_shape": {"surface_pressure": 4.6, "volume_velocity": 2.7},
    }
    lifted = arrays["figures/lift_coefficient/prediction"]
    write_json(
        run.result,
        {
            "fields": fields,
            "scalars": {
                "lift_coefficient": {
                    "r2": float(1 - np.sum((lifted - lift) ** 2) / np.sum((lift - lift.mean()) ** 2))
                    if shapes > 1
                    else None,
                    "spearman": float(np.corrcoef(np.argsort(np.argsort(lifted)), np.argsort(np.argsort(lift)))[0, 1])
                    if shapes > 1
                    else None,
                    "mae": float(np.mean(np.abs(lifted - lift))),
                    "floor_r2": 0.99991,
                },
                "drag_coefficient": {
                    "note": "the drag of potential flow is 0 for every shape, so there is nothing to rank"
                },
            },
            "baselines": {
                name: {
                    field: {key: value * factor ** (2 if key == "mse" else 1) for key, value in fields[field].items()}
                    for field, factor in factors.items()
                }
                for name, factors in worse.items()
            },
            "parameters": 567890,
            "updates": updates,
            "samples_per_second": 101.3,
            "world_size": world_size,
            "seconds": 318.2,
            "weights": "ema",
            "checkpoint": f"update-{updates:09d}",
            "split": "test",
        },
    )
    write_json(run.plan, plan(updates, world_size, attempt))
    write_json(
        run.environment,
        {
            "noether": "0.1.0",
            "python": "3.12.4",
            "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
            "host": "node001",
            "cpus": 16,
            "packages": {"torch": "2.13.0", "numpy": "2.4.1", "scipy": "1.17.0", "hydra-core": "1.3.2"},
            "git_revision": "0f3c2a9d41be",
            "lock_sha256": None,
            "command": ["noether", "train", "trainer.max_epochs=60", "note=a b"],
            "started": "2026-01-31T12:00:00+0000",
        },
    )
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in history(updates, rng)))
    return run


def plan(updates: int, world_size: int, attempt: int) -> dict[str, Any]:
    return {
        "launcher": "local",
        "world_size": world_size,
        "nodes": ["node001"],
        "node_rank": 0,
        "endpoint": {"host": "127.0.0.1", "port": 0},
        "attempt": attempt,
        "workers": [{"rank": k, "local_rank": k, "node_rank": 0, "device": f"cuda:{k}"} for k in range(world_size)],
        "batch": {"effective": 8, "per_rank": 8 // world_size, "micro": 8 // world_size, "accumulation_steps": 1},
        "reasons": {
            "launcher": "no scheduler's variables are set: this machine alone",
            "world_size": f"one rank for each of the {world_size} visible devices",
            "devices": "NVML counts 2 devices, CUDA_VISIBLE_DEVICES is not set",
        },
        "length": {"updates_per_epoch": 67, "total_updates": updates, "epochs": updates / 67},
        "data": {"training": 540, "validation": 60, "test": 100},
        "model": {"kind": "upt", "parameters": 567890},
    }


def history(updates: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    start = 1769860800.0
    for update in range(25, updates + 1, 25):
        part = update / updates
        loss = 1.1 * np.exp(-5.2 * part**0.6) * float(np.exp(0.12 * rng.normal())) + 0.002
        position = {"time": start + 0.08 * update, "update": update, "epoch": update / 67, "samples": 8 * update}
        rate = 1e-3 * min(part / 0.05, 0.5 * (1 + np.cos(np.pi * max(0, part - 0.05) / 0.95)) + 1e-3)
        speed = float((100 + 3 * rng.normal()) * (0.6 if update == 25 else 1))
        rows.append(
            {
                **position,
                "kind": "training",
                "loss": loss,
                "learning_rate": rate,
                "gradient_norm": 1.2,
                "samples_per_second": speed,
                "memory_mib": 812.0,
            }
        )
        if update % 100 == 0:
            for weights, factor in (("ema", 1.0), ("raw", 1.22)):
                base = factor * (1.0 * np.exp(-5.2 * part**0.6) + 0.003)
                figures = {
                    "loss": base,
                    "surface_pressure/relative_l2": 0.5 * base**0.5,
                    "volume_velocity/relative_l2": 0.12 * base**0.5,
                    "surface_pressure/mse": 900 * base,
                }
                kind = {"kind": "evaluation", "split": "validation", "weights": weights, "figures": figures}
                rows.append({**position, **kind})
            rows.append({**position, "kind": "checkpoint", "path": f"checkpoints/update-{update:09d}", "metric": 0.1})
    return rows
