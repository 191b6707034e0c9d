"""What the launching process asks of the worker that evaluates a run. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from noether.config.schema import RunConfig


@dataclass(frozen=True)
class EvaluateRequest:
    """What is evaluated."""

    config: RunConfig
    folder: Path
    data: Path | None
    checkpoint: Path
    weights: str
    split: str
    as_json: bool
    vtk: bool = False


@dataclass(frozen=True)
class PredictRequest:
    """What is predicted: the fields of a run's model on a user's shape."""

    config: RunConfig
    checkpoint: Path
    weights: str
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

    config: RunConfig
    checkpoint: Path
    weights: str
    out: Path
    program: bool
