"""Compute areas, normals, the pressure force, the frontal area and the holes of a surface mesh, without VTK.

Triangles (F, 3) and quadrilaterals (F, 4) are given as indices into points (N, 3), polygons as their concatenated
corners. Seen from outside, the corners of a face are in counter-clockwise order. Lengths are in metres.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Faces = NDArray[np.int64]

# The two nodes of Gauss's rule on 0..1, which is exact for the products of bilinear functions in a quad's integral.
GAUSS_NODES = (0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3))
FRONTAL_PIXELS = 600
FLAT = 1e-6  # largest enclosed volume of a flat surface, relative to the volume if all faces looked outwards
BLOCK_FACES = 200_000


def triangles(faces: Faces) -> Faces:
    """Return the faces as triangles (T, 3), cutting quadrilaterals along one diagonal."""
    return faces if faces.shape[1] == 3 else np.concatenate([faces[:, [0, 1, 2]], faces[:, [0, 2, 3]]])


def area_vectors(points: Array, faces: Faces) -> Array:
    """Return the vector area (F, 3) of each face: a vector along the normal whose length is the area."""
    corners = points[faces]
    if faces.shape[1] == 3:
        return 0.5 * np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    # This is exact even for a bilinear quadrilateral that is not flat.
    return 0.5 * np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1])


def oriented(points: Array, faces: Faces) -> Faces:
    """Return the faces, all of them reversed if the normals of the surface as a whole point inwards."""
    inwards = looks_inwards(points[faces].mean(axis=1), area_vectors(points, faces))
    return np.ascontiguousarray(faces[:, ::-1]) if inwards else faces


def point_areas(points: Array, faces: Faces) -> tuple[Array, Array]:
    """Return the area (N,) and unit outward normal (N, 3) of each point; a point that no face uses has area 0.

    A point's area is the length of its vector from `shared_among_corners`. Thus Σ f(x) n dA over the points equals the
    integral of f n if f on each face is the mean over its corners, and Σ n dA over a closed mesh is exactly zero.
    """
    vectors = area_vectors(points, faces)
    offsets = np.arange(0, faces.size + 1, faces.shape[1])
    areas, normals = areas_and_normals(shared_among_corners(len(points), faces.ravel(), offsets, vectors))
    # If the faces around a point cancel, as on a fold, the point gets the normal of one of these faces.
    for face in np.flatnonzero((areas[faces] == 0).any(axis=1)):
        flat = faces[face][areas[faces[face]] == 0]
        normals[flat] = vectors[face] / max(np.linalg.norm(vectors[face]), np.finfo(np.float64).tiny)
    return areas, normals


def polygon_geometry(points: np.ndarray, corners: np.ndarray, offsets: np.ndarray) -> tuple[Array, Array]:
    """Return centres (F, 3) and vector areas (F, 3) of polygons, cut into triangles about the mean of their corners.

    OpenFOAM (primitiveMesh) computes face centres and areas in the same way, so sums over faces agree with OpenFOAM's.
    corners: indices into `points` for all polygons, concatenated; offsets (F + 1,): where each polygon's corners begin.
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
    """Return vector areas (count, 3) of points: each polygon's vector area is shared equally among its corners."""
    numbers = np.diff(offsets)
    shares = np.repeat(vectors / np.maximum(numbers, 1)[:, None], numbers, axis=0)
    return np.stack([np.bincount(corners, shares[:, axis], minlength=count) for axis in range(3)], axis=-1)


def looks_inwards(centres: Array, vectors: Array) -> bool:
    """Return whether a surface's normals point inwards, by the sign of the volume between its middle and its faces.

    The body may be open underneath, or cut at a plane of symmetry. For a flat surface, whose enclosed volume is only a
    rounding error, the result is False.
    """
    weights = np.linalg.norm(vectors, axis=1)
    away = centres - weights @ centres / max(float(weights.sum()), np.finfo(float).tiny)
    return float(np.einsum("fi,fi->", away, vectors)) < -FLAT * float(weights @ np.linalg.norm(away, axis=1))


def areas_and_normals(vectors: Array) -> tuple[Array, Array]:
    """Return the vectors' lengths (F,) and unit directions (F, 3); a zero vector has direction zero."""
    areas = np.linalg.norm(vectors, axis=1)
    return areas, vectors / np.maximum(areas, np.finfo(float).tiny)[:, None]


