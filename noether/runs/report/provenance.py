"""How, where and from what the run was made: its plan, environment and configuration."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from markupsafe import Markup

from noether.launch.planning.batches import BatchPlan
from noether.runs.report.elements import absent, fill
from noether.runs.report.run import ReportedRun

RANKS_SHOWN = 16


def plan_section(run: ReportedRun) -> Markup:
    """The batch in one line, the facts of the plan, its ranks, and the reasons and warnings."""
    plan = run.plan
    if not plan:
        return absent(run, "plan.json", "how the run was spread over devices is not known")
    batch = batch_arithmetic(plan.get("batch") or {}, plan.get("world_size"))
    return fill("plan.html", plan=plan, batch=batch, most=RANKS_SHOWN)


def batch_arithmetic(batch: Mapping[str, Any], world_size: Any) -> str:
    """The batch of plan.json in one line, in the words in which `noether plan` gave it."""
    try:
        parts = {part.name: int(batch[part.name]) for part in fields(BatchPlan)}
        return BatchPlan(**parts).describe(int(world_size))
    except (KeyError, TypeError, ValueError):
        return "The batch is not known."


def environment_section(run: ReportedRun) -> Markup:
    """Versions, host and command."""
    if not run.environment:
        return absent(run, "environment.json", "versions and host are not known")
    return fill("environment.html", environment=run.environment, command=lambda words: shlex.join(map(str, words)))


def configuration_section(run: ReportedRun) -> Markup:
    """The resolved configuration, folded away."""
    return fill("configuration.html", config=run.config)
