"""What the launching process asks of the worker that evaluates a run. No torch here."""

from dataclasses import dataclass
from pathlib import Path

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
