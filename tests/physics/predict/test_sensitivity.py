"""Sensitivities of an output: its gradients agree with central differences; the command writes a file and a table."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pyvista
import torch

from noether.config.compose import load_config
from noether.core.data.layout import FRONTAL
from noether.core.models.build import build_model
from noether.core.precision import Precision
from noether.physics.cases.surface_mesh import frontal_area
from noether.physics.fields.fields import FieldsTask
from noether.physics.predict.inference import TrainedModel
from noether.physics.predict.sensitivity import (
    Sensitivity,
    moved_areas_and_normals,
    sensitivity,
    spread_over_surface,
    stretches,
)
from noether.physics.predict.shape_input import Shape
from tests.refusal import refusal

REPOSITORY = Path(__file__).parents[3]
SMALL_RUNS = Path(__file__).with_name("small_runs")
CPU = torch.device("cpu")
FEW = "model.supernodes=16 model.radius=200.0"
SIZES = {"upt": f"{FEW} model.encoder_depth=1 model.decoder_depth=1", "ab_upt": FEW}


def half_ellipsoid(polar: int = 9, azimuth: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, 3) on the upper half of the unit sphere, and the quads between them."""
    theta, phi = np.meshgrid(np.linspace(0.1, np.pi - 0.1, polar), np.linspace(0, np.pi, azimuth), indexing="ij")
    points = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)
    index = np.arange(polar * azimuth).reshape(polar, azimuth)
    faces = np.stack([index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]], axis=-1)
    return points.reshape(-1, 3), faces.reshape(-1, 4)


DIRECTIONS, QUADS = half_ellipsoid()
# Avoid ties: results have a kink where two points are equally far out or equally near.
POINTS = DIRECTIONS * [0.9, 1.0, 2.0] + np.random.default_rng(2).normal(0, 0.01, DIRECTIONS.shape)


def model_of(kind: str, learned: int) -> TrainedModel:
    """Return an untrained float64 model that predicts a field, an output of the case and a scalar, from a parameter."""
    torch.manual_seed(0)
    size = "model.dim=48 model.heads=2 " + SIZES.get(kind, "model.depth=2")
    config = load_config([f"model={kind}_small", *size.split(), "dataset.points_per_update={surface: 32, volume: 32}"])
    shown = {"surface_points": "surface_points", "surface_normals": "surface_normals", "surface_area": "surface_area"}
    task = FieldsTask(
        fields={
            "surface_pressure": {"unit": "Pa", "points": "surface_points"},
            "volume_velocity": {"unit": "m/s", "points": "volume_points"},
            "drag": {"unit": "N", "points": "case"},
        },
        parameters={"wind_speed": {"unit": "m/s"}},
        inputs=["surface_normals", "volume_sdf", "volume_normals"],
        scalars={
            "lift_coefficient": {
                "direction": [0.0, 1.0, 0.0], "dynamic_pressure": "wind_speed", "density": 1.2,
                "points": shown["surface_points"], "normals": shown["surface_normals"], "areas": shown["surface_area"],
            }
        },
    )  # fmt: skip
    rng = np.random.default_rng(0)
    surface, air = rng.uniform([-1, 0, -2], [1, 1, 2], (learned, 3)), rng.uniform([-2, 1, -3], [2, 3, 3], (40, 3))
    sample = {
        "surface_points": surface, "surface_normals": rng.normal(size=(learned, 3)), "volume_points": air,
        "surface_pressure": 100 * rng.normal(size=learned), "volume_velocity": rng.normal(size=(40, 3)),
        "volume_sdf": rng.uniform(size=40), "volume_normals": rng.normal(size=(40, 3)),
    }  # fmt: skip
    samples = [
        {**{key: torch.from_numpy(value) for key, value in sample.items()},
         "drag": torch.tensor([drag]), "wind_speed": torch.tensor([speed])}
        for drag, speed in ((1.0, 20.0), (2.0, 40.0))
    ]  # fmt: skip
    task.fit(samples)
    task.reference_areas = {"reference_area": FRONTAL}
    model = build_model(config.model.kind, task.layout(), **config.model.options()).double().eval()
    return TrainedModel(config, model, task, CPU, Precision("float64", "cpu"))


@pytest.mark.parametrize("kind", ["upt", "ab_upt", "transformer", "transolver"])
@pytest.mark.parametrize("learned", [len(POINTS), 64], ids=["points-of-the-mesh", "places-on-its-faces"])
def test_gradients_are_those_of_central_differences(kind: str, learned: int) -> None:
    trained, step = model_of(kind, learned), 1e-6
    direction = np.random.default_rng(1).normal(size=POINTS.shape)

    def at(of: str, moved: float = 0.0, speed: float = 30.0) -> Sensitivity:
        shape = Shape.of_mesh(POINTS + moved * direction, QUADS)
        return sensitivity(trained, shape, of, {"wind_speed": speed}, 17)

    def on_one_area(of: str, moved: float) -> float:
        areas = [frontal_area(POINTS + by * direction, QUADS) for by in (moved, 0.0)]
        return at(of, moved).value * (areas[0] / areas[1] if of == "lift_coefficient" else 1.0)

    for of in ("lift_coefficient", "drag", "mean surface_pressure", "max surface_pressure"):
        found = at(of)
        along = (on_one_area(of, step) - on_one_area(of, -step)) / (2 * step)
        assert np.sum(found.points * direction) == pytest.approx(along, rel=1e-3), of
        faster = (at(of, speed=30 + step).value - at(of, speed=30 - step).value) / (2 * step)
        assert found.parameters["wind_speed"][0] == pytest.approx(faster, rel=1e-3), of


