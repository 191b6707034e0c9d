"""Joint predictions of several runs: mean, spread, and intervals that are calibrated on the validation split."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from noether.checkpoints.run_settings import ChosenModel
from noether.common.console import Console
from noether.common.dotted_path import code_granted
from noether.common.errors import RequestError
from noether.common.numbers import NONE
from noether.core.data.build import Splits, open_splits
from noether.core.data.checks import data_identity
from noether.core.data.loader import Dataset, evaluation_batches, to_device
from noether.core.data.order import SampleKey
from noether.core.data.points import mask_of
from noether.core.problem import check_held_out, held_out
from noether.core.tasks.angles import as_arc
from noether.core.tasks.base import by_channel
from noether.physics.models.points import PointModel
from noether.physics.predict.inference import Parameters, PointSets, TrainedModel
from noether.physics.predict.shape_input import FileAxes, Shape
from noether.physics.uncertainty.ensemble_members import differing, read_calibration, record_path
from noether.runs.records import CALIBRATION_VERSION, write_record

LEVELS = np.arange(1, 100)
"""The nominal levels of intervals, in percent."""
ROUNDING = 1e-9
"""Tolerance for sums of shares: a sum that equals a level reaches the level in spite of rounding errors."""
KEPT = 2048
"""The maximum number of scores that are kept per case, at evenly spaced ranks."""


def kept_scores(scores: np.ndarray) -> np.ndarray:
    """Sort the scores (n,) of a case; if there are more than KEPT, return only the scores at KEPT even ranks."""
    kept = min(KEPT, len(scores))
    return np.asarray(np.sort(scores)[np.ceil((np.arange(kept) + 1) * len(scores) / kept).astype(int) - 1])


def conformal_quantiles(cases: Sequence[np.ndarray]) -> np.ndarray:
    """Return, for each of LEVELS, the score that this share of a new case's points should not exceed, as (99,).

    cases: the scores (n,) of each case, in ascending order. The result is inf for a level that needs more cases.
    """
    count = len(cases)
    values = np.concatenate(cases)
    order = np.argsort(values, kind="stable")
    values = values[order]
    shares = np.concatenate([np.full(len(case), 1 / (count * len(case))) for case in cases])[order]
    reached = np.cumsum(shares)
    needed = LEVELS / 100
    if len(values) == count:
        needed = needed * (count + 1) / count
    elif count > 1:
        below = np.append(0.0, reached)[np.searchsorted(values, values)]
        below_in_own = np.concatenate([np.searchsorted(case, case) / len(case) for case in cases])[order]
        among_others = (count * below - below_in_own) / (count - 1)
        hardest = np.argsort(among_others, kind="stable")
        place = np.searchsorted(np.cumsum(shares[hardest]), LEVELS / 100 - ROUNDING)
        needed = among_others[hardest][np.minimum(place, len(values) - 1)] + 2 * ROUNDING  # Strictly above this share.
    return np.asarray(np.append(values, np.inf)[np.searchsorted(reached, needed - ROUNDING)])


def covered_shares(cases: Sequence[np.ndarray], quantiles: np.ndarray) -> np.ndarray:
    """Return the share of a case's scores at or below each quantile (99,), averaged over the cases: (99,)."""
    below = [np.searchsorted(np.sort(case), quantiles, side="right") / len(case) for case in cases]
    return np.asarray(np.mean(below, axis=0))


def highest_level(cases: int) -> int:
    """Return the highest level, in percent, that this number of cases can calibrate; 0 if they calibrate no level."""
    return 100 * cases // (cases + 1)


COMPONENTS = 96
"""The maximum number of principal components. Components with a small variance best reveal an unusual shape."""
SHAPES_A_COMPONENT = 4
"""The minimum number of training shapes per component; it makes the deviation along a component a good estimate."""


