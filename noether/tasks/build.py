"""Which class a `task.kind` names."""

from typing import Any

from noether.dotted_path import load_object
from noether.tasks.base import Task

KNOWN_TASKS = {"fields": "noether.tasks.fields.FieldsTask"}


def build_task(kind: str, **options: Any) -> Task:
    """Builds the task: one of ours, or the user's own by dotted path."""
    return load_object(KNOWN_TASKS.get(kind, kind), "task.kind")(**options)
