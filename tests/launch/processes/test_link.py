"""Links between launchers over real sockets: admission, reports, requests, silent peers, and orderly ends."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from noether.common.errors import RequestError
from noether.config.distributed import DistributedConfig
from noether.launch.detect.endpoint import hold_port
from noether.launch.detect.identity import RunIdentity, run_key
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.connector import AddressLookup, own_address
from noether.launch.processes.context import MeetingPoint, RankPosition, RunInfo, WorkerReport
from noether.launch.processes.hub import Hub, Spoke
from noether.launch.processes.link import Caller, Link, reports_from
from noether.launch.processes.listener import MOST_UNPROVEN, RunListener, RunPorts, settings_differ
from tests.refusal import refusal

LIMIT_S = 20
AT_3 = RankPosition(3, "all_reduce of the gradients", 7)
RUN = RunIdentity("multinode", 5, 0, "01234567", "cpu")


def report(rank: int, kind: str = "failed") -> WorkerReport:
    return WorkerReport(rank, "n2", kind, "ValueError: boom", time=12.0, traceback="trace\n" * 500, position=AT_3)


@dataclass
class Links:
    """A hub and its spokes, which a test polls until a condition is true."""

    folder: Path
    identity: RunIdentity = RUN
    init_timeout_s: float = 60
    secret: str = ""
    hub: Hub = field(init=False)
    spokes: list[Spoke] = field(default_factory=list)

    def __post_init__(self) -> None:
        held = hold_port(Endpoint("127.0.0.1", 0))
        self.endpoint = replace(held.endpoint, asked_by="master_port")
        run_info = self.run_info(self.identity, 1.0)
        self.hub = Hub((0, 1), "n1", run_info, self.endpoint, RunPorts(RunListener(held, run_info)))

    def run_info(self, identity: RunIdentity, silence_s: float, key: str = "a key of the test") -> RunInfo:
        waits = DistributedConfig(init_timeout_s=self.init_timeout_s, heartbeat_timeout_s=silence_s)
        start = run_key({}, {"NOETHER_RUN_KEY": self.secret})
        own = {"noether": identity.configuration, "torch": "2", "seed": 1} if identity.configuration else {}
        return RunInfo(identity, key, waits, self.folder, self.folder / "logs", start_key=start, settings=own)

    def connect(self, *ranks: int, identity: RunIdentity | None = None, key: str = "", silence_s: float = 60) -> Spoke:
        run_info = self.run_info(identity or self.identity, silence_s, key or "a key of the test")
        spoke = Spoke(ranks, "n2", run_info, self.endpoint)
        self.spokes.append(spoke)
        return spoke

    def connected(self, *ranks: int, silence_s: float = 60) -> Spoke:
        spoke = self.connect(*ranks, silence_s=silence_s)
        self.until(lambda: spoke.peers and set(ranks) <= set(self.hub.remote_ranks))
        return spoke

    def until(self, true: Callable[[], object], *only: Link) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline
            for link in only or (self.hub, *self.spokes):
                link.poll()
            time.sleep(0.01)


def has_hung_up(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    made = Links(tmp_path)
    yield made
    for link in (made.hub, *made.spokes):
        link.close()


def test_all_meet_where_the_hub_says_once_all_have_come(links: Links) -> None:
    links.hub.store_port = 4711
    spokes = links.connect(2, 3), links.connect(4)
    links.hub.note_arrivals([0, 1])
    spokes[0].note_arrivals([2, 3])
    links.until(lambda: not set(links.hub.missing) & {2, 3})
    assert not links.hub.is_settled
    spokes[1].note_arrivals([4])
    links.until(lambda: all(link.meeting for link in (links.hub, *spokes)))
    own = links.hub.meeting
    assert isinstance(own, MeetingPoint)
    assert (own.address, own.port, own.log_folder) == ("127.0.0.1", 4711, str(links.folder / "logs"))
    assert [spoke.meeting for spoke in spokes] == [own, own], "all must get the secret of rank 0's launcher"
    assert len(own.secret) == 32


def test_who_does_not_come_in_time_is_named(tmp_path: Path) -> None:
    links = Links(tmp_path, init_timeout_s=0.3)
    links.hub.note_arrivals([0, 1])
    spoke = links.connected(2)
    spoke.note_arrivals([2])
    links.until(lambda: links.hub.not_met)
    assert (links.hub.not_met.code, links.hub.not_met.exit_code) == ("ranks-late", 69)
    assert "rank 3, 4 of 5 did not join within 0.3 s" in str(links.hub.not_met)
    for link in (links.hub, spoke):
        link.close()


@pytest.mark.parametrize(
    ("other", "key", "code"),
    [
        pytest.param(replace(RUN, launcher="kubernetes"), "", "another-run", id="another launcher"),
        pytest.param(replace(RUN, restarts=1), "", "another-restart", id="another restart"),
        pytest.param(RUN, "another key", "run-keys-differ", id="another key"),
    ],
)
def test_a_launcher_of_another_run_is_refused_by_name_and_the_run_goes_on(links, capfd, other, key, code: str) -> None:
    stray = links.connect(2, identity=other, key=key)
    links.until(lambda: stray.not_met)
    assert stray.not_met.code == code
    assert not links.hub.peers
    assert not links.hub.reports
    assert ("rank 2 on n2" in capfd.readouterr().err) == (other != RUN)


def test_once_all_have_come_other_settings_are_of_another_run_that_learns_nothing(links: Links) -> None:
    links.connected(2, 3, 4)
    stray = links.connect(2, identity=replace(RUN, configuration="89abcdef"))
    links.until(lambda: stray.not_met)
    assert (stray.not_met.code, stray.failure, links.hub.reports) == ("another-run", None, {})


JOB = replace(RUN, launcher="slurm", job="13.0")


@pytest.mark.parametrize(
    ("run", "other", "secrets", "code"),
    [
        pytest.param(JOB, replace(JOB, configuration="89abcdef"), ("", ""), "hosts-differ", id="other settings"),
        pytest.param(JOB, replace(JOB, world_size=4), ("", ""), "world-sizes-differ", id="other ranks in one job"),
        pytest.param(RUN, replace(RUN, device_kind="cuda"), ("", ""), "device-kinds-differ", id="by hand, no GPU"),
        pytest.param(RUN, replace(RUN, world_size=4), ("", ""), "world-sizes-differ", id="by hand, other devices"),
        pytest.param(RUN, replace(RUN, configuration="89abcdef"), ("", ""), "hosts-differ", id="by hand, settings"),
        pytest.param(RUN, replace(RUN, configuration="89abcdef"), ("a", "b"), "", id="by hand, without the secret"),
        pytest.param(JOB, replace(JOB, job="14.0"), ("", ""), "", id="another job"),
        pytest.param(JOB, replace(JOB, restarts=1), ("", ""), "", id="another restart"),
        pytest.param(JOB, replace(JOB, configuration="89abcdef"), ("a", "b"), "", id="without the secret"),
    ],
)
def test_a_rank_of_this_start_that_cannot_join_ends_the_run(tmp_path, run, other, secrets, code: str) -> None:
    links = Links(tmp_path, run, secret=secrets[0])
    links.secret = secrets[1]
    stray = links.connect(3, 4, identity=other)
    links.until(lambda: stray.not_met)
    links.until(lambda: links.hub.reports or (not links.hub._listener.unproven and not code))
    assert [(one.rank, one.host, one.kind, one.code, one.exit_code) for one in links.hub.reports.values()] == (
        [(3, "n2", "refused", code, 2)] if code else []
    )
    for link in (links.hub, stray):
        link.close()


@pytest.mark.parametrize(
    ("other", "seen", "expected"),
    [
        ({"seed": 5}, "seed=5 on n2", "seed=0, as on rank 0's host"),
        ({"noether": "2", "seed": 5}, "noether=2, seed=5 on n2", "noether=1, seed=0, as on rank 0's host"),
        ({"new": "\x1b[2J"}, "new=\\x1b[2J on n2", "new=(no such setting), as on rank 0's host"),
    ],
    ids=["a setting", "a version first", "one that rank 0 lacks"],
)
def test_settings_that_differ_are_named_with_both_values(other, seen: str, expected: str) -> None:
    first = {"noether": "1", "torch": "2", "seed": 0, "model.dim": 32}
    refused = settings_differ(first, {**first, **other}, "n2", "")
    assert refused is not None
    assert (refused.code, refused.seen, refused.expected) == ("hosts-differ", seen, expected)


@pytest.mark.parametrize(("known", "own"), [(JOB, 2), (replace(JOB, configuration="", world_size=3), 1)], ids=str)
def test_a_run_that_rank_0_refuses_is_refused_to_all_that_come(tmp_path: Path, known: RunIdentity, own: int) -> None:
    """If rank 0's settings cannot be read, its parent process knows only the job, and assumes one rank per process."""
    links = Links(tmp_path, known)
    spokes = [links.connect(rank, identity=JOB) for rank in (2, 3)]
    refusal = WorkerReport(0, "n1", "refused", "no data\x1b[2J", 2, code="no-data", seen="\x1b[2J")
    links.hub._listener.refuse_all(refusal, own)
    links.until(lambda: all(spoke.failure for spoke in spokes), *spokes)
    for spoke in spokes:
        assert (spoke.failure.rank, spoke.failure.code, spoke.failure.exit_code) == (0, "no-data", 2)
        assert (spoke.failure.message, spoke.failure.seen) == ("no data\\x1b[2J", "\\x1b[2J")
        spoke.close()
    links.hub.close()


