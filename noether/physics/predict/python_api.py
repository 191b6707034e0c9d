"""Python access to a run: `noether.load_run("runs/cars")` returns an object with predict, metrics and history."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from noether.checkpoints.run_settings import WantedModel, choose_model
from noether.common.console import Console
from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.core.data.build import prepare_data
from noether.physics.predict.inference import TrainedModel, load_model, load_trained
from noether.physics.predict.predict import open_shape
from noether.physics.predict.sensitivity import sensitivity
from noether.physics.predict.shape_input import Axes
from noether.physics.predict.shape_request import interval_level
from noether.physics.uncertainty.ensemble import Ensemble, calibrated, predict_together
from noether.physics.uncertainty.ensemble_members import check_members, named_runs, read_calibration
from noether.runs.overview import run_state
from noether.runs.records import read_metrics, read_record


class LoadedRun:
    """An existing run, as `noether.train`, `noether.load_run` and `SubmittedJob.result` return it.

    Args:
        run, more: the folder of the run, and folders of further runs; predictions are then the mean over all runs.
        checkpoint: best, latest or the name of a checkpoint; None: best.
        weights: ema or raw; None: the EMA weights if the run has them.
        trust: whether to import the code that another user's run names by dotted path; read its config.yaml first.

    RequestError: the run, checkpoint or kind of weights does not exist, or the run names code and is not trusted.
    """

    def __init__(
        self,
        run: str | Path,
        *more: str | Path,
        checkpoint: str | None = None,
        weights: str | None = None,
        trust: bool = False,
    ) -> None:
        words = named_runs([str(run), *map(str, more)])
        self._members = [choose_model(WantedModel(word, checkpoint, weights, trust)) for word in words]
        check_members(self._members)
        self._folder = self._members[0].folder
        self.path: Path = self._folder.path
        self.config: RunConfig = self._members[0].config

    def __repr__(self) -> str:
        state = run_state(self._folder, {})
        more = f" and {len(self._members) - 1} more" if self._members[1:] else ""
        said = [f"update {state.update}/{state.total_updates}", *state.headlines] if state.total_updates else []
        return f"<run {self.path}{more}: {', '.join([state.state, *said])}>"

    @cached_property
    def model(self) -> nn.Module:
        """The run's model with its weights, on the CPU, for any task. It takes a batch that the task has prepared."""
        return load_model(self._members[0], torch.device("cpu"))[1]

    @cached_property
    def trained(self) -> TrainedModel:
        """The model and the task that scales its inputs and outputs, on the CPU. The first use loads them."""
        return self._ensemble[0]

    @cached_property
    def _ensemble(self) -> list[TrainedModel]:
        return [load_trained(one, torch.device("cpu")) for one in self._members]

    @cached_property
    def calibrated(self) -> Ensemble:
        """The runs as an ensemble with a calibration. The first use calibrates on the validation split if necessary."""
        data = prepare_data(self.config) if read_calibration(self._members) is None else None
        return calibrated(self._ensemble, self._members, data, Console(None, speaks=False))

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the test split, from result.json. RequestError: the run has not been evaluated."""
        result = read_record(self._folder.result)
        if "metrics" not in result:
            raise RequestError("run-not-evaluated", f"{self._folder.path} has not been evaluated",
                               seen=f"no metrics in {self._folder.result}", expected="the metrics of an evaluation",
                               fix=f"noether evaluate {self._folder.path}")  # fmt: skip
        return dict(result["metrics"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, from training and evaluations, in the order in which they were written."""
        return list(read_metrics(self._folder.metrics))

    def history_frame(self) -> Any:
        """Return the history as a pandas.DataFrame with a column per value. RequestError: pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise RequestError("no-pandas", "a table of the history needs pandas", seen="pandas is not installed",
                               expected="pandas; or use run.history, a list of dictionaries",
                               fix="pip install pandas") from None  # fmt: skip
        return pandas.json_normalize(self.history)

    @property
    def parameters(self) -> dict[str, tuple[Any, Any]]:
        """The lowest and the highest value in the training split of each parameter that `predict` needs, by name."""
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
        interval: int | Literal["none"] | None = None,
        **parameters: float | list[float],
    ) -> dict[str, Any]:
        """Predict every field on a shape.

        Args:
            shape: a mesh file; an array of points (N, 3) in m; or a pair of points and faces (F, 3) or (F, 4).
            volume: points (M, 3) in m, off the surface, at which the fields of the volume are predicted.
            points: further sets of points by name, such as {"wake_points": (M, 3)}.
            scale: metres per unit of a mesh file, such as 0.001 for mm; None: as in the training files.
            axes: the axes of given positions and returned vectors: "files" for the axes of the training files, or
                "model" for the model's own axes.
            chunk_size: number of points predicted at once; it does not change the result.
            interval: share of a new case, in percent, that the intervals should cover, or "none". None means 90 for
                several runs and "none" for one run. The first call calibrates intervals on the validation split.
            parameters: parameters of the case, such as wind_speed=32.

        Returns:
            Each field (N,) or (N, C) in its unit; each output of the case; `points` (N, 3), the points of the shape;
            `scalars`, coefficients and outputs by label; `units`, the unit of each value that has a unit; `outside`,
            warnings about parameters out of range, differences from the training shapes, and missing coefficients.
            Intervals add FIELD_spread, FIELD_low and FIELD_high of each field at points; `intervals`, low and high of
            each scalar; `nearer`, the share of validation shapes nearer to the training shapes than this shape.
        """
        others = {**({} if volume is None else {"volume_points": volume}), **(points or {})}
        opened = open_shape(self.trained, shape, others, axes=axes, scale=scale)
        level = interval_level(None if interval is None else str(interval), len(self._members))
        calibration = None if level is None else (self.calibrated, level)
        found = predict_together(
            self._ensemble, opened.shape, opened.others, parameters, chunk_size, calibration=calibration
        )
        answer: dict[str, Any] = {**opened.files.back(found.fields), "points": opened.given.points}
        answer["scalars"] = {name: float(value) for name, value in found.scalars.items()}
        answer["units"] = {name: unit for name, unit in self.trained.units.items() if unit}
        lacks = self.trained.lacking_words(opened.shape, found.fields, parameters)
        answer["outside"] = [*self.trained.outside_training(parameters), *opened.warnings, *lacks]
        if calibration is not None:
            for name in (name for name in self.trained.task.fields if name in found.fields):
                answer |= found.arrays(name, answer[name], opened.files)
            reach = {name: (found.scalars[name], float(half)) for name, half in found.half_widths.items()
                     if name in found.scalars}  # fmt: skip
            answer["intervals"] = {name: (mean - half, mean + half) for name, (mean, half) in reach.items()}
            answer["nearer"] = found.nearer
        return answer

    def sensitivity(
        self,
        shape: "str | Path | np.ndarray | tuple[np.ndarray, np.ndarray]",
        of: str,
        *,
        scale: float | None = None,
        axes: Axes = "files",
        chunk_size: int = 16384,
        **parameters: float | list[float],
    ) -> dict[str, Any]:
        """Differentiate an output of the model with respect to every point of a shape and every parameter.

        Args:
            shape, scale, axes, chunk_size, parameters: as for `predict`.
            of: a coefficient, an output of the case, "mean FIELD" or "max FIELD".

        Returns:
            `value` and `unit` of the output; `points` (N, 3) in m; `gradient` (N, 3) per m, in the axes of the shape;
            `outwards` (N,), the gain if 1 m² of surface moves outwards by 1 m, or None without faces; `parameters`,
            the gradient (C,) with respect to each parameter, by name.
        """
        opened = open_shape(self.trained, shape, {}, axes=axes, scale=scale)
        found = sensitivity(self.trained, opened.shape, of, parameters, chunk_size)
        return {
            "value": found.value,
            "unit": found.unit,
            "points": opened.given.points,
            "gradient": opened.files.back({"": found.points})[""],
            "outwards": found.outwards,
            "parameters": found.parameters,
        }
