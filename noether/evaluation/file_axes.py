"""Turns a user's shape from the axes and unit of the training files to the model's, and predicted fields back.

A model has axes of its own where `noether data prepare` turned the files to them. Without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from noether.data.cases.case_map import turned
from noether.evaluation.shape_input import Shape

Axes = Literal["files", "model"]


@dataclass(frozen=True)
class FileAxes:
    """From a user's axes to the model's, and back.

    rotation: (3, 3), turns a vector of the user's axes into the model's.
    metres: of one unit of the user's files, unless they say otherwise.
    words: what the axes are, such as "wind +x, up +z"; "" where they are the model's.
    """

    rotation: np.ndarray
    metres: float = 1.0
    words: str = ""

    @classmethod
    def of(cls, space: Mapping[str, Any], axes: Axes = "files") -> "FileAxes":
        """The axes of the files that the data set has described in its `space`, or the model's own."""
        files = space.get("files") if axes == "files" else None
        if not files:
            return cls(np.eye(3))
        return cls(np.asarray(files["rotation"], np.float64), float(files["metres"]), str(files["words"]))

    def points(self, points: np.ndarray) -> np.ndarray:
        """Positions (N, 3) in the model's axes."""
        return np.asarray(points @ self.rotation.T)

    def shape(self, shape: Shape) -> Shape:
        """The shape in the model's axes, with the vectors and tensors of its file."""
        into = turned(self.rotation)
        values = {name: into(np.asarray(value)) for name, value in shape.values.items()}
        return replace(shape, points=self.points(shape.points), normals=self.points(shape.normals), values=values)

    def back(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Predicted fields (N,) or (N, C) in the user's axes; outputs of the case (3,) are turned as vectors are."""
        out = turned(self.rotation.T)
        return {name: out(value) if value.ndim == 2 else out(value[None])[0] if value.shape == (3,) else value
                for name, value in fields.items()}  # fmt: skip
