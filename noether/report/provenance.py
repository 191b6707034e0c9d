"""How, where and from what the run was made: its plan, environment and configuration."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from markupsafe import Markup

from noether.planning.batches import BatchPlan
from noether.report.elements import absent, fill
from noether.report.numbers import count_text, short_number
from noether.report.phrases import in_words, listed, plural
from noether.report.run import ReportedRun

RANKS_SHOWN = 16


def plan_section(run: ReportedRun) -> Markup:
    """The batch in one line, the facts of the plan, its ranks, and the reasons and warnings."""
    plan = run.plan
    if not plan:
        return absent(run, "plan.json", "how the run was spread over devices is not known")
    nodes, workers, reasons = plan.get("nodes") or (), plan.get("workers") or [], plan.get("reasons")

    def node(rank: Any) -> str:
        return str(nodes[rank]) if isinstance(rank, int) and 0 <= rank < len(nodes) else "this node"

    return fill(
        "plan.html",
        batch=batch_arithmetic(plan.get("batch") or {}, plan.get("world_size")),
        facts=list(_plan_facts(plan).items()),
        shown=workers[:RANKS_SHOWN],
        more=workers[RANKS_SHOWN:],
        node=node,
        host=node(plan.get("node_rank")) if workers and (plan.get("world_size") or 0) > len(workers) else "",
        reasons=[(in_words(name), reason) for name, reason in reasons.items()] if isinstance(reasons, Mapping) else (),
        warnings=plan.get("warnings") or (),
    )


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, str | None]:
    """Names and values; None where the plan says nothing."""
    nodes, length, data = plan.get("nodes") or (), plan.get("length") or {}, plan.get("data") or {}
    model, endpoint, attempt = plan.get("model") or {}, plan.get("endpoint") or {}, plan.get("attempt")
    ranks = plural(plan.get("world_size"), "rank")
    sizes = [f"{count_text(size)} {split}" for split, size in data.items()]
    port = endpoint.get("port") or "chosen at the start"
    return {
        "launcher": plan.get("launcher"),
        "ranks": f"{ranks} on {plural(len(nodes), 'node')}" if nodes else ranks,
        "meeting at": f"{endpoint.get('host')}, port {port}" if endpoint else None,
        "attempt": f"{attempt} (the run was started again)" if attempt else None,
        "model": f"{model.get('kind')}, {count_text(model.get('parameters'))} parameters" if model else None,
        "data": f"{listed(sizes)} samples" if data else None,
        "length": _length_words(length) if length.get("total_updates") else None,
    }


def batch_arithmetic(batch: Mapping[str, Any], world_size: Any) -> str:
    """The batch of plan.json in one line, in the words in which `noether plan` gave it."""
    try:
        parts = {part.name: int(batch[part.name]) for part in fields(BatchPlan)}
        return BatchPlan(**parts).describe(int(world_size))
    except (KeyError, TypeError, ValueError):
        return "The batch is not known."


def _length_words(length: Mapping[str, Any]) -> str:
    text = f"{count_text(length['total_updates'])} updates"
    if length.get("epochs") and length.get("updates_per_epoch"):
        text += f" = {short_number(length['epochs'])} epochs of {plural(length['updates_per_epoch'], 'update')}"
    return text


def environment_section(run: ReportedRun) -> Markup:
    """Versions, host and command."""
    if not run.environment:
        return absent(run, "environment.json", "versions and host are not known")
    return fill("environment.html", facts=list(_flat(run.environment)))


def _flat(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Names and values of nested content, under their own names, without those of the sections around them."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, (list, tuple)):
            yield in_words(str(key)), shlex.join(map(str, value))
        else:
            yield in_words(str(key)), value


def configuration_section(run: ReportedRun) -> Markup:
    """The resolved configuration, folded away."""
    return fill("configuration.html", config=run.config)
