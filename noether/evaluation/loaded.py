"""A run from Python: `noether.load_run("runs/cars")` predicts, and has its metrics and its history."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noether.config.schema import RunConfig
from noether.errors import RequestError
from noether.evaluation.predict import predicted_scalars
from noether.evaluation.shape_input import Axes, FileAxes, Shape, checked_points, read_shape, read_solid
from noether.evaluation.start import WantedModel, choose_model
from noether.evaluation.trained import TrainedModel, load_trained, outside_training, predict_shape, shape_batch
from noether.runs.records import read_metrics
from noether.runs.results import read_result


class LoadedRun:
    """A run that was made before.

    Args:
        run: the run's folder.
        checkpoint: best, latest or a checkpoint's name; None: best.
        weights: ema or raw; None: the averaged weights if the run has them.
        trust: import what the settings of another user's run name by dotted path: read its config.yaml first.

    Raises:
        RequestError: there is no such run, checkpoint or kind of weights, or it names code and is not trusted.
    """

    def __init__(
        self, run: str | Path, *, checkpoint: str | None = None, weights: str | None = None, trust: bool = False
    ) -> None:
        self._chosen = choose_model(WantedModel(str(run), checkpoint, weights, trust))
        self._folder = self._chosen.folder
        self.config: RunConfig = self._chosen.config

    @cached_property
    def trained(self) -> TrainedModel:
        """The model with the task that scales for it, on the CPU; loaded when it is first asked for."""
        return load_trained(self._chosen, torch.device("cpu"))

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the test split, as result.json has them."""
        return dict(self.tested["metrics"])

    @property
    def tested(self) -> dict[str, Any]:
        """What result.json says of the test split: metrics, baselines, pace. RequestError: it was not evaluated."""
        if not self._folder.result.is_file():
            raise RequestError(
                "run-not-evaluated",
                f"{self._folder.path} has not been evaluated",
                seen=f"no {self._folder.result}",
                expected="a run that has ended",
                fix=f"noether evaluate {self._folder.path}",
            )
        return read_result(self._folder.result)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl: training and evaluations, in the order in which they were written."""
        return list(read_metrics(self._folder.metrics))

    @property
    def parameters(self) -> dict[str, tuple[Any, Any]]:
        """The parameters that `predict` needs, with the range of the training split."""
        seen = self.trained.task.seen.parameters
        return {name: (seen[name]["low"], seen[name]["high"]) for name in self.trained.task.parameters if name in seen}

    def predict(
        self,
        shape: "str | Path | np.ndarray | tuple[np.ndarray, np.ndarray]",
        *,
        volume: np.ndarray | None = None,
        points: Mapping[str, np.ndarray] | None = None,
        scale: float | None = None,
        axes: Axes = "files",
        chunk_size: int = 16384,
        **parameters: float | list[float],
    ) -> dict[str, Any]:
        """Predicts every field on a shape.

        Args:
            shape: a mesh file; points (N, 3) in m; or points and faces, (N, 3) and (F, 3) or (F, 4).
            volume: (M, 3) in m, also predicted at.
            points: further sets of points by name, such as {"wake_points": (M, 3)}.
            scale: metres of one unit of a mesh file: 0.001 for one in mm; None: as in the files of training.
            axes: files: positions are in the axes of the files that were trained on, and so are the vectors returned;
                model: in the model's own.
            chunk_size: points predicted at once; it changes nothing.
            parameters: of the case, such as wind_speed=32.

        Returns:
            Each field (N,) or (N, C) in its unit, each output of the case, `points` (N, 3) at which the surface was
            predicted, `scalars` (what is derived, as text with units), and `outside` (parameters out of range).
        """
        files = FileAxes.of(self.trained.task.space, axes)
        own = _as_shape(shape, files.metres if scale is None else scale, self.trained.shape_at)
        asked = {**({} if volume is None else {"volume_points": volume}), **(points or {})}
        turned, others = files.shape(own), {name: files.points(np.asarray(at)) for name, at in asked.items()}
        batch = shape_batch(self.trained, turned, others, parameters)
        fields = predict_shape(self.trained, batch, chunk_size)
        scalars = predicted_scalars(self.trained, turned, fields, parameters)
        outside = outside_training(self.trained, parameters)
        return {**files.back(fields), "points": own.points, "scalars": scalars, "outside": outside}


def _as_shape(shape: Any, scale: float, at: str) -> Shape:
    if isinstance(shape, str | Path):
        path = Path(shape).expanduser()
        return read_shape(path, scale) if at == "faces" else read_solid(path, at, scale)
    if isinstance(shape, tuple):
        return Shape.of_mesh(np.asarray(shape[0], np.float64), np.asarray(shape[1], np.int64))
    return Shape.of_points(checked_points(shape, "the array"))
