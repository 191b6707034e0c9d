"""One process of the doctor: lets its ranks connect as in a training run, and collects the findings about its host."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from noether.common.errors import JoinError, RequestError, one_line
from noether.config.schema import RunConfig
from noether.doctor.host_checks import check_host
from noether.doctor.host_facts import HostFacts
from noether.doctor.report import Diagnosis, DoctorReport, refused, skipped
from noether.doctor.world_checks import CHAIN, check_agreement, check_chain, check_names, check_presence
from noether.launch.detect.placement import Placement
from noether.launch.processes.context import WorkerContext, WorkerReport
from noether.launch.processes.failure import is_consequence
from noether.launch.processes.hub import Hub, Spoke
from noether.launch.processes.listener import RunListener
from noether.launch.processes.watcher import LocalRanks
from noether.launch.processes.worker import write_to_log
from noether.runs.provenance import image_record

TORCH_SHARE = 0.5
"""The share of the whole time limit that `import torch` may take: by default 25 s."""
LEADER_SHARE, FOLLOWER_SHARE = 0.9, 0.8
"""The shares of the time limit after which rank 0's process, and any other, stops waiting: rank 0 may start earlier."""
POLL_S = 0.2
"""The maximum time in s between two polls of a link, which must check its own time limits."""


class TimeBudget:
    """Tracks how much of the doctor's time is left.

    For the watchdog, `step` names the doctor's current step, and `scratch` is its temporary folder ("" if none yet).
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.step, self.scratch = seconds, "start", ""
        self._deadline = time.monotonic() + seconds

    def left(self, share: float = 1.0) -> float:
        """Return a share of the whole time (s), or the time left if that is less; at least 0.1 s."""
        return max(0.1, min(share * self.seconds, self._deadline - time.monotonic()))


def examine_rank(context: WorkerContext, asks: int) -> int:
    """Run one rank of the doctor in a worker process; `asks` is the rank that lists the devices."""
    # Write to a log, because libraries (NCCL with NCCL_DEBUG=INFO) would write to stdout, where rank 0 prints JSON.
    write_to_log(context.run_info.log_folder / f"rank-{context.worker.rank}.log")
    from noether.doctor.collectives import walk_steps  # Imports torch, which may be broken.

    walk_steps(context, asks=asks)
    return 0


@dataclass
class Participant:
    """This process of the doctor: its placement, its ranks, its link to other processes, and its findings so far."""

    config: RunConfig
    facts: HostFacts
    placement: Placement
    workers: LocalRanks
    link: Hub | Spoke
    clock: TimeBudget
    found: list[Diagnosis]
    started: float = field(default_factory=time.monotonic)

    def wait_until(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Serve the ranks and the link until `is_over()` is True or the time is up; return the last `is_over()`."""
        deadline, link, workers, has_met = time.monotonic() + seconds, self.link, self.workers, False
        while True:
            if isinstance(link, Spoke) and workers.listener_seen:
                link.look_for(workers.listener_seen)
            # Under torchrun, it is the ranks that find the other processes, through torchrun's store.
            link.note_arrivals(workers.arrived if self.placement.endpoint.served_by else link.own_ranks)
            link.poll()
            if link.meeting is not None and not has_met:
                workers.admit(link.meeting)
                has_met = True
            left = deadline - time.monotonic()
            if is_over() or left <= 0:
                return is_over()
            workers.hear(wait([*link.descriptors(), *workers.sources()], min(left, POLL_S)))

    def has_settled(self) -> bool:
        """Return whether the ranks have met, or can no longer meet because ranks have died or refused."""
        link = self.link
        refuses = isinstance(link, Hub) and link.reports and not set(link.missing).difference(*link.came)
        if self.placement.endpoint.served_by and not self.workers.alive:
            return True
        return link.is_settled or bool(refuses)

    def is_done(self) -> bool:
        """Return whether this process's ranks have taken every step that they can take."""
        going_on = [rank for rank in self._told() if rank["rank"] in self.workers.alive]
        if any("torch" not in rank for rank in going_on):
            return time.monotonic() - self.started >= self.clock.seconds * TORCH_SHARE
        cannot_meet = self.has_settled() and self.link.meeting is None
        return not going_on or (cannot_meet and all("devices" in rank for rank in going_on))

    def _meeting_findings(self) -> Iterator[Diagnosis]:
        """Yield the findings about how the ranks met. (`check_presence` reports ranks that are missing.)"""
        link, host, is_hub = self.link, self.link.endpoint.host, isinstance(self.link, Hub)
        meeting, failure, why = link.meeting, link.failure, link.not_met
        if meeting is not None:
            yield Diagnosis("names", "ok", f"{host} is {meeting.address}" if meeting.address != host else host)
        elif failure is not None:
            finding = refused("agreement", failure.refusal)
            is_own = failure.rank in link.own_ranks
            yield finding if is_own else replace(finding, seen=f"{failure.who}: {finding.seen}")
        elif isinstance(why, RequestError):
            if not (is_hub and isinstance(why, JoinError)):
                yield refused("names" if why.code == "master-not-resolved" else "port", why)
        elif why is not None:
            yield Diagnosis("port", "error", one_line(why), "rank 0 listening there")
        elif is_hub and not self.has_settled():
            yield Diagnosis("names", "error", f"{host}: no answer in time", "a name server that answers")
        if meeting is None:  # Ranks may have been refused by a launcher's store.
            yield from (refused("port", one.refusal) for one in self.workers.reports.values() if one.kind == "refused")

    def _told(self) -> list[dict[str, Any]]:
        """Return what each rank of this process reports about its steps, in the form that `check_chain` takes."""
        found = []
        for rank, worker in self.workers.workers.items():
            log, report = worker.context.run_info.log_folder / f"rank-{rank}.log", self.workers.reports.get(rank)
            told: dict[str, Any] = {"rank": rank, "device": worker.context.worker.device.kind}
            told |= {"error": f"no answer within {time.monotonic() - self.started:.0f} s", "follows": "timed-out"}
            if report is not None:
                follows = report.follows or ("lost-peer" if is_consequence(report) else "")
                told |= {"error": report.message.partition("\n")[0][:300], "follows": follows}
                if report.kind == "died" and log.is_file():
                    words = log.read_text(errors="replace").strip().splitlines()[-1:]
                    told["error"] = ": ".join([told["error"], *(line[:300] for line in words)])
            with suppress(FileNotFoundError):
                told |= json.loads(log.with_suffix(".json").read_text())
            found.append(told)
        return found

    def report(self) -> dict[str, Any]:
        """Return everything that this process found, as values for JSON."""
        told = self._told()
        lacking = next((rank for rank in told if "torch" not in rank), None)
        torch = told[0].get("torch", {})
        if lacking is not None:
            torch = {"error": lacking["error"], "late": lacking["follows"] == "timed-out"}
        devices = told[0].get("devices") or {"error": told[0]["error"]} if lacking is None else {}
        here = check_host(self.facts, self.placement, torch, devices, os.environ, os.getloadavg()[0])
        # The values in `versions` should be the same on every host.
        versions = {name: str(torch[key]) for name, key in (("CUDA", "cuda"), ("NCCL", "nccl")) if torch.get(key)}
        if (image := image_record()) is not None:  # Without a digest, use the facts recorded by its build.
            built = f"{image['flavour']} {image['git_revision']} {image['lock_sha256'][:12]}"
            versions["image"] = image["digest"] or built
        return {
            "findings": [
                (found.check, found.level, found.seen, found.expected, found.fix)
                for found in (*self.found, *self._meeting_findings(), *here)
            ],
            "host": self.facts.host,
            "facts": asdict(self.facts),
            "versions": {**self.facts.versions, **versions, "devices": self.placement.workers[0].device.kind},
            "torch_works": lacking is None and "devices" in told[0],
            "told": told,
            "node_rank": self.placement.node_rank,
            "ranks": [worker.rank for worker in self.placement.workers],
        }


