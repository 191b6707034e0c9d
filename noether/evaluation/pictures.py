"""Which pictures does a report show? Fields on a shape as PNG, curves and distributions as SVG; no pyplot.

Field pictures hold no text, so that the page can label them in its own type and in a dark theme. Charts are
SVG whose colours are the page's CSS variables and whose text is text. Axes of the shapes are those of the
data: x lateral, y up, z along the wind, in metres.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FixedLocator, Formatter, MaxNLocator, NullLocator
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.spatial import ConvexHull, Delaunay, cKDTree

Array = NDArray[np.float64]

COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#fdfdfc", "#14181d"),
    "panel": ("#f4f5f3", "#1c2229"),
    "ink": ("#1b242e", "#e6eaee"),
    "muted": ("#5f6b77", "#98a4b0"),
    "line": ("#dde1e4", "#323b45"),
    "accent": ("#0b6a8a", "#5cb8d6"),
    "second": ("#c2551b", "#f0935a"),
    "third": ("#76589f", "#b99be0"),
    "fourth": ("#4b7d2f", "#93c572"),
}
"""The page's colours by name, light and dark. Series take accent, second, third, fourth in this order; blue,
vermilion, purple and green of different lightness stay apart for colour-blind readers."""
SERIES_COLOURS = ("accent", "second", "third", "fourth")

VALUE_MAP = "viridis"  # perceptually uniform, and readable without red-green vision
ERROR_MAP = "RdBu_r"  # ColorBrewer's colour-blind safe diverging scheme, white at 0
BODY_GREY, OUTLINE_GREY = "#a9b1b9", "#6f7a85"  # legible on both themes

GRID_WIDTH = 352  # pixels that a field is interpolated at across a picture; about its width on the page
PIXEL_RATIO = 2  # PNG pixels per grid pixel, for high-density screens
CONTOURS = 9  # lines of equal value, by which shapes of fields are compared more easily than by colour alone
SECTION_POINTS = 6000  # points next to the section that take part in its interpolation
TICK_STEPS = [1, 2, 2.5, 5, 10]
TOWARDS_VIEWER = np.array([-0.80, 0.38, -0.44]) / np.linalg.norm([-0.80, 0.38, -0.44])
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# --- numbers ------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """Text of a figure with so many significant digits; an en dash where there is none (None, NaN, ∞)."""
    if value is None or not np.isfinite(value):
        return "–"
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    exponent = int(np.floor(np.log10(abs(rounded)) + 1e-12))
    if -4 < exponent < 6:
        text = f"{rounded:,.{max(0, digits - 1 - exponent)}f}"
    else:
        text = f"{rounded / 10.0**exponent:.{digits - 1}f}\u202f×\u202f10{str(exponent).translate(SUPERSCRIPTS)}"
    return text.replace("-", "−")


def percent(value: float | None, digits: int = 3) -> str:
    """Text of a ratio as a percentage."""
    text = number(None if value is None else 100 * value, digits)
    return text if text == "–" else f"{text}\u202f%"


def tick_labels(values: Sequence[float]) -> list[str]:
    """Texts of an axis' ticks, all with the decimals that the finest of them needs."""
    # Their number has its own rounding noise: 0.30000000000000004 is 0.3.
    texts = [f"{value:.9g}" for value in values]
    if any("e" in text for text in texts):
        return ["0" if value == 0 else _mantissa_and_power(value) for value in values]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return ["0" if value == 0 else f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def _mantissa_and_power(value: float) -> str:
    mantissa, power = f"{value:.3e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(power)).translate(SUPERSCRIPTS)
    return (power if mantissa == "1" else f"{mantissa}·{power}").replace("-", "−")


class _Ticks(Formatter):
    """Labels of an axis: plain or as percentages, each for itself on a log axis, else with common decimals."""

    def __init__(self, *, ratio: bool = False, log: bool = False) -> None:
        self.ratio, self.log = ratio, log

    def format_ticks(self, values: Any) -> list[str]:
        numbers = [float(f"{100 * value if self.ratio else value:.9g}") for value in values]
        labels = [tick_labels([value])[0] for value in numbers] if self.log else tick_labels(numbers)
        return [f"{label}\u202f%" for label in labels] if self.ratio else labels

    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.format_ticks([value])[0]


# --- colour scales ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A colour scale: limits in the field's unit, and the colour map. Values beyond take the end colours."""

    low: float
    high: float
    colour_map: str

    @cached_property
    def ticks(self) -> tuple[float, ...]:
        """Round values between the limits."""
        ticks = MaxNLocator(5, steps=TICK_STEPS).tick_values(self.low, self.high)
        slack = 1e-9 * (self.high - self.low)
        return tuple(float(f"{tick:.9g}") for tick in ticks if self.low - slack <= tick <= self.high + slack)

    def tick_labels(self) -> list[tuple[float, str]]:
        """Each tick's place between 0 and 1 and its text."""
        places = [(tick - self.low) / (self.high - self.low) for tick in self.ticks]
        return list(zip(places, tick_labels(self.ticks), strict=True))

    def gradient(self, stops: int = 17) -> list[str]:
        """Hex colours from the low end to the high one."""
        colours = matplotlib.colormaps[self.colour_map](np.linspace(0, 1, stops))
        return ["#" + "".join(f"{round(255 * part):02x}" for part in colour[:3]) for colour in colours]


def value_scale(truths: Sequence[Array], predictions: Sequence[Array]) -> Scale:
    """One scale for fields of any shape: it holds at least 99 % of the values of each truth.

    A few extreme points at edges would otherwise leave all others in a single colour. Predictions widen it by a
    sixth at most, so that a wild one does not hide the truth.
    """
    limits = _percentiles(truths, (0.5, 99.5))
    low, high = float(limits[:, 0].min()), float(limits[:, 1].max())
    pad = (high - low) / 6 or max(abs(low), 1.0) * 0.5
    limits = _percentiles(predictions, (0.5, 99.5))
    low, high = float(np.clip(limits[:, 0].min(), low - pad, low)), float(np.clip(limits[:, 1].max(), high, high + pad))
    return Scale(low, high, VALUE_MAP) if high > low else Scale(low - pad, high + pad, VALUE_MAP)


def error_scale(errors: Sequence[Array]) -> Scale:
    """One scale for errors, symmetric about 0: it holds at least 99 % of the errors of each field."""
    reach = float(_percentiles([np.abs(error) for error in errors], (99.0,)).max())
    return Scale(-(reach or 1.0), reach or 1.0, ERROR_MAP)


def _percentiles(fields: Sequence[Array], shares: Sequence[float]) -> Array:
    """Percentiles (fields, shares) of the finite values of each field; fields without any are left out."""
    finite = [field[np.isfinite(field)] for field in fields]
    rows = [np.percentile(values, shares) for values in finite if values.size]
    return np.array(rows) if rows else np.ones((1, len(shares)))


# --- field pictures -----------------------------------------------------------------------------------------


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


def project(points: Array) -> Array:
    """Orthographic three-quarter view: (N, 3) → (N, 2), the wind from left to right, seen from above."""
    right = np.cross([0.0, 1.0, 0.0], TOWARDS_VIEWER)
    right /= np.linalg.norm(right)
    return np.stack([points @ right, points @ np.cross(TOWARDS_VIEWER, right)], axis=-1)


def side(points: Array) -> Array:
    """Side view: (N, 3) → (N, 2), the wind (z) from left to right and y up."""
    return points[:, [2, 1]]


def frame_around(pictures: Sequence[Array], margin: float) -> Frame:
    """The frame that holds the projected points (N, 2) of all pictures, with a margin as a part of its width."""
    low = np.min([np.min(points, axis=0) for points in pictures], axis=0)
    high = np.max([np.max(points, axis=0) for points in pictures], axis=0)
    width = max(high[0] - low[0], (high[1] - low[1]) / 1.1, 1e-6)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, [width / 2, width / 16]) + margin * width
    return Frame(middle - half, middle + half)


