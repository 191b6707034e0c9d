"""How, where and from what was the run made: its plan, its environment, its configuration?"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

from noether.planning.batches import BatchPlan
from noether.report.elements import absent, fact_list
from noether.report.numbers import count_text, short_number
from noether.report.phrases import in_words, listed, plural
from noether.report.run import ReportedRun

RANKS_SHOWN = 16


def plan_section(run: ReportedRun) -> str:
    """The batch in one line, the facts of the plan, its ranks, and the reasons and warnings."""
    plan = run.plan
    if not plan:
        return absent(run, "plan.json", "how the run was spread over devices is not known")
    summary = escape(batch_arithmetic(plan.get("batch") or {}, plan.get("world_size")))
    facts = fact_list(_plan_facts(plan).items())
    parts = [f'<p class="sum">{summary}</p><div class="two"><div>{facts}</div>{_ranks(plan)}</div>']
    if isinstance(reasons := plan.get("reasons"), Mapping) and reasons:
        lines = fact_list((in_words(name), reason) for name, reason in reasons.items())
        parts.append(f'<h3 class="because">Because</h3>{lines}')
    if warnings := plan.get("warnings"):
        lines = "".join(f'<p class="note">{escape(str(line))}</p>' for line in warnings)
        parts.append(f'<h3 class="because">Warnings</h3>{lines}')
    return "".join(parts)


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


def _ranks(plan: Mapping[str, Any]) -> str:
    nodes, workers = [str(node) for node in plan.get("nodes") or ()], plan.get("workers") or []
    if not workers:
        return ""
    head = '<thead><tr><th>rank</th><th>node</th><th class="n">local rank</th><th class="n">device</th></tr></thead>'
    rows = [_rank_row(worker, nodes) for worker in workers]
    table = f"<table>{head}<tbody>{''.join(rows[:RANKS_SHOWN])}</tbody></table>"
    if (more := len(rows) - RANKS_SHOWN) > 0:
        rest = f"<table>{head}<tbody>{''.join(rows[RANKS_SHOWN:])}</tbody></table>"
        table += f"<details><summary>{plural(more, 'more rank')}</summary>{rest}</details>"
    if (plan.get("world_size") or 0) > len(workers):
        host = escape(_node(plan.get("node_rank"), nodes))
        table += f'<p class="note">The ranks that were started on {host}.</p>'
    return f'<div class="ranks">{table}</div>'


def _rank_row(worker: Mapping[str, Any], nodes: Sequence[str]) -> str:
    return (
        f"<tr><td>{escape(str(worker.get('rank', '–')))}</td><td>{escape(_node(worker.get('node_rank'), nodes))}</td>"
        f'<td class="n">{escape(str(worker.get("local_rank", "–")))}</td>'
        f'<td class="n mono">{escape(str(worker.get("device", "–")))}</td></tr>'
    )


def _node(rank: Any, nodes: Sequence[str]) -> str:
    return nodes[rank] if isinstance(rank, int) and 0 <= rank < len(nodes) else "this node"


def environment_section(run: ReportedRun) -> str:
    """Versions, host and command."""
    if not run.environment:
        return absent(run, "environment.json", "versions and host are not known")
    return f'<div class="columns">{fact_list(_flat(run.environment))}</div>'


def _flat(content: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Names and values of nested content, under their own names: a package speaks for itself."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, (list, tuple)):
            yield in_words(str(key)), shlex.join(map(str, value))
        else:
            yield in_words(str(key)), value


def configuration_section(run: ReportedRun) -> str:
    """The resolved configuration, folded away."""
    lines = plural(run.config.count("\n"), "line")
    return f"<details><summary>config.yaml, resolved, {lines}</summary><pre>{escape(run.config)}</pre></details>"
