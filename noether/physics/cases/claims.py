"""Which process prepares which case, where several share one output folder, on one host or many, and none leads.

A claim is a file `OUT/.preparing/CASE-N` that was created exclusively. Its holder changes its time every HEARTBEAT
seconds and removes it when the case is done. A claim is dead if its process is gone from this host, or if its time did
not change for EXPIRED seconds of the reader's own clock (hosts and file servers disagree about the time of day). Who
creates the claim N + 1 of a dead claim N takes the case over: of several that try, one can. A claim that was lost by a
process that only slept costs the case's work twice, and does no harm: a case is renamed to its place when it is whole.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self

from noether.common.errors import RequestError
from noether.common.processes import this_process, was_alive

FOLDER = ".preparing"
HEARTBEAT = 20.0
EXPIRED = 200.0  # some heartbeats, and the minute for which a client of NFS may believe an old time of change


@dataclass
class Claims:
    """This process's claims on cases, given back when the context is left.

    out: the store; map_digest: of the map, which all processes on it must share.
    """

    out: Path
    map_digest: str
    _held: dict[str, Path] = field(default_factory=dict)
    _watched: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Of others' claims, the time of change that was last seen, and since when."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        (self.out / FOLDER).mkdir(exist_ok=True)
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for case in list(self._held):
            self.release(case)
        for path in (self.out / FOLDER).iterdir():  # of processes that died once their cases were whole
            if _is_gone(_content(path)):
                path.unlink(missing_ok=True)

    def take(self, case: str) -> bool:
        """Claims a case; False where another process has it. RequestError: that process has another map."""
        if case in self._held:
            return True
        last = next(number for number in count() if not self._path(case, number + 1).exists())
        if last and not self._is_dead(self._path(case, last)):
            return False
        path = self._path(case, last + 1)
        try:
            with path.open("x") as file:
                file.write(json.dumps({"map": self.map_digest, **this_process()}))
        except FileExistsError:
            return False
        self._held[case] = path
        return True

    def release(self, case: str) -> None:
        """Removes a claim of this process, and the dead ones before it."""
        if held := self._held.pop(case, None):
            for number in range(int(held.name.rpartition("-")[2]), 0, -1):
                self._path(case, number).unlink(missing_ok=True)

    def refuse(self, case: str, error: RequestError) -> None:
        """Tells the others that a case of this process is broken; the claim is kept to say so."""
        path = self._held[case]
        path.write_text(json.dumps({**json.loads(path.read_text()), "refused": error.parts}))

    def refusal(self, case: str) -> RequestError | None:
        """What another process found wrong with a case."""
        for number in count(1):
            path = self._path(case, number)
            if not path.exists():
                return None
            if refused := _content(path).get("refused"):
                return RequestError(**refused)
        return None

    def _path(self, case: str, number: int) -> Path:
        return self.out / FOLDER / f"{case.replace('/', '-')}-{number}"

    def _is_dead(self, path: Path) -> bool:
        content = _content(path)
        try:
            changed = path.stat().st_mtime_ns
        except FileNotFoundError:
            return False  # Released: the next look says what became of the case.
        if _is_gone(content):
            return True
        before, since = self._watched.setdefault(path, (changed, time.monotonic()))
        if before != changed:
            self._watched[path] = changed, time.monotonic()
        elif time.monotonic() - since > EXPIRED:
            return True
        if content.get("map", self.map_digest) != self.map_digest:
            raise RequestError(
                "store-prepared-by-another-map",
                f"{self.out} is being prepared with another map",
                seen=f"process {content['pid']} on {content['host']}",
                expected="the same map in all processes that share a folder",
                fix="another OUT, or wait until that process has ended",
            )
        return False

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            for path in list(self._held.values()):
                with suppress(OSError):
                    os.utime(path)


def _content(path: Path) -> dict[str, Any]:
    """What a claim says; empty where it is gone, or being written."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _is_gone(content: Mapping[str, Any]) -> bool:
    """Whether the process of a claim has ended for certain."""
    return bool(content) and was_alive(*(content[key] for key in ("host", "boot", "pid", "started"))) is False
