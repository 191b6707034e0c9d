"""What a data set may say about itself beside its samples: names, fields, units, axes, parts."""

from collections.abc import Mapping
from typing import Any

CAR_SPACE = {"wind": [0.0, 0.0, 1.0], "up": [0.0, 1.0, 0.0], "ground": True}
"""Cars: x across, y up, z along the wind, a ground under the wheels."""
FRONTAL, FRONTAL_WITHOUT_YAW = "frontal area", "frontal area without yaw"
"""Reference areas of a mesh: its shadow along the wind, or along its own length."""


def about_data(dataset: Any) -> Mapping[str, Any]:
    """Returns a data set's `about` (a mapping, or a method that returns one); empty where it has none.

    Known entries, each optional:
        fields: {name: {points, unit, …}} what can be predicted at points, with any key of `task.fields`.
        outputs: {name: {unit}} what can be predicted of a whole case.
        parameters: {name: {unit}} what is given of a whole case.
        scalars: {name: settings} force coefficients that the fields and cases have what is needed for.
        parts: {set: [names]} of the numbers in SET_part.
        space: {"wind": (3,), "up": (3,), "ground": whether there is one under the body}; directions in the axes of the
            samples. What is absent is not drawn and not said. "files": {"rotation": (3, 3) from the axes of the files
            to those of the samples, "metres": of one unit of length, "words"}: how shapes given later are read.
        reference_areas: {name: FRONTAL or FRONTAL_WITHOUT_YAW} those of a case that follow from its shape.
    """
    about = getattr(dataset, "about", None)
    found = about() if callable(about) else about
    return found if isinstance(found, Mapping) else {}


def sample_name(dataset: Any, index: int) -> str:
    """Returns what a data set calls a sample; its number where it has no names."""
    name = getattr(dataset, "name", None)
    return str(name(index)) if callable(name) else str(index)
