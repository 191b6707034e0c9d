"""The doctor's processes meet as those of a run do, over the link of its parent processes; then rank 0 asks them.

The parent processes of the doctor need no torch for it, so that a host with a broken torch can still report.
"""

import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import wait
from typing import Any

from noether.doctor.diagnosis import Diagnosis, refused
from noether.environments.placement import Endpoint
from noether.errors import EndedByAnother, RequestError
from noether.workers.context import RunInfo
from noether.workers.hub import Hub
from noether.workers.link import Link, Peer
from noether.workers.rank_state import MeetingPoint
from noether.workers.spoke import Spoke

POLL_S = 0.2
"""The longest time between two looks at a link, which has time limits of its own."""


def poll_until(link: Link, done: Callable[[], bool], seconds: float) -> bool:
    """Serves a link until something is true, or the time is up; returns whether it is true."""
    deadline = time.monotonic() + seconds
    while True:
        link.poll()
        left = deadline - time.monotonic()
        if done() or left <= 0:
            return done()
        wait(link.descriptors(), min(left, POLL_S))


def meet(link: Link, seconds: float) -> list[Diagnosis]:
    """Lets all ranks meet and returns what that found; nothing where only rank 0 has something to say of it.

    `seconds` is how long the link gives the ranks that have not come.
    """
    link.note_arrivals(link.own_ranks)
    host = link.endpoint.host
    if not poll_until(link, lambda: link.meeting is not None, seconds + 5):
        if isinstance(link, Examined):
            return []  # It came late, and rank 0 may still ask it.
        return [Diagnosis("names", "error", f"{host}: no answer within {seconds:.0f} s", "a name server that answers")]
    meeting = link.meeting
    if isinstance(meeting, MeetingPoint):
        where = f"{host} is {meeting.address}" if meeting.address != host else host
        return [Diagnosis("names", "ok", where)]
    if isinstance(meeting, EndedByAnother) or getattr(meeting, "code", "") == "ranks-late":
        return []
    if isinstance(meeting, RequestError):
        return [refused("names" if meeting.code == "master-not-resolved" else "port", meeting)]
    return [Diagnosis("port", "error", str(meeting), "rank 0 listening there")]


class Examiner(Hub):
    """The link of rank 0, which asks the other processes."""

    _question = 0
    _answers: dict[tuple[int, ...], dict[str, Any]]

    def examine(
        self,
        request: dict[str, Any],
        seconds: float,
        own: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        peers: Sequence[Peer] | None = None,
    ) -> list[dict[str, Any]]:
        """Returns the answers to a request: this process's, by `own`, then those of the peers; by default all of them.

        The answer of a peer that does not answer within `seconds` is {"lost": why}, with its host and ranks.
        """
        deadline = time.monotonic() + seconds
        asked = list(self.peers if peers is None else peers)
        self._question, self._answers = self._question + 1, {}
        for peer in asked:
            peer.connection.send({"question": self._question, "request": request})
        answers = [own(request)] if own is not None else []
        waiting = [peer for peer in asked if peer in self.peers]
        poll_until(
            self,
            lambda: all(peer.ranks in self._answers or peer not in self.peers for peer in waiting),
            deadline - time.monotonic(),
        )
        for peer in asked:
            loss = self.reports.get(peer.ranks[0])
            why = f"no answer within {seconds:.0f} s" if loss is None else loss.message
            lost = {"lost": why, "host": peer.host, "ranks": peer.ranks}
            answers.append(self._answers.get(peer.ranks, lost))
        return answers

    def clock_offset(self, peer: Peer, seconds: float = 2.0) -> tuple[float, float] | None:
        """Returns how far a peer's clock is ahead of ours, and the uncertainty of that, both in seconds.

        The error is at most half of the round-trip time (RFC 5905, the offset of one exchange). None: no answer.
        """
        sent = time.time()
        (answer,) = self.examine({"do": "clock"}, seconds, peers=[peer])
        back = time.time()
        return None if "lost" in answer else (float(answer["time"]) - (sent + back) / 2, (back - sent) / 2)

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "answer" not in message:
            super()._take(peer, message)
        elif message["question"] == self._question:  # Else an answer that came too late.
            self._answers[peer.ranks] = dict(message["answer"])


class Examined(Spoke):
    """The link of every other process, which answers."""

    def __init__(self, own_ranks: Collection[int], host: str, run_info: RunInfo, endpoint: Endpoint) -> None:
        self._questions: list[dict[str, Any]] = []
        super().__init__(own_ranks, host, run_info, endpoint)

    def serve(self, answer: Callable[[dict[str, Any]], dict[str, Any]], seconds: Callable[[], float]) -> set[str]:
        """Answers rank 0 until it hangs up, or is silent for `seconds`; returns what it asked for."""
        asked = set[str]()
        while self.peers and poll_until(self, lambda: bool(self._questions) or not self.peers, seconds()):
            for question in self._questions:
                asked.add(question["request"]["do"])
                self.send({"question": question["question"], "answer": answer(question["request"])})
            self._questions.clear()
        return asked

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if "question" in message:
            self._questions.append(message)
        else:
            super()._take(peer, message)
