"""Pictures of single samples: prediction, truth and error beside each other."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from scipy.spatial import QhullError

from noether.runs.records import mapping
from noether.runs.report.colours import Scale, error_scale, value_scale
from noether.runs.report.elements import absent, fill
from noether.runs.report.field_picture import field_pictures
from noether.runs.report.grid import Frame, frame_around
from noether.runs.report.numbers import Array
from noether.runs.report.run import ReportedRun
from noether.runs.report.views import (
    Space,
    View,
    half_of,
    section_view,
    side,
    space_by_extent,
    space_of,
    surface_extent,
    surface_view,
)


class NothingToDraw(ValueError):
    """A field whose samples cannot be drawn; the text says why, as a sentence."""


@dataclass(frozen=True)
class DrawnCase:
    """One field of one sample: points (N, 3), what is drawn of prediction and truth (N,), and its labels."""

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
        """Prediction − truth (N,)."""
        return self.prediction - self.truth

    @property
    def largest_error(self) -> float | None:
        """Its largest magnitude; None where some is not finite."""
        return float(np.abs(self.error).max()) if self.error.size and np.isfinite(self.error).all() else None


@dataclass(frozen=True)
class FieldCases:
    """One field of the samples that an evaluation kept, with what all its pictures share.

    quantity: what is drawn of several components; "" of one. values, errors: the colour scales.
    """

    name: str
    unit: str
    quantity: str
    cases: Sequence[DrawnCase]
    values: Scale
    errors: Scale
    on_surface: bool
    space: Space
    frame: Frame

    def view(self, case: DrawnCase) -> View:
        """Returns how a case becomes a picture; raises as `surface_view` and `section_view`."""
        if self.on_surface:
            return surface_view(case.points, case.normals, self.frame, self.space)
        return section_view(case.points, case.body, self.frame, self.space)

    def columns(self, case: DrawnCase) -> tuple[tuple[str, Array, Scale], ...]:
        """Returns the title, the values (N,) and the scale of each picture of a case."""
        return (
            ("Prediction", case.prediction, self.values),
            ("Truth", case.truth, self.values),
            ("Error", case.error, self.errors),
        )


def cases_section(run: ReportedRun) -> Markup:
    """Pictures of each field of the samples that the evaluation kept, on scales they share."""
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
    """Why a case is not drawn, and its pictures, by their titles, in base64."""
    try:
        view = field.view(case)
    except QhullError:  # whose text is a page of its own terms
        return "too few points, or all in a plane", []
    except ValueError as problem:
        return str(problem), []
    titles, *shown = zip(*field.columns(case), strict=True)
    pictures = field_pictures(view, zip(*shown, strict=True))
    return "", [(title, b64encode(picture).decode()) for title, picture in zip(titles, pictures, strict=True)]


def _space(run: ReportedRun, name: str) -> Space:
    space = space_of(mapping(run.meta, "space"))
    keys = (f"case/{k}/{name}/points" for k in range(len(run.meta["cases"])))
    every = [np.asarray(run.arrays[key], np.float64) for key in keys if key in run.arrays]
    shapes = [points for points in every if points.ndim == 2 and points.shape[1] == 3]
    if space.wind:
        halves = {half_of(space.turned(points)) for points in shapes}
        return replace(space, half=halves.pop() if len(halves) == 1 else 0)
    return space if _on_surface(run, name) or not shapes else space_by_extent(shapes)


def _case(run: ReportedRun, k: int, name: str, space: Space) -> DrawnCase | None:
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
    """What a picture shows of a field (N, C): its only channel, or the vectors' lengths."""
    values = values.reshape(len(values), -1)
    return values[:, 0] if values.shape[1] == 1 else np.asarray(np.linalg.norm(values, axis=1))


def _on_surface(run: ReportedRun, name: str) -> bool:
    points = str(mapping(mapping(run.meta, "fields"), name).get("points", name))
    kinds = mapping(mapping(run.meta, "space"), "sets")
    kind = mapping(kinds, points.removesuffix("_points")).get("kind", points.partition("_")[0])
    return bool(kind == "surface")


def field_cases(run: ReportedRun, name: str) -> FieldCases:
    """Returns a field of the samples that the evaluation kept, ready to be drawn.

    Raises:
        NothingToDraw: no sample was kept, or its points are not in three dimensions.
    """
    space = _space(run, name)
    cases = [case for k in range(len(run.meta["cases"])) if (case := _case(run, k, name, space)) is not None]
    if not cases:
        raise NothingToDraw("No sample of this field was kept.")
    if any(case.points.ndim != 2 or case.points.shape[1] != 3 for case in cases):
        raise NothingToDraw("Pictures are drawn of points in three dimensions only.")
    on_surface = _on_surface(run, name)
    if on_surface:
        frame = frame_around([surface_extent(case.points, space) for case in cases], 0.035)
    else:
        frame = frame_around([side(case.points) for case in cases], 0.0)
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
    )
