"""The views of a shape on a pixel grid: a surface from ahead and above, or a volume cut at its mid-plane.

Points are first rotated to the pictures' axes, in metres: x lateral, y up, z along the wind. The two coordinates of the
picture plane are called across and up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from numpy.typing import NDArray
from scipy.ndimage import binary_closing, gaussian_filter
from scipy.spatial import ConvexHull, Delaunay, cKDTree

from noether.runs.report.numbers import Array

GRID_WIDTH = 352  # Pixels across the interpolation grid of a picture; about its width on the page.

LOCAL, HOLE = 13, 2.2
"""A hole is between two points if their distance exceeds HOLE times the distance to their twelfth nearest points."""


@dataclass(frozen=True)
class Frame:
    """The part of the picture plane shown in all pictures of one field: low and high corner (2,), in metres."""

    low: Array
    high: Array

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of rows and columns of the pixel grid."""
        width, height = self.high - self.low
        return int(np.clip(round(GRID_WIDTH * height / width), 48, 420)), GRID_WIDTH

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edge."""
        return (*map(float, (self.low[0], self.high[0])), *map(float, (self.low[1], self.high[1])))  # type: ignore[return-value]

    def axes(self) -> tuple[Array, Array]:
        """Return the coordinates of the pixel centres, across and up."""
        rows, columns = self.grid_shape
        step = (self.high - self.low) / (columns, rows)
        return (self.low[0] + step[0] * (np.arange(columns) + 0.5), self.low[1] + step[1] * (np.arange(rows) + 0.5))


def frame_around(pictures: Sequence[Array], margin: float) -> Frame:
    """Return the frame around the projected points (N, 2) of all pictures. margin: a fraction of the frame's width."""
    low = np.min([np.min(points, axis=0) for points in pictures], axis=0)
    high = np.max([np.max(points, axis=0) for points in pictures], axis=0)
    width = max(high[0] - low[0], (high[1] - low[1]) / 1.1, 1e-6)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, [width / 2, width / 16]) + margin * width
    return Frame(middle - half, middle + half)


def pixel_centres(frame: Frame) -> Array:
    """Return the centres (pixels, 2) of the frame's pixels, row by row from the bottom."""
    across, up = frame.axes()
    return np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)


def rasterise(
    points: Array, triangles: NDArray[np.integer[Any]], frame: Frame
) -> tuple[NDArray[np.intp], Array, NDArray[np.bool_]]:
    """Prepare linear interpolation at the frame's pixels, on triangles (T, 3) of points (N, 2).

    Return three vertices and their weights (pixels, 3) for each pixel, and a grid mask of the pixels inside a triangle.
    A pixel outside takes the value of the nearest point. (scipy's interpolators are not used: they factorise each
    triangle with LAPACK, whose threads need seconds for that on a busy machine.)
    """
    rows, columns = frame.grid_shape
    corners = ((points - frame.low) / (frame.high - frame.low) * (columns, rows) - 0.5)[triangles]
    first = np.clip(np.ceil(corners.min(axis=1)), 0, None).astype(np.intp)
    last = np.minimum(np.floor(corners.max(axis=1)), (columns - 1, rows - 1)).astype(np.intp)
    size = np.maximum(last - first + 1, 0)
    # List every pixel of every triangle's bounding box.
    count = size.prod(axis=1)
    owner = np.repeat(np.arange(len(triangles)), count)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    across = first[owner, 0] + offset % size[owner, 0]
    up = first[owner, 1] + offset // size[owner, 0]
    arms = corners[owner] - np.stack([across, up], axis=-1)[:, None]
    areas = np.stack([_cross(arms[:, k - 2], arms[:, k - 1]) for k in range(3)], axis=-1)
    whole = areas.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = areas / whole[:, None]
    hit = (parts >= -1e-9).all(axis=1)  # False for triangles without area, whose parts are NaN.
    pixel = (up * columns + across)[hit]

    vertices = np.zeros((rows * columns, 3), dtype=np.intp)
    weights = np.full((rows * columns, 3), 1 / 3)
    inside = np.zeros(rows * columns, dtype=bool)
    vertices[pixel], weights[pixel], inside[pixel] = triangles[owner[hit]], parts[hit], True
    outside = ~inside
    vertices[outside] = np.asarray(cKDTree(points).query(pixel_centres(frame)[outside])[1])[:, None]
    return vertices, weights, inside.reshape(rows, columns)


