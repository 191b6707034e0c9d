"""What a parent process hands to its workers, and what they report."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from noether.common.errors import RequestError
from noether.config.distributed import DistributedConfig
from noether.launch.detect.identity import NO_RUN, RunIdentity
from noether.launch.detect.placement import Endpoint, Worker
from noether.launch.processes.rank_state import BEFORE_ALL, ParentLink, RankPosition

TELLING_S = 120.0


@dataclass(frozen=True)
class RunInfo:
    """What all ranks of a run are given alike.

    `key` proves that a parent is of this run, without being sent; `start_key` that it was started with it, though its
    settings cannot be read or differ, which allows it to refuse the run. `distributed` says how long ranks wait for
    each other. `shared_folder` is one that all hosts are expected to see, where a port is published that could not be
    derived; None where there is none. `log_folder` is this parent's; a user is told of it where its `logs_stay`.
    `listener_port` is where the parent process of rank 0 accepts the others, for rank 0 to write into the store that a
    launcher such as torchrun serves; 0 elsewhere. `settings` are those that must be the same on all hosts, by dotted
    names, after the versions of noether and torch; empty where they cannot be read.
    """

    identity: RunIdentity = NO_RUN
    key: str = ""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    shared_folder: Path | None = None
    log_folder: Path = Path()
    logs_stay: bool = True
    listener_port: int = 0
    start_key: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def telling_s(self) -> float:
        """How many seconds a parent process stays to refuse the run to hosts that come late; some may never come."""
        return min(self.distributed.init_timeout_s, TELLING_S)


@dataclass(frozen=True)
class WorkerContext:
    """What one worker is given: the facts of the placement that concern its rank.

    `threads` is how many CPU threads the worker may use. `listen_socket` is bound and listening on `store_port`; only
    rank 0 of several has it, and hands `listen_socket.detach()` to `torch.distributed.TCPStore(master_listen_fd=...)`,
    so that the port is never free in between. Where all ranks are of one parent process, that is `endpoint.port`.
    `parent` reaches the parent process that watches this worker; without one it does nothing.
    """

    worker: Worker
    world_size: int
    local_world_size: int
    host: str
    endpoint: Endpoint
    restarts: int
    threads: int
    listen_socket: socket.socket | None = None
    store_port: int = 0
    run_info: RunInfo = RunInfo()
    parent: ParentLink = field(default_factory=ParentLink, compare=False)


ReportKind = Literal["finished", "refused", "failed", "left", "interrupted", "died", "hung", "lost", "busy", "stopped"]
Consequence = Literal["", "lost-peer", "timed-out"]  # fmt: skip

REPORTED_WORDS = ("message", "seen", "expected", "fix")
"""The fields of a report that are words for a user."""


@dataclass(frozen=True)
class WorkerReport:
    """How one rank ended, in its own words, or in the parent process's where the rank could not say.

    The failure of a run is one of its reports: the one that the others follow from, as rank 0's parent process decides.
    A refusal is a report of the kind "refused", and the RequestError that it is about.

    `kind` is "finished" (the target returned), "refused" (a NoetherError: text for the user, no traceback),
    "failed" (any other exception), "left" (sys.exit), "interrupted" (by a signal), "died" (no word from the
    rank: a signal, os._exit), "hung" (it did not come where the others waited) or "lost" (its parent is gone, or
    its host). Of a rank that has not ended when another fails, its parent says "busy", or "stopped" (by a signal):
    `message` is what it was doing, `traceback` its stack. `time` is seconds since the epoch on that host; `position` is
    where the rank stood at its last. `code` is that of a NoetherError; of a RequestError, `message` is its summary, and
    `seen`, `expected` and `fix` are its other parts. `follows` says that the rank ended because of others: it had lost
    one, or had waited `waited_s` for one (0: not known how long). `of_host` says that only the host is known:
    `rank` stands for those that it would have had.
    """

    rank: int
    host: str
    kind: ReportKind
    message: str
    exit_code: int = 1
    pid: int = 0
    time: float = field(default_factory=time.time)
    traceback: str = ""
    position: RankPosition = BEFORE_ALL
    code: str = ""
    follows: Consequence = ""
    waited_s: float = 0.0
    seen: str = ""
    expected: str = ""
    fix: str = ""
    of_host: bool = False

    @property
    def who(self) -> str:
        """Who reports: "rank 3 on hostB", or "hostB" where its ranks are not known."""
        return self.host if self.of_host else f"rank {self.rank} on {self.host}"

    @property
    def refusal(self) -> RequestError:
        """The refusal that this report is about."""
        return RequestError(self.code, self.message, seen=self.seen, expected=self.expected, fix=self.fix)
