"""Areas, normals, forces and frontal areas of meshes, compared with closed forms."""

import numpy as np
import pytest
import pyvista
from shapenet_car_files import unit_sphere

from noether.physics.cases import surface_mesh
from noether.physics.cases.surface_mesh import (
    area_vectors,
    frontal_area,
    looks_inwards,
    oriented,
    point_areas,
    polygon_geometry,
    pressure_force,
    sample_surface,
    shared_among_corners,
    triangles,
)

POINTS, QUADS = unit_sphere()
FLAT, TURNED = np.array([[0, 1, 2], [1, 3, 2]]), np.array([[0, 2, 1], [1, 2, 3]])
SHAPES = {"quads": QUADS, "triangles": triangles(QUADS)}


@pytest.mark.parametrize("faces", SHAPES.values(), ids=SHAPES.keys())
def test_a_closed_mesh_has_no_net_area_and_the_sphere_its_own(faces) -> None:
    areas, normals = point_areas(POINTS, faces)
    assert np.abs((areas[:, None] * normals).sum(axis=0)).max() < 1e-14
    assert areas.sum() == pytest.approx(4 * np.pi, rel=4e-3)
    assert np.einsum("ij,ij->i", normals, POINTS).min() > 0.99


def test_rounding_does_not_turn_a_flat_surface_over() -> None:
    corners = np.random.default_rng(0).uniform(size=(50, 4, 2))  # 50 flat quads
    for own in corners @ np.array([[1, 2, 0.3], [0.1, -1, 1]]):
        assert oriented(own, FLAT) is FLAT
        assert oriented(own, TURNED) is TURNED


@pytest.mark.parametrize("faces", SHAPES.values(), ids=SHAPES.keys())
def test_faces_wound_inwards_are_turned_over(faces) -> None:
    turned = oriented(POINTS, faces[:, ::-1])
    assert np.allclose(area_vectors(POINTS, turned).sum(axis=0), 0)
    assert (np.einsum("ij,ij->i", area_vectors(POINTS, turned), POINTS[turned].mean(axis=1)) > 0).all()
    assert oriented(POINTS, faces) is faces


@pytest.mark.parametrize("faces", SHAPES.values(), ids=SHAPES.keys())
def test_a_linear_pressure_pushes_as_gauss_says(faces) -> None:
    """By Gauss, ∮ p n dA over a closed surface is ∇p times the volume; this force acts at the centroid."""
    gradient = np.array([3.0, -1.0, 7.0])
    moved = POINTS + np.array([0.3, 0.7, -0.2])
    force, moment = pressure_force(moved, faces, moved @ gradient - 11)
    volume = np.einsum("fi,fi->", area_vectors(moved, faces), moved[faces].mean(axis=1)) / 3
    assert force == pytest.approx(-gradient * volume, rel=4e-3)
    assert moment == pytest.approx(np.cross([0.3, 0.7, -0.2], -gradient * volume), rel=5e-3, abs=1e-3)


def test_the_shadow_of_two_spheres_counts_once_where_they_hide_each_other() -> None:
    behind = np.concatenate([POINTS, POINTS + np.array([0, 0, 5])])
    beside = np.concatenate([POINTS, POINTS + np.array([3, 0, 5])])
    faces = np.concatenate([QUADS, QUADS + len(POINTS)])
    assert frontal_area(behind, faces) == pytest.approx(np.pi, rel=5e-3)
    assert frontal_area(beside, faces) == pytest.approx(2 * np.pi, rel=5e-3)


def test_points_are_spread_by_area() -> None:
    points = sample_surface(POINTS, QUADS, 20_000).of(POINTS)
    assert np.linalg.norm(points, axis=1) == pytest.approx(1, abs=0.01)
    assert points.mean(axis=0) == pytest.approx(0, abs=0.02)
    assert (points[:, 2] > 0.5).mean() == pytest.approx(0.25, abs=0.02)  # Archimedes: area ~ height
    assert np.array_equal(points, sample_surface(POINTS, QUADS, 20_000).of(POINTS))


def arrays(mesh: pyvista.PolyData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells = mesh.GetPolys()
    own = (pyvista.convert_array(array) for array in (cells.GetConnectivityArray(), cells.GetOffsetsArray()))
    return np.asarray(mesh.points), *own


MESHES = {
    "triangles": pyvista.Sphere(theta_resolution=12, phi_resolution=12),
    "quads": pyvista.Box(level=3),
    "mixed": pyvista.Cylinder(resolution=7),
    "polygons": pyvista.Dodecahedron() if hasattr(pyvista, "Dodecahedron") else pyvista.PlatonicSolid("dodecahedron"),
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
def test_areas_and_centres_are_those_of_vtk(mesh, monkeypatch) -> None:
    monkeypatch.setattr(surface_mesh, "BLOCK_FACES", 5)  # many blocks, with a smaller last one
    centres, vectors = polygon_geometry(*arrays(mesh))
    assert np.linalg.norm(vectors, axis=1).sum() == pytest.approx(mesh.area, rel=1e-5)
    assert np.abs(vectors.sum(axis=0)).max() < 1e-5  # 0 for a closed surface
    volume = np.einsum("fi,fi->", centres, vectors) / 3
    assert volume == pytest.approx(mesh.volume, rel=1e-4)
    assert not looks_inwards(centres, vectors)
    assert looks_inwards(centres, -vectors)


def test_points_share_the_areas_of_their_cells() -> None:
    points, corners, offsets = arrays(MESHES["mixed"])
    _, vectors = polygon_geometry(points, corners, offsets)
    shared = shared_among_corners(len(points), corners, offsets, vectors)
    assert np.allclose(shared.sum(axis=0), vectors.sum(axis=0), atol=1e-6)


def test_half_a_body_looks_outwards_too() -> None:
    """The body is half a sphere, open at its plane of symmetry."""
    half = pyvista.Sphere(theta_resolution=24, phi_resolution=24).clip("y", invert=False)
    centres, vectors = polygon_geometry(*arrays(half.extract_surface(algorithm="dataset_surface")))
    assert not looks_inwards(centres, vectors)


def test_a_flat_polygon_without_area_has_the_middle_of_its_corners() -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0]], float)
    centres, vectors = polygon_geometry(points, np.array([0, 1, 2]), np.array([0, 3]))
    assert centres.tolist() == [[1, 0, 0]]
    assert vectors.tolist() == [[0, 0, 0]]
