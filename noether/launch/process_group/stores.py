"""Serves the stores through which a run's ranks communicate, exchanges data there, and keeps other programs out.

Gloo never stops listening, and a connection that it cannot accept makes it abort the process. So a filter on gloo's
listening socket makes the kernel drop every new connection; existing connections stay. torch's store looks up the name
of every client that connects, in the single thread that serves all ranks. If DNS does not answer, or does not know the
address, each connection costs this thread seconds, and a few connections make all ranks wait.
"""

import ctypes
import hashlib
import hmac
import os
import pickle
import re
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from noether.common.errors import EndedByAnother, JoinError, RanksLate
from noether.launch.detect.endpoint import find_address, interface_towards
from noether.launch.detect.placement import Endpoint
from noether.launch.processes.context import MeetingPoint


def join_store(point: MeetingPoint, listen_descriptor: int | None, limit_s: float) -> dist.Store:
    """Join the ranks' store. On rank 0, serve it on the socket `listen_descriptor`, which is None on other ranks.

    EndedByAnother: rank 0 has ended.
    """
    try:
        return _store_at(point.address, point.port, limit_s, listen_descriptor)
    except RuntimeError as error:
        raise EndedByAnother(
            "rank-0-ended",
            "rank 0 ended before all ranks had joined",
            seen=f"the store at {point.address} port {point.port} is gone ({_first_line(error)})",
            expected="a running rank 0, which serves the store",
            fix="read the output on rank 0's host",
        ) from None


def exchange_listener(endpoint: Endpoint, restarts: int, port: int, limit_s: float) -> int:
    """Return the port at which rank 0's parent process accepts other parents, through the launcher's store.

    The store is at `endpoint`. Rank 0 passes `port` and writes it there; the other ranks pass 0 and read it.

    JoinError: the store does not answer, or rank 0 has not written its port within `limit_s` seconds.
    """
    try:
        served = _store_at(find_address(endpoint.host), endpoint.port, limit_s)
        store = dist.PrefixStore(f"noether/{restarts}", served)  # The launcher's store is the same after a restart.
        if port:
            store.set("listener", str(port))
            return port
        return int(store.get("listener"))
    except (RuntimeError, OSError, ValueError) as error:
        raise JoinError(
            "launcher-store-silent",
            f"the ranks did not meet in the store of {endpoint.served_by} within {limit_s:g} s",
            seen=f"at {endpoint.host} port {endpoint.port}: {_first_line(error)}",
            expected="a rank 0 that is started together with this rank", fix="read the output on rank 0's host",
        ) from None  # fmt: skip


def _store_at(address: str, port: int, limit_s: float, listen_descriptor: int | None = None) -> dist.Store:
    return dist.TCPStore(
        address, port, is_master=listen_descriptor is not None, master_listen_fd=listen_descriptor,
        wait_for_workers=False,  # The parent processes have already made sure that all ranks are here.
        timeout=timedelta(seconds=limit_s),
    )  # fmt: skip


