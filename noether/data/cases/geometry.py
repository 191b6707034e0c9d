"""Areas, normals and centres of polygons of any number of corners, a block at a time. Without VTK."""

import numpy as np
from numpy.typing import NDArray

BLOCK_FACES = 200_000
Array = NDArray[np.float64]


def polygon_geometry(points: np.ndarray, corners: np.ndarray, offsets: np.ndarray) -> tuple[Array, Array]:
    """Centres (F, 3) and vector areas (F, 3) of polygons; a polygon is cut into triangles about its corners' mean.

    It is how OpenFOAM computes its face centres and face areas (primitiveMesh), so sums over faces agree with its own.

    Args:
        points: (N, 3).
        corners: the polygons' corners, back to back.
        offsets: (F + 1,) where each polygon begins in `corners`.
    """
    count = len(offsets) - 1
    centres, vectors = np.empty((count, 3)), np.empty((count, 3))
    for first in range(0, count, BLOCK_FACES):
        last = min(first + BLOCK_FACES, count)
        begin, end = int(offsets[first]), int(offsets[last])
        own = np.asarray(points[corners[begin:end]], np.float64)
        starts = np.asarray(offsets[first:last]) - begin
        numbers = np.diff(np.append(starts, end - begin))
        following = np.arange(1, end - begin + 1)
        following[starts + numbers - 1] = starts
        means = np.add.reduceat(own, starts) / numbers[:, None]
        face = np.repeat(np.arange(last - first), numbers)
        triangles = 0.5 * np.cross(own - means[face], own[following] - means[face])
        total = np.add.reduceat(triangles, starts)
        direction = total / np.maximum(np.linalg.norm(total, axis=1), np.finfo(float).tiny)[:, None]
        weights = np.einsum("tc,tc->t", triangles, direction[face])
        middles = (own + own[following] + means[face]) / 3
        sums = np.add.reduceat(weights, starts)
        weighted = np.add.reduceat(weights[:, None] * middles, starts)
        flat = np.abs(sums) <= np.finfo(float).tiny
        centres[first:last] = np.where(flat[:, None], means, weighted / np.where(flat, 1, sums)[:, None])
        vectors[first:last] = total
    return centres, vectors


def shared_among_corners(count: int, corners: np.ndarray, offsets: np.ndarray, vectors: Array) -> Array:
    """Vector areas (count, 3) of points: each polygon shares its own equally among its corners."""
    numbers = np.diff(offsets)
    shares = np.repeat(vectors / np.maximum(numbers, 1)[:, None], numbers, axis=0)
    return np.stack([np.bincount(corners, shares[:, axis], minlength=count) for axis in range(3)], axis=-1)


def looks_inwards(centres: Array, vectors: Array) -> bool:
    """Whether a surface's normals point to its inside, by the sign of the volume it encloses seen from its middle.

    It holds for a body that is open underneath, or cut at a plane of symmetry, too.
    """
    weights = np.linalg.norm(vectors, axis=1)
    middle = weights @ centres / max(float(weights.sum()), np.finfo(float).tiny)
    return float(np.einsum("fi,fi->", centres - middle, vectors)) < 0


def areas_and_normals(vectors: Array) -> tuple[Array, Array]:
    """Lengths (F,) and unit directions (F, 3); the direction of a vector of no length is zero."""
    areas = np.linalg.norm(vectors, axis=1)
    return areas, vectors / np.maximum(areas, np.finfo(float).tiny)[:, None]
