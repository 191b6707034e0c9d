"""Builds the task that `task.kind` names, with its options."""

from typing import Any

from noether.core.components import Component
from noether.core.tasks.base import Task
from noether.registry import code_of

REGISTRY = code_of("task")
"""The tasks that come with noether, by the short name that `task.kind` takes."""


def build_task(kind: str, **options: Any) -> Task:
    """Make the task that `task.kind` names: one of ours, or the user's own by dotted path.

    Raises:
        RequestError: no such task, not a task, or options that do not fit it.
    """
    task: Task = Component("task", kind, options, REGISTRY, base=Task).build()
    return task