def _cross(a: Array, b: Array) -> Array:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


def shape_triangles(points: Array) -> NDArray[np.integer[Any]]:
    """Return triangles (T, 3) that cover the shape that points (N, 2) outline.

    Starting from the convex hull, remove Delaunay triangles as long as one has an over-long edge on the outside. This
    opens bays, like the one in front of a windscreen, but keeps sparsely sampled areas in the interior intact
    (the χ-shape of Duckham, Kulik, Worboys and Galton, 2008).
    """
    triangulation = Delaunay(points)
    triangles, neighbours = triangulation.simplices, triangulation.neighbors
    # Edge k is opposite corner k, and so is neighbour k.
    edges = np.stack(
        [np.linalg.norm(points[triangles[:, k - 2]] - points[triangles[:, k - 1]], axis=1) for k in range(3)], axis=1
    )
    long = edges > max(6 * np.median(edges), 0.12 * np.ptp(points[:, 0]))
    kept = np.ones(len(triangles), dtype=bool)
    while True:
        outside = (neighbours < 0) | ~kept[neighbours]
        peeled = kept & (outside & long).any(axis=1)
        if not peeled.any():
            return np.asarray(triangles[kept])
        kept &= ~peeled


def spans_a_hole(points: Array, simplices: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return a mask of the edges or triangles (T, k) of points (N, d) that are far longer than distances nearby.

    Around a hole, the points of a mesh are close together, so an edge across the hole is long compared with the
    distances nearby. In a coarse region, edges are as long as the distances nearby.
    """
    local = np.asarray(cKDTree(points).query(points, k=min(LOCAL, len(points)))[0])[:, -1]
    corners = points[simplices]
    longest = np.max([np.linalg.norm(corners - np.roll(corners, k, axis=1), axis=2).max(axis=1)
                      for k in range(1, simplices.shape[1])], axis=0)  # fmt: skip
    return np.asarray(longest > HOLE * local[simplices].max(axis=1))


def smooth_outline(inside: NDArray[np.bool_], frame: Frame, blur: float, level: float) -> Outline | None:
    """Return the smoothed outline of a pixel mask; None if there is none."""
    soft = gaussian_filter(inside.astype(np.float64), blur)
    soft[[0, -1], :] = soft[:, [0, -1]] = 0  # So that loops close within the frame.
    across, up = frame.axes()
    (outline,) = Figure().add_subplot().contour(across, up, soft, [level]).get_paths()
    return outline if np.size(outline.vertices) else None


SECTION_POINTS = 6000  # The interpolation uses this many of the points nearest to the section.
PARTS, POINTS_OF_A_PART = 20, 6  # It also uses the nearest 6 in each of 20 × 20 parts, for coarse regions.
TOWARDS_VIEWER = np.array([-0.80, 0.38, -0.44]) / np.linalg.norm([-0.80, 0.38, -0.44])


@dataclass(frozen=True)
class Space:
    """The rotation (3, 3) from the data's axes to the pictures', and what surrounds the body.

    half: the sign of x (1 or −1) if the data contain only that half, else 0. flat: whether all points have the same x.
    """

    turn: Array
    wind: bool = True
    ground: bool = True
    half: int = 0
    flat: bool = False

    @property
    def viewer(self) -> Array:
        """The direction (3,) from a surface to the viewer."""
        return np.asarray(TOWARDS_VIEWER * ([-1, 1, 1] if self.half == 1 else 1))

    def turned(self, points: Array) -> Array:
        """Rotate points or directions (N, 3) to the pictures' axes; return arrays of other widths unchanged."""
        return points @ self.turn.T if points.shape[-1] == 3 else points


def space_of(about: Mapping[str, Any]) -> Space:
    """Return the space that a data set describes: {"wind": (3,), "up": (3,), "ground": whether there is one}.

    Without a wind, pictures have no arrow; without a ground, they have no shadow or ground line.
    """
    wind, up = (np.asarray(about.get(name) or default, np.float64) for name, default in
                (("wind", (0.0, 0.0, 1.0)), ("up", (0.0, 1.0, 0.0))))  # fmt: skip
    third = wind / np.linalg.norm(wind)
    second = up - (up @ third) * third
    if np.linalg.norm(second) < 1e-6:
        second = np.eye(3)[int(np.argmin(np.abs(third)))]
        second = second - (second @ third) * third
    second /= np.linalg.norm(second)
    turn = np.stack([np.cross(second, third), second, third])
    return Space(turn, wind=bool(about.get("wind")), ground=bool(about.get("ground")))


def space_by_extent(shapes: Sequence[Array]) -> Space:
    """Return the space of data without directions. shapes: the points (N, 3) of each shape.

    The longest side of the points' box goes across; the shortest is the depth, so that a plate is seen face on.
    """
    depth, up, across = np.argsort(np.median([np.ptp(points, axis=0) for points in shapes], axis=0), kind="stable")
    return Space(np.eye(3)[[depth, up, across]], wind=False, ground=False)


FLAT = 1e-6
"""Flatness tolerance: shortest side of a box relative to the longest. It is not 0 because coordinates are rounded."""


def depth_of(shapes: Sequence[Array]) -> int | None:
    """Return the axis along which all points (N, 3) of each shape have the same value; None if there is none."""
    sides = np.array([np.ptp(points, axis=0) for points in shapes])
    flat = (sides <= FLAT * sides.max(axis=1, keepdims=True)).all(axis=0) if len(sides) else np.zeros(3, bool)
    return int(flat.argmax()) if flat.sum() == 1 else None


def space_face_on(about: Space, depth: int) -> Space:
    """Return the space of points in a plane, seen face on along the data's axis `depth`.

    Wind in the plane blows from the left; without it, the first of the two other axes goes across and the second up.
    """
    across, up = (axis for axis in np.eye(3) if not axis[depth])
    wind, high = (direction * (np.arange(3) != depth) for direction in (about.turn[2], about.turn[1]))
    if about.wind and wind.any():
        across = wind / np.linalg.norm(wind)
        up = np.cross(np.eye(3)[depth], across)
        up = up if up @ (high if high.any() else np.ones(3)) > 0 else -up
    blows = about.wind and bool(wind.any())
    return Space(np.stack([np.cross(up, across), up, across]), wind=blows, ground=False, flat=True)


CARS = Space(np.eye(3))


@dataclass(frozen=True)
class View:
    """The mapping from a shape's points to a picture, computed once for prediction, truth and error.

    vertices, weights (pixels, k): the points, with weights, from which each pixel of the frame's grid is interpolated.
    clip: outline outside which nothing is drawn, or None; body: outline filled in grey, or None.
    shadow: opacity (rows, columns) of the shadow on the ground, or None.
    wind: start and end (2,) of the arrow; ground: height of the ground line, or None.
    """

    frame: Frame
    vertices: NDArray[np.intp]
    weights: Array
    clip: Outline | None = None
    body: Outline | None = None
    shadow: Array | None = None
    wind: tuple[Array, Array] | None = None
    ground: float | None = None


def half_of(points: Array) -> int:
    """Return 1 if all points (N, 3) have x > 0, −1 if all have x < 0, and otherwise 0."""
    low, high = points[:, 0].min(), points[:, 0].max()
    slack = 1e-3 * (high - low)
    return 1 if low >= -slack else -1 if high <= slack else 0


def project(points: Array, viewer: Array = TOWARDS_VIEWER) -> Array:
    """Project points (N, 3) to an orthographic three-quarter view (N, 2) from above and the left; wind blows right."""
    right = np.cross([0.0, 1.0, 0.0], viewer)
    right /= np.linalg.norm(right)
    return np.stack([points @ right, points @ np.cross(viewer, right)], axis=-1)


def side(points: Array) -> Array:
    """Project (N, 3) → (N, 2) to a side view, with the wind (z) from left to right and y up."""
    return points[:, [2, 1]]


def visible(points: Array, normals: Array | None, viewer: Array = TOWARDS_VIEWER) -> NDArray[np.intp]:
    """Return the indices of the points (N, 3) that the viewer of `project` sees.

    Katz, Tal and Basri, Direct Visibility of Point Sets (2007): reflect the points in a large sphere around the viewer;
    the points on the convex hull of the result are visible. This needs no mesh; normals (N, 3) only refine the result.
    The viewer is ten radii away, and the sphere's radius is 10^2.5 times the distance of the farthest point.
    """
    centre = points.mean(axis=0)
    radius = np.linalg.norm(points - centre, axis=1).max()
    rays = points - (centre + 10 * radius * viewer)
    lengths = np.linalg.norm(rays, axis=1, keepdims=True)
    flipped = rays + 2 * (10**2.5 * lengths.max() - lengths) * rays / lengths
    hull = np.sort(ConvexHull(np.vstack([flipped, np.zeros(3)])).vertices)
    seen: NDArray[np.intp] = hull[hull < len(points)].astype(np.intp)
    facing: NDArray[np.intp] = seen if normals is None else seen[normals[seen] @ viewer > 0]
    return facing if len(facing) >= 8 else seen


def surface_view(points: Array, normals: Array | None, frame: Frame, space: Space = CARS) -> View:
    """Return the view of a surface with points (N, 3) in m and, if known, outward unit normals (N, 3).

    QhullError: too few points, or all in a plane.
    """
    seen = visible(points, normals, space.viewer)
    flat = project(points[seen], space.viewer)
    vertices, weights, inside = rasterise(flat, shape_triangles(flat), frame)
    pixel = (frame.high[0] - frame.low[0]) / GRID_WIDTH
    # The outline of scattered points is jagged by about half their distance, so blur by that much.
    spacing = float(np.median(np.asarray(cKDTree(flat).query(flat, k=2)[0])[:, 1]))
    clip = smooth_outline(inside, frame, blur=max(1.0, 0.5 * spacing / pixel), level=0.38)

    shadow = None
    if space.ground:
        corners = project(_on_ground(points), space.viewer)
        hull = Outline(corners[ConvexHull(corners).vertices])
        covered = hull.contains_points(pixel_centres(frame)).reshape(frame.grid_shape).astype(np.float64)
        shadow = 0.42 * gaussian_filter(covered, 6)
    start, end = project(_wind_arrow(points), space.viewer)
    arrow = (start, end) if space.wind else None
    return View(frame, seen[vertices], weights, clip=clip, shadow=shadow, wind=arrow)


def surface_extent(points: Array, space: Space = CARS) -> Array:
    """Return the projected points of everything in the picture of a surface: points, shadow and wind arrow."""
    shadow = [_on_ground(points)] if space.ground else []
    arrow = [_wind_arrow(points)] if space.wind else []
    return project(np.vstack([points, *shadow, *arrow]), space.viewer)


def section_view(points: Array, body: Array | None, frame: Frame, space: Space = CARS) -> View:
    """Return the view of a plane through a volume with points (N, 3) in m and, if known, the body's points (M, 3).

    The plane is x = 0, the mirror plane of half a flow. In a solid (no body, no wind), it is the middle of the depth,
    and holes stay empty. Values are interpolated linearly in Delaunay tetrahedra of the points nearest to the plane:
    first along the edges that cross the plane, then in triangles between these crossings.

    QhullError: too few points, or all in a plane.
    ValueError: fewer than 4 edges cross the plane.
    """
    is_solid = body is None and not space.wind
    if is_solid:
        points = points - [(points[:, 0].min() + points[:, 0].max()) / 2, 0, 0]
    given = len(points)
    if space.half:
        points = np.concatenate([points, points * [-1, 1, 1]])
    near = _near_the_section(points)
    tetrahedra = near[Delaunay(points[near]).simplices]
    behind = points[tetrahedra, 0] < 0
    pairs = [(i, j) for i in range(3) for j in range(i + 1, 4)]
    edges = np.concatenate([tetrahedra[behind[:, i] != behind[:, j]][:, [i, j]] for i, j in pairs])
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    if is_solid:
        edges = edges[~spans_a_hole(points, edges)]
    depth = points[edges, 0]
    if len(edges) < 4:
        raise ValueError("hardly any points are near the mid-plane")
    share = np.column_stack([depth[:, 1], -depth[:, 0]]) / (depth[:, 1] - depth[:, 0])[:, None]
    flat = np.sum(side(points)[edges] * share[..., None], axis=1)
    triangles = Delaunay(flat).simplices
    if is_solid:
        triangles = triangles[~spans_a_hole(flat, triangles)]
    corners, weights, inside = rasterise(flat, triangles, frame)
    vertices = edges[corners].reshape(len(corners), -1) % given
    weights = (share[corners] * weights[..., None]).reshape(len(corners), -1)

    clip = outline = ground = None
    if is_solid:
        clip = _clip_with_holes(inside, frame)
    if body is not None:
        shadow = side(body)
        outline = smooth_outline(rasterise(shadow, shape_triangles(shadow), frame)[2], frame, blur=1.5, level=0.45)
        ground = float(body[:, 1].min()) if space.ground else None
    return View(frame, vertices, weights, clip=clip, body=outline, ground=ground)


def flat_view(points: Array, frame: Frame) -> View:
    """Return the view, face on, of points (N, 3) in a plane; leave holes empty. QhullError: all are in a line."""
    flat = side(points)
    triangles = Delaunay(flat).simplices
    vertices, weights, inside = rasterise(flat, triangles[~spans_a_hole(flat, triangles)], frame)
    return View(frame, vertices, weights, clip=_clip_with_holes(inside, frame))


def _clip_with_holes(inside: NDArray[np.bool_], frame: Frame) -> Outline | None:
    return smooth_outline(binary_closing(inside, iterations=2), frame, blur=1.0, level=0.5)


def _near_the_section(points: Array) -> NDArray[np.intp]:
    """Return the indices of the points (N, 3) nearest to x = 0, overall and in each part of the plane."""
    order = np.argsort(np.abs(points[:, 0]), kind="stable")
    flat = side(points) - side(points).min(axis=0)
    part = (flat * (PARTS - 1e-6) / np.maximum(flat.max(axis=0), 1e-12)).astype(int) @ [PARTS, 1]
    by_part, counts = order[np.argsort(part[order], kind="stable")], np.bincount(part)
    rank = np.arange(len(points)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.concatenate([order[:SECTION_POINTS], by_part[rank < POINTS_OF_A_PART]]))


def _on_ground(points: Array) -> Array:
    shadow: Array = points * [1, 0, 1] + [0, points[:, 1].min(), 0]
    return shadow


def _wind_arrow(points: Array) -> Array:
    """Return the start and end (2, 3) of an arrow on the ground ahead of the shape."""
    tip = np.array([points[:, 0].mean(), points[:, 1].min(), points[:, 2].min()])
    ends: Array = tip - np.array([[0, 0, 0.85], [0, 0, 0.25]])
    return ends
