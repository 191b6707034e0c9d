"""Pictures of single samples: prediction, truth and error side by side."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import PathPatch
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import gaussian_filter
from scipy.spatial import QhullError

from noether.runs.records import mapping
from noether.runs.report import views
from noether.runs.report.elements import absent, axis_name, fill, of_files
from noether.runs.report.numbers import TICK_STEPS, Array, tick_labels
from noether.runs.report.run import ReportedRun

VALUE_MAP = "viridis"  # Perceptually uniform, and readable without red-green vision.
MOST_LETTERS = 24  # Maximum number of letters in all tick labels of a scale, so that they fit under it.
ERROR_MAP = "RdBu_r"  # ColorBrewer's colour-blind safe diverging scheme, white at 0.


@dataclass(frozen=True)
class Scale:
    """A colour scale: limits in the field's unit, and the colour map. Values beyond the limits take the end colours."""

    low: float
    high: float
    colour_map: str

    def tick_labels(self) -> list[tuple[float, str]]:
        """Return the place (0 to 1) and text of round values between the limits; take fewer if texts are long."""
        width, labels = self.high - self.low, []
        for most in (5, 3):
            every = MaxNLocator(most, steps=TICK_STEPS).tick_values(self.low, self.high)
            ticks = [float(f"{tick:.9g}") for tick in every if -1e-9 <= (tick - self.low) / width <= 1 + 1e-9]
            labels = [((tick - self.low) / width, text) for tick, text in zip(ticks, tick_labels(ticks), strict=True)]
            if sum(len(text) for _, text in labels) < MOST_LETTERS:
                break
        return labels

    def gradient(self, stops: int = 17) -> list[str]:
        """Return hex colours from the low end to the high end."""
        colours = matplotlib.colormaps[self.colour_map](np.linspace(0, 1, stops))
        return ["#" + "".join(f"{round(255 * part):02x}" for part in colour[:3]) for colour in colours]


def value_scale(truths: Sequence[Array], predictions: Sequence[Array]) -> Scale:
    """Return one scale for all fields, of any shapes. It covers at least 99 % of the values of each truth.

    If the scale covered all values, a few extreme points would leave all other points in one colour. Predictions widen
    the scale by at most a sixth at each end, so that a wild prediction does not hide the truth.
    """
    limits = _percentiles(truths, (0.5, 99.5))
    low, high = float(limits[:, 0].min()), float(limits[:, 1].max())
    pad = (high - low) / 6 or max(abs(low), 1.0) * 0.5
    limits = _percentiles(predictions, (0.5, 99.5))
    low, high = float(np.clip(limits[:, 0].min(), low - pad, low)), float(np.clip(limits[:, 1].max(), high, high + pad))
    return Scale(low, high, VALUE_MAP) if high > low else Scale(low - pad, high + pad, VALUE_MAP)


def error_scale(errors: Sequence[Array]) -> Scale:
    """Return one scale for all errors. It is symmetric about 0 and covers at least 99 % of the errors of each field."""
    reach = float(_percentiles([np.abs(error) for error in errors], (99.0,)).max())
    return Scale(-(reach or 1.0), reach or 1.0, ERROR_MAP)


def _percentiles(fields: Sequence[Array], shares: Sequence[float]) -> Array:
    """Return percentiles (fields, shares) of each field's finite values; leave out fields without finite values."""
    finite = [field[np.isfinite(field)] for field in fields]
    rows = [np.percentile(values, shares) for values in finite if values.size]
    return np.array(rows) if rows else np.ones((1, len(shares)))


BODY_GREY, OUTLINE_GREY = "#a9b1b9", "#6f7a85"  # Legible on both themes.
QUALITY = 90  # WebP quality: a fifth of a PNG's size, with a mean difference of 0.9 levels out of 255.
METHOD = 1  # WebP method, 0 to 6: takes half the time of method 4, whose files are a fifth smaller.
PIXEL_RATIO = 2  # Picture pixels per grid pixel, for high-density screens.
CONTOURS = 9  # Number of contour lines, which make fields easier to compare than colour alone.


def field_picture(view: views.View, values: Array, scale: Scale) -> bytes:
    """Return a WebP picture of values (N,) at the view's points in the scale's colours, on a transparent background."""
    return next(field_pictures(view, [(values, scale)]))


def field_pictures(view: views.View, shown: Iterable[tuple[Array, Scale]]) -> Iterator[bytes]:
    """Yield a picture of each pair of values and scale; draw the parts that all pictures share only once."""
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


