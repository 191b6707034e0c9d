"""Runs the doctor in every process but rank 0's: answers rank 0, or prints its own findings if it cannot reach it."""

from noether.doctor.chain import CHAIN
from noether.doctor.diagnosis import skipped
from noether.doctor.meeting import meet, serve
from noether.doctor.participant import Participant
from noether.doctor.report import DoctorReport
from noether.launch.processes.spoke import Spoke


def follow(process: Participant, spoke: Spoke, report: DoctorReport) -> bool:
    """Answers rank 0. If rank 0 never asks for its report, fills it and returns True, so that it is printed here."""
    clock = process.clock
    clock.step = "reaching rank 0"
    if port := spoke.endpoint.port or process.exchange_listener():
        spoke.look_for(port)
        process.found.extend(meet(spoke, spoke.run_info.distributed.init_timeout_s))
    clock.step = "waiting for rank 0"
    if "report" in serve(spoke, process.answer, lambda: clock.left(clock.seconds)):
        return False
    # Rank 0 cannot receive this host's findings, so they are printed here.
    clock.step = "what this host found"
    report.add(process.report())
    report.findings += [skipped(name, "rank 0 was not reached") for name in CHAIN]
    report.as_follower()
    return True
