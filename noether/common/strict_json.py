"""Writes JSON with NaN and infinity as null: JSON has neither."""

import json
import math
from typing import Any


def strict_json(content: Any, indent: int | None = None) -> str:
    """Returns JSON that every reader takes: a float that is not finite becomes null, at any depth."""
    return json.dumps(_finite(content), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
