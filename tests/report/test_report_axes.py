"""The pictures of a report follow the axes that the data set names: wind, up, and a ground or none."""

import numpy as np
import pytest

from noether.report.views import Space, space_of, surface_extent

X, Y, Z = np.eye(3)


@pytest.mark.parametrize(
    ("about", "of_wind", "of_up", "wind", "ground"),
    [
        (None, Z, Y, True, True),
        ({"wind": [0, 0, 1], "up": [0, 1, 0], "ground": True}, Z, Y, True, True),
        ({"wind": [1, 0, 0], "up": [0, 0, 1], "ground": False}, X, Z, True, False),
        ({"wind": [0, -1, 0], "up": [0, 0, 1]}, -Y, Z, True, False),
        ({"wind": [0, 2, 0], "up": [0, 1, 0]}, Y, None, True, False),
        ({}, Z, Y, False, False),
    ],
    ids=["older-results", "cars", "aerospace", "against-y", "up-along-the-wind", "nothing-said"],
)
def test_wind_and_up_are_turned_to_the_pictures_axes(about, of_wind, of_up, wind, ground) -> None:
    space = space_of(about)
    assert (space.wind, space.ground) == (wind, ground)
    np.testing.assert_allclose(space.turned(of_wind[None])[0], Z, atol=1e-12)
    if of_up is not None:
        np.testing.assert_allclose(space.turned(of_up[None])[0], Y, atol=1e-12)
    np.testing.assert_allclose(space.turn @ space.turn.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(space.turn) == pytest.approx(1)


def test_a_body_in_free_air_has_no_shadow_in_its_picture() -> None:
    points = np.random.default_rng(0).normal(size=(50, 3)) + np.array([0, 5, 0])
    on_ground = surface_extent(points)
    free = surface_extent(points, Space(np.eye(3), wind=False, ground=False))
    assert (len(on_ground), len(free)) == (102, 50)
