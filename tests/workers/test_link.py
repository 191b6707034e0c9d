"""Launchers that hear of each other over real sockets: reports, questions, silence, and who hangs up how."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from noether.environments.placement import Endpoint
from noether.workers.context import WorkerReport
from noether.workers.link import Doing, Hub, Link, Spoke
from noether.workers.rank_state import Standing

LIMIT_S = 20
AT_3 = Standing(3, "all_reduce of the gradients", 7)


def report(rank: int, kind: str = "failed") -> WorkerReport:
    return WorkerReport(rank, "n2", 7, 12.0, kind, "ValueError: boom", "trace\n" * 500, 1, AT_3)


@dataclass
class Links:
    """A hub and its spokes, tended until something is true."""

    hub: Hub
    spokes: list[Spoke] = field(default_factory=list)

    def connect(self, *ranks: int, secret: str | None = None, silence_s: float = 60) -> Spoke:
        address = ("127.0.0.1", self.hub.port)
        spoke = Spoke(ranks, "n2", address, self.hub.secret if secret is None else secret, silence_s)
        self.spokes.append(spoke)
        return spoke

    def until(self, true: Callable[[], object], *only: Link) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline
            for link in only or (self.hub, *self.spokes):
                link.tend()
            time.sleep(0.01)


def has_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links(Hub((0, 1), "n1", Endpoint("127.0.0.1", 0), 1.0))
    yield made
    for link in (made.hub, *made.spokes):
        link.close()


def test_a_report_reaches_the_hub_and_the_verdict_every_launcher(links: Links) -> None:
    first, second = links.connect(2), links.connect(3)
    first.tell(report(2))
    links.until(lambda: links.hub.reports and links.hub.remote_ranks == [2, 3])
    (heard,) = links.hub.reports
    assert (heard.rank, heard.traceback, heard.standing) == (2, report(2).traceback, AT_3)
    assert abs(heard.time - time.time()) < LIMIT_S, "clocks differ between hosts: it counts when it was heard"
    links.hub.ask()
    links.until(lambda: second.asked)
    second.answer([Doing(3, "n2", "in f (x.py:1)", "stack", AT_3)])
    links.until(lambda: 3 in links.hub.doing)
    assert links.hub.silent_ranks() == [2]
    first.answer([])
    links.until(lambda: not links.hub.silent_ranks())
    links.hub.announce(heard)
    links.until(lambda: first.verdict and second.verdict)
    assert second.verdict is not None
    assert (second.verdict.rank, second.verdict.message) == (2, "ValueError: boom")


def test_a_launcher_without_a_good_bye_is_lost_with_its_ranks_and_one_with_it_is_not(links: Links) -> None:
    polite, killed = links.connect(2), links.connect(3, 4)
    links.until(lambda: links.hub.remote_ranks == [2, 3, 4])
    polite.bye()
    for spoke in (polite, killed):
        spoke.close()
    links.until(lambda: not links.hub.is_waiting(), links.hub)
    assert [(lost.rank, lost.kind, lost.host) for lost in links.hub.reports] == [(3, "lost", "n2"), (4, "lost", "n2")]
    assert "is gone without a word" in links.hub.reports[0].message


def test_silence_is_a_loss_on_both_sides(links: Links) -> None:
    spoke = links.connect(2, silence_s=1.0)
    links.until(lambda: links.hub.remote_ranks == [2])
    links.until(lambda: links.hub.reports, links.hub)
    assert links.hub.reports[0].message.startswith("has not been heard of for 1 s")
    links.until(lambda: spoke.reports, spoke)
    assert [(lost.rank, lost.kind) for lost in spoke.reports] == [(0, "lost")]


def test_heartbeats_keep_silent_launchers(links: Links) -> None:
    spoke = links.connect(2, silence_s=1.0)
    ends = time.monotonic() + 2.5
    links.until(lambda: time.monotonic() > ends)
    assert not links.hub.reports
    assert not spoke.reports


def test_a_launcher_that_was_stopped_itself_blames_nobody(links: Links) -> None:
    """A suspended job goes on after hours; nobody was lost."""
    links.connect(2)
    links.until(lambda: links.hub.remote_ranks == [2])
    links.hub._tended -= 3600
    links.hub.peers[0].heard -= 3600
    links.hub.tend()
    assert not links.hub.reports


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff" * 50 + b"\n", b"[1]\n", b'{"hello": "guess"}\n', b"x" * 300_000]
)
def test_who_is_no_launcher_is_hung_up_on(links: Links, words: bytes) -> None:
    with socket.create_connection(("127.0.0.1", links.hub.port)) as stranger:
        stranger.sendall(words)
        links.until(lambda: has_hung_up(stranger), links.hub)
    assert not links.hub.reports