def pressure_force(points: Array, faces: Faces, pressure: Array) -> tuple[Array, Array]:
    """Return the force (3,) in N and moment about the origin (3,) in N·m of a pressure (N,) in Pa on the mesh.

    They are −∮ p n dA and −∮ p x × n dA. On a quadrilateral, position and pressure are bilinear and integrated by
    Gauss's rule of 2 × 2 nodes; on a triangle, they are linear, and the nodes are the midpoints of its edges. No rule
    is more accurate on the given mesh, so this is the reference for sums over points.
    """
    corners, values = points[faces], pressure[faces]
    force, moment = np.zeros(3), np.zeros(3)
    for weights, vectors in _quadrature(points, faces):
        pushed = -np.einsum("c,fc->f", weights, values)[:, None] * vectors
        force += pushed.sum(axis=0)
        moment += np.cross(np.einsum("c,fcx->fx", weights, corners), pushed).sum(axis=0)
    return force, moment


def _quadrature(points: Array, faces: Faces) -> Iterator[tuple[Array, Array]]:
    """Yield for each quadrature node the weights (C,) of a face's corners, and n dA (F, 3) times the node's weight."""
    if faces.shape[1] == 3:
        for opposite in np.eye(3):
            yield (1 - opposite) / 2, area_vectors(points, faces) / 3
        return
    a, b, c, d = points[faces].transpose(1, 0, 2)
    for u in GAUSS_NODES:
        for v in GAUSS_NODES:
            along_u = (1 - v) * (b - a) + v * (c - d)
            along_v = (1 - u) * (d - a) + u * (c - b)
            weights = np.array([(1 - u) * (1 - v), u * (1 - v), u * v, (1 - u) * v])
            yield weights, 0.25 * np.cross(along_u, along_v)


def frontal_area(points: Array, faces: Faces, wind: Array | None = None) -> float:
    """Return the area in m² of the mesh's shadow along `wind` or, if it is None, along z, as is usual for cars.

    The shadow is drawn on a grid of FRONTAL_PIXELS along the longer side, so that overlapping parts count only once.
    """
    flat = (points if wind is None else across(points, wind))[triangles(faces)][:, :, :2]
    low, high = flat.min(axis=(0, 1)), flat.max(axis=(0, 1))
    pixel = float((high - low).max()) / FRONTAL_PIXELS
    if pixel == 0:
        return 0.0
    # Positions are now in pixels, and the centre of a pixel has integer coordinates.
    flat = (flat - low) / pixel - 0.5
    width, height = np.ceil((high - low) / pixel).astype(int) + 1
    covered = np.zeros((width, height), bool)
    first, last = np.ceil(flat.min(axis=1)).astype(int), np.floor(flat.max(axis=1)).astype(int)
    a, b, c = flat.transpose(1, 2, 0)
    turn = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    def inside(t: Any, x: Any, y: Any) -> Any:
        sides = [(to[0, t] - at[0, t]) * (y - at[1, t]) - (to[1, t] - at[1, t]) * (x - at[0, t])
                 for at, to in ((a, b), (b, c), (c, a))]  # fmt: skip
        return (np.sign(turn[t]) * np.stack(sides) >= 0).all(axis=0)

    first = np.maximum(first, 0)
    painted = (turn != 0) & (last >= first).all(axis=1)
    single = (first == last).all(axis=1)
    one = np.flatnonzero(painted & single)  # In a fine mesh, nearly all triangles are of this kind.
    x, y = first[one[inside(one, *first[one].T)]].T
    covered[x, y] = True
    for t in np.flatnonzero(painted & ~single):
        (x0, y0), (x1, y1) = first[t], last[t]
        covered[x0 : x1 + 1, y0 : y1 + 1] |= inside(t, np.arange(x0, x1 + 1)[:, None], np.arange(y0, y1 + 1)[None])
    return float(covered.sum()) * pixel**2


@dataclass(frozen=True)
class Holes:
    """Counts of the defects of a surface, and the total area in m² of its holes.

    edges: edges with only one face; against: edges whose two faces are wound in opposite senses; twice: duplicated
    faces; inwards: closed parts whose normals point inwards, such as a cavity or a body that is inside out.
    """

    edges: int
    holes: int
    area: float
    against: int = 0
    twice: int = 0
    inwards: int = 0


def find_holes(points: Array, faces: Faces, box: tuple[Array, Array] | None = None) -> Holes:
    """Find where a surface is open or wound inconsistently. In a closed surface every edge has at least two faces.

    Faces are connected if their corners have equal positions, even without common points, as between patches. The area
    of a hole is that of triangles from the middle of its rim, which is exact if the hole is flat and convex. A hole is
    not counted if its rim lies in one face of `box` (low and high corners), such as the ground, which closes the hole.
    """
    directed, uses, ways = _edges(faces, len(points))
    if (uses == 1).any():
        _, first, place = np.unique(points, axis=0, return_index=True, return_inverse=True)
        faces = first[place.ravel()][faces]
        directed, uses, ways = _edges(faces, len(points))
    loops = _loops(directed[uses == 1])
    rims = [rim for rim in loops if box is None or not _lie_in_one_face(points[rim], *box)]
    edges = int((uses == 1).sum()) - sum(map(len, loops)) + sum(map(len, rims))
    against = int(((uses == 2) & (ways != 0)).sum())
    twice = len(faces) - len(np.unique(np.sort(faces, axis=1), axis=0)) if (uses > 2).any() else 0
    rings = [points[rim] - points[rim].mean(axis=0) for rim in rims]
    fans = [np.linalg.norm(np.cross(ring, np.roll(ring, -1, axis=0)), axis=1).sum() for ring in rings]
    inwards = 0 if against or (uses == 1).any() else _parts_inwards(points, faces)
    return Holes(edges, len(rims), 0.5 * float(sum(fans)), against, twice, inwards)


