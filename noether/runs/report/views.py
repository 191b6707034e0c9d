"""The views of a shape: a surface from ahead and above, a volume cut at its mid-plane, on a grid of pixels.

Points are turned to the pictures' axes first: x lateral, y up, z along the wind, in metres; in the picture plane they
are across and up.
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

GRID_WIDTH = 352  # pixels that a field is interpolated at across a picture; about its width on the page

LOCAL, HOLE = 13, 2.2
"""Points further apart than HOLE times the distance to the twelfth nearest point have a hole between them."""


@dataclass(frozen=True)
class Frame:
    """The part of the picture plane that pictures of one field show, in metres: low and high corner (2,)."""

    low: Array
    high: Array

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Rows and columns of the pixel grid."""
        width, height = self.high - self.low
        return int(np.clip(round(GRID_WIDTH * height / width), 48, 420)), GRID_WIDTH

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top."""
        return (*map(float, (self.low[0], self.high[0])), *map(float, (self.low[1], self.high[1])))  # type: ignore[return-value]

    def axes(self) -> tuple[Array, Array]:
        """Coordinates of the pixel centres across and up."""
        rows, columns = self.grid_shape
        step = (self.high - self.low) / (columns, rows)
        return (self.low[0] + step[0] * (np.arange(columns) + 0.5), self.low[1] + step[1] * (np.arange(rows) + 0.5))


def frame_around(pictures: Sequence[Array], margin: float) -> Frame:
    """The frame that holds the projected points (N, 2) of all pictures, with a margin as a part of its width."""
    low = np.min([np.min(points, axis=0) for points in pictures], axis=0)
    high = np.max([np.max(points, axis=0) for points in pictures], axis=0)
    width = max(high[0] - low[0], (high[1] - low[1]) / 1.1, 1e-6)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, [width / 2, width / 16]) + margin * width
    return Frame(middle - half, middle + half)


def pixel_centres(frame: Frame) -> Array:
    """The centres (pixels, 2) of the frame's pixels, row by row from the bottom."""
    across, up = frame.axes()
    return np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)


def rasterise(
    points: Array, triangles: NDArray[np.integer[Any]], frame: Frame
) -> tuple[NDArray[np.intp], Array, NDArray[np.bool_]]:
    """Linear interpolation on triangles (T, 3) of points (N, 2) at the frame's pixels.

    Returns vertices and weights (pixels, 3), those of the nearest point outside all triangles, and which
    pixels are inside, as the grid. (scipy's interpolators factorise each triangle with LAPACK, whose threads
    take seconds for it on a busy machine.)
    """
    rows, columns = frame.grid_shape
    corners = ((points - frame.low) / (frame.high - frame.low) * (columns, rows) - 0.5)[triangles]
    first = np.clip(np.ceil(corners.min(axis=1)), 0, None).astype(np.intp)
    last = np.minimum(np.floor(corners.max(axis=1)), (columns - 1, rows - 1)).astype(np.intp)
    size = np.maximum(last - first + 1, 0)
    # Every pixel of every triangle's bounding box, in one long list.
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
    hit = (parts >= -1e-9).all(axis=1)  # false for triangles without area, whose parts are not numbers
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
    """Triangles (T, 3) of points (N, 2) that make up the shape they show.

    Delaunay triangles are peeled off from the convex hull as long as they show an over-long edge to the
    outside, which opens bays like the one in front of a windscreen and leaves thinly sampled areas inside whole
    (the χ-shape of Duckham, Kulik, Worboys and Galton, 2008).
    """
    triangulation = Delaunay(points)
    triangles, neighbours = triangulation.simplices, triangulation.neighbors
    # Edge k lies opposite corner k, as neighbour k does.
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
    """Which edges or triangles (T, k) of points (N, d) reach much further than the points about them lie apart.

    A mesh is fine about a hole, so that what spans the hole is long beside the distances there, and what joins
    coarse parts is not.
    """
    local = np.asarray(cKDTree(points).query(points, k=min(LOCAL, len(points)))[0])[:, -1]
    corners = points[simplices]
    longest = np.max([np.linalg.norm(corners - np.roll(corners, k, axis=1), axis=2).max(axis=1)
                      for k in range(1, simplices.shape[1])], axis=0)  # fmt: skip
    return np.asarray(longest > HOLE * local[simplices].max(axis=1))


def smooth_outline(inside: NDArray[np.bool_], frame: Frame, blur: float, level: float) -> Outline | None:
    """The smoothed outline of a pixel mask."""
    soft = gaussian_filter(inside.astype(np.float64), blur)
    soft[[0, -1], :] = soft[:, [0, -1]] = 0  # loops close within the frame
    across, up = frame.axes()
    (outline,) = Figure().add_subplot().contour(across, up, soft, [level]).get_paths()
    return outline if np.size(outline.vertices) else None


SECTION_POINTS = 6000  # points next to the section that take part in its interpolation
PARTS, POINTS_OF_A_PART = 20, 6  # and of each part of it, 20 by 20: a mesh may be coarse away from its body
TOWARDS_VIEWER = np.array([-0.80, 0.38, -0.44]) / np.linalg.norm([-0.80, 0.38, -0.44])


@dataclass(frozen=True)
class Space:
    """How the data's axes lie to the pictures': a matrix (3, 3), and what there is beside the body.

    half: 1 or −1 where of bodies and flow there is the half with such x alone. flat: whether all points have one x.
    """

    turn: Array
    wind: bool = True
    ground: bool = True
    half: int = 0
    flat: bool = False

    @property
    def viewer(self) -> Array:
        """The direction (3,) towards the viewer of a surface."""
        return np.asarray(TOWARDS_VIEWER * ([-1, 1, 1] if self.half == 1 else 1))

    def turned(self, points: Array) -> Array:
        """Points or directions (N, 3) of the data in the pictures' axes; others, which no picture shows, unchanged."""
        return points @ self.turn.T if points.shape[-1] == 3 else points