def visible(points: Array, normals: Array | None) -> NDArray[np.intp]:
    """Indices of the points (N, 3) that the viewer of `project` sees.

    Katz, Tal and Basri, Direct Visibility of Point Sets (2007): points are flipped about a large sphere round
    the viewer; those on the hull of the result are in sight. It needs no mesh, and normals (N, 3) only refine
    it. The viewer stands ten radii away, the sphere's radius is 10^2.5 times that.
    """
    centre = points.mean(axis=0)
    radius = np.linalg.norm(points - centre, axis=1).max()
    rays = points - (centre + 10 * radius * TOWARDS_VIEWER)
    lengths = np.linalg.norm(rays, axis=1, keepdims=True)
    flipped = rays + 2 * (10**2.5 * lengths.max() - lengths) * rays / lengths
    hull = np.sort(ConvexHull(np.vstack([flipped, np.zeros(3)])).vertices)
    seen = hull[hull < len(points)].astype(np.intp)
    if normals is not None and len(facing := seen[normals[seen] @ TOWARDS_VIEWER > 0]) >= 8:
        return facing
    return seen


def surface_view(points: Array, normals: Array | None, frame: Frame) -> View:
    """The view of a surface: points (N, 3) in m, unit normals (N, 3) outward if they are known.

    Raises:
        QhullError: too few points, or all in a plane.
    """
    seen = visible(points, normals)
    flat = project(points[seen])
    vertices, weights, inside = _rasterise(flat, _shape_triangles(flat), frame)
    pixel = (frame.high[0] - frame.low[0]) / GRID_WIDTH
    # A hull of scattered points is jagged by about half their distance, so it is rounded by as much.
    clip = _outline(inside, frame, blur=max(1.0, 0.5 * _spacing(flat) / pixel), level=0.38)

    corners = project(_on_ground(points))
    hull = Outline(corners[ConvexHull(corners).vertices])
    covered = hull.contains_points(_pixels(frame)).reshape(frame.grid_shape).astype(np.float64)
    start, end = project(_wind_arrow(points))
    return View(
        frame,
        seen[vertices],
        weights,
        clip=clip,
        shadow=0.42 * gaussian_filter(covered, 6),
        wind=(start, end),
    )


