"""The shown cases as files for ParaView: prediction, truth and error, one file for each set of points."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from noether.evaluation.cases import ShownCase
from noether.evaluation.vtk_output import write_fields
from noether.tasks.base import Task


def write_case_files(
    folder: Path,
    task: Task,
    shown: Sequence[ShownCase],
    names: Sequence[str],
    faces: Sequence[np.ndarray | None],
) -> list[str]:
    """Writes `LABEL_NAME_SET.vtu` of each case and set of points, and returns the paths.

    Args:
        folder: made if missing.
        task: names the fields and their points.
        shown: label, position, predicted fields (1, N, C) in physical units and batch of one, for each case.
        names: names of all samples, by position.
        faces: the faces of each case's surface points, where they are known.
    """
    written = []
    for (label, position, physical, batch), own_faces in zip(shown, faces, strict=True):
        sets = {field.points: [n for n, f in task.fields.items() if f.points == field.points]
                for field in task.fields.values()}  # fmt: skip
        for points, fields in sets.items():
            arrays: dict[str, np.ndarray] = {}
            for name in fields:
                prediction, truth = (
                    np.squeeze(value[0].float().cpu().numpy()) for value in (physical[name], batch[name])
                )
                arrays |= {f"{name}_prediction": prediction, name: truth, f"{name}_error": prediction - truth}
            path = folder / f"{label.replace('. ', '-')}_{names[position]}_{points.removesuffix('_points')}.vtu"
            on_faces = own_faces if points.startswith("surface") else None
            write_fields(path, batch[points][0].float().cpu().numpy(), on_faces, arrays)
            written.append(str(path))
    return written
