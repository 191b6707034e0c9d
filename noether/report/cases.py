"""What do the fields of single samples look like: prediction, truth and error beside each other?"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

import numpy as np
from scipy.spatial import QhullError

from noether.report.colours import Scale, error_scale, value_scale
from noether.report.elements import absent
from noether.report.field_picture import field_picture
from noether.report.grid import Frame, frame_around
from noether.report.numbers import Array, finite, number, percent
from noether.report.phrases import heading, in_words
from noether.report.run import Run
from noether.report.views import Space, View, section_view, side, space_of, surface_extent, surface_view


class NothingToDraw(ValueError):
    """A field whose samples cannot be drawn; the text says why, as a sentence."""


@dataclass(frozen=True)
class Case:
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
    cases: Sequence[Case]
    values: Scale
    errors: Scale
    note: str
    view: Callable[[Case], View]

    def columns(self, case: Case) -> tuple[tuple[str, Array, Scale], ...]:
        """Returns the title, the values (N,) and the scale of each picture of a case."""
        error = case.prediction - case.truth
        return (
            ("Prediction", case.prediction, self.values),
            ("Truth", case.truth, self.values),
            ("Error", error, self.errors),
        )


def cases_section(run: Run) -> str:
    """Pictures of each field of the samples that the evaluation kept, on scales they share."""
    if not run.meta.get("cases"):
        split = run.result.get("split", "test")
        return absent(run, f"{split}.npz", "no fields of single samples were kept")
    parts = []
    for name in run.fields:
        try:
            field = field_cases(run, name)
            text = _field_html(field)
        except NothingToDraw as reason:
            text = f'<h3>{escape(heading(name))}</h3><p class="absent">{escape(str(reason))}</p>'
        parts.append(f'<div class="field">{text}</div>')
    first = in_words(run.fields[0]) if run.fields else "first field"
    lead = f'<p class="lead">Chosen by their relative L2 error in the {escape(first)}.</p>'
    return lead + "\n".join(parts)


def _case(run: Run, k: int, name: str) -> Case | None:
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
    return Case(
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


def _on_surface(run: Run, name: str) -> bool:
    about = (run.meta.get("fields") or {}).get(name) or {}
    return str(about.get("points", name)).startswith("surface")


def field_cases(run: Run, name: str) -> FieldCases:
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
        arrow = "the arrow is the wind, and " if space.wind else ""
        note = f"Seen from ahead, to the side and above; {arrow}white lines join equal values."
    else:
        frame = frame_around([side(case.points) for case in cases], 0.0)
        wind = ", the wind from the left" if space.wind else ""
        note = f"The vertical mid-plane{wind}, interpolated between the points on either side of it."
        if any(case.body is not None for case in cases):
            note += " Grey: the shape’s outline."
    return FieldCases(
        name=name,
        unit=run.unit(name),
        quantity=("speed" if "velocity" in name else "magnitude") if any(case.is_vector for case in cases) else "",
        cases=cases,
        values=value_scale([case.truth for case in cases], [case.prediction for case in cases]),
        errors=error_scale([case.prediction - case.truth for case in cases]),
        note=note,
        view=partial(_view, surface=surface, frame=frame, space=space),
    )


def _field_html(field: FieldCases) -> str:
    title = f"<h3>{escape(heading(field.name))}"
    title += f' <span class="unit">{escape(", ".join(filter(None, (field.quantity, field.unit))))}</span></h3>'
    note = (
        f"{field.note} Prediction and truth have one colour scale for all rows, errors (prediction − truth) another; "
        "values beyond a scale’s ends take its end colours."
    )
    rows = "".join(_case_row(field, case) for case in field.cases)
    suffix = f", {field.unit}" if field.unit else ""
    error_name = f"error in {field.quantity}" if field.quantity else "error"
    return (
        f'{title}<p class="note">{escape(note)}</p>'
        f'<div class="scales"><span></span>'
        f"{_colour_bar(field.values, (field.quantity or in_words(field.name)) + suffix)}"
        f"{_colour_bar(field.errors, error_name + suffix)}</div>"
        '<div class="heads"><span></span><span>Prediction</span><span>Truth</span><span>Error</span></div>'
        f"{rows}"
    )


def _view(case: Case, *, surface: bool, frame: Frame, space: Space) -> View:
    if surface:
        return surface_view(case.points, case.normals, frame, space)
    return section_view(case.points, case.body, frame, space)


def _case_row(field: FieldCases, case: Case) -> str:
    error = case.prediction - case.truth
    largest = np.max(np.abs(error)) if error.size and np.isfinite(error).all() else None
    who = (
        f'<div class="who"><b>{escape(heading(case.label))}</b><span>{escape(case.sample)}</span>'
        f"<span>relative L2 {percent(finite(case.relative_l2, None))}</span>"
        f"<span>at most {number(largest)} {escape(field.unit)}</span></div>"
    )
    try:
        view = field.view(case)
    except (QhullError, ValueError) as problem:
        # Qhull's text is a page of its own terms.
        reason = "too few points, or all in a plane" if isinstance(problem, QhullError) else str(problem)
        return f'<div class="case">{who}<p class="absent">Not drawn: {escape(reason)}.</p></div>'
    figures = []
    for title, column, scale in field.columns(case):
        picture = b64encode(field_picture(view, column, scale)).decode()
        alt = escape(f"{title} of the {in_words(field.name)}, {case.sample}")
        figures.append(
            f'<figure><img src="data:image/webp;base64,{picture}" alt="{alt}"><figcaption>{title}</figcaption></figure>'
        )
    return f'<div class="case{" section" if view.clip is None else ""}">{who}{"".join(figures)}</div>'


def _colour_bar(scale: Scale, label: str) -> str:
    ticks = "".join(f'<span style="left:{100 * at:.2f}%">{text}</span>' for at, text in scale.tick_labels())
    ramp = f"linear-gradient(90deg, {', '.join(scale.gradient())})"
    return (
        f'<div class="scale"><span>{escape(label)}</span><div class="ramp" style="background:{ramp}"></div>'
        f'<div class="ticks">{ticks}</div></div>'
    )
