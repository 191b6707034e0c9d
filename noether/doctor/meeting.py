"""The doctor's processes meet as those of a run do, over the link of its parent processes; then rank 0 asks them.

The parent processes of the doctor need no torch for it, so that a host with a broken torch can still report.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from noether.common.errors import JoinError, RequestError, one_line
from noether.doctor.diagnosis import Diagnosis, refused
from noether.launch.processes.context import WorkerReport
from noether.launch.processes.hub import Hub
from noether.launch.processes.link import Peer
from noether.launch.processes.spoke import Spoke

POLL_S = 0.2
"""The longest time between two looks at a link, which has time limits of its own."""

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def poll_until(link: Hub | Spoke, done: Callable[[], bool], seconds: float) -> bool:
    """Serves a link until something is true, or the time is up; returns whether it is true."""
    deadline = time.monotonic() + seconds
    while True:
        link.poll()
        left = deadline - time.monotonic()
        if done() or left <= 0:
            return done()
        wait(link.descriptors(), min(left, POLL_S))


def meet(link: Hub | Spoke, seconds: float) -> list[Diagnosis]:
    """Lets all ranks meet and returns what that found; nothing where only rank 0 has something to say of it.

    `seconds` is how long the link gives the ranks that have not come. Rank 0 waits for nobody once it knows of every
    rank, and some will not join, which ends a run.
    """
    link.note_arrivals(link.own_ranks)
    host, hub = link.endpoint.host, link if isinstance(link, Hub) else None

    def is_over() -> bool:
        if isinstance(link, Spoke):
            return link.is_settled or link.question is not None  # Rank 0 asks once it waits no more.
        refuses = link.reports and not set(link.missing).difference(*link.came)
        return link.is_settled or bool(refuses)

    if not poll_until(link, is_over, seconds + 5):
        if hub is None:
            return []  # It came late, and rank 0 may still ask it.
        return [Diagnosis("names", "error", f"{host}: no answer within {seconds:.0f} s", "a name server that answers")]
    meeting, failure, why = link.meeting, link.failure, link.not_met
    if meeting is not None:
        where = f"{host} is {meeting.address}" if meeting.address != host else host
        return [Diagnosis("names", "ok", where)]
    if failure is not None:
        finding = refused("agreement", failure.refusal)
        return [finding if failure.rank in link.own_ranks else replace(finding, seen=f"{failure.who}: {finding.seen}")]
    if why is None or (hub is not None and isinstance(why, JoinError)):
        return []
    if isinstance(why, RequestError):
        return [refused("names" if why.code == "master-not-resolved" else "port", why)]
    return [Diagnosis("port", "error", one_line(why), "rank 0 listening there")]


def examine(
    hub: Hub, request: dict[str, Any], seconds: float, own: Answer | None = None, peers: Sequence[Peer] | None = None
) -> list[dict[str, Any]]:
    """Returns the answers to a request: this process's, by `own`, then those of the peers; by default all of them.

    The answer of a peer that does not answer within `seconds` is {"lost": its report}, with its host and ranks.
    """
    deadline = time.monotonic() + seconds
    asked = list(hub.peers if peers is None else peers)
    hub.ask(request, dict, asked)
    answers = [own(request)] if own is not None else []
    poll_until(hub, lambda: not hub.silent(asked), deadline - time.monotonic())
    for peer in asked:
        silent = WorkerReport(peer.ranks[0], peer.host, "lost", f"no answer within {seconds:.0f} s")
        answers.append(hub.answers.get(peer.ranks) or lost(hub.reports.get(peer.ranks[0], silent), peer.ranks))
    return answers


def lost(report: WorkerReport, ranks: Sequence[int]) -> dict[str, Any]:
    """Returns what stands for the answer of a process that will not answer."""
    return {"lost": report, "host": report.host, "ranks": ranks}


def clock_offset(hub: Hub, peer: Peer, seconds: float = 2.0) -> tuple[float, float] | None:
    """Returns how far a peer's clock is ahead of ours, and the uncertainty of that, both in seconds.

    The error is at most half of the round-trip time (RFC 5905, the offset of one exchange). None: no answer.
    """
    sent = time.time()
    (answer,) = examine(hub, {"do": "clock"}, seconds, peers=[peer])
    back = time.time()
    return None if "lost" in answer else (float(answer["time"]) - (sent + back) / 2, (back - sent) / 2)


def serve(spoke: Spoke, answer: Answer, seconds: Callable[[], float]) -> set[str]:
    """Answers rank 0 until it hangs up, or is silent for `seconds`; returns what it asked for."""
    asked = set[str]()
    while spoke.peers and poll_until(spoke, lambda: spoke.question is not None or not spoke.peers, seconds()):
        if spoke.question is not None:
            asked.add(spoke.question["do"])
            spoke.answer(answer(spoke.question))
    return asked