def _add_surroundings(axes: Axes, view: views.View) -> AxesImage:
    """Draw the parts common to all pictures of a view; return the image that will show the values."""
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
    # Use add_artist: add_patch would also measure the patch for the axis limits, which are set below anyway.
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


def _contours(axes: Axes, view: views.View, grid: Array, scale: Scale) -> QuadContourSet | None:
    """Draw contour lines within the clip; return None if the view has no clip, or no line falls within the values."""
    levels = np.linspace(scale.low, scale.high, CONTOURS + 2)[1:-1]
    levels = levels[(np.nanmin(grid, initial=np.inf) < levels) & (levels < np.nanmax(grid, initial=-np.inf))]
    if view.clip is None or scale.colour_map != VALUE_MAP or not levels.size:
        return None
    style: dict[str, Any] = {"colors": "white", "alpha": 0.32, "linewidths": 0.5, "linestyles": "solid"}
    lines = axes.contour(*view.frame.axes(), gaussian_filter(grid, 2), levels, **style)
    lines.set_clip_path(view.clip, axes.transData)
    return lines


class NothingToDraw(ValueError):
    """The samples of a field cannot be drawn; the message gives the reason as a sentence."""


@dataclass(frozen=True)
class DrawnCase:
    """One field of one sample: points (N, 3), drawn values of prediction and truth (N,), and labels."""

    label: str
    sample: str
    relative_l2: float | None
    points: Array
    normals: Array | None
    prediction: Array
    truth: Array
    components: int
    body: Array | None

    @property
    def error(self) -> Array:
        """The error (N,): prediction − truth."""
        return self.prediction - self.truth

    @property
    def largest_error(self) -> float | None:
        """The largest magnitude of the error; None if some error is not finite."""
        return float(np.abs(self.error).max()) if self.error.size and np.isfinite(self.error).all() else None


@dataclass(frozen=True)
class FieldCases:
    """One field of the samples that an evaluation kept, and everything that the field's pictures have in common.

    quantity: the drawn quantity, if the field has several components; otherwise "". values, errors: the colour scales.
    axes: the axis of the files that points to the right, and the one that points up.
    """

    name: str
    unit: str
    quantity: str
    cases: Sequence[DrawnCase]
    values: Scale
    errors: Scale
    on_surface: bool
    space: views.Space
    frame: views.Frame
    axes: tuple[str, str]

    @property
    def seen(self) -> str:
        """A caption that describes the view in the pictures."""
        (across, up), lines = self.axes, " White lines join equal values."
        if self.space.flat:
            right = f"the wind ({across})" if self.space.wind else across
            return f"The plane face on, {right} to the right, {up} up.{lines}"
        if self.on_surface and self.space.wind:
            return f"Seen from ahead, to the side and above; the arrow is the wind ({across}), {up} is up.{lines}"
        if self.on_surface:
            return f"Seen at an angle from above; {up} is up.{lines}"
        plane = "vertical mid-plane" if self.space.wind else "plane in the middle of the shortest side"
        plane = "plane of symmetry" if self.space.half else plane
        right = f"the wind ({across}) from the left" if self.space.wind else f"{across} to the right"
        grey = " Grey: the shape’s outline." if any(case.body is not None for case in self.cases) else ""
        return f"The {plane}, {right}, {up} up, interpolated between the points on either side of it.{grey}"

    def view(self, case: DrawnCase) -> views.View:
        """Return the view of a case; raise as `flat_view`, `surface_view` and `section_view` do."""
        if self.space.flat:
            return views.flat_view(case.points, self.frame)
        if self.on_surface:
            return views.surface_view(case.points, case.normals, self.frame, self.space)
        return views.section_view(case.points, case.body, self.frame, self.space)

    def columns(self, case: DrawnCase) -> tuple[tuple[str, Array, Scale], ...]:
        """Return the title, the values (N,) and the scale of each picture of a case."""
        return (
            ("Prediction", case.prediction, self.values),
            ("Truth", case.truth, self.values),
            ("Error", case.error, self.errors),
        )


def cases_section(run: ReportedRun) -> Markup:
    """Return pictures of each field of the samples that the evaluation kept, on shared scales."""
    if not run.meta.get("cases"):
        return absent(run, "test.npz", "no fields of single samples were kept")
    shown: list[tuple[str, FieldCases | None, str]] = []
    for name in run.fields:
        try:
            shown.append((name, field_cases(run, name), ""))
        except NothingToDraw as reason:
            shown.append((name, None, str(reason)))
    return fill("cases.html", run=run, fields=shown, pictures=_pictures)