def surface_extent(points: Array) -> Array:
    """What the picture of a surface shows, projected: its points, its shadow and the arrow of the wind."""
    return project(np.vstack([points, _on_ground(points), _wind_arrow(points)]))


def section_view(points: Array, body: Array | None, frame: Frame) -> View:
    """The view of the vertical mid-plane x = 0 of a volume: points (N, 3) in m, and the body's (M, 3) if known.

    Values are interpolated linearly in three dimensions from the points nearest to the plane: where an edge of
    their Delaunay tetrahedra passes through it, the plane has a value; between those, triangles.

    Raises:
        QhullError: too few points, or all in a plane.
        ValueError: all points lie on one side of the mid-plane.
    """
    near = np.argsort(np.abs(points[:, 0]), kind="stable")[:SECTION_POINTS]
    tetrahedra = near[Delaunay(points[near]).simplices]
    edges = np.concatenate([tetrahedra[:, [i, j]] for i in range(3) for j in range(i + 1, 4)])
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    depth = points[edges, 0]
    crossing = (depth[:, 0] < 0) != (depth[:, 1] < 0)
    edges, depth = edges[crossing], depth[crossing]
    if len(edges) < 4:
        raise ValueError("the points lie on one side of the mid-plane")
    share = np.column_stack([depth[:, 1], -depth[:, 0]]) / (depth[:, 1] - depth[:, 0])[:, None]
    flat = np.sum(side(points)[edges] * share[..., None], axis=1)
    corners, weights, _ = _rasterise(flat, Delaunay(flat).simplices, frame)
    vertices = edges[corners].reshape(len(corners), -1)
    weights = (share[corners] * weights[..., None]).reshape(len(corners), -1)

    outline = ground = None
    if body is not None:
        shadow = side(body)
        outline = _outline(_rasterise(shadow, _shape_triangles(shadow), frame)[2], frame, blur=1.5, level=0.45)
        ground = float(body[:, 1].min())
    return View(frame, vertices, weights, body=outline, ground=ground)


def _on_ground(points: Array) -> Array:
    return points * [1, 0, 1] + [0, points[:, 1].min(), 0]


def _wind_arrow(points: Array) -> Array:
    """Start and end (2, 3) of an arrow on the ground ahead of the shape."""
    tip = np.array([points[:, 0].mean(), points[:, 1].min(), points[:, 2].min()])
    return tip - np.array([[0, 0, 0.85], [0, 0, 0.25]])