def _edges(faces: Faces, count: int) -> tuple[Faces, Faces, Faces]:
    """Return the edges (E, 2) as first used, and, for each edge, its count of uses, and forward minus backward uses."""
    directed = np.stack([faces, np.roll(faces, -1, axis=1)], axis=-1).reshape(-1, 2)
    directed = directed[directed[:, 0] != directed[:, 1]]
    low, high = directed.min(axis=1), directed.max(axis=1)
    _, first, own, uses = np.unique(low * count + high, return_index=True, return_inverse=True, return_counts=True)
    return directed[first], uses, np.bincount(own, np.where(directed[:, 0] == low, 1, -1), len(first))


def _parts_inwards(points: Array, faces: Faces) -> int:
    """Return how many parts, each connected by shared points, enclose a negative volume."""
    from scipy.sparse import coo_array  # imported here because every rank imports this file
    from scipy.sparse.csgraph import connected_components

    ends = np.broadcast_to(faces[:, :1], faces.shape).ravel(), faces.ravel()
    joined = coo_array((np.ones(faces.size, bool), ends), (len(points), len(points)))
    part = connected_components(joined, directed=False)[1][faces[:, 0]]
    middles = points[faces].mean(axis=1) - points.mean(axis=0)
    return int((np.bincount(part, np.einsum("fi,fi->f", middles, area_vectors(points, faces))) < 0).sum())


def _lie_in_one_face(points: Array, low: Array, high: Array) -> bool:
    near = 1e-3 * (high - low).max()
    return bool(any((np.abs(points - corner) < near).all(axis=0).any() for corner in (low, high)))


def _loops(edges: Faces) -> list[list[int]]:
    """Return the simple loops that directed edges (E, 2) form; holes that touch at a point have separate loops."""
    onward: dict[int, list[int]] = {}
    for start, end in edges.tolist():
        onward.setdefault(start, []).append(end)
    loops = []
    for start in list(onward):
        path, place = [start], {start: 0}
        while onward.get(path[-1]):
            point = onward[path[-1]].pop()
            if point in place:  # The path has returned to this point, and its last part is a loop.
                loop = path[place[point] :]
                loops.append(loop)
                path = path[: place[point] + 1]
                for passed in loop[1:]:
                    del place[passed]
            else:
                place[point] = len(path)
                path.append(point)
        if len(path) > 2:
            loops.append(path)  # Faces wound in opposite senses leave an open path; close it.
    return loops


def across(points: Array, wind: Array) -> Array:
    """Return points (N, 3) in axes of which the third is the wind's direction; a wind along z changes no position."""
    third = np.asarray(wind, np.float64) / np.linalg.norm(wind)
    helper = np.eye(3)[1 if abs(third[1]) < 0.9 else 2]
    first = np.cross(helper, third)
    first /= np.linalg.norm(first)
    return np.asarray(points @ np.stack([first, np.cross(third, first), third], axis=1))


@dataclass(frozen=True)
class SurfaceSamples:
    """Positions on a mesh: the corners (n, 3) of each position's triangle, and coordinates u and v (n, 1) in it."""

    corners: Faces
    u: Array
    v: Array

    def of(self, points: Any) -> Any:
        """Return the positions (n, 3), as an array or a tensor, for the mesh's points (N, 3), which may have moved."""
        first, second, third = (points[self.corners[:, k]] for k in range(3))
        u, v = (self.u, self.v) if isinstance(points, np.ndarray) else map(points.new_tensor, (self.u, self.v))
        return first + u * (second - first) + v * (third - first)


def sample_surface(points: Array, faces: Faces, count: int, seed: int = 0) -> SurfaceSamples:
    """Draw `count` positions, uniform by area, on the mesh; the same mesh and seed give the same positions."""
    cut = triangles(faces)
    areas, rng = np.linalg.norm(area_vectors(points, cut), axis=1), np.random.default_rng(seed)
    chosen = cut[rng.choice(len(cut), count, p=areas / areas.sum())]
    u, v = rng.random((2, count, 1))
    beyond = u + v > 1
    return SurfaceSamples(chosen, np.where(beyond, 1 - u, u), np.where(beyond, 1 - v, v))
