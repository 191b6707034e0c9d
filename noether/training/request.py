"""What the launcher hands to every worker. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.config.schema import RunConfig


@dataclass(frozen=True)
class TrainRequest:
    """What the launcher hands to every worker."""

    config: RunConfig
    folder: Path
    data: Path | None
    checkpoint: Path | None
    plan: dict[str, Any]
    quiet: bool = False