def choose_interface(address: str) -> None:
    """Make gloo and NCCL use the network interface that leads to rank 0, unless the user has chosen one.

    Otherwise gloo uses the address of this host's name, which is often 127.0.0.1, and may be missing in a container.
    """
    if (interface := interface_towards(address)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_SO_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""The filter's only instruction: return 0, which keeps no byte of the packet (linux/filter.h)."""


def listening_descriptors(port: int | None = None) -> set[int]:
    """Return this process's descriptors that listen at TCP port `port` (None: at any); an empty set without /proc."""
    found = set()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and _listens(int(name), port):
                    found.add(int(name))
    return found


def _listens(descriptor: int, port: int | None) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        inet = copy.family in (socket.AF_INET, socket.AF_INET6)
        listens = inet and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        return listens and port in (None, copy.getsockname()[1])


def shut(descriptors: Collection[int]) -> None:
    """Make the kernel drop every new connection to these listening sockets.

    If the kernel cannot do this (in a sandbox, or not Linux), the sockets stay open: less safe, but the run continues.
    """
    instructions = ctypes.create_string_buffer(_DROP)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    for descriptor in descriptors:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


@contextmanager
def without_dns() -> Iterator[None]:
    """Make this process look up host names only in /etc/hosts while the block runs."""
    _look_up_in("files")
    try:
        yield
    finally:
        switch = Path("/etc/nsswitch.conf")
        _look_up_in(_setting(switch.read_text(errors="replace") if switch.is_file() else ""))


def _setting(switch: str) -> str:
    """Return the sources for host look-ups, from the text of nsswitch.conf."""
    found = re.search(r"^\s*hosts:([^#\n]+)", switch, re.MULTILINE)
    return found[1].strip() if found else "files dns"


def _look_up_in(sources: str) -> None:
    # This function is from glibc's nss.h. Another C library lacks it, and its look-ups stay unchanged.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", sources.encode())


SLICE_S = 5.0
"""The longest time (s) that one wait occupies the connection to the store; NCCL's threads need the connection too."""


class ForgedMessage(Exception):
    """A value in the store that no rank of this run has written."""


class ControlChannel:
    """A channel for decisions and objects, in the ranks' store. Every rank calls the same methods in the same order.

    The ranks do not connect to each other: each uses its existing connection to the store. Values are signed with the
    run's secret. Another program that reaches the store can disturb the run, but no rank unpickles its data.
    `limit_s`: the longest time for which a rank waits for other ranks.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, secret: str, limit_s: float) -> None:
        self._store = dist.PrefixStore("noether", store)
        self._rank, self._world_size = rank, world_size
        self._secret = secret.encode()
        self._count = 0
        self.limit_s = limit_s

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        key = self._next("object")
        if self._rank == 0:
            self._put(key, value)
            return value
        self._wait([key])
        value = self._verified(key, self._store.get(key))
        with suppress(dist.DistError):  # Rank 0 may have ended after sending this value.
            if self._store.add(f"{key}/read", 1) == self._world_size - 1:
                self._delete(key, f"{key}/read")
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on rank 0. On other ranks, return an empty list without waiting."""
        key = self._next("gather")
        if self._rank > 0:
            self._put(f"{key}/{self._rank}", value)
            return []
        keys = [f"{key}/{rank}" for rank in range(1, self._world_size)]
        self._wait(keys)
        texts = self._store.multi_get(keys)
        self._delete(*keys)
        return [value, *(self._verified(name, text) for name, text in zip(keys, texts, strict=True))]

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        key = self._next("barrier")
        if self._store.add(f"{key}/here", 1) == self._world_size:
            self._store.set(f"{key}/all", "")
        self._wait([f"{key}/all"])
        if self._store.add(f"{key}/left", 1) == self._world_size:
            self._delete(f"{key}/here", f"{key}/all", f"{key}/left")

    def leave(self) -> None:
        """Leave the channel; this is the last call. Rank 0 serves the store, so it waits until all others have left."""
        if self._rank == 0:
            self._wait(["left"])
        elif self._store.add("leaving", 1) == self._world_size - 1:
            self._store.set("left", "")

    def _next(self, what: str) -> str:
        self._count += 1
        return f"{self._count}/{what}"

    def _wait(self, keys: Sequence[str]) -> None:
        """Wait until all keys exist. RanksLate: a key is still missing after `limit_s` seconds."""
        deadline = time.monotonic() + self.limit_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._store.wait(list(keys), timedelta(seconds=min(SLICE_S, max(left, 0.001))))
            except dist.DistStoreError:
                continue
            return
        raise RanksLate(self.limit_s)

    def _delete(self, *keys: str) -> None:
        for key in keys:
            self._store.delete_key(key)

    def _put(self, key: str, value: Any) -> None:
        text = pickle.dumps(value)
        self._store.set(key, self._signature(key, text) + text)  # type: ignore[arg-type]  # It takes bytes as well.

    def _verified(self, key: str, text: bytes) -> Any:
        signature, text = text[: hashlib.sha256().digest_size], text[hashlib.sha256().digest_size :]
        if not hmac.compare_digest(signature, self._signature(key, text)):
            raise ForgedMessage(f"the value that the ranks' store holds as {key} was not written by a rank of this run")
        return pickle.loads(text)

    def _signature(self, key: str, text: bytes) -> bytes:
        return hmac.new(self._secret, key.encode() + b"\0" + text, hashlib.sha256).digest()