@pytest.mark.parametrize(
    ("of", "fix"),
    [("lift", "--of lift_coefficient"), ("surface_pressure", "--of 'mean surface_pressure'"), ("", "--of ")],
    ids=["nearest", "field-alone", "none"],
)
def test_an_output_that_is_not_there_is_refused(of: str, fix: str) -> None:
    with refusal("no-such-output", fix=fix):
        sensitivity(model_of("upt", 64), Shape.of_mesh(POINTS, QUADS), of, {"wind_speed": 30.0}, 100)


def test_a_coefficient_whose_reference_area_is_not_known_asks_for_it() -> None:
    trained, shape = model_of("upt", 64), Shape.of_mesh(POINTS, QUADS)
    trained.task.reference_areas = {}
    with refusal("no-such-output", fix="--set reference_area=NUMBER"):
        sensitivity(trained, shape, "lift_coefficient", {"wind_speed": 30.0}, 100)
    given = [{"wind_speed": 30.0, "reference_area": area} for area in (1.0, 2.0)]
    one, two = (sensitivity(trained, shape, "lift_coefficient", own, 100) for own in given)
    assert one.value == pytest.approx(2 * two.value)
    assert set(one.parameters) == {"wind_speed"}


def test_the_only_output_of_a_case_needs_no_name() -> None:
    # Without faces, no coefficient can be integrated, so drag is the only output.
    without_faces = replace(Shape.of_points(POINTS), normals=POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True))
    trained = model_of("upt", 64)
    found = sensitivity(trained, without_faces, "", {"wind_speed": 30.0}, 100)
    assert found.of == "drag"
    named = sensitivity(trained, without_faces, "drag", {"wind_speed": 30.0}, 100)
    assert (found.value, found.unit) == (named.value, "N")


def test_an_output_is_written_as_metrics_are() -> None:
    values = {"lift_coefficient": 1.234e-5, "drag": 123456.7, "surface_pressure": 0.5}
    texts = [model_of("upt", 64).output_text(label, value) for label, value in values.items()]
    assert texts == ["1.234e-5", "123,500 N", "0.5000 Pa"]


FOLD = np.array([[0, 1, 11], [0, 11, 1]])
"""Two triangles with the same corners and opposite normals, so that their vector areas cancel."""


@pytest.mark.parametrize("faces", [QUADS, QUADS[:, :3], FOLD], ids=["quads", "triangles", "fold"])
def test_areas_and_normals_are_those_of_the_mesh(faces: np.ndarray) -> None:
    shape, points = Shape.of_mesh(POINTS, faces), torch.from_numpy(POINTS).requires_grad_()
    found = moved_areas_and_normals(points, shape)
    for own, known in zip(found, (shape.areas, shape.normals), strict=True):
        np.testing.assert_allclose(own.detach().numpy(), known, rtol=1e-12, atol=1e-15)
    (gradient,) = torch.autograd.grad(found[1].sum(), points)
    assert torch.isfinite(gradient).all()


def test_a_density_has_the_integral_of_its_values() -> None:
    cut = np.concatenate([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])
    a, b, c = POINTS[cut.T]
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    mass = np.bincount(cut.ravel(), np.repeat(areas / 6, 3), len(POINTS))
    np.testing.assert_allclose(spread_over_surface(POINTS, cut, mass, 0.3), 1)
    spot = np.zeros(len(POINTS))
    spot[45] = 2.0
    spread = spread_over_surface(POINTS, cut, spot, 0.3)
    assert spread @ mass == pytest.approx(2)
    assert spread.max() < 2 / mass[45]


def test_a_longer_shape_stands_where_it_stood() -> None:
    gradient = np.zeros_like(POINTS)
    gradient[:, 1] = 1.0  # the gradient of Σ y
    found = stretches(gradient, POINTS, np.array([0.0, 1.0, 0.0]))
    foot, top = POINTS[:, 1].min(), POINTS[:, 1].max()
    assert found["y"] == pytest.approx((POINTS[:, 1] - foot).sum())
    middle = 0.5 * (foot + top)
    assert stretches(gradient, POINTS, np.zeros(3))["y"] == pytest.approx((POINTS[:, 1] - middle).sum())


def test_the_command_writes_the_gradient_on_the_mesh(noether, tmp_path: Path) -> None:
    shutil.copytree(SMALL_RUNS / "upt", tmp_path / "run")
    asked = ["sensitivity", str(tmp_path / "run"), "--mesh", str(REPOSITORY / "examples/car.stl"), "--out",
             str(tmp_path / "s.vtp")]  # fmt: skip
    done = noether(*asked, "--of", "lift_coefficient", code=0)
    mesh = pyvista.read(tmp_path / "s.vtp")
    assert mesh.point_data["sensitivity"].shape == (mesh.n_points, 3)
    assert np.isfinite(mesh.point_data["sensitivity_outwards"]).all()
    assert "1 % longer along z" in done.out
    refused = noether(*asked, "--of", "drag_coefficient")
    assert (refused.code, "no-such-output" in refused.err) == (2, True)