def test_a_connection_that_this_system_forbids_is_refused_at_once(links: Links, monkeypatch) -> None:
    """A spoke gets the refusal, and so does rank 0, which also connects to its own address."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_connection", denied)
    spoke = links.connect(2)
    links.until(lambda: spoke.not_met, spoke)
    assert (spoke.not_met.code, spoke.not_met.exit_code) == ("connection-not-permitted", 2)
    with refusal("connection-not-permitted"):
        own_address(links.endpoint, links.endpoint.port, Caller("n1", 1, (0,), RUN, "0"), links.hub.run_info)


ANOTHERS = {"this run's": (RUN, "rank-twice"), "another run's": (replace(RUN, restarts=1), "master-is-another-host")}


@pytest.mark.parametrize(("run", "code"), ANOTHERS.values(), ids=ANOTHERS)
def test_rank_0_tells_its_own_listener_from_another_s(links: Links, tmp_path: Path, run, code: str) -> None:
    """A hub connects to the address that all hosts use, and reaches first itself, and then another hub."""
    links.hub.note_arrivals([0, 1])
    links.until(lambda: not links.hub._own_address.is_alive())
    assert (links.hub._own_address.error, links.hub._own_address.address) == (None, "127.0.0.1")
    caller = Caller("n2", 1, (0,), run, "0" * 32)
    look = AddressLookup("look", lambda: own_address(links.endpoint, links.endpoint.port, caller, links.hub.run_info))
    look.start()
    links.until(lambda: not look.is_alive())
    assert isinstance(look.error, RequestError)
    assert look.error.code == code
    assert not links.hub.reports


def test_a_second_process_of_the_same_rank_is_refused(links: Links) -> None:
    links.connected(2)
    double = links.connect(2, 3)
    links.until(lambda: double.not_met)
    assert "two processes are rank 2 of one run" in str(double.not_met)
    assert links.hub.remote_ranks == [2]


def test_a_report_reaches_the_hub_and_the_verdict_every_launcher(links: Links) -> None:
    first, second = links.connected(2), links.connected(3)
    first.send({"report": asdict(report(2))})
    links.until(lambda: links.hub.reports)
    (heard,) = links.hub.reports.values()
    assert (heard.rank, heard.traceback, heard.position) == (2, report(2).traceback, AT_3)
    assert abs(heard.time - time.time()) < LIMIT_S, "clocks of hosts differ, so the time of receipt counts"
    doing = WorkerReport(3, "n2", "busy", "in f (x.py:1)", traceback="stack", position=AT_3)
    links.hub.ask(reports_from)
    links.until(lambda: second.asked)
    second.answer([asdict(doing)])
    links.until(lambda: links.hub.answers)
    assert links.hub.answers == {(3,): [replace(doing, time=links.hub.answers[3,][0].time)]}
    assert [peer.ranks for peer in links.hub.silent()] == [(2,)]
    first.answer([])
    links.until(lambda: not links.hub.silent())
    links.hub.send_all({"failure": asdict(heard)})
    links.until(lambda: first.failure and second.failure)
    assert second.failure is not None
    assert (second.failure.rank, second.failure.message) == (2, "ValueError: boom")


def test_what_is_said_before_the_door_is_found_is_not_lost(links: Links) -> None:
    spoke = links.connect(2)
    spoke.send({"report": asdict(report(2))})
    links.until(lambda: links.hub.reports)


def test_a_launcher_without_a_good_bye_is_lost_with_its_ranks_and_one_with_it_is_not(links: Links) -> None:
    polite, killed = links.connected(2), links.connected(3, 4)
    polite.send({"bye": 1})
    for spoke in (polite, killed):
        spoke.close()
    links.until(lambda: not links.hub.peers, links.hub)
    lost = [(one.rank, one.kind, one.host) for one in links.hub.reports.values()]
    assert lost == [(3, "lost", "n2"), (4, "lost", "n2")]
    assert "lost its connection (the process that started it has probably died)" in links.hub.reports[3].message


def test_silence_is_a_loss_on_both_sides(links: Links) -> None:
    spoke = links.connected(2, silence_s=1.0)
    links.until(lambda: links.hub.reports, links.hub)
    assert links.hub.reports[2].message.startswith("has not been heard from for 1 s")
    links.until(lambda: spoke.reports, spoke)
    assert [(lost.rank, lost.kind) for lost in spoke.reports.values()] == [(0, "lost")]


def test_heartbeats_keep_silent_launchers(links: Links) -> None:
    spoke = links.connected(2, silence_s=1.0)
    ends = time.monotonic() + 2.5
    links.until(lambda: time.monotonic() > ends)
    assert not links.hub.reports
    assert not spoke.reports


def test_a_launcher_that_was_stopped_itself_blames_nobody(links: Links) -> None:
    """If a job is suspended for hours, its launcher has heard from no peer, although all peers are there."""
    links.connected(2)
    links.hub._polled -= 3600
    links.hub.peers[0].heard -= 3600
    links.hub.poll()
    assert not links.hub.reports


def hello(**wrong: object) -> bytes:
    hello = {**Caller("n2", 1, (2,), RUN, "0" * 32).as_message(), **wrong}
    return json.dumps({key: value for key, value in hello.items() if value is not None}).encode() + b"\n"


STRANGERS = {
    "a web browser": b"GET / HTTP/1.1\r\n\r\n",
    "garbage": b"\x00\xff" * 50 + b"\n",
    "a list": b"[1]\n",
    "deeply nested": b"[" * 10_000 + b"\n",
    "another object": b'{"hello": "guess"}\n',
    "a very long line": b"x" * 300_000,
    "no host": hello(host=None),
    "no ranks": hello(ranks=[]),
    "ranks that are none": hello(ranks=["first"]),
    "a rank outside of the world": hello(ranks=[5]),
    "no run": hello(run="{}"),
    "a run of other types": hello(run=json.dumps({**vars(RUN), "world_size": "5"})),
    "a guess at the key": hello() + b'{"proof": "0"}\n',
    "a report without a proof": hello() + b'{"report": {}}\n',
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS.keys())
def test_who_is_not_a_launcher_is_hung_up_on(links: Links, words: bytes) -> None:
    with socket.create_connection(("127.0.0.1", links.hub._listener.port)) as stranger:
        stranger.sendall(words)
        links.until(lambda: has_hung_up(stranger), links.hub)
    assert not links.hub.reports
    assert not links.hub.peers


def test_a_stranger_cannot_write_to_the_terminal_what_the_terminal_acts_on(links: Links, capfd) -> None:
    other = replace(RUN, launcher="\x1b[2J\nroot@n1")
    with socket.create_connection(("127.0.0.1", links.hub._listener.port)) as stranger:
        stranger.sendall(hello(run=other.as_text(), host="\x1b[31mn2"))
        links.until(lambda: has_hung_up(stranger), links.hub)
    said = capfd.readouterr().err
    assert "of another run was refused" in said
    assert "\x1b" not in said
    assert said.count("\n") == 1


def test_any_number_of_idle_connections_leaves_room_for_a_launcher(links: Links) -> None:
    idle: list[socket.socket] = []
    for _ in range(10):
        idle += [socket.create_connection(("127.0.0.1", links.hub._listener.port), timeout=5) for _ in range(100)]
        links.hub.poll()
        assert len(links.hub.descriptors()) <= MOST_UNPROVEN + 3
    links.connected(2, 3, 4)
    for connection in idle:
        connection.close()


ODD_KIND = b'{"report": {"rank": 2, "host": "b", "kind": "odd", "message": "", "position": {}}}\n'


@pytest.mark.parametrize(
    "line", [b'{"report": {}}\n', ODD_KIND, b'{"answer": [1]}\n', b'{"arrived": 7}\n', b"[]\n"], ids=str
)
def test_a_launcher_that_talks_nonsense_is_lost_and_nothing_else(links: Links, line: bytes) -> None:
    spoke = links.connected(2)
    links.hub.ask(reports_from)
    spoke.peers[0].connection.socket.sendall(line)
    links.until(lambda: links.hub.reports, links.hub)
    assert [lost.kind for lost in links.hub.reports.values()] == ["lost"]