def field_picture(view: View, values: Array, scale: Scale) -> bytes:
    """PNG of values (N,) at the view's points, in the colours of the scale, on a transparent ground."""
    frame = view.frame
    grid = np.sum(values[view.vertices] * view.weights, axis=1).reshape(frame.grid_shape)
    rows, columns = frame.grid_shape
    figure = Figure(figsize=(columns / 100, rows / 100), dpi=100 * PIXEL_RATIO)
    axes = figure.add_axes((0, 0, 1, 1), aspect="auto")
    axes.set_axis_off()
    if view.shadow is not None:
        grey = np.zeros((*frame.grid_shape, 4))
        grey[..., :3], grey[..., 3] = 0.12, view.shadow
        axes.imshow(grey, extent=frame.extent, origin="lower", aspect="auto", interpolation="bilinear")
    if view.wind is not None:
        arrow = {"arrowstyle": "-|>,head_width=0.16,head_length=0.34", "color": OUTLINE_GREY, "lw": 1.1}
        start, end = ((float(x), float(y)) for x, y in view.wind)
        axes.annotate("", end, start, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
    image = axes.imshow(
        np.ma.masked_invalid(grid),
        extent=frame.extent,
        origin="lower",
        aspect="auto",
        cmap=scale.colour_map,
        vmin=scale.low,
        vmax=scale.high,
        interpolation="bilinear",
    )
    if view.clip is not None:
        image.set_clip_path(view.clip, axes.transData)
        axes.add_patch(PathPatch(view.clip, fill=False, edgecolor=OUTLINE_GREY, linewidth=0.6))
        levels = np.linspace(scale.low, scale.high, CONTOURS + 2)[1:-1]
        levels = levels[(np.nanmin(grid, initial=np.inf) < levels) & (levels < np.nanmax(grid, initial=-np.inf))]
        if scale.colour_map == VALUE_MAP and levels.size:
            across, up = frame.axes()
            lines = axes.contour(
                across,
                up,
                gaussian_filter(grid, 2),
                levels,
                colors="white",
                alpha=0.32,
                linewidths=0.5,
                linestyles="solid",
            )
            lines.set_clip_path(view.clip, axes.transData)
    if view.body is not None:
        axes.add_patch(PathPatch(view.body, facecolor=BODY_GREY, edgecolor=OUTLINE_GREY, linewidth=0.6))
    if view.ground is not None:
        axes.axhline(view.ground, color=OUTLINE_GREY, linewidth=0.8)
    axes.set_xlim(frame.low[0], frame.high[0])
    axes.set_ylim(frame.low[1], frame.high[1])
    raw = BytesIO()
    figure.savefig(raw, format="png", transparent=True)
    return raw.getvalue()


def _pixels(frame: Frame) -> Array:
    across, up = frame.axes()
    return np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)


def _spacing(points: Array) -> float:
    distances = np.asarray(cKDTree(points).query(points, k=2)[0])
    return float(np.median(distances[:, 1]))