def fit_distance(latents: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the mean (d,) and the axes (k, d) with which `distances` works from latents (n, d) of training shapes.

    The axes are the principal components, each divided by the standard deviation along it.
    """
    mean = latents.mean(axis=0)
    _, singular, axes = np.linalg.svd(latents - mean, full_matrices=False)
    deviation = singular / np.sqrt(max(1, len(latents) - 1))
    varies = int((deviation > 1e-6 * max(deviation[0], np.finfo(np.float32).tiny)).sum())
    kept = max(1, min(varies, COMPONENTS, len(latents) // SHAPES_A_COMPONENT))
    return {"mean": mean, "axes": axes[:kept] / np.maximum(deviation[:kept, None], np.finfo(np.float32).tiny)}


def distances(fitted: Mapping[str, Any], latents: np.ndarray) -> np.ndarray:
    """Return the distance of each of the latents (n, d) from the training shapes, as (n,)."""
    away = (latents - np.asarray(fitted["mean"])) @ np.asarray(fitted["axes"]).T
    return np.asarray(np.linalg.norm(away, axis=1))


SCALED_BY = 64
"""Number of training cases whose mean error becomes the `floor`, a constant that is added to every spread."""

DRAWS = 16
"""Number of draws of points over which a shape's latent is averaged. Without averaging, two draws of 512 points of one
shape differ in their latents as much as shapes inside and outside the ranges of the training shapes."""

Values = dict[str, np.ndarray]
"""The values of one case by label: fields (N, C), coefficients and outputs of the case (1, 1)."""


@dataclass(frozen=True)
class Ensemble:
    """The models of an ensemble, in the order in which the user named their runs, and the record of its calibration."""

    members: tuple[TrainedModel, ...]
    record: Mapping[str, Any]

    def half_width(self, label: str, spread: np.ndarray, level: int) -> np.ndarray:
        """Return the half-width of the interval, in the shape of the spread: (N, C), (N,) for one component, or ().

        RequestError: the validation split has too few cases for this level.
        """
        own, cases = self.record["outputs"][label], self.record["cases"]["validation"]
        quantiles = [column[level - 1] for column in own["quantiles"]]
        if any(value is None for value in quantiles):
            most = highest_level(cases)
            raise RequestError(
                "too-few-to-calibrate",
                f"{cases} validation cases cannot calibrate an interval of {level} %",
                seen=f"{cases} cases, --interval {level}",
                expected=f"at most {most} %, or at least {int(np.ceil(level / (100 - level)))} validation cases",
                fix=f"--interval {most}" if most else "train with dataset.validation_fraction=0.2",
            )
        return np.asarray(np.asarray(quantiles) * (spread + np.asarray(own["floor"]))).reshape(spread.shape)


def mean_and_spread(predictions: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the sample standard deviation over the members; the deviation is 0 for a single member."""
    stacked = np.stack(predictions)
    spread = stacked.std(axis=0, ddof=1) if len(stacked) > 1 else np.zeros(stacked.shape[1:])
    return stacked.mean(axis=0), spread


@torch.no_grad()
def calibrate(
    members: Sequence[TrainedModel], chosen: Sequence[ChosenModel], data: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Calibrate intervals and distances on the validation split, measure coverage on the test split; return the record.

    members, chosen: the models, and the checkpoints from which they were loaded.
    data: the folder of the data, as `prepare_data` returned it.
    say: a function that prints a line about the computation.
    RequestError: there is no validation split, or the runs were trained on other data.
    """
    splits = _splits_of(chosen[0], data)
    train, validation = held_out(chosen[0].config, splits)
    check_held_out(validation, "leave --interval out")
    test = list(range(len(splits.test)))
    say(f"calibrating once, on {len(validation)} validation cases, and measuring coverage on {len(test)} test cases")
    floors: dict[str, list[np.ndarray]] = {}
    for case in _cases(members, splits.train, train[:SCALED_BY]):
        for label, (mean, _, truth) in case.items():
            floors.setdefault(label, []).append(np.abs(mean - truth).mean(axis=0))
    floor = {label: np.maximum(np.mean(own, axis=0), np.finfo(np.float32).tiny) for label, own in floors.items()}
    held = scores_of(members, splits.train, validation, floor)
    unseen = scores_of(members, splits.test, test, floor)
    outputs = {}
    for label, cases in held.items():
        quantiles = [conformal_quantiles([case[k] for case in cases]) for k in range(len(cases[0]))]
        shares = [covered_shares([case[k] for case in unseen[label]], own) for k, own in enumerate(quantiles)]
        columns = [[float(value) if np.isfinite(value) else None for value in own] for own in quantiles]
        covered = np.mean(shares, axis=0).tolist()
        outputs[label] = {"floor": floor[label].tolist(), "quantiles": columns, "covered": covered}
    return {
        "version": CALIBRATION_VERSION,
        "members": [str(one.folder.path) for one in chosen],
        "levels": LEVELS.tolist(),
        "cases": {"validation": len(validation), "test": len(test)},
        "outputs": outputs,
        "distance": _fit_distances(members, splits.train, train, validation),
    }


def _splits_of(chosen: ChosenModel, data: Path | None) -> Splits:
    with code_granted(chosen.code):
        splits = open_splits(chosen.config, data)
    if (trained_on := chosen.checkpoint.meta()["data"]) not in (None, now := data_identity(splits)):
        raise RequestError("data-not-of-the-runs", "the data is not the data that the runs were trained on",
                           seen=differing(trained_on, now),
                           expected="the data on which the runs were trained, with the same validation cases",
                           fix="restore this data in the data set's folder, or leave --interval out")  # fmt: skip
    return splits


@torch.no_grad()
def scores_of(
    members: Sequence[TrainedModel], dataset: Dataset, indices: Sequence[int], floor: Values
) -> dict[str, list[list[np.ndarray]]]:
    """Return the points' scores |y − mean| / (spread + floor) as a list of cases and components for each label."""
    found: dict[str, list[list[np.ndarray]]] = {}
    for case in _cases(members, dataset, indices):
        for label, (mean, spread, truth) in case.items():
            scores = np.abs(mean - truth) / (spread + floor[label])
            found.setdefault(label, []).append([kept_scores(column) for column in scores.T])
    return found


def _cases(
    members: Sequence[TrainedModel], dataset: Dataset, indices: Sequence[int]
) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Yield, for each case, {label: (mean, spread, truth)}."""
    for of_case in zip(*(_predictions(member, dataset, indices) for member in members), strict=True):
        yield {label: (*mean_and_spread([values[label] for values, _ in of_case]), truth)
               for label, truth in of_case[0][1].items()}  # fmt: skip


def _predictions(member: TrainedModel, dataset: Dataset, indices: Sequence[int]) -> Iterator[tuple[Values, Values]]:
    """Yield, for each case, a member's predictions and the true values."""
    task, chunk = member.task, member.config.trainer.evaluation_chunk_size
    for given in evaluation_batches(dataset, [[index] for index in indices], member.draw(dataset)):
        batch = to_device(given, member.device, member.precision.weights)
        physical = task.to_physical(member.predict(batch, chunk))
        pairs = {name: (physical[name][0], by_channel(batch[name], batched=True)[0]) for name in task.fields}
        for name, (own, true) in pairs.items():
            if (real := mask_of(batch, task.fields[name].points)) is not None:
                pairs[name] = own[real[0]], true[real[0]]
        for label, both in task.case_values(physical, batch).items():
            pairs[label] = both["prediction"].reshape(1, 1), both["truth"].reshape(1, 1)
        found, truth = ({name: pair[part].double().cpu().numpy() for name, pair in pairs.items()} for part in range(2))
        yield found, truth


def _fit_distances(
    members: Sequence[TrainedModel], dataset: Dataset, train: Sequence[int], validation: Sequence[int]
) -> dict[str, Any] | None:
    """Return each member's mean and axes, and mean distances of validation shapes; None if a model has no latent."""
    if not all(isinstance(member.model, PointModel) for member in members):
        return None
    fitted = [fit_distance(_latents(member, dataset, train)) for member in members]
    held = [distances(own, _latents(member, dataset, validation)) for own, member in zip(fitted, members, strict=True)]
    found = [{key: value.tolist() for key, value in own.items()} for own in fitted]
    return {"members": found, "validation": np.mean(held, axis=0).tolist()}


def _latents(member: TrainedModel, dataset: Dataset, indices: Sequence[int]) -> np.ndarray:
    draw, found = member.draw(dataset), []
    for index in indices:
        sample = dataset[index]
        found.append(latent(member, (draw.for_training(sample, SampleKey(index, epoch)) for epoch in range(DRAWS))))
    return np.stack(found)


def latent(member: TrainedModel, draws: Iterable[Mapping[str, Tensor]]) -> np.ndarray:
    """Return a vector (d,) of the pooled latent and the standardised parameters of a case, averaged over draws."""
    found = []
    for drawn in draws:
        batch = to_device({key: value[None] for key, value in drawn.items()}, member.device, member.precision.weights)
        prepared = member.task.prepare(batch)
        with torch.no_grad(), member.precision.autocast():
            pooled = member.model.encode(prepared).pooled  # type: ignore[operator]
        parts = [pooled[0], *(prepared[name][0] for name in member.task.parameters)]
        found.append(np.concatenate([part.double().cpu().numpy().ravel() for part in parts]))
    return np.asarray(np.mean(found, axis=0))


def shape_distance(ensemble: Ensemble, shape: Shape, others: PointSets, parameters: Parameters) -> float | None:
    """Return the members' mean distance of a shape from the training shapes; None if a model has no latent."""
    if (known := ensemble.record["distance"]) is None:
        return None
    found = [
        distances(fitted, latent(member, member.shape_draws(shape, others, parameters, DRAWS))[None])[0]
        for fitted, member in zip(known["members"], ensemble.members, strict=True)
    ]
    return float(np.mean(found))


@dataclass(frozen=True)
class Prediction:
    """The members' joint prediction for a shape, in the model's axes.

    fields: mean of each field (N,) or (N, C) and of each output of the case. scalars: mean of each coefficient and of
    each output of the case, by label. spreads: standard deviation over the members, by field and by label.
    nearer: share of the validation shapes that are nearer to the training shapes than this shape; None if unknown.
    """

    fields: dict[str, np.ndarray]
    scalars: dict[str, float]
    spreads: dict[str, np.ndarray]
    half_widths: dict[str, np.ndarray] = field(default_factory=dict)
    nearer: float | None = None

    def arrays(self, name: str, mean: np.ndarray, files: FileAxes) -> dict[str, np.ndarray]:
        """Return the arrays FIELD_spread, FIELD_low and FIELD_high of a field, in the axes of the user's files.

        `mean` is the predicted field in the axes of the user's files. Return {} for a field without an interval.
        """
        if name not in self.half_widths:
            return {}
        # The files' axes are the model's axes in another order and direction. Widths change only their order.
        beside = replace(files, rotation=np.abs(files.rotation)).back
        half, spread = (
            as_arc(beside({"": own[name]})[""], files.periods.get(name)) for own in (self.half_widths, self.spreads)
        )
        return {f"{name}_spread": spread, f"{name}_low": mean - half, f"{name}_high": mean + half}


def predict_together(
    members: Sequence[TrainedModel],
    shape: Shape,
    others: PointSets,
    parameters: Parameters,
    chunk_size: int,
    *,
    calibration: tuple[Ensemble, int] | None,
) -> Prediction:
    """Predict the fields of a shape with each member, and return mean, spread and intervals over the members.

    shape, others, parameters, chunk_size: as for `TrainedModel.shape_batch` and `TrainedModel.predict_shape`.
    calibration: the ensemble with its record, and the level of the interval in percent; None: no interval.
    RequestError: one of the two methods raises it, or the validation split has too few cases for the level.
    """
    every = [member.predict_shape(member.shape_batch(shape, others, parameters), chunk_size) for member in members]
    labels = [member.scalar_values(shape, own, parameters) for member, own in zip(members, every, strict=True)]
    fields = {name: mean_and_spread([own[name] for own in every]) for name in every[0]}
    scalars = {label: mean_and_spread([np.array(own[label]) for own in labels]) for label in labels[0]}
    found = Prediction(
        {name: mean for name, (mean, _) in fields.items()},
        {label: float(mean) for label, (mean, _) in scalars.items()},
        {name: spread for name, (_, spread) in {**fields, **scalars}.items()},
    )
    if calibration is None:
        return found
    ensemble, level = calibration
    for label in (*members[0].task.fields, *scalars):
        if label in found.spreads and label in ensemble.record["outputs"]:
            found.half_widths[label] = ensemble.half_width(label, found.spreads[label], level)
    if (distance := shape_distance(ensemble, shape, others, parameters)) is None:
        return found
    return replace(found, nearer=float(np.mean(np.asarray(ensemble.record["distance"]["validation"]) < distance)))


def calibrated(
    members: Sequence[TrainedModel], chosen: Sequence[ChosenModel], data: Path | None, console: Console
) -> Ensemble:
    """Return the ensemble with its stored calibration; if none is stored, calibrate it and store the new record."""
    record = read_calibration(chosen)
    if record is None:
        record = calibrate(members, chosen, data, console.say)
        path = record_path(chosen)
        try:
            path.parent.mkdir(exist_ok=True)
            write_record(path, record)
            console.say(f"calibrated; the report shows the curve: noether report {chosen[0].folder.path}")
        except OSError as error:  # For example, the run is another user's. The next prediction calibrates again.
            Console(None, speaks=True, stream=sys.stderr).warn(f"the calibration could not be saved: {error}")
    return Ensemble(tuple(members), record)


def interval_table(trained: TrainedModel, found: Prediction, ensemble: Ensemble, level: int) -> Table:
    """Return a table with a row for each coefficient and field: value, spread, interval, coverage on the test split."""
    covers = f"covers, {ensemble.record['cases']['test']} test cases"
    table = Table("", "prediction", "spread", f"{level} % interval", covers, box=None, padding=(0, 2, 0, 0))
    for label in dict.fromkeys((*found.half_widths, *found.scalars)):
        words, mean = partial(trained.output_text, label), found.scalars.get(label)
        period = trained.task.fields[label].period if mean is None else None
        interval, share = NONE, NONE  # Shown if the data set has no truth for this label.
        if label in found.half_widths:
            half = float(np.mean(as_arc(found.half_widths[label], period)))
            interval = f"± {words(half)}" if mean is None else f"{words(mean - half)} to {words(mean + half)}"
            share = f"{ensemble.record['outputs'][label]['covered'][LEVELS.tolist().index(level)]:.1%}"
        spread = words(float(np.mean(as_arc(found.spreads[label], period))))
        value = "mean over points" if mean is None else words(mean)
        table.add_row(label.replace("_", " "), value, spread, interval, share)
    return table


def likeness_words(found: Prediction, ensemble: Ensemble) -> str:
    """Return a warning if all validation shapes are nearer to the training shapes than this shape is; else ""."""
    if found.nearer is None or found.nearer < 1:
        return ""
    count = ensemble.record["cases"]["validation"]
    return (
        f"the shape is unlike all training shapes: all {count} validation shapes are nearer to the training shapes; "
        "intervals are not reliable here"
    )
