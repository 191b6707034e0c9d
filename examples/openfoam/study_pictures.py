"""Draw the pictures of a study, with predicted and true values: fields on the body and in the wake, coefficients."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from scipy.spatial import ConvexHull, cKDTree
from study_figures import GROUPS, best_group

matplotlib.use("Agg")
from matplotlib import pyplot

VIEW = np.array([0.75, 0.45, -0.5])  # towards the observer, on the axes across the wind, up, and along the wind
PIXELS = 240  # width of the picture of the wake, along the wind
SHARED = {"constrained_layout": True, "dpi": 110}


def draw_pictures(runs: Path, figures: Mapping[str, Any], out: Path) -> None:
    """Draw study-coefficients.webp, study-surface.webp and study-wake.webp.

    The last two show the median test case of the best model's first run.
    """
    out.mkdir(exist_ok=True)
    best = best_group(figures)
    found = {name: run for name, run in figures["runs"].items() if run["group"] == best}
    if not found:
        return
    name = min(found, key=lambda one: found[one]["seed"])
    with np.load(runs / name / "evaluation" / "test.npz") as arrays:
        about = json.loads(str(arrays["meta"]))
        median = next((i for i, case in enumerate(about["cases"]) if case["label"] == "median"), 0)
        title = f"{GROUPS[best]}, {about['cases'][median]['sample']}"
        draw_coefficients(arrays, GROUPS[best], out / "study-coefficients.webp")
        draw_surface(_case(arrays, median), title, out / "study-surface.webp")
        draw_wake(_case(arrays, median), title, out / "study-wake.webp")


def _case(arrays: Mapping[str, np.ndarray], number: int) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for key in arrays:
        if key.startswith(f"case/{number}/"):
            _, _, field, what = key.split("/")
            found.setdefault(field, {})[what] = arrays[key]
    return found


def draw_coefficients(arrays: Mapping[str, np.ndarray], model: str, path: Path) -> None:
    """Draw the predicted over the solved drag and lift coefficients of all test cases."""
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.8), **SHARED)
    for axis, what in zip(axes, ("drag", "lift"), strict=True):
        ways = {"integrated from the fields": f"{what}_of_the_fields", "predicted directly": f"{what}_coefficient"}
        every = []
        for way, name in ways.items():
            if f"metrics/{name}/truth" in arrays:
                truth, predicted = (arrays[f"metrics/{name}/{side}"] for side in ("truth", "prediction"))
                axis.plot(truth, predicted, "o", label=way, alpha=0.7)
                every += [truth, predicted]
        if every:
            ends = [np.min(np.concatenate(every)), np.max(np.concatenate(every))]
            axis.plot(ends, ends, "k", linewidth=0.8)
        axis.set(title=f"{what} coefficient, {model}", xlabel="OpenFOAM", ylabel="prediction")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, pil_kwargs={"quality": 88, "method": 4})
    pyplot.close(figure)


def draw_surface(case: Mapping[str, Mapping[str, np.ndarray]], title: str, path: Path) -> None:
    """Draw truth, prediction and error of the surface pressure, and of the magnitude of the wall shear stress."""
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 5), **SHARED)
    for row, (field, label) in zip(
        axes, (("surface_pressure", "pressure, Pa"), ("surface_wall_shear", "wall shear stress, Pa")), strict=True
    ):
        own = case[field]
        seen = np.flatnonzero(own["normals"] @ VIEW > 0)
        right, up = _screen()
        order = seen[np.argsort(own["points"][seen] @ VIEW)]
        flat = own["points"][order] @ right, own["points"][order] @ up
        for axis, (what, values, limits, colours) in zip(row, _columns(own, order), strict=True):
            drawn = axis.scatter(*flat, c=values, s=9, cmap=colours, vmin=limits[0], vmax=limits[1], linewidths=0)
            axis.set(title=f"{label}: {what}", aspect="equal", xticks=[], yticks=[])
            axis.set_frame_on(False)
            figure.colorbar(drawn, ax=axis, shrink=0.8)
    figure.suptitle(title)
    figure.savefig(path, pil_kwargs={"quality": 88, "method": 4})
    pyplot.close(figure)


def _screen() -> tuple[np.ndarray, np.ndarray]:
    """Return the directions (3,) that an observer who looks along -VIEW sees as right and as up."""
    right = np.cross([0.0, 1.0, 0.0], VIEW)
    up = np.cross(VIEW, right)
    return -right / -np.linalg.norm(right), up / np.linalg.norm(up)


def _columns(own: Mapping[str, np.ndarray], rows: np.ndarray) -> list[tuple[str, np.ndarray, tuple[float, float], str]]:
    """Return truth, prediction and error, each with its limits and colours; vectors become their magnitudes."""
    truth, predicted = (_size(own[side][rows]) for side in ("truth", "prediction"))
    error = _size((own["prediction"] - own["truth"])[rows])
    low, high = (float(value) for value in np.quantile(truth, (0.005, 0.995)))
    far = float(np.quantile(np.abs(error), 0.995)) or 1.0
    signed = own["truth"].shape[1] == 1
    return [
        ("OpenFOAM", truth, (low, high), "viridis"),
        ("prediction", predicted, (low, high), "viridis"),
        ("error", error, (-far, far) if signed else (0.0, far), "RdBu_r" if signed else "magma"),
    ]


def _size(values: np.ndarray) -> np.ndarray:
    return values[:, 0] if values.shape[1] == 1 else np.linalg.norm(values, axis=1)


def draw_wake(case: Mapping[str, Mapping[str, np.ndarray]], title: str, path: Path) -> None:
    """Draw the symmetry plane around and behind the body: the velocity along the wind, and the pressure."""
    body = case["surface_pressure"]["points"]
    low, high = body[:, 2].min() - 0.4, body[:, 2].max() + 1.2
    along, up = np.linspace(low, high, PIXELS), np.linspace(0.0, 0.7, round(PIXELS * 0.7 / (high - low)))
    grid = np.stack(np.meshgrid(along, up), axis=-1).reshape(-1, 2)
    # A pixel shows the cell whose centre is nearest; no centre is on the plane itself.
    pixels = np.c_[np.full(len(grid), 0.0), grid[:, 1], grid[:, 0]]
    outline = body[:, [2, 1]][ConvexHull(body[:, [2, 1]]).vertices]
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 4.2), **SHARED)
    for row, (field, label, part) in zip(
        axes,
        (("volume_velocity", "velocity along the wind, m/s", 2), ("volume_pressure", "pressure, Pa", 0)),
        strict=True,
    ):
        own = case[field]
        rows = cKDTree(own["points"]).query(pixels)[1]
        one = {side: own[side][:, part : part + 1] for side in ("truth", "prediction")}
        for axis, (what, values, limits, colours) in zip(row, _columns(one, rows), strict=True):
            picture = axis.imshow(
                values.reshape(len(up), len(along)), origin="lower", extent=(low, high, 0.0, 0.7), cmap=colours,
                vmin=limits[0], vmax=limits[1],
            )  # fmt: skip
            axis.fill(*outline.T, "0.85", edgecolor="0.4")
            axis.set(title=f"{label}: {what}", xticks=[], yticks=[])
            figure.colorbar(picture, ax=axis, shrink=0.8)
    figure.suptitle(title)
    figure.savefig(path, pil_kwargs={"quality": 88, "method": 4})
    pyplot.close(figure)
