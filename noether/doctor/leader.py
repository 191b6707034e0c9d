"""Runs rank 0: lets the other processes in, collects what each host found, tests the chain, and fills the report."""

import time
from dataclasses import replace
from typing import Any

from noether.common.errors import JoinError
from noether.doctor.chain import CHAIN, MARGIN_SECONDS, World, walk_chain
from noether.doctor.diagnosis import Diagnosis, refused, skipped
from noether.doctor.meeting import clock_offset, examine, lost, meet
from noether.doctor.participant import TORCH_SHARE, Participant
from noether.doctor.report import DoctorReport
from noether.doctor.world_checks import check_agreement, check_clocks, check_names, check_presence
from noether.launch.processes.hub import Hub
from noether.launch.processes.listener import RunListener


def lead(process: Participant, hub: Hub, listener: RunListener | None, report: DoctorReport) -> None:
    """Runs rank 0: lets the ranks meet, asks every process, and fills the report."""
    placement, clock = process.placement, process.clock
    clock.step, started = "waiting for the other ranks", time.monotonic()
    # The others are told in the launcher's store where they are let in, if there is one, or they cannot come.
    if listener is None or not placement.endpoint.served_by or process.exchange_listener(listener.port):
        process.found.extend(meet(hub, hub.run_info.distributed.init_timeout_s))
    waited = time.monotonic() - started
    clock.step = "what every host found"
    answers = examine(hub, {"do": "report"}, clock.left(TORCH_SHARE * clock.seconds + 12), process.answer)
    answers += _lost_early(hub, answers)
    hosts = _collect(answers, report)
    if listener is not None:
        report.findings += [*_presence(process, hub, listener, answers, waited), *_compare(answers, hub)]

    def ask_every_rank(request: dict[str, Any]) -> list[dict[str, Any]]:
        replies = examine(hub, request, request["seconds"] + 2 * MARGIN_SECONDS, process.answer)
        return [answer for reply in replies for answer in reply.get("answers", [])]

    why_not = _reason_to_stop(hub, answers)
    if hub.meeting is not None and not why_not:
        gpus = tuple(rank for answer in answers for rank in answer["gpu_ranks"])
        world = World(hub.world_size, hub.meeting, gpu_ranks=gpus, hosts=tuple(hosts))
        report.findings += walk_chain(world, ask_every_rank, clock)
    else:
        report.findings += [skipped(name, why_not) for name in CHAIN]


def _presence(
    process: Participant, hub: Hub, listener: RunListener, answers: list[dict[str, Any]], waited: float
) -> list[Diagnosis]:
    """Names the ranks that are missing, and those of other runs that were refused."""
    nodes, came = process.placement.nodes, dict[int, tuple[str, list[int]]]()
    for number, answer in enumerate(answers):
        host = answer["host"]
        node = answer.get("node_rank", nodes.index(host) if host in nodes else -1 - number)
        came[node] = (host, [*came.get(node, ("", []))[1], *answer["ranks"]])
    # Else they had no way to come.
    is_known = hub.reports or hub.meeting is not None or isinstance(hub.not_met, JoinError)
    found = [check_presence(hub.world_size, nodes, came, waited)] if is_known else []
    for caller in listener.strays.values():
        seen = f"rank {caller.ranks[0]} on {caller.host} was refused: it is of {caller.identity}"
        found.append(Diagnosis("peers", "warning", seen, f"ranks of this run: {hub.run_info.identity}"))
    return found


def _reason_to_stop(hub: Hub, answers: list[dict[str, Any]]) -> str:
    """Returns why the chain between the ranks cannot be tested, or "" if it can."""
    if isinstance(hub.not_met, JoinError):
        return "not every rank connected"
    if hub.meeting is None:
        return "the ranks have not met"
    if any("lost" in answer for answer in answers):
        return "a rank stopped answering"
    return "" if all(answer["torch_works"] for answer in answers) else "torch cannot be imported everywhere"


def _lost_early(hub: Hub, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what stands for the answers of processes that refused the run, or were gone before they were asked."""
    known, found = {rank for answer in answers for rank in answer["ranks"]}, []
    for rank, loss in hub.reports.items():
        if rank not in known:
            ranks = next((ranks for ranks in hub.came if rank in ranks), (rank,))
            known.update(ranks)
            found.append(lost(loss, ranks))
    return found


def _collect(answers: list[dict[str, Any]], report: DoctorReport) -> list[str]:
    """Adds what every process found to the report, and returns the hosts."""
    hosts = []
    for answer in answers:
        if "lost" in answer:
            host, ranks, loss = answer["host"], answer["ranks"], answer["lost"]
            seen = f"ranks {list(ranks)} connected, then stopped answering: {loss.message}"
            finding = Diagnosis("peers", "error", seen, "an answer")
            if loss.kind == "refused":
                finding = refused("agreement", loss.refusal)
            report.findings.append(replace(finding, hosts=(host,), ranks=ranks))
            continue
        report.add(answer)
        hosts.append(answer["host"])
    return list(dict.fromkeys(hosts))


def _compare(answers: list[dict[str, Any]], hub: Hub) -> list[Diagnosis]:
    """Checks that the hosts agree in versions and devices, in their names and in their clocks."""
    told = [answer for answer in answers if "lost" not in answer]
    versions: dict[str, dict[str, str]] = {}
    boots: dict[int, tuple[str, str]] = {}
    for answer in told:
        host = answer["host"]
        known = versions.get(host, answer["versions"])
        # Ranks of one host may differ too; then each has its own entry.
        versions[host if known == answer["versions"] else f"{host} rank {answer['ranks'][0]}"] = answer["versions"]
        boots[answer["node_rank"]] = (host, answer["facts"]["boot"] or "")
    clocks = {peer.host: clock_offset(hub, peer) for peer in {peer.host: peer for peer in hub.peers}.values()}
    offsets = {host: offset for host, offset in clocks.items() if offset is not None}
    return [check_agreement(versions), check_names(boots), check_clocks(offsets)]
