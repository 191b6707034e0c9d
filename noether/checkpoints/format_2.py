"""What checkpoints of format 2 do not say, so that what they hold is read on. No torch here.

Their weights may lack the eps of norms and the scaling of Transolver's inputs, which `models.layers.norms` adds. Their
selection metric is negated where higher is better, so that lower always is.
"""

from typing import Any

from noether.runs.records import is_count

FORMAT = 2
NO_NUMBERS: dict[str, Any] = {"numbers": {}, "groups": []}
"""Of the optimiser, in state.json."""


def as_now(meta: dict[str, Any]) -> dict[str, Any]:
    """Returns a meta.json with what format 2 may lack; one of today as it is."""
    if meta["format"] != FORMAT:
        return meta
    batch, ranks = (meta.get(name, 0) for name in ("effective_batch_size", "world_size"))
    # A rank's share of the batch is the most that a device can have held at once.
    of_a_rank = max(1, batch // ranks) if is_count(batch) and is_count(ranks) and ranks else None
    return {"micro_batch_size": of_a_rank, "data": None, "conditions": {}, "better": "lower", **meta}
