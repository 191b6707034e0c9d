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
        run, more: the run's folder; if more folders are given, predictions are the mean over all runs.
        checkpoint: best, latest or a checkpoint's name; None: best.
        weights: ema or raw; None: the EMA weights if the run has them.
        trust: import the code that another user's run names by dotted path; read its config.yaml first.

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
        """The model of any task, with its weights, on the CPU; it takes a batch that the task has prepared."""
        return load_model(self._members[0], torch.device("cpu"))[1]

    @cached_property
    def trained(self) -> TrainedModel:
        """The model with the task that scales its inputs and outputs, on the CPU; loaded on first use."""
        return self._ensemble[0]

    @cached_property
    def _ensemble(self) -> list[TrainedModel]:
        return [load_trained(one, torch.device("cpu")) for one in self._members]

    @cached_property
    def calibrated(self) -> Ensemble:
        """The runs with their calibration on the validation split, which the first use computes and stores."""
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
        """The rows of metrics.jsonl, of training and evaluations, in the order in which they were written."""
        return list(read_metrics(self._folder.metrics))

    def history_frame(self) -> Any:
        """Return the history as a pandas.DataFrame, one column per value. RequestError: pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise RequestError("no-pandas", "a table of the history needs pandas", seen="pandas is not installed",
                               expected="pandas, or run.history, a list of dictionaries",
                               fix="pip install pandas") from None  # fmt: skip
        return pandas.json_normalize(self.history)

    @property
    def parameters(self) -> dict[str, tuple[Any, Any]]:
        """The parameters that `predict` needs, with their lowest and highest values in the training split."""
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
            shape: a mesh file; points (N, 3) in m; or points and faces, (N, 3) and (F, 3) or (F, 4).
            volume: points (M, 3) in m, off the surface, at which fields are predicted too.
            points: further sets of points by name, such as {"wake_points": (M, 3)}.
            scale: metres per unit of a mesh file: 0.001 for mm; None: as in the training files.
            axes: the axes of given positions and returned vectors, either "files" (those of the training files) or
                "model" (the model's own).
            chunk_size: number of points predicted at once; it does not change the result.
            interval: share of a new case, in percent, that the intervals should cover, or "none"; None: 90 for several
                runs, no intervals for one. The first call calibrates them on the validation split.
            parameters: parameters of the case, such as wind_speed=32.

        Returns:
            Each field (N,) or (N, C) in its unit; each output of the case; `points` (N, 3), the points of the shape;
            `scalars`, the derived numbers; `units`, the unit of each value that has one; and `outside`, warnings about
            parameters out of range, differences from the training shapes, and coefficients that lack a value. With an
            interval also FIELD_spread, FIELD_low and FIELD_high of each field at points; `intervals`, low and high of
            each scalar; and `nearer`, the share of validation shapes that are nearer to the training shapes.
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
        """Return the gradient of an output with respect to every point of a shape and every parameter.

        Args:
            shape, scale, axes, chunk_size, parameters: as for `predict`.
            of: a coefficient, an output of the case, "mean FIELD" or "max FIELD".

        Returns:
            `value` and `unit` of the output; `points` (N, 3) in m; `gradient` (N, 3) per m, in the axes of the shape;
            `outwards` (N,), the gain if 1 m² of surface moves outwards by 1 m, None without faces; and `parameters`,
            the gradient (C,) with respect to each parameter.
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
