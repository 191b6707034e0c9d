"""The points that each pixel of a picture is interpolated from, and where the shape ends.

Points here are in the picture plane, in metres: across and up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.spatial import Delaunay, cKDTree

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
        return (
            self.low[0] + step[0] * (np.arange(columns) + 0.5),
            self.low[1] + step[1] * (np.arange(rows) + 0.5),
        )


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


def spacing(points: Array) -> float:
    """The median distance of points (N, 2) to the nearest other one."""
    distances = np.asarray(cKDTree(points).query(points, k=2)[0])
    return float(np.median(distances[:, 1]))


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
