"""A prediction of several runs on a shape: mean, spread and interval of each field and each coefficient."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table
from torch import Tensor

from noether.checkpoints.chosen_model import ChosenModel
from noether.common.console import Console
from noether.common.numbers import NONE
from noether.core.tasks.angles import as_arc
from noether.physics.predict.shape_input import FileAxes, Shape
from noether.physics.predict.trained import TrainedModel, predict_shape, shape_batch
from noether.physics.predict.values import output_text, scalar_values
from noether.physics.uncertainty.conformal import LEVELS
from noether.physics.uncertainty.ensemble import Ensemble, calibrate, mean_and_spread, shape_distance
from noether.physics.uncertainty.members import read_calibration, record_path
from noether.runs.records import write_record


@dataclass(frozen=True)
class Prediction:
    """What members predict of a shape, in the model's axes.

    fields: mean of each field (N,) or (N, C) and output of the case; scalars: mean of each coefficient and output of
    the case by its label; spreads: standard deviation of fields and of labels over the members.
    nearer: share of the validation split's shapes that are nearer to the training shapes; None where it is not known.
    """

    fields: dict[str, np.ndarray]
    scalars: dict[str, float]
    spreads: dict[str, np.ndarray]
    half_widths: dict[str, np.ndarray]
    nearer: float | None

    def arrays(self, name: str, mean: np.ndarray, files: FileAxes) -> dict[str, np.ndarray]:
        """Returns what a file has of a field beside its prediction, the `mean`, in the axes of the files.

        That is spread, low and high; of a field without an interval nothing.
        """
        if name not in self.half_widths:
            return {}
        # Axes of files are the model's, exchanged and turned round: so is what stands beside a component.
        beside = replace(files, rotation=np.abs(files.rotation)).back
        half, spread = (
            as_arc(beside({"": own[name]})[""], files.periods.get(name)) for own in (self.half_widths, self.spreads)
        )
        return {f"{name}_spread": spread, f"{name}_low": mean - half, f"{name}_high": mean + half}


def predict_together(
    members: Sequence[TrainedModel],
    shape: Shape,
    others: Mapping[str, np.ndarray],
    parameters: Mapping[str, float | list[float]],
    chunk_size: int,
    *,
    calibration: tuple[Ensemble, int] | None = None,
) -> Prediction:
    """Predicts a shape with each member.

    Args:
        members: the models.
        shape, others, parameters, chunk_size: as of `shape_batch` and `predict_shape`.
        calibration: the ensemble with its record, and the level of the interval in percent; None: no interval.

    Raises:
        RequestError: as of these, or too few cases were held out for such a level.
    """
    batches: list[dict[str, Tensor]] = [shape_batch(member, shape, others, parameters) for member in members]
    every = [predict_shape(member, batch, chunk_size) for member, batch in zip(members, batches, strict=True)]
    labels = [scalar_values(member, shape, own, parameters) for member, own in zip(members, every, strict=True)]
    fields = {name: mean_and_spread([own[name] for own in every]) for name in every[0]}
    scalars = {label: mean_and_spread([np.array(own[label]) for own in labels]) for label in labels[0]}
    spreads = {name: own[1] for name, own in {**fields, **scalars}.items()}
    half_widths: dict[str, np.ndarray] = {}
    nearer = None
    if calibration is not None:
        ensemble, level = calibration
        for label in (*members[0].task.fields, *scalars):
            if label in spreads and label in ensemble.record["outputs"]:
                spread = spreads[label]
                columns = spread if spread.ndim == 2 else spread.reshape(-1, 1)
                half_widths[label] = ensemble.half_width(label, columns, level).reshape(spread.shape)
        if (distance := shape_distance(ensemble, shape, others, parameters)) is not None:
            nearer = float(np.mean(np.asarray(ensemble.record["distance"]["validation"]) < distance))
    return Prediction(
        {name: own[0] for name, own in fields.items()},
        {label: float(own[0]) for label, own in scalars.items()},
        spreads,
        half_widths,
        nearer,
    )


def calibrated(
    members: Sequence[TrainedModel], chosen: Sequence[ChosenModel], data: Path | None, console: Console
) -> Ensemble:
    """Returns the ensemble as it was calibrated before, or calibrates it and keeps that with the first run."""
    record = read_calibration(chosen)
    if record is None:
        record = calibrate(members, chosen, data, console.say)
        path = record_path(chosen)
        try:
            path.parent.mkdir(exist_ok=True)
            write_record(path, record)
            console.say(f"calibrated; its curve is in the report: noether report {chosen[0].folder.path}")
        except OSError as error:  # Another user's run: the next prediction calibrates again.
            Console(None, speaks=True, stream=sys.stderr).warn(f"the calibration is not kept: {error}")
    return Ensemble(tuple(members), record)


def interval_table(trained: TrainedModel, found: Prediction, ensemble: Ensemble, level: int) -> Table:
    """Returns a row for each coefficient and field: value, spread, interval, and what it covers of the test split."""
    columns = (
        "",
        "prediction",
        "spread",
        f"{level} % interval",
        f"covers, {ensemble.record['cases']['test']} test cases",
    )
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for label, half in found.half_widths.items():
        covers = f"{ensemble.record['outputs'][label]['covered'][LEVELS.tolist().index(level)]:.1%}"
        if label in found.scalars:
            mean = found.scalars[label]
            value, spread, low, high = (
                output_text(trained.task, label, number)
                for number in (mean, float(found.spreads[label]), mean - float(half), mean + float(half))
            )
            table.add_row(label.replace("_", " "), value, spread, f"{low} to {high}", covers)
        else:
            both = (as_arc(own, trained.task.fields[label].period) for own in (found.spreads[label], half))
            spread, reach = (output_text(trained.task, label, float(np.mean(own))) for own in both)
            table.add_row(label.replace("_", " "), "mean over points", spread, f"± {reach}", covers)
    for label in (label for label in found.scalars if label not in found.half_widths):  # Samples lack what it needs.
        known = (output_text(trained.task, label, float(own[label])) for own in (found.scalars, found.spreads))
        table.add_row(label.replace("_", " "), *known, NONE, NONE)
    return table


def likeness_words(found: Prediction, ensemble: Ensemble) -> str:
    """Says how unlike the training shapes a shape is, where it is further from them than the validation shapes."""
    if found.nearer is None or found.nearer < 1:
        return ""
    count = ensemble.record["cases"]["validation"]
    return (
        f"the shape is unlike anything trained on: all {count} validation shapes are nearer to the training shapes; "
        "an interval promises nothing here"
    )