def lead(process: Participant, hub: Hub, listener: RunListener | None, report: DoctorReport) -> None:
    """Run the process of rank 0: let the ranks meet, collect the reports of all processes, and fill `report`."""
    process.clock.step = "the ranks, and what every host found"
    hub.ask(dict)  # A process that connects later gets the request too.
    seconds = process.clock.left(LEADER_SHARE)
    process.wait_until(lambda: process.has_settled() and process.is_done() and not hub.silent(), seconds)
    told = [process.report(), *(hub.answers[ranks] for ranks in sorted(hub.answers))]
    lost = _lost(hub, seconds)
    for answer in told:
        report.add(answer)
    for ranks, loss in lost.items():
        seen = f"ranks {list(ranks)} connected, then stopped answering: {loss.message}"
        is_refusal = loss.kind == "refused"
        finding = refused("agreement", loss.refusal) if is_refusal else Diagnosis("peers", "error", seen, "an answer")
        report.findings.append(replace(finding, hosts=(loss.host,), ranks=ranks))
    if listener is not None:
        versions: dict[str, dict[str, str]] = {}
        for answer in told:  # If the versions of a host's processes differ, each process gets an entry.
            is_known = versions.setdefault(answer["host"], answer["versions"]) == answer["versions"]
            name = answer["host"] if is_known else f"{answer['host']} rank {answer['ranks'][0]}"
            versions[name] = answer["versions"]
        boots = {answer["node_rank"]: (answer["host"], answer["facts"]["boot"] or "") for answer in told}
        together = [check_agreement(versions), check_names(boots)]
        report.findings += [*_presence(process, hub, listener, told, lost), *together]
    meeting, why_not = hub.meeting, "torch cannot be imported everywhere"
    if meeting is None:
        why_not = "not every rank connected" if isinstance(hub.not_met, JoinError) else "the ranks have not met"
    elif lost:
        why_not = "a rank stopped answering"
    elif all(answer["torch_works"] for answer in told):
        steps, hosts = [rank for answer in told for rank in answer["told"]], {answer["host"] for answer in told}
        report.findings += check_chain(steps, hub.world_size, f"{meeting.address}:{meeting.port}", len(hosts))
        return
    report.findings += [skipped(name, why_not) for name in CHAIN]