def _pictures(field: FieldCases, case: DrawnCase) -> tuple[str, list[tuple[str, str]]]:
    """Return the reason why a case is not drawn ("" if it is), and its pictures as (title, base64) pairs."""
    try:
        view = field.view(case)
    except QhullError:  # Qhull's own message is a page of jargon.
        return "too few points, or all in a plane", []
    except ValueError as problem:
        return str(problem), []
    titles, *shown = zip(*field.columns(case), strict=True)
    pictures = field_pictures(view, zip(*shown, strict=True))
    return "", [(title, b64encode(picture).decode()) for title, picture in zip(titles, pictures, strict=True)]


def _space(run: ReportedRun, name: str) -> views.Space:
    space = views.space_of(mapping(run.meta, "space"))
    keys = (f"case/{k}/{name}/points" for k in range(len(run.meta["cases"])))
    every = [np.asarray(run.arrays[key], np.float64) for key in keys if key in run.arrays]
    shapes = [points for points in every if points.ndim == 2 and points.shape[1] == 3]
    if (depth := views.depth_of(shapes)) is not None:
        return views.space_face_on(space, depth)
    if space.wind:
        halves = {views.half_of(space.turned(points)) for points in shapes}
        return replace(space, half=halves.pop() if len(halves) == 1 else 0)
    return space if _on_surface(run, name) or not shapes else views.space_by_extent(shapes)


def _case(run: ReportedRun, k: int, name: str, space: views.Space) -> DrawnCase | None:
    about, arrays = run.meta["cases"][k], run.arrays
    keys = [f"case/{k}/{name}/{part}" for part in ("points", "truth", "prediction")]
    if not all(key in arrays for key in keys):
        return None
    points, truth, prediction = (np.asarray(arrays[key], np.float64) for key in keys)
    normals = arrays.get(f"case/{k}/{name}/normals")
    bodies = (f"case/{k}/{other}/points" for other in run.fields if other != name and _on_surface(run, other))
    body = next((arrays[key] for key in bodies if key in arrays), None)
    return DrawnCase(
        label={2: "2nd ", 3: "3rd "}.get(about.get("place"), "") + str(about.get("label", "")),
        sample=str(about.get("sample", "")),
        relative_l2=(about.get("relative_l2") or {}).get(name),
        points=space.turned(points),
        normals=None if normals is None else space.turned(np.asarray(normals, np.float64)),
        prediction=_magnitude(prediction),
        truth=_magnitude(truth),
        components=truth.shape[1] if truth.ndim == 2 else 1,
        body=None if body is None else space.turned(np.asarray(body, np.float64)),
    )


def _magnitude(values: Array) -> Array:
    """Return the drawn values (N,) of a field (N, C): its only channel, or the norm over channels."""
    values = values.reshape(len(values), -1)
    return values[:, 0] if values.shape[1] == 1 else np.asarray(np.linalg.norm(values, axis=1))


def _on_surface(run: ReportedRun, name: str) -> bool:
    points = str(mapping(mapping(run.meta, "fields"), name).get("points", name))
    kinds = mapping(mapping(run.meta, "space"), "sets")
    kind = mapping(kinds, points.removesuffix("_points")).get("kind", points.partition("_")[0])
    return bool(kind == "surface")


def field_cases(run: ReportedRun, name: str) -> FieldCases:
    """Return a field of the samples that the evaluation kept, ready to draw.

    NothingToDraw: no sample was kept, or its points are not in three dimensions.
    """
    space = _space(run, name)
    cases = [case for k in range(len(run.meta["cases"])) if (case := _case(run, k, name, space)) is not None]
    if not cases:
        raise NothingToDraw("No sample of this field was kept.")
    if any(case.points.ndim != 2 or case.points.shape[1] != 3 for case in cases):
        raise NothingToDraw("Only points in three dimensions can be drawn.")
    on_surface, files = _on_surface(run, name), space.turn @ of_files(mapping(run.meta, "space"))
    if on_surface and not space.flat:
        frame = views.frame_around([views.surface_extent(case.points, space) for case in cases], 0.035)
    else:
        frame = views.frame_around([views.side(case.points) for case in cases], 0.0)
    return FieldCases(
        name=name,
        unit=run.unit(name),
        quantity={1: "", 2: "magnitude", 3: "magnitude"}.get(cases[0].components, "norm of all components"),
        cases=cases,
        values=value_scale([case.truth for case in cases], [case.prediction for case in cases]),
        errors=error_scale([case.error for case in cases]),
        on_surface=on_surface,
        space=space,
        frame=frame,
        axes=(axis_name(files[2]), axis_name(files[1])),
    )
