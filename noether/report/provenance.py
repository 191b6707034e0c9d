"""How, where and from what the run was made: its plan, environment and configuration."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
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
    reasons = plan.get("reasons")
    nodes, workers = [str(node) for node in plan.get("nodes") or ()], plan.get("workers") or []
    rows = [{**{key: str(worker.get(key, "–")) for key in ("rank", "local_rank", "device")},
             "node": _node(worker.get("node_rank"), nodes)} for worker in workers]  # fmt: skip
    more = rows[RANKS_SHOWN:]
    started_elsewhere = workers and (plan.get("world_size") or 0) > len(workers)
    return fill(
        "plan.html",
        batch=batch_arithmetic(plan.get("batch") or {}, plan.get("world_size")),
        facts=list(_plan_facts(plan).items()),
        shown=rows[:RANKS_SHOWN],
        more=more,
        more_words=plural(len(more), "more rank"),
        host=_node(plan.get("node_rank"), nodes) if started_elsewhere else "",
        reasons=[(in_words(name), reason) for name, reason in reasons.items()] if isinstance(reasons, Mapping) else (),
        warnings=plan.get("warnings") or (),
    )


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    nodes, length, data = plan.get("nodes") or (), plan.get("length") or {}, plan.get("data") or {}
    model, endpoint = plan.get("model") or {}, plan.get("endpoint") or {}
    ranks = plural(plan.get("world_size"), "rank")
    sizes = [f"{count_text(size)} {split}" for split, size in data.items()]
    facts = {
        "launcher": plan.get("launcher"),
        "ranks": f"{ranks} on {plural(len(nodes), 'node')}" if nodes else ranks,
        "meeting at": f"{endpoint.get('host')}, port {endpoint.get('port') or 'chosen at the start'}",
        "attempt": f"{plan.get('attempt')} (the run was started again)",
        "model": f"{model.get('kind')}, {count_text(model.get('parameters'))} parameters",
        "data": f"{listed(sizes)} samples",
        "length": _length_words(length),
    }
    known = {"meeting at": endpoint, "attempt": plan.get("attempt"), "model": model, "data": data}
    return {name: text for name, text in facts.items() if known.get(name, True)}


def batch_arithmetic(batch: Mapping[str, Any], world_size: Any) -> str:
    """The batch of plan.json in one line, in the words in which `noether plan` gave it."""
    try:
        parts = {part.name: int(batch[part.name]) for part in fields(BatchPlan)}
        return BatchPlan(**parts).describe(int(world_size))
    except (KeyError, TypeError, ValueError):
        return "The batch is not known."


def _length_words(length: Mapping[str, Any]) -> str | None:
    if not length.get("total_updates"):
        return None
    text = f"{count_text(length['total_updates'])} updates"
    if length.get("epochs") and length.get("updates_per_epoch"):
        text += f" = {short_number(length['epochs'])} epochs of {plural(length['updates_per_epoch'], 'update')}"
    return text


def _node(rank: Any, nodes: Sequence[str]) -> str:
    return nodes[rank] if isinstance(rank, int) and 0 <= rank < len(nodes) else "this node"


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
    return fill("configuration.html", lines=plural(run.config.count("\n"), "line"), config=run.config)
