"""Runs the doctor in every process but rank 0's: answers rank 0, or prints its own findings if it cannot reach it."""

from noether.common.json_lines import JsonLines, Unanswered
from noether.doctor.chain import CHAIN
from noether.doctor.diagnosis import Diagnosis, skipped
from noether.doctor.meeting import reach
from noether.doctor.participant import Participant
from noether.doctor.report import DoctorReport

DEFAULT_SECONDS = 50.0
JOIN_SHARE = 0.44
"""How long to try to connect to rank 0, as a share of the whole time. Rank 0 may start to listen late, because it reads
its own host's facts first."""


def follow(process: Participant, address: str, report: DoctorReport) -> bool:
    """Answers rank 0. If rank 0 cannot be reached, fills the report and returns True, so that it is printed here."""
    placement, clock = process.placement, process.clock
    connection: JsonLines | None = None
    port = placement.endpoint.port
    if address:
        clock.step = "reaching rank 0"
        about = {"host": process.facts.host, "node_rank": placement.node_rank, "ranks": list(process.ranks)}
        try:
            if placement.endpoint.served_by:
                port = process.served_port(address)
            connection = reach(address, port, {"run": process.run, **about}, clock.share(JOIN_SHARE))
        except Unanswered as error:
            fix = f"noether doctor      (on {placement.nodes[0]}: check that it starts and that port {port} is open)"
            seen = f"{placement.endpoint.host} ({address}) port {port}: {error}"
            process.found.append(Diagnosis("port", "error", seen, "rank 0 listening there", fix))
    if connection is not None and _serve(process, connection):
        return False
    # Rank 0 cannot receive this host's findings, so they are printed here.
    clock.step = "what this host found"
    report.add(process.report())
    report.findings += [skipped(name, "rank 0 was not reached") for name in CHAIN]
    report.as_follower()
    return True


def _serve(process: Participant, connection: JsonLines) -> bool:
    """Answers rank 0 until it is done, and returns whether rank 0 has received this process's report."""
    reported = False
    while True:
        process.clock.step = "waiting for rank 0"
        try:
            asked = connection.receive(process.clock.left(DEFAULT_SECONDS))
        except Unanswered:
            return reported
        if asked["do"] == "end":
            return reported
        connection.send(process.answer(asked))
        reported = reported or asked["do"] == "report"
