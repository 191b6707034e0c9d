"""`noether doctor`: one process looks at its host, meets the others, and rank 0's reports for all.

Nothing here may hang: what can is done by children or threads that are left behind, and a watchdog has the last word.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from noether.config.schema import RunConfig
from noether.doctor.child import ChildError
from noether.doctor.finding import Finding, refused, skipped
from noether.doctor.host_facts import HostFacts
from noether.doctor.links import CHAIN, World, walk_chain
from noether.doctor.meeting import (
    Connection,
    Peer,
    Unanswered,
    ask_peers,
    clock_offset,
    gather_peers,
    reach,
)
from noether.doctor.process import (
    LOOPBACK,
    TORCH_SECONDS,
    Clock,
    RankChildren,
    find_place,
    host_findings,
    located,
    read_host,
    resolve_master,
    versions_of,
)
from noether.doctor.report import Report, print_report
from noether.doctor.world_checks import check_agreement, check_clocks, check_names, check_presence
from noether.environments.endpoint import HeldPort, hold_port
from noether.environments.placement import Endpoint, Placement
from noether.errors import ExitCode, RequestError

DEFAULT_SECONDS = 50.0
SHORTEST_SECONDS = 5.0
WATCHDOG_SECONDS = 5.0
"""How long after its time the doctor is ended, should it hang itself: a minute after the start by default."""
NAME_SECONDS = 8.0
MEETING_SHARE = 0.36
"""Of the whole time, how much the other ranks are waited for: 18 s by default."""
JOIN_SHARE = 0.44
"""How long they try: rank 0 may be later, by what its host needs for its own facts."""
RANK_VARIABLES = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def doctor_here(load: Callable[[], RunConfig], seconds: float, as_json: bool) -> int:
    """Examines this machine, or the job this process is part of, and returns the exit code.

    Args:
        load: reads the configuration; it is called under the watchdog, for its files may lie on a dead file system.
        seconds: how long the whole may take.
        as_json: print one JSON object.

    Returns:
        0 where no error was found, 1 where one was.

    Raises:
        RequestError: the configuration is wrong.
    """
    report = Report(seconds)
    clock = Clock(seconds)
    watchdog = threading.Timer(seconds + WATCHDOG_SECONDS, _give_up, (report, clock, as_json))
    watchdog.daemon = True
    watchdog.start()
    clock.enter("the configuration")
    config = load()
    try:
        speaks = _examine(config, report, clock)
    finally:
        watchdog.cancel()
    if speaks:
        print_report(report, as_json)
        return ExitCode.FAILED if report.errors else ExitCode.DONE
    return ExitCode.DONE


def _give_up(report: Report, clock: Clock, as_json: bool) -> None:
    """Prints what is known and ends the process, whatever its other threads hang in."""
    report.findings.append(Finding("doctor", "error", f"hangs in: {clock.step}", "an answer within its time"))
    print_report(report, as_json)
    sys.stdout.flush()
    os._exit(ExitCode.FAILED)


def _examine(config: RunConfig, report: Report, clock: Clock) -> bool:
    """Fills the report; returns whether this process is the one to show it."""
    facts, found = read_host(config, clock)
    placement, launch = find_place(config, facts)
    found += launch
    if placement is None or placement.world_size == 1:
        return _examine_alone(config, facts, placement, found, report, clock)
    ranks = tuple(worker.rank for worker in placement.workers)
    report.describe(placement, facts.host)
    address, names = resolve_master(placement.endpoint, clock.left(NAME_SECONDS))
    found.append(names)
    held: HeldPort | None = None
    if 0 in ranks and not placement.endpoint.served_by:
        clock.enter("the port")
        try:
            held = hold_port(placement.endpoint)
        except RequestError as error:
            found.append(refused("port", error))
    children = _start_children(placement, ranks, held.socket if held else None)
    try:
        process = _Process(config, facts, placement, ranks, children, clock, found)
        if 0 in ranks:
            _lead(process, address, held, report)
            return True
        return _follow(process, address, report)
    finally:
        children.end()
        if held is not None:
            held.close()


def _start_children(placement: Placement, ranks: tuple[int, ...], listening: socket.socket | None) -> RankChildren:
    devices = [worker.device.index if worker.device.kind == "cuda" else None for worker in placement.workers]
    return RankChildren(ranks, devices, listening)


def _examine_alone(
    config: RunConfig,
    facts: HostFacts,
    placement: Placement | None,
    found: list[Finding],
    report: Report,
    clock: Clock,
) -> bool:
    """One process, or one whose place is unknown: the chain is tried between two children over the loopback."""
    said = next((os.environ[name] for name in RANK_VARIABLES if os.environ.get(name, "0") != "0"), "")
    report.describe(placement, facts.host)
    endpoint = placement.endpoint if placement is not None else Endpoint(LOOPBACK, 0)
    held: HeldPort | None = None
    try:
        held = hold_port(endpoint)
    except RequestError as error:
        found.append(refused("port", error))
    cuda = bool(placement and placement.workers[0].device.kind == "cuda")
    children = RankChildren((0, 1), (0 if cuda else None, None), held.socket if held else None)
    try:
        found += host_findings(config, facts, placement, children, clock)
        report.add_host(facts, (0,))
        if held is None:
            chain = [skipped(name, "the port is taken") for name in CHAIN]
        elif "error" in children.versions:
            chain = [skipped(name, "torch cannot be imported") for name in CHAIN]
        else:
            gpus = tuple(children.gpu_ranks)
            world = World(2, LOOPBACK, held.endpoint.port, "", 0, gpus, (facts.host,))
            chain = walk_chain(world, children.step, clock.enter, clock.left)
    finally:
        children.end()
        if held is not None:
            held.close()
    report.findings += [*located(found, facts.host, ()), *chain]
    if placement is None and said:
        # Nobody can say who leads; the process of rank 0 shows the whole, the others what is wrong with them.
        report.as_follower()
    return True


class _Process:
    """What leading and following have in common: this process and its own part of the report."""

    def __init__(
        self,
        config: RunConfig,
        facts: HostFacts,
        placement: Placement,
        ranks: tuple[int, ...],
        children: RankChildren,
        clock: Clock,
        found: list[Finding],
    ) -> None:
        self.config, self.facts, self.placement, self.ranks = config, facts, placement, ranks
        self.children, self.clock, self.found = children, clock, found
        # What a hello must bear to be of this run: a port can be found by the ranks of another.
        self.run = [placement.launcher, placement.world_size, placement.attempt, len(placement.nodes)]

    def report(self) -> dict[str, Any]:
        """Returns everything this process found by itself."""
        mine = [*self.found, *host_findings(self.config, self.facts, self.placement, self.children, self.clock)]
        return {
            "findings": [finding.as_dict() for finding in located(mine, self.facts.host, self.ranks)],
            "facts": self.facts.as_dict(),
            "versions": versions_of(self.config, self.facts, self.children.versions),
            "torch_works": "error" not in self.children.versions,
            "gpu_ranks": self.children.gpu_ranks,
            "node_rank": self.placement.node_rank,
            "ranks": list(self.ranks),
        }

    def store_key(self) -> str:
        """Returns where rank 0 says its port, in a store that a launcher serves."""
        return f"noether-doctor/{self.placement.attempt}/port"

    def served_port(self, address: str, value: str = "") -> int:
        """Puts the port of the meeting into the launcher's store, or reads it there.

        Raises:
            ChildError: the store does not answer.
        """
        torch = self.children.wait_for_torch(self.clock.left(TORCH_SECONDS))
        if "error" in torch:
            raise ChildError(torch["error"])
        endpoint, seconds = self.placement.endpoint, self.clock.share(MEETING_SHARE)
        request = {
            "do": "publish",
            "address": address,
            "port": endpoint.port,
            "key": self.store_key(),
            "seconds": seconds,
        }
        return int(self.children.exchange(request | ({"value": value} if value else {}), seconds + 1))


def _lead(process: _Process, address: str, held: HeldPort | None, report: Report) -> None:
    """Is rank 0's process: lets the others in, asks everyone, and fills the report."""
    placement, clock = process.placement, process.clock
    peers: list[Peer] = []
    listening = held.socket if held else None
    if address and placement.endpoint.served_by:
        clock.enter(f"the store of {placement.endpoint.served_by}")
        listening = socket.create_server(("", 0))
        try:
            process.served_port(address, str(listening.getsockname()[1]))
        except ChildError as error:
            listening.close()
            listening = None
            fix = "unset MASTER_ADDR MASTER_PORT      (they are torchrun's to set)"
            where = f"{address}:{placement.endpoint.port}"
            process.found.append(Finding("port", "error", f"{where}: {error}", "the launcher's store", fix))
    others = placement.world_size > len(process.ranks)
    if others and listening is not None:
        clock.enter("waiting for the other ranks")
        seconds, started = clock.share(MEETING_SHARE), time.monotonic()
        peers, strangers = gather_peers(listening, process.run, process.ranks, placement.world_size, seconds)
        came = {placement.node_rank: (process.facts.host, list(process.ranks))}
        for peer in peers:
            host, ranks = came.get(peer.node_rank, (peer.host, []))
            came[peer.node_rank] = (host, [*ranks, *peer.ranks])
        waited = time.monotonic() - started
        report.findings.append(check_presence(placement.world_size, placement.nodes, came, waited))
        report.findings += [Finding("peers", "warning", text, "ranks of this run only") for text in strangers]
    if placement.endpoint.served_by and listening is not None:
        listening.close()
    missing = any(finding.check == "peers" and finding.level == "error" for finding in report.findings)
    clock.enter("what every host found")
    answers = ask_peers(peers, {"do": "report"}, process.report, clock.left(TORCH_SECONDS + 12))
    hosts = _collect(answers, [*peers], report)
    if others:
        report.findings += _compare(answers, peers)
    chain = _reason_to_stop(process, address, listening, missing, answers)
    if chain:
        report.findings += [skipped(name, chain) for name in CHAIN]
    else:
        port = held.endpoint.port if held else placement.endpoint.port
        gpu_ranks = tuple(rank for answer in answers for rank in answer["gpu_ranks"])
        world = World(
            placement.world_size,
            address,
            port,
            placement.endpoint.served_by,
            placement.attempt,
            gpu_ranks,
            tuple(hosts),
        )

        def ask(request: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
            def own() -> dict[str, Any]:
                return {"answers": process.children.step(request, seconds)}

            asked = {"do": "step", "request": request, "seconds": seconds}
            replies = ask_peers(peers, asked, own, seconds + 2)
            return [answer for reply in replies for answer in reply.get("answers", [])]

        report.findings += walk_chain(world, ask, clock.enter, clock.left)
    for peer in peers:
        peer.connection.send({"do": "end"})
        peer.connection.close()


def _reason_to_stop(
    process: _Process,
    address: str,
    listening: socket.socket | None,
    missing: bool,
    answers: list[dict[str, Any]],
) -> str:
    """Returns why the chain between the ranks is not tried, "" where it is."""
    if not address:
        return f"{process.placement.endpoint.host} does not resolve"
    if listening is None:
        return "rank 0 has no port"
    if missing:
        return "not every rank came"
    if any("lost" in answer for answer in answers):
        return "a rank went silent"
    return "" if all(answer["torch_works"] for answer in answers) else "torch cannot be imported everywhere"


def _collect(answers: list[dict[str, Any]], peers: list[Peer], report: Report) -> list[str]:
    """Takes over what every process found, and returns the hosts."""
    hosts = []
    for answer, peer in zip(answers, [None, *peers], strict=True):
        if "lost" in answer:
            assert peer is not None
            seen = f"ranks {list(peer.ranks)} came and then said nothing: {answer['lost']}"
            report.findings.append(Finding("peers", "error", seen, "an answer", hosts=(peer.host,), ranks=peer.ranks))
            continue
        report.findings += [Finding.from_dict(fields) for fields in answer["findings"]]
        facts = HostFacts.from_dict(answer["facts"])
        report.add_host(facts, tuple(answer["ranks"]))
        hosts.append(facts.host)
    return list(dict.fromkeys(hosts))


def _compare(answers: list[dict[str, Any]], peers: list[Peer]) -> list[Finding]:
    """Judges whether the hosts fit together."""
    told = [answer for answer in answers if "lost" not in answer]
    versions: dict[str, dict[str, str]] = {}
    boots: dict[int, tuple[str, str]] = {}
    for answer in told:
        host = answer["facts"]["host"]
        known = versions.get(host, answer["versions"])
        # Ranks of one host may differ too: then each has an entry.
        versions[host if known == answer["versions"] else f"{host} rank {answer['ranks'][0]}"] = answer["versions"]
        boots[answer["node_rank"]] = (host, answer["facts"]["boot"] or "")
    offsets: dict[str, tuple[float, float]] = {}
    for peer in {peer.host: peer for peer in peers}.values():
        try:
            offsets[peer.host] = clock_offset(peer)
        except Unanswered:
            continue  # Said by who did not report.
    return [check_agreement(versions), check_names(boots), check_clocks(offsets)]


def _follow(process: _Process, address: str, report: Report) -> bool:
    """Is another process: answers rank 0, and stays silent unless it cannot reach it."""
    placement, clock = process.placement, process.clock
    connection: Connection | None = None
    port = placement.endpoint.port
    if address:
        clock.enter("reaching rank 0")
        hello = {
            "run": process.run,
            "host": process.facts.host,
            "node_rank": placement.node_rank,
            "ranks": list(process.ranks),
        }
        try:
            if placement.endpoint.served_by:
                port = process.served_port(address)
            connection = reach(address, port, hello, clock.share(JOIN_SHARE))
        except (Unanswered, ChildError) as error:
            fix = f"noether doctor      (on {placement.nodes[0]}: does it start, is port {port} open)"
            seen = f"{placement.endpoint.host} ({address}) port {port}: {error}"
            process.found.append(Finding("port", "error", seen, "rank 0 listens there", fix))
    if connection is not None and _serve(process, connection):
        return False
    # What cannot be handed over is said here: nobody else knows it.
    clock.enter("what this host found")
    mine = process.report()
    report.add_host(process.facts, process.ranks)
    report.findings += [Finding.from_dict(fields) for fields in mine["findings"]]
    report.findings += [skipped(name, "rank 0 was not reached") for name in CHAIN]
    report.as_follower()
    return True


def _serve(process: _Process, connection: Connection) -> bool:
    """Answers rank 0 until it says that it is done; returns whether it has taken our report."""
    reported = False
    while True:
        process.clock.enter("waiting for rank 0")
        try:
            asked = connection.receive(process.clock.left(DEFAULT_SECONDS))
        except Unanswered:
            return reported
        if asked["do"] == "end":
            return reported
        if asked["do"] == "clock":
            connection.send({"time": time.time()})
        elif asked["do"] == "report":
            connection.send(process.report())
            reported = True
        else:
            process.clock.enter(asked["request"]["do"])
            connection.send({"answers": process.children.step(asked["request"], asked["seconds"])})


def read_seconds(text: str | None) -> float:
    """Returns the time limit that was asked for.

    Raises:
        RequestError: it is no number of seconds, or too short to find anything.
    """
    try:
        seconds = DEFAULT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not SHORTEST_SECONDS <= seconds <= 3600:
        raise RequestError(
            "--timeout is a number of seconds",
            seen=f"--timeout {text}",
            expected=f"{SHORTEST_SECONDS:g} to 3600",
            fix=f"--timeout {DEFAULT_SECONDS:g}",
        )
    return seconds
