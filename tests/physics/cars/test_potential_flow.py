"""Is the ellipsoid's flow the exact one? Closed forms, limits, and the equations of the flow themselves."""

import numpy as np
import pytest
from scipy.special import elliprd

from noether.physics.cars import potential_flow as flow

SHAPES = [
    pytest.param((1.0, 1.0, 1.0), id="sphere"),
    pytest.param((0.7, 1.6, 2.6), id="tall-and-long"),
    pytest.param((1.1, 0.55, 2.6), id="flat-and-long"),
    pytest.param((2.0, 2.0, 0.3), id="disc"),
    pytest.param((0.3, 0.3, 3.0), id="needle"),
]
OBLIQUE = np.array([3.0, -5.0, 20.0])


def sphere_directions(count, seed=0):
    directions = np.random.default_rng(seed).normal(size=(count, 3))
    return directions / np.linalg.norm(directions, axis=-1, keepdims=True)


@pytest.mark.parametrize("decades", [1, 4, 8])
def test_the_elliptic_integral_is_that_of_scipy(decades):
    x, y, z = 10 ** np.random.default_rng(0).uniform(-decades, decades, (3, 20_000))
    assert np.abs(flow.carlson_rd(x, y, z) / elliprd(x, y, z) - 1).max() < 1.5e-15


def test_sphere_has_cp_one_minus_nine_quarters_sine_squared():
    points = sphere_directions(2000)
    stream = np.array([0.0, 0.0, 20.0])
    cp = flow.pressure_coefficient(stream, flow.surface_velocity((1, 1, 1), stream, points))
    assert np.abs(cp - (1 - 9 / 4 * (1 - points[:, 2] ** 2))).max() < 5e-15


@pytest.mark.parametrize("half_length", [1.1, 2.0, 5.0])
def test_prolate_spheroid_has_its_closed_form(half_length):
    # Lamb, article 114, equation 6 in the eccentricity e; the equator's radius is 1.
    e = np.sqrt(1 - 1 / half_length**2)
    log = np.log((1 + e) / (1 - e))
    along = 2 * (1 - e**2) / e**3 * (log / 2 - e)
    across = 1 / e**2 - (1 - e**2) / (2 * e**3) * log
    assert np.abs(flow.alpha((1, 1, half_length)) - [across, across, along]).max() < 2e-14


@pytest.mark.parametrize("axes", SHAPES)
def test_volume_velocity_reaches_the_surface_velocity(axes):
    points = np.array(axes) * sphere_directions(500)
    on_surface = flow.surface_velocity(axes, OBLIQUE, points)

    def difference(offset):
        outside = flow.volume_velocity(axes, OBLIQUE, points * (1 + offset))
        return np.abs(outside - on_surface).max() / np.linalg.norm(OBLIQUE)

    assert difference(0) < 2e-11
    assert difference(1e-8) == pytest.approx(1e-2 * difference(1e-6), rel=1e-2)  # linear in the distance


@pytest.mark.parametrize("axes", SHAPES[:3])
def test_divergence_and_curl_vanish(axes):
    points = np.array(axes) * sphere_directions(200) * np.linspace(1.2, 4, 200)[:, None]
    stream = OBLIQUE / np.linalg.norm(OBLIQUE)
    h = 4e-3
    jacobian = np.zeros((200, 3, 3))  # [:, j, i] = ∂_j u_i, eighth-order central differences
    for j, step in enumerate(h * np.eye(3)):
        for n, weight in enumerate((4 / 5, -1 / 5, 4 / 105, -1 / 280), start=1):
            ahead, behind = (flow.volume_velocity(axes, stream, points + s * n * step) for s in (1, -1))
            jacobian[:, j] += weight * (ahead - behind) / h
    assert np.abs(jacobian).max() > 0.1  # there is something to cancel
    assert np.abs(np.trace(jacobian, axis1=1, axis2=2)).max() < 1e-9
    assert np.abs(jacobian - jacobian.transpose(0, 2, 1)).max() < 1e-9


def test_hemisphere_on_the_ground_has_lift_eleven_sixteenths():
    assert flow.half_force_coefficients((1.7, 1.7, 1.7), (0, 0, 20))[1] == pytest.approx(11 / 16, abs=1e-14)


@pytest.mark.parametrize("axes", SHAPES)
def test_half_ellipsoid_has_no_drag_and_no_side_force(axes):
    force = flow.half_force_coefficients(axes, (20 * np.sin(0.25), 0.0, 20 * np.cos(0.25)))
    assert np.abs(force[[0, 2]]).max() < 1e-14
    assert abs(force[1]) > 0.01


@pytest.mark.parametrize("axes", SHAPES)
def test_yawing_moment_is_the_quadrature_of_the_pressure_and_the_others_vanish(axes):
    stream = np.array([20 * np.sin(0.25), 0.0, 20 * np.cos(0.25)])
    axes = np.asarray(axes)
    directions, weights = flow.hemisphere_rule(160, 320)
    points = axes * directions
    cp = flow.pressure_coefficient(stream, flow.surface_velocity(axes, stream, points))
    moment = -(cp * weights) @ np.cross(points, axes.prod() * directions / axes)
    assert np.abs(moment - [0, flow.half_yawing_moment(axes, stream), 0]).max() < 1e-12


@pytest.mark.parametrize("axes", SHAPES)
def test_half_area_is_the_quadrature_of_the_area_element(axes):
    directions, weights = flow.hemisphere_rule(160, 320)
    area = np.prod(axes) * np.linalg.norm(directions / axes, axis=-1) @ weights
    assert flow.half_area(axes) == pytest.approx(area, rel=1e-10)


@pytest.mark.parametrize(
    "point",
    [pytest.param((0.0, 0.5499, 0.0), id="just-under-the-roof"), pytest.param((np.nan, 3.0, 0.0), id="not-a-number")],
)
def test_interior_points_are_refused(point):
    with pytest.raises(ValueError, match="1 of 2 points lie inside"):
        flow.volume_velocity((1.1, 0.55, 2.6), OBLIQUE, [point, (5.0, 5.0, 5.0)])


@pytest.mark.parametrize("axes", [(1, 1), (1, 0, 1), (1, -2, 1), (1, np.nan, 1)])
def test_impossible_axes_are_refused(axes):
    with pytest.raises(ValueError, match="semi-axes must be three positive finite numbers"):
        flow.alpha(axes)


def test_stream_through_the_ground_is_refused():
    with pytest.raises(ValueError, match="run along the ground"):
        flow.half_force_coefficients((1, 1, 1), (0, 1, 20))
    with pytest.raises(ValueError, match="along the ground"):
        flow.half_yawing_moment((1, 1, 1), (0, 1, 20))
