"""Runs rank 0: accepts the other processes, collects what each host found, tests the chain, and fills the report."""

import socket
import time
from typing import Any

from noether.common.json_lines import Unanswered
from noether.doctor.chain import CHAIN, World, walk_chain
from noether.doctor.diagnosis import Diagnosis, skipped
from noether.doctor.meeting import OtherProcess, ask_all, clock_offset, gather_peers
from noether.doctor.participant import MEETING_SHARE, TORCH_SHARE, Participant
from noether.doctor.report import DoctorReport
from noether.doctor.world_checks import check_agreement, check_clocks, check_names, check_presence
from noether.environments.endpoint import HeldPort


def lead(process: Participant, address: str, held: HeldPort | None, report: DoctorReport) -> None:
    """Runs rank 0: accepts the others' connections, asks everyone, and fills the report.

    `address` is where the others reach this host, "" if its name does not resolve. `held` is the run's port, or a free
    one if a launcher serves the store; None if it is taken.
    """
    placement, clock, served_by = process.placement, process.clock, process.placement.endpoint.served_by
    if held is not None and served_by and not (address and _announced(process, address, held.endpoint.port)):
        held = None
    others = placement.world_size > len(process.ranks)
    peers = _accept_peers(process, held.socket, report) if others and held is not None else []
    missing = any(finding.check == "peers" and finding.level == "error" for finding in report.findings)
    clock.step = "what every host found"
    answers = ask_all(peers, {"do": "report"}, process.answer, clock.left(TORCH_SHARE * clock.seconds + 12))
    hosts = _collect(answers, report)
    if others:
        report.findings += _compare(answers, peers)

    def ask_every_rank(request: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
        step = {"do": "step", "request": request, "seconds": seconds}
        replies = ask_all(peers, step, process.answer, seconds + 2)
        return [answer for reply in replies for answer in reply.get("answers", [])]

    why_not = _reason_to_stop(process, address, held, missing, answers)
    if why_not:
        report.findings += [skipped(name, why_not) for name in CHAIN]
    else:
        size = max(placement.world_size, len(process.children.workers))  # A process that is alone has a second child.
        port = held.endpoint.port if held and not served_by else placement.endpoint.port
        gpus = tuple(rank for answer in answers for rank in answer["gpu_ranks"])
        world = World(size, address, port, served_by, placement.attempt, gpu_ranks=gpus, hosts=tuple(hosts))
        report.findings += walk_chain(world, ask_every_rank, clock)
    for peer in peers:
        peer.connection.send({"do": "end"})
        peer.connection.close()


def _announced(process: Participant, address: str, port: int) -> bool:
    """Writes the port that this process listens on to the launcher's store; returns whether the store answers."""
    endpoint = process.placement.endpoint
    process.clock.step = f"the store of {endpoint.served_by}"
    try:
        process.served_port(address, str(port))
    except Unanswered as error:
        fix = "unset MASTER_ADDR MASTER_PORT      (torchrun sets them itself)"
        seen = f"{address}:{endpoint.port}: {error}"
        process.found.append(Diagnosis("port", "error", seen, "the launcher's store", fix))
        return False
    return True


def _accept_peers(process: Participant, listening: socket.socket, report: DoctorReport) -> list[OtherProcess]:
    """Waits for the other processes, and reports which are missing and which do not belong to this run."""
    placement, clock = process.placement, process.clock
    clock.step = "waiting for the other ranks"
    seconds, started = clock.share(MEETING_SHARE), time.monotonic()
    peers, strangers = gather_peers(listening, process.run, process.ranks, placement.world_size, seconds)
    came = {placement.node_rank: (process.facts.host, list(process.ranks))}
    for peer in peers:
        host, ranks = came.get(peer.node_rank, (peer.host, []))
        came[peer.node_rank] = (host, [*ranks, *peer.ranks])
    waited = time.monotonic() - started
    report.findings.append(check_presence(placement.world_size, placement.nodes, came, waited))
    report.findings += [Diagnosis("peers", "warning", text, "ranks of this run only") for text in strangers]
    return peers


def _reason_to_stop(
    process: Participant, address: str, held: HeldPort | None, missing: bool, answers: list[dict[str, Any]]
) -> str:
    """Returns why the chain between the ranks cannot be tested, or "" if it can."""
    if not address:
        return f"{process.placement.endpoint.host} does not resolve"
    if held is None:
        return "rank 0 has no port"
    if missing:
        return "not every rank connected"
    if any("lost" in answer for answer in answers):
        return "a rank stopped answering"
    return "" if all(answer["torch_works"] for answer in answers) else "torch cannot be imported everywhere"


def _collect(answers: list[dict[str, Any]], report: DoctorReport) -> list[str]:
    """Adds what every process found to the report, and returns the hosts."""
    hosts = []
    for answer in answers:
        if "lost" in answer:
            host, ranks = answer["host"], answer["ranks"]
            seen = f"ranks {list(ranks)} connected, then stopped answering: {answer['lost']}"
            report.findings.append(Diagnosis("peers", "error", seen, "an answer", hosts=(host,), ranks=ranks))
            continue
        report.add(answer)
        hosts.append(answer["facts"]["host"])
    return list(dict.fromkeys(hosts))


def _compare(answers: list[dict[str, Any]], peers: list[OtherProcess]) -> list[Diagnosis]:
    """Checks that the hosts agree in versions and configuration, in their names and in their clocks."""
    told = [answer for answer in answers if "lost" not in answer]
    versions: dict[str, dict[str, str]] = {}
    boots: dict[int, tuple[str, str]] = {}
    for answer in told:
        host = answer["facts"]["host"]
        known = versions.get(host, answer["versions"])
        # Ranks of one host may differ too; then each has its own entry.
        versions[host if known == answer["versions"] else f"{host} rank {answer['ranks'][0]}"] = answer["versions"]
        boots[answer["node_rank"]] = (host, answer["facts"]["boot"] or "")
    offsets: dict[str, tuple[float, float]] = {}
    for peer in {peer.host: peer for peer in peers}.values():
        try:
            offsets[peer.host] = clock_offset(peer)
        except Unanswered:
            continue  # `_collect` reports a peer that stopped answering.
    return [check_agreement(versions), check_names(boots), check_clocks(offsets)]
