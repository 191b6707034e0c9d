"""Draws a field on a shape as a picture (WebP) without text, which the page labels in its own type."""

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import PathPatch
from scipy.ndimage import gaussian_filter

from noether.runs.report.colours import VALUE_MAP, Scale
from noether.runs.report.numbers import Array
from noether.runs.report.views import View

BODY_GREY, OUTLINE_GREY = "#a9b1b9", "#6f7a85"  # legible on both themes
QUALITY = 90  # of WebP: a fifth of a PNG's size, and a mean difference of 0.9 of 255 levels
METHOD = 1  # of WebP, 0 to 6: half the time of 4, which makes files a fifth smaller
PIXEL_RATIO = 2  # pixels of the picture per grid pixel, for high-density screens
CONTOURS = 9  # lines of equal value, by which shapes of fields are compared more easily than by colour alone


def field_picture(view: View, values: Array, scale: Scale) -> bytes:
    """Returns a WebP picture of values (N,) at the view's points, in the scale's colours, on a transparent ground."""
    return next(field_pictures(view, [(values, scale)]))


def field_pictures(view: View, shown: Iterable[tuple[Array, Scale]]) -> Iterator[bytes]:
    """Yields a picture of each of the values; what the view alone decides is set up once."""
    frame = view.frame
    rows, columns = frame.grid_shape
    figure = Figure(figsize=(columns / 100, rows / 100), dpi=100 * PIXEL_RATIO)
    axes = figure.add_axes((0, 0, 1, 1), aspect="auto")
    axes.set_axis_off()
    image = _add_surroundings(axes, view)
    for values, scale in shown:
        grid = np.sum(values[view.vertices] * view.weights, axis=1).reshape(frame.grid_shape)
        image.set(data=np.ma.masked_invalid(grid), cmap=scale.colour_map, clim=(scale.low, scale.high))
        lines = _contours(axes, view, grid, scale)
        raw = BytesIO()
        figure.savefig(raw, format="webp", transparent=True, pil_kwargs={"quality": QUALITY, "method": METHOD})
        yield raw.getvalue()
        if lines is not None:
            lines.remove()


def _add_surroundings(axes: Axes, view: View) -> AxesImage:
    """What is the same in all pictures of a view; returns the image that takes the values."""
    frame = view.frame
    placed: dict[str, Any] = {"extent": frame.extent, "origin": "lower", "aspect": "auto", "interpolation": "bilinear"}
    if view.shadow is not None:
        grey = np.zeros((*frame.grid_shape, 4))
        grey[..., :3], grey[..., 3] = 0.12, view.shadow
        axes.imshow(grey, **placed)
    if view.wind is not None:
        arrow = {"arrowstyle": "-|>,head_width=0.16,head_length=0.34", "color": OUTLINE_GREY, "lw": 1.1}
        start, end = ((float(x), float(y)) for x, y in view.wind)
        axes.annotate("", end, start, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0})
    image = axes.imshow(np.zeros(frame.grid_shape), **placed)
    # Added as artists: as patches they would be measured, for limits of the axes that are set below.
    if view.clip is not None:
        image.set_clip_path(view.clip, axes.transData)
        axes.add_artist(PathPatch(view.clip, fill=False, edgecolor=OUTLINE_GREY, linewidth=0.6))
    if view.body is not None:
        axes.add_artist(PathPatch(view.body, facecolor=BODY_GREY, edgecolor=OUTLINE_GREY, linewidth=0.6))
    if view.ground is not None:
        axes.axhline(view.ground, color=OUTLINE_GREY, linewidth=0.8)
    axes.set_xlim(frame.low[0], frame.high[0])
    axes.set_ylim(frame.low[1], frame.high[1])
    return image


def _contours(axes: Axes, view: View, grid: Array, scale: Scale) -> QuadContourSet | None:
    """Lines of equal value within the clip; None where the view has none, or no line falls within the values."""
    levels = np.linspace(scale.low, scale.high, CONTOURS + 2)[1:-1]
    levels = levels[(np.nanmin(grid, initial=np.inf) < levels) & (levels < np.nanmax(grid, initial=-np.inf))]
    if view.clip is None or scale.colour_map != VALUE_MAP or not levels.size:
        return None
    style: dict[str, Any] = {"colors": "white", "alpha": 0.32, "linewidths": 0.5, "linestyles": "solid"}
    lines = axes.contour(*view.frame.axes(), gaussian_filter(grid, 2), levels, **style)
    lines.set_clip_path(view.clip, axes.transData)
    return lines