def space_of(about: Mapping[str, Any]) -> Space:
    """The space that a data set has described: {"wind": (3,), "up": (3,), "ground": whether there is one}.

    A data set that names no wind has pictures without an arrow, and one that names no ground has none.
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
    """The space of data that names no directions, by the boxes of its points (N, 3): the longest side lies across.

    The shortest side is the depth, so that a plate is seen from its face.
    """
    depth, up, across = np.argsort(np.median([np.ptp(points, axis=0) for points in shapes], axis=0), kind="stable")
    return Space(np.eye(3)[[depth, up, across]], wind=False, ground=False)


FLAT = 1e-6
"""Of the longest side of a box, what its shortest has at most where all points lie in a plane: they are rounded."""


def depth_of(shapes: Sequence[Array]) -> int | None:
    """Return the axis along which all points (N, 3) of each shape have one value; None where there is none."""
    sides = np.array([np.ptp(points, axis=0) for points in shapes])
    flat = (sides <= FLAT * sides.max(axis=1, keepdims=True)).all(axis=0) if len(sides) else np.zeros(3, bool)
    return int(flat.argmax()) if flat.sum() == 1 else None


def space_face_on(about: Space, depth: int) -> Space:
    """The space of points in a plane, which is seen from its face, along the axis `depth` of the data.

    The wind is from the left if it blows in the plane; else the first of the two axes lies across, the second is up.
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
    """How a shape's points become a picture, worked out once for prediction, truth and error.

    vertices, weights (pixels, k): the points that each pixel of the frame's grid is interpolated from.
    clip: outline outside which nothing is drawn, or None; body: outline filled in grey, or None.
    shadow: opacity of the shadow on the ground, as the grid, or None.
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
    """1 or −1 where all points (N, 3) lie on that side of x = 0; else 0."""
    low, high = points[:, 0].min(), points[:, 0].max()
    slack = 1e-3 * (high - low)
    return 1 if low >= -slack else -1 if high <= slack else 0


def project(points: Array, viewer: Array = TOWARDS_VIEWER) -> Array:
    """Orthographic three-quarter view: (N, 3) → (N, 2), seen from above; from the left, the wind blows to the right."""
    right = np.cross([0.0, 1.0, 0.0], viewer)
    right /= np.linalg.norm(right)
    return np.stack([points @ right, points @ np.cross(viewer, right)], axis=-1)


def side(points: Array) -> Array:
    """Side view: (N, 3) → (N, 2), the wind (z) from left to right and y up."""
    return points[:, [2, 1]]


def visible(points: Array, normals: Array | None, viewer: Array = TOWARDS_VIEWER) -> NDArray[np.intp]:
    """Indices of the points (N, 3) that the viewer of `project` sees.

    Katz, Tal and Basri, Direct Visibility of Point Sets (2007): points are flipped about a large sphere round
    the viewer; those on the hull of the result are in sight. It needs no mesh, and normals (N, 3) only refine
    it. The viewer stands ten radii away, the sphere's radius is 10^2.5 times that.
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
    """The view of a surface: points (N, 3) in m, unit normals (N, 3) outward if they are known.

    QhullError: too few points, or all in a plane.
    """
    seen = visible(points, normals, space.viewer)
    flat = project(points[seen], space.viewer)
    vertices, weights, inside = rasterise(flat, shape_triangles(flat), frame)
    pixel = (frame.high[0] - frame.low[0]) / GRID_WIDTH
    # A hull of scattered points is jagged by about half their distance, so it is rounded by as much.
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
    """What the picture of a surface shows, projected: its points, its shadow and the arrow of the wind."""
    shadow = [_on_ground(points)] if space.ground else []
    arrow = [_wind_arrow(points)] if space.wind else []
    return project(np.vstack([points, *shadow, *arrow]), space.viewer)


def section_view(points: Array, body: Array | None, frame: Frame, space: Space = CARS) -> View:
    """The view of a plane through a volume: points (N, 3) in m, and the body's (M, 3) if known.

    In a flow it is the vertical plane x = 0, to which one half alone is mirrored; else the middle of the depth, and
    nothing is drawn in holes. Values are interpolated linearly from the points nearest to the plane: where an edge of
    their Delaunay tetrahedra passes through it, the plane has a value; between those, triangles.

    QhullError: too few points, or all in a plane.
    ValueError: no edge passes through the plane.
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
        raise ValueError("hardly any points lie about the mid-plane")
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
    """The view of points (N, 3) in a plane from its face; nothing is drawn in holes. QhullError: all in a line."""
    flat = side(points)
    triangles = Delaunay(flat).simplices
    vertices, weights, inside = rasterise(flat, triangles[~spans_a_hole(flat, triangles)], frame)
    return View(frame, vertices, weights, clip=_clip_with_holes(inside, frame))


def _clip_with_holes(inside: NDArray[np.bool_], frame: Frame) -> Outline | None:
    return smooth_outline(binary_closing(inside, iterations=2), frame, blur=1.0, level=0.5)


def _near_the_section(points: Array) -> NDArray[np.intp]:
    """Indices of the points (N, 3) that are the nearest to x = 0, in all and in each part of the plane."""
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
    """Start and end (2, 3) of an arrow on the ground ahead of the shape."""
    tip = np.array([points[:, 0].mean(), points[:, 1].min(), points[:, 2].min()])
    ends: Array = tip - np.array([[0, 0, 0.85], [0, 0, 0.25]])
    return ends