def _rasterise(
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
    vertices[outside] = np.asarray(cKDTree(points).query(_pixels(frame)[outside])[1])[:, None]
    return vertices, weights, inside.reshape(rows, columns)


def _cross(a: Array, b: Array) -> Array:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


def _shape_triangles(points: Array) -> NDArray[np.integer[Any]]:
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


def _outline(inside: NDArray[np.bool_], frame: Frame, blur: float, level: float) -> Outline | None:
    """The smoothed outline of a pixel mask."""
    soft = gaussian_filter(inside.astype(np.float64), blur)
    soft[[0, -1], :] = soft[:, [0, -1]] = 0  # loops close within the frame
    across, up = frame.axes()
    (outline,) = Figure().add_subplot().contour(across, up, soft, [level]).get_paths()
    return outline if np.size(outline.vertices) else None


# --- charts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One line of a chart: x and y (n,), a colour of COLOURS, dashed or not; `points` adds a mark per value."""

    label: str
    x: Array
    y: Array
    colour: str
    dashed: bool = False
    points: bool = False


MOST_PATH_POINTS = 400


def can_draw(series: Series, *, log: bool) -> bool:
    """Whether a line has any value that `curves` draws."""
    return bool(_drawable(series.y, log).any())


def _drawable(y: Array, log: bool) -> NDArray[np.bool_]:
    return np.isfinite(y) & (y > 0) if log else np.isfinite(y)


def curves(
    name: str,
    series: Sequence[Series],
    *,
    log: bool,
    ratio: bool,
    last_update: float,
    updates_per_epoch: float | None,
) -> str:
    """SVG of lines against updates, with epochs on top where their length is known.

    Long lines are drawn as means of equal blocks inside the band of their extremes. Values that are not
    finite, or not positive on a log axis, are gaps.
    """
    with _style(name):
        figure, axes = _chart()
        drawn: list[Array] = []
        for line in series:
            y = np.where(_drawable(line.y, log), line.y, np.nan)
            if not np.isfinite(y).any():
                continue
            x, mean, low, high = _blocks(line.x, y)
            colour = _paint(line.colour)
            if len(x) < len(y):
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
            dense = len(x) > 60
            axes.plot(
                x,
                mean,
                color=colour,
                linewidth=1.0 if line.colour == "muted" else 1.6,
                linestyle=(0, (4, 2)) if line.dashed else "-",
                marker="o" if (line.points and not dense) or len(x) == 1 else "",
                markersize=2.8,
                label=line.label,
            )
            drawn.append(y[np.isfinite(y)])
        values = np.concatenate(drawn)
        if log:
            _log_ticks(axes, values, ratio=ratio)
        else:
            top = float(values.max())
            axes.set_ylim(0, top * 1.08 if top > 0 else 1)
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
            axes.yaxis.set_major_formatter(_Ticks(ratio=ratio))
        axes.set_xlim(-0.012 * last_update, 1.012 * last_update)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(_Ticks())
        axes.set_xlabel("updates")
        if updates_per_epoch:
            length = float(updates_per_epoch)

            def epochs(updates: Any) -> Any:
                return updates / length

            def updates(epochs: Any) -> Any:
                return epochs * length

            top_axis = axes.secondary_xaxis("top", functions=(epochs, updates))
            top_axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
            top_axis.xaxis.set_major_formatter(_Ticks())
            top_axis.tick_params(length=3, color=_paint("line"), labelcolor=_paint("muted"), pad=2)
            top_axis.spines["top"].set_color(_paint("line"))
            top_axis.set_xlabel("epochs", color=_paint("muted"), labelpad=3)
        return _svg(figure, name)


def parity(name: str, truth: Array, prediction: Array, floor: Array | None, lines: Sequence[str]) -> str:
    """SVG of predictions (S,) against truths (S,), with the line of equality.

    floor (S,): what the scalar's own formula makes of the true field, as rings; its distance from the line is
    error that no model can undo. lines: text written into the empty upper corner.
    """
    with _style(name):
        figure, axes = _chart(width=4.5, height=4.3)
        shown = [values for values in (truth, prediction, floor) if values is not None]
        values = np.concatenate([value[np.isfinite(value)] for value in shown])
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        pad = 0.06 * (high - low) or max(abs(low), 1.0) * 0.1
        limits = (low - pad, high + pad)
        axes.plot(limits, limits, color=_paint("muted"), linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        many = len(truth) > 1500
        if floor is not None:
            axes.scatter(
                truth, floor, s=26, facecolors="none", edgecolors=_paint("second"), linewidths=0.9, rasterized=many
            )
        size = 18 if len(truth) < 300 else 8
        axes.scatter(
            truth, prediction, s=size, color=_paint("accent"), alpha=0.75, linewidths=0, zorder=3, rasterized=many
        )
        axes.set(xlim=limits, ylim=limits)
        axes.set_box_aspect(1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, steps=TICK_STEPS))
            axis.set_major_formatter(_Ticks())
        axes.set_xlabel("truth")
        axes.set_ylabel("prediction", rotation_mode="anchor", va="bottom")
        axes.text(0.04, 0.96, "\n".join(lines), transform=axes.transAxes, va="top", color=_paint("ink"))
        return _svg(figure, name)


def error_histogram(name: str, edges: Array, counts: Array, unit: str) -> str:
    """SVG of the share of points by error: edges (B+1,) in the field's unit, counts (B,). Log scale."""
    with _style(name):
        figure, axes = _chart()
        share = counts / max(counts.sum(), 1)
        filled = np.flatnonzero(counts)
        if filled.size:
            floor = float(share[filled].min()) / 2
            axes.stairs(np.maximum(share, floor), edges, baseline=floor, fill=True, color=_paint("accent"), alpha=0.28)
            axes.stairs(np.maximum(share, floor), edges, baseline=floor, color=_paint("accent"), linewidth=1.3)
            _log_ticks(axes, share[filled], ratio=True)
            axes.set_ylim(floor, float(share.max()) * 1.6)
            reach = np.array([edges[filled[0]], edges[filled[-1] + 1]])
            axes.set_xlim(*(reach + np.array([-0.02, 0.02]) * np.ptp(reach)))
        axes.axvline(0, color=_paint("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=TICK_STEPS))
        axes.xaxis.set_major_formatter(_Ticks())
        axes.set_xlabel(f"prediction − truth ({unit})" if unit else "prediction − truth")
        return _svg(figure, name)


def sample_errors(name: str, values: Array, marks: Mapping[int, str]) -> str:
    """SVG of the samples' relative errors (S,) in rising order, with the marked ones named."""
    with _style(name):
        figure, axes = _chart()
        order = np.argsort(values, kind="stable")
        order = order[np.isfinite(values[order])]
        place = np.arange(1, len(order) + 1)
        thin = np.unique(np.linspace(0, len(order) - 1, min(len(order), MOST_PATH_POINTS)).astype(int))
        axes.scatter(place[thin], values[order][thin], s=12, color=_paint("accent"), alpha=0.7, linewidths=0)
        named: set[str] = set()
        for sample, label in marks.items():
            rank = np.flatnonzero(order == sample)
            if not rank.size:
                continue
            x, y = place[rank[0]], values[sample]
            axes.scatter([x], [y], s=30, facecolors="none", edgecolors=_paint("second"), linewidths=1.3, zorder=3)
            # The second and third worst lie so close to the worst that their names would overlap.
            kind = "worst" if "worst" in label else label
            if kind not in named:
                named.add(kind)
                # The points rise to the right, so that there is room above to the left.
                right = x > 0.2 * len(order)
                axes.annotate(
                    kind,
                    (x, y),
                    (-6 if right else -2, 5 if right else 10),
                    textcoords="offset points",
                    ha="right" if right else "left",
                    color=_paint("second"),
                )
        top = float(values[order].max()) if order.size else 1.0
        axes.set_ylim(0, top * 1.12 or 1)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
        axes.yaxis.set_major_formatter(_Ticks(ratio=True))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("samples, in the order of their error")
        return _svg(figure, name)


def _blocks(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """x, mean, low and high of at most MOST_PATH_POINTS blocks of a line; blocks of gaps stay gaps."""
    if len(x) <= MOST_PATH_POINTS:
        return x, y, y, y
    starts = np.unique(np.linspace(0, len(x), MOST_PATH_POINTS + 1).astype(int))[:-1]
    finite = np.isfinite(y)
    size = np.add.reduceat(finite.astype(float), starts)
    gap = np.where(size > 0, 0.0, np.nan)
    mean = np.add.reduceat(np.where(finite, y, 0), starts) / np.maximum(size, 1) + gap
    low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
    return x[starts], mean, np.where(size > 0, low, np.nan), np.where(size > 0, high, np.nan)


def _log_ticks(axes: Axes, values: Array, *, ratio: bool) -> None:
    """A log y axis over positive values, with round ticks that are few enough to be read."""
    low, high = float(values.min()), float(values.max())
    margin = max((high / low) ** 0.06, 1.05)
    low, high = low / margin, high * margin
    if high / low < 8:
        ticks = np.asarray(MaxNLocator(5, steps=TICK_STEPS).tick_values(low, high))
    else:
        decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
        steps = (1, 2, 5) if high / low < 300 else (1,)
        if len(decades) > 8:
            decades = decades[:: -(-len(decades) // 7)]
        ticks = np.array([step * 10.0**decade for decade in decades for step in steps])
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(_Ticks(ratio=ratio, log=True))


def _style(name: str) -> Any:
    """Settings of all charts; the name makes the ids inside one SVG differ from those of the others."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": name,
            "text.parse_math": False,  # a dollar sign in a unit or a name is one
            "font.family": "DejaVu Sans",  # comes with matplotlib and is wide, so that no system font overflows
            "font.size": 9.5,
            "axes.edgecolor": _paint("line"),
            "axes.labelcolor": _paint("muted"),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": _paint("line"),
            "grid.linewidth": 0.6,
            "xtick.color": _paint("line"),
            "ytick.color": _paint("line"),
            "xtick.labelcolor": _paint("muted"),
            "ytick.labelcolor": _paint("muted"),
            "xtick.major.size": 3,
            "ytick.major.size": 0,
        }
    )


def _chart(width: float = 6.0, height: float = 2.7) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="x", visible=False)
    return figure, axes


def _paint(name: str) -> str:
    """The light colour, by which `_svg` knows the CSS variable to put in its place."""
    return COLOURS[name][0]


def _svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element for a page: scales with its column, and takes the page's type and colours."""
    raw = StringIO()
    figure.savefig(
        raw, format="svg", transparent=True, dpi=200, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    text = raw.getvalue()
    text = text[text.index("<svg") :]
    size = re.search(r'viewBox="[^"]*"', text)
    assert size is not None
    text = f'<svg {size[0]} role="img">' + text[text.index(">") + 1 :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would speak for the whole page
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace("xlink:href", "href").replace("; font-family: 'DejaVu Sans'", "")
    text = re.sub(r"\s*\n\s*", " ", text)
    for colour, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{colour})")
    return text
