"""How far a run has come."""

from dataclasses import asdict, dataclass


@dataclass
class Progress:
    """How far a run has come: whole updates done, and the samples they used (over all ranks).

    rows: of the history so far, those that are written after their checkpoint left out.
    evaluation_pending: the evaluation due at this update was cut short by a stop, and comes first on the way on.
    """

    updates: int = 0
    samples: int = 0
    best_metric: float | None = None
    skipped_in_a_row: int = 0
    rows: int = 0
    evaluation_pending: bool = False

    def as_dict(self) -> dict[str, float | int | None]:
        """Returns the counters for JSON."""
        return asdict(self)
