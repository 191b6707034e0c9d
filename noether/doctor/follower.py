"""Runs the doctor in every process but rank 0's: answers rank 0, or prints its own findings if it cannot reach it."""

from noether.common.json_lines import Unanswered
from noether.doctor.chain import CHAIN
from noether.doctor.diagnosis import Diagnosis, skipped
from noether.doctor.meeting import Examined, meet
from noether.doctor.participant import Participant
from noether.doctor.report import DoctorReport
from noether.workers.listener import listener_endpoint


def follow(process: Participant, spoke: Examined, report: DoctorReport) -> bool:
    """Answers rank 0. If rank 0 never asks for its report, fills it and returns True, so that it is printed here."""
    placement, clock = process.placement, process.clock
    endpoint = placement.endpoint
    clock.step = "reaching rank 0"
    try:
        if endpoint.served_by:
            spoke.look_for(listener_endpoint(placement, process.exchange_listener()))
        process.found.extend(meet(spoke, spoke.run_info.distributed.init_timeout_s))
    except Unanswered as error:
        fix = f"noether doctor      (on {placement.nodes[0]}: check that it starts)"
        seen = f"{endpoint.host} port {endpoint.port}: {error}"
        process.found.append(Diagnosis("port", "error", seen, "rank 0 listening there", fix))
    clock.step = "waiting for rank 0"
    if "report" in spoke.serve(process.answer, lambda: clock.left(clock.seconds)):
        return False
    # Rank 0 cannot receive this host's findings, so they are printed here.
    clock.step = "what this host found"
    report.add(process.report())
    report.findings += [skipped(name, "rank 0 was not reached") for name in CHAIN]
    report.as_follower()
    return True
