"""The report's pictures of fields: views, the outline of a shape, colours, axes and labels."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from noether.runs.report import views
from noether.runs.report.cases import VALUE_MAP, Scale, error_scale, field_picture, value_scale
from noether.runs.report.numbers import tick_labels


def sphere(count: int) -> np.ndarray:
    """Return evenly spread points (count, 3) on the unit sphere (Fibonacci lattice)."""
    up = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (1 + 5**0.5) * np.arange(count)
    radius = np.sqrt(1 - up**2)
    return np.stack([radius * np.cos(angle), up, radius * np.sin(angle)], axis=-1)


@pytest.mark.parametrize("with_normals", [True, False], ids=["normals", "points alone"])
def test_the_viewer_sees_the_near_side_of_a_sphere(with_normals: bool) -> None:
    points = sphere(1000)
    towards = points @ views.TOWARDS_VIEWER
    seen = np.isin(np.arange(1000), views.visible(points, points if with_normals else None))
    assert seen[towards > 0.15].mean() == 1
    assert not seen[towards < -0.1].any()


def test_a_shape_hides_what_is_behind_it() -> None:
    near, far = sphere(600) * 0.5 + 3 * views.TOWARDS_VIEWER, sphere(600) * 0.3
    seen = views.visible(np.vstack([near, far]), np.vstack([sphere(600), sphere(600)]))
    assert (seen < 600).any()
    assert not (seen >= 600).any()


def test_a_bay_in_the_outline_stays_open() -> None:
    across, up = np.meshgrid(np.linspace(0, 4, 41), np.linspace(0, 2, 21))
    points = np.stack([across.ravel(), up.ravel()], axis=-1)
    step = points[(points[:, 0] >= 2) | (points[:, 1] <= 1)]  # the outline of a bonnet and a cabin
    step += 1e-6 * np.random.default_rng(0).normal(size=step.shape)
    triangles = step[views.shape_triangles(step)]
    a, b = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    area = 0.5 * np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum()
    assert area == pytest.approx(6, rel=0.05)  # that of the convex hull is 7


def test_section_interpolates_linear_fields_exactly() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform([-1, 0, -2], [1, 2, 3], size=(900, 3))
    frame = views.Frame(np.array([-1.5, 0.3]), np.array([2.5, 1.7]))
    view = views.section_view(points, None, frame)
    field = 3 + points @ [5.0, -2.0, 0.7]
    along, up = np.meshgrid(*frame.axes())
    drawn = np.sum(field[view.vertices] * view.weights, axis=1).reshape(frame.grid_shape)
    np.testing.assert_allclose(drawn, 3 - 2 * up + 0.7 * along, atol=1e-9)


@pytest.mark.parametrize("half", [1, -1], ids=["right", "left"])
def test_the_section_of_half_a_flow_is_its_plane_of_symmetry(half: int) -> None:
    points = np.random.default_rng(0).uniform([0, 0, -2], [1, 2, 3], size=(4000, 3)) * [half, 1, 1]
    view = views.section_view(
        points, None, views.frame_around([views.side(points)], 0.0), views.Space(np.eye(3), half=views.half_of(points))
    )
    drawn = np.sum(np.abs(points[:, 0])[view.vertices] * view.weights, axis=1)
    assert 0 < np.median(drawn) < 0.1


def test_half_a_body_is_seen_from_its_own_side() -> None:
    points = np.abs(sphere(1000)) * [1, 1, -1]
    space = views.Space(np.eye(3), half=views.half_of(points))
    view = views.surface_view(points, points, views.frame_around([views.surface_extent(points, space)], 0.02), space)
    assert (views.half_of(points), views.half_of(sphere(99))) == (1, 0)
    assert points[np.unique(view.vertices), 0].max() > 0.99, "the outermost points must be visible"


def test_a_plate_is_seen_from_its_face_and_its_hole_stays_empty() -> None:
    across, up, depth = (axis.ravel() for axis in np.meshgrid(np.arange(0, 16.1, 0.5), np.arange(0, 6.1, 0.5), [0, 1]))
    distance = np.hypot(across - 8, up - 3)
    ring = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    rim = np.stack([8 + 1.5 * np.cos(ring), 3 + 1.5 * np.sin(ring)])
    plate = np.stack([across, up, 100 + depth], axis=1)[distance > 1.7]  # CAD files may be far from the origin
    rims = [np.column_stack([*rim, np.full(24, 100 + level)]) for level in (0, 1)]
    points = np.concatenate([plate, *rims])
    space = views.space_by_extent([points])
    turned = space.turned(points)
    assert np.ptp(turned, axis=0) == pytest.approx([1, 6, 16])
    view = views.section_view(turned, None, views.frame_around([views.side(turned)], 0.0), space)
    assert view.clip is not None
    edge, hole = sorted(map(np.asarray, view.clip.to_polygons()), key=np.ptp, reverse=True)
    assert np.ptp(edge, axis=0) == pytest.approx([16, 6], abs=0.3)
    assert (hole.min(axis=0) + hole.max(axis=0)) / 2 == pytest.approx([8, 3], abs=0.2)
    assert np.ptp(hole, axis=0) == pytest.approx([3, 3], abs=0.5)
    columns = view.frame.axes()[0]
    values = np.sum((2.0 * turned[:, 2])[view.vertices] * view.weights, axis=1).reshape(view.frame.grid_shape)
    row = len(values) // 8
    np.testing.assert_allclose(values[row, 20:-20], 2 * columns[20:-20], atol=1e-9)


WINDS = {"no-wind": {}, "wind": {"wind": [1, 0, 0], "up": [0, 1, 0]}, "up-out-of-plane": {"wind": [1, 0, 0],
         "up": [0, 0, 1]}, "wind-out-of-plane": {"wind": [0, 0, 1], "up": [0, 1, 0]}}  # fmt: skip


@pytest.mark.parametrize("about", WINDS.values(), ids=WINDS.keys())
def test_points_in_a_plane_are_seen_face_on_whatever_the_wind(about) -> None:
    points = np.random.default_rng(0).uniform([-1, 0, 5], [1, 3, 5], size=(2000, 3))
    points = points[np.hypot(points[:, 0], points[:, 1] - 1) > 0.5]
    assert views.depth_of([points]) == 2
    space = views.space_face_on(views.space_of(about), 2)
    assert space.wind == (about.get("wind") == [1, 0, 0])
    turned = space.turned(points)
    np.testing.assert_allclose(views.side(turned), points[:, :2], atol=1e-12)  # x is to the right, y is up
    view = views.flat_view(turned, views.frame_around([views.side(turned)], 0.0))
    drawn = np.sum(points[view.vertices] * view.weights[..., None], axis=1)[view.clip.contains_points(
        views.pixel_centres(view.frame))]  # fmt: skip
    assert np.hypot(drawn[:, 0], drawn[:, 1] - 1).min() > 0.4, "the hole must stay empty"


def test_points_of_a_body_lie_in_no_plane() -> None:
    for shapes in ([], [sphere(50)], [sphere(9), sphere(9) * [1, 1, 0]], [sphere(9) * [1, 0, 0]]):
        assert views.depth_of(shapes) is None


def test_picture_has_the_colours_of_the_scale() -> None:
    points = sphere(800)
    frame = views.frame_around([views.surface_extent(points)], 0.02)
    scale = Scale(0.0, 10.0, VALUE_MAP)
    view = views.surface_view(points, points, frame)
    image = imread(io.BytesIO(field_picture(view, np.full(800, 7.5), scale)), format="webp") / 255
    rows, columns = frame.grid_shape
    assert image.shape == (2 * rows, 2 * columns, 4)
    # The rows of a picture count downwards, but the frame's second coordinate points up.
    place = (views.project(np.zeros((1, 3)))[0] - frame.low) / (frame.high - frame.low)
    centre = image[round((1 - place[1]) * 2 * rows), round(place[0] * 2 * columns)]
    np.testing.assert_allclose(centre, matplotlib.colormaps[VALUE_MAP](0.75), atol=0.02)
    assert image[2, 2, 3] == 0  # the corner is empty


def test_scales() -> None:
    values = np.concatenate([np.linspace(-100, 300, 1000), [1e6]])
    scale = value_scale([values], [np.full(10, 1e9)])
    assert scale.low == pytest.approx(-98, abs=2)
    assert 300 < scale.high < 375  # outliers hardly widen the scale
    errors = error_scale([np.linspace(-3, 1, 1000), np.full(5, np.nan)])
    assert errors.low == -errors.high
    assert errors.high == pytest.approx(2.97, abs=0.05)
    assert value_scale([np.full(4, 5.0)], [np.full(4, 5.0)]).low < 5
    assert error_scale([np.zeros(4)]).high > 0


X, Y, Z = np.eye(3)


@pytest.mark.parametrize(
    ("about", "of_wind", "of_up", "wind", "ground"),
    [
        ({"wind": [0, 0, 1], "up": [0, 1, 0], "ground": True}, Z, Y, True, True),
        ({"wind": [1, 0, 0], "up": [0, 0, 1], "ground": False}, X, Z, True, False),
        ({"wind": [0, -1, 0], "up": [0, 0, 1]}, -Y, Z, True, False),
        ({"wind": [0, 2, 0], "up": [0, 1, 0]}, Y, None, True, False),
        ({}, Z, Y, False, False),
    ],
    ids=["cars", "aerospace", "against-y", "up-along-the-wind", "nothing-said"],
)
def test_wind_and_up_are_turned_to_the_pictures_axes(about, of_wind, of_up, wind, ground) -> None:
    space = views.space_of(about)
    assert (space.wind, space.ground) == (wind, ground)
    np.testing.assert_allclose(space.turned(of_wind[None])[0], Z, atol=1e-12)
    if of_up is not None:
        np.testing.assert_allclose(space.turned(of_up[None])[0], Y, atol=1e-12)
    np.testing.assert_allclose(space.turn @ space.turn.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(space.turn) == pytest.approx(1)


def test_a_body_in_free_air_has_no_shadow_in_its_picture() -> None:
    points = np.random.default_rng(0).normal(size=(50, 3)) + np.array([0, 5, 0])
    on_ground = views.surface_extent(points)
    free = views.surface_extent(points, views.Space(np.eye(3), wind=False, ground=False))
    assert (len(on_ground), len(free)) == (102, 50)


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