def follow(process: Participant, spoke: Spoke, report: DoctorReport) -> bool:
    """Run a process without rank 0: report to rank 0; if that fails, fill `report` and return True to print it here."""
    process.clock.step = "the ranks, and reaching rank 0"

    def is_over() -> bool:
        return process.has_settled() and process.is_done() and (spoke.asked or not spoke.peers)

    process.wait_until(is_over, process.clock.left(FOLLOWER_SHARE))
    if spoke.asked and spoke.peers:
        spoke.answer(process.report())
        process.wait_until(lambda: not spoke.peers, process.clock.left())
        return False
    report.add(process.report())
    report.findings += [skipped(name, "rank 0 was not reached") for name in CHAIN]
    report.as_follower()
    return True


def _lost(hub: Hub, seconds: float) -> dict[tuple[int, ...], WorkerReport]:
    """Return {ranks of a process: reason} for each process that did not answer, refused the run, or is gone."""
    found = {
        peer.ranks: WorkerReport(peer.ranks[0], peer.host, "lost", f"no answer within {seconds:.0f} s")
        for peer in hub.silent()
    }
    for rank, loss in hub.reports.items():
        if not any(rank in ranks for ranks in (*found, *hub.answers)):
            found[next((ranks for ranks in hub.came if rank in ranks), (rank,))] = loss
    return found


def _presence(
    process: Participant,
    hub: Hub,
    listener: RunListener,
    told: list[dict[str, Any]],
    lost: Mapping[tuple[int, ...], WorkerReport],
) -> list[Diagnosis]:
    """Return findings about the ranks that are missing, and about the ranks of other runs that were refused."""
    nodes, came = process.placement.nodes, dict[int, tuple[str, list[int]]]()
    for answer in told:
        came.setdefault(answer["node_rank"], (answer["host"], []))[1].extend(answer["ranks"])
    for number, (ranks, loss) in enumerate(lost.items()):
        node = nodes.index(loss.host) if loss.host in nodes else -1 - number
        came.setdefault(node, (loss.host, []))[1].extend(ranks)
    # The absence of ranks is a finding only if they could connect.
    is_known = hub.reports or hub.meeting is not None or isinstance(hub.not_met, JoinError)
    found = [check_presence(hub.world_size, nodes, came, hub.run_info.distributed.init_timeout_s)] if is_known else []
    for caller in listener.strays.values():
        seen = f"rank {caller.ranks[0]} on {caller.host} was refused: it belongs to {caller.identity}"
        found.append(Diagnosis("peers", "warning", seen, f"ranks of this run: {hub.run_info.identity}"))
    return found
