"""Pictures of single samples: prediction, truth and error beside each other."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.spatial import QhullError

from noether.report.colours import Scale, error_scale, value_scale
from noether.report.elements import absent, fill
from noether.report.field_picture import field_picture
from noether.report.grid import frame_around
from noether.report.numbers import Array, finite, number, percent
from noether.report.phrases import heading, in_words
from noether.report.run import ReportedRun
from noether.report.views import Space, View, section_view, side, space_of, surface_extent, surface_view


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
    is_vector: bool
    body: Array | None


@dataclass(frozen=True)
class FieldCases:
    """One field of the samples that an evaluation kept, with what all its pictures share.

    quantity: what is drawn of a vector; "" of a scalar. values, errors: the colour scales. note: how it is seen.
    """

    name: str
    unit: str
    quantity: str
    cases: Sequence[DrawnCase]
    values: Scale
    errors: Scale
    note: str
    view: Callable[[DrawnCase], View]

    def columns(self, case: DrawnCase) -> tuple[tuple[str, Array, Scale], ...]:
        """Returns the title, the values (N,) and the scale of each picture of a case."""
        return (
            ("Prediction", case.prediction, self.values),
            ("Truth", case.truth, self.values),
            ("Error", case.prediction - case.truth, self.errors),
        )


def cases_section(run: ReportedRun) -> Markup:
    """Pictures of each field of the samples that the evaluation kept, on scales they share."""
    if not run.meta.get("cases"):
        split = run.result.get("split", "test")
        return absent(run, f"{split}.npz", "no fields of single samples were kept")
    fields = [_field_shown(run, name) for name in run.fields]
    return fill("cases.html", first=in_words(run.fields[0]) if run.fields else "first field", fields=fields)


def _case(run: ReportedRun, k: int, name: str) -> DrawnCase | None:
    about, arrays, space = run.meta["cases"][k], run.arrays, space_of(run.meta.get("space"))
    prefix = f"case/{k}/{name}"
    if not all(f"{prefix}/{part}" in arrays for part in ("points", "truth", "prediction")):
        return None
    points, truth, prediction = (
        np.asarray(arrays[f"{prefix}/{part}"], np.float64) for part in ("points", "truth", "prediction")
    )
    normals = arrays.get(f"{prefix}/normals")
    bodies = (f"case/{k}/{other}/points" for other in run.fields if other != name and _on_surface(run, other))
    body = next((arrays[key] for key in bodies if key in arrays), None)
    return DrawnCase(
        label=str(about.get("label", "")),
        sample=str(about.get("sample", "")),
        relative_l2=(about.get("relative_l2") or {}).get(name),
        points=space.turned(points),
        normals=None if normals is None else space.turned(np.asarray(normals, np.float64)),
        prediction=_magnitude(prediction),
        truth=_magnitude(truth),
        is_vector=truth.ndim == 2 and truth.shape[1] > 1,
        body=None if body is None else space.turned(np.asarray(body, np.float64)),
    )


def _magnitude(values: Array) -> Array:
    """What a picture shows of a field (N, C): its only channel, or the vectors' lengths."""
    values = values.reshape(len(values), -1)
    return values[:, 0] if values.shape[1] == 1 else np.asarray(np.linalg.norm(values, axis=1))


def _on_surface(run: ReportedRun, name: str) -> bool:
    about = (run.meta.get("fields") or {}).get(name) or {}
    return str(about.get("points", name)).startswith("surface")


def field_cases(run: ReportedRun, name: str) -> FieldCases:
    """Returns a field of the samples that the evaluation kept, ready to be drawn.

    Raises:
        NothingToDraw: no sample was kept, or its points are not in three dimensions.
    """
    cases = [case for k in range(len(run.meta["cases"])) if (case := _case(run, k, name)) is not None]
    if not cases:
        raise NothingToDraw("No sample of this field was kept.")
    if any(case.points.ndim != 2 or case.points.shape[1] != 3 for case in cases):
        raise NothingToDraw("Pictures are drawn of points in three dimensions only.")
    surface, space = _on_surface(run, name), space_of(run.meta.get("space"))
    if surface:
        frame = frame_around([surface_extent(case.points, space) for case in cases], 0.035)
    else:
        frame = frame_around([side(case.points) for case in cases], 0.0)

    def view(case: DrawnCase) -> View:
        if surface:
            return surface_view(case.points, case.normals, frame, space)
        return section_view(case.points, case.body, frame, space)

    return FieldCases(
        name=name,
        unit=run.unit(name),
        quantity=("speed" if "velocity" in name else "magnitude") if any(case.is_vector for case in cases) else "",
        cases=cases,
        values=value_scale([case.truth for case in cases], [case.prediction for case in cases]),
        errors=error_scale([case.prediction - case.truth for case in cases]),
        note=_how_it_is_seen(cases, surface, space),
        view=view,
    )


def _field_shown(run: ReportedRun, name: str) -> dict[str, Any]:
    """What the template shows of one field."""
    about = {"name": in_words(name), "heading": heading(name), "unit": run.unit(name), "refusal": ""}
    try:
        field = field_cases(run, name)
    except NothingToDraw as reason:
        return {**about, "refusal": str(reason)}
    suffix = f", {field.unit}" if field.unit else ""
    error_name = f"error in {field.quantity}" if field.quantity else "error"
    return {
        **about,
        "unit": ", ".join(filter(None, (field.quantity, field.unit))),
        "note": f"{field.note} Prediction and truth have one colour scale for all rows, errors (prediction − truth) "
        "another; values beyond a scale’s ends take its end colours.",
        "bars": [
            {"label": label + suffix, "gradient": scale.gradient(), "ticks": scale.tick_labels()}
            for scale, label in ((field.values, field.quantity or in_words(name)), (field.errors, error_name))
        ],
        "cases": [_case_shown(field, case) for case in field.cases],
    }


def _how_it_is_seen(cases: Sequence[DrawnCase], surface: bool, space: Space) -> str:
    if surface:
        arrow = "the arrow is the wind, and " if space.wind else ""
        return f"Seen from ahead, to the side and above; {arrow}white lines join equal values."
    wind = ", the wind from the left" if space.wind else ""
    note = f"The vertical mid-plane{wind}, interpolated between the points on either side of it."
    return note + (" Grey: the shape’s outline." if any(case.body is not None for case in cases) else "")


def _case_shown(field: FieldCases, case: DrawnCase) -> dict[str, Any]:
    """What the template shows of one sample."""
    error = case.prediction - case.truth
    largest = np.max(np.abs(error)) if error.size and np.isfinite(error).all() else None
    about = {
        "heading": heading(case.label),
        "sample": case.sample,
        "relative_l2": percent(finite(case.relative_l2, None)),
        "largest": f"{number(largest)} {field.unit}",
        "reason": "",
    }
    try:
        view = field.view(case)
    except (QhullError, ValueError) as problem:
        # Qhull's text is a page of its own terms.
        reason = "too few points, or all in a plane" if isinstance(problem, QhullError) else str(problem)
        return {**about, "reason": reason, "section": False, "pictures": []}
    pictures = [
        (title, b64encode(field_picture(view, column, scale)).decode()) for title, column, scale in field.columns(case)
    ]
    return {**about, "section": view.clip is None, "pictures": pictures}
