"""What the launching process asks of the worker that evaluates a run. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from noether.config.schema import RunConfig
from noether.runs.folder import RunFolder


@dataclass(frozen=True)
class ChosenModel:
    """A run's model: a checkpoint, "ema" or "raw" for its weights, and the configuration for one device here."""

    folder: RunFolder
    config: RunConfig
    checkpoint: Path
    weights: str


@dataclass(frozen=True)
class EvaluateRequest:
    """What is evaluated."""

    chosen: ChosenModel
    data: Path | None
    split: str
    as_json: bool
    vtk: bool


@dataclass(frozen=True)
class PredictRequest:
    """What is predicted: the fields of a run's model on a user's shape."""

    chosen: ChosenModel
    mesh: Path
    out: Path
    volume: Path | None
    truth: Path | None
    scale: float | None  # None: the unit of the files that were trained on
    axes: Literal["files", "model"]
    chunk_size: int
    parameters: dict[str, float | list[float]]


@dataclass(frozen=True)
class ExportRequest:
    """What is exported, and where to."""

    chosen: ChosenModel
    out: Path
    program: bool
