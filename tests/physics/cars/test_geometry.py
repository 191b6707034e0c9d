"""Areas, normals and centres of polygons of any number of corners."""

import numpy as np
import pytest
import pyvista

from noether.physics.cases import surface_mesh
from noether.physics.cases.surface_mesh import looks_inwards, polygon_geometry, shared_among_corners


def arrays(mesh: pyvista.PolyData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cells = mesh.GetPolys()
    corners, offsets = (
        pyvista.convert_array(array) for array in (cells.GetConnectivityArray(), cells.GetOffsetsArray())
    )
    return np.asarray(mesh.points), corners, offsets


MESHES = {
    "triangles": pyvista.Sphere(theta_resolution=12, phi_resolution=12),
    "quads": pyvista.Box(level=3),
    "mixed": pyvista.Cylinder(resolution=7),
    "polygons": pyvista.Dodecahedron() if hasattr(pyvista, "Dodecahedron") else pyvista.PlatonicSolid("dodecahedron"),
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
def test_areas_and_centres_are_those_of_vtk(mesh, monkeypatch) -> None:
    monkeypatch.setattr(surface_mesh, "BLOCK_FACES", 5)  # several blocks, the last one short
    centres, vectors = polygon_geometry(*arrays(mesh))
    assert np.linalg.norm(vectors, axis=1).sum() == pytest.approx(mesh.area, rel=1e-5)
    assert np.abs(vectors.sum(axis=0)).max() < 1e-5  # a closed surface
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
    """Cut at a plane of symmetry, with nothing where it was cut."""
    half = (
        pyvista.Sphere(theta_resolution=24, phi_resolution=24)
        .clip("y", invert=False)
        .extract_surface(algorithm="dataset_surface")
    )
    centres, vectors = polygon_geometry(*arrays(half))
    assert not looks_inwards(centres, vectors)


def test_a_flat_polygon_without_area_has_the_middle_of_its_corners() -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0]], float)
    centres, vectors = polygon_geometry(points, np.array([0, 1, 2]), np.array([0, 3]))
    assert centres.tolist() == [[1, 0, 0]]
    assert vectors.tolist() == [[0, 0, 0]]
