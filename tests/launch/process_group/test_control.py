"""Messages that ranks exchange through the store reach every rank in order and in time; forged ones are rejected."""

import ctypes
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from noether.common.errors import RanksLate
from noether.launch.process_group.group import back_ends, nccl_defaults
from noether.launch.process_group.stores import ControlChannel, ForgedMessage, _setting

WORLD = 5


@pytest.fixture
def stores() -> list[dist.TCPStore]:
    limit = timedelta(seconds=20)
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    rest = [dist.TCPStore("127.0.0.1", first.port, is_master=False, timeout=limit) for _ in range(WORLD - 1)]
    return [first, *rest]


@pytest.fixture
def channels(stores: list[dist.TCPStore]) -> list[ControlChannel]:
    return [ControlChannel(store, rank, WORLD, "secret", 20.0) for rank, store in enumerate(stores)]


def on_all(channels: list[ControlChannel], do: Callable[[int, ControlChannel], Any]) -> list[Any]:
    with ThreadPoolExecutor(WORLD) as threads:
        return list(threads.map(do, range(WORLD), channels))


def test_objects_travel_both_ways_and_leave_nothing_behind(stores, channels: list[ControlChannel]) -> None:
    def talk(rank: int, channel: ControlChannel) -> list[Any]:
        heard = []
        for turn in range(20):
            heard.append(channel.from_first({"turn": turn, "rank": rank}))
            heard.append(channel.gather((turn, rank)))
            channel.barrier()
        return heard

    heard = on_all(channels, talk)
    on_all(channels, lambda rank, channel: channel.leave())
    for turn in range(20):
        assert all(words[2 * turn] == {"turn": turn, "rank": 0} for words in heard)
        assert heard[0][2 * turn + 1] == [(turn, rank) for rank in range(WORLD)]
        assert all(words[2 * turn + 1] == [] for words in heard[1:])
    assert stores[0].num_keys() <= 6, "messages must be deleted once they are read"


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_is_said(channels: list[ControlChannel]) -> None:
    channels[0].limit_s = 0.3
    with pytest.raises(RanksLate) as late:
        channels[0].barrier()
    assert late.value.limit_s == 0.3


class Planted:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a stranger's object was read",))


@pytest.mark.parametrize("signature", [b"", b"0" * 32], ids=["none", "a guess"])
def test_what_a_stranger_wrote_is_not_read(stores, channels: list[ControlChannel], signature: bytes) -> None:
    stores[1].set("noether/1/object", signature + pickle.dumps(Planted()))
    with pytest.raises(ForgedMessage):
        channels[2].from_first(None)


def test_what_was_said_before_is_not_taken_for_something_else(stores, channels: list[ControlChannel]) -> None:
    channels[0].from_first("the first")
    text = stores[1].get("noether/1/object")
    channels[2].from_first(None)
    stores[1].set("noether/2/object", text)
    with pytest.raises(ForgedMessage):
        channels[2].from_first(None)


LOOK_UP = """
import socket, sys
from noether.launch.process_group.stores import without_dns
def known(name):
    try:
        return bool(socket.getaddrinfo(name, 1))
    except socket.gaierror as error:
        return error.errno
before = known("localhost")
with without_dns():
    within, unknown = known("localhost"), known("no-such-host.invalid.")
print(before, within, unknown == socket.EAI_NONAME, known("localhost"))
"""


DEBIAN = "files mdns4_minimal [NOTFOUND=return] dns"
SWITCHES = {
    "debian": (f"passwd: files\nhosts: {DEBIAN}\n", DEBIAN),
    "comment": ("hosts:\tfiles dns # ours\n", "files dns"),
    "indented": ("#hosts: db\n  hosts:  dns\n", "dns"),
    "no such file": ("", "files dns"),
}


@pytest.mark.parametrize(("switch", "sources"), SWITCHES.values(), ids=SWITCHES)
def test_the_setting_of_the_machine_is_read(switch: str, sources: str) -> None:
    assert _setting(switch) == sources


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "__nss_configure_lookup"), reason="another C library than glibc")
def test_only_the_hosts_file_is_asked() -> None:
    """Asking an unreachable DNS server fails with EAI_AGAIN; the hosts file alone gives a final answer."""
    done = subprocess.run([sys.executable, "-c", LOOK_UP], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True", "True", "True"]


FR, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
TRACE = "/run/logs/nccl-trace-rank-"
ALL = {
    FR: "2000",
    OLD: "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_TEMP_FILE": TRACE,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": TRACE,
}


@pytest.mark.parametrize(
    ("environ", "left_out"),
    [({}, ()), ({OLD: "7"}, (FR, OLD)), ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, ("TORCH_NCCL_DUMP_ON_TIMEOUT",))],
    ids=str,
)
def test_nccl_is_told_only_what_the_user_has_not_said(environ: dict[str, str], left_out: tuple[str, ...]) -> None:
    expected = {name: value for name, value in ALL.items() if name not in left_out}
    assert nccl_defaults(environ, Path("/run/logs")) == expected


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [("cpu", False, "gloo"), ("cpu", True, "gloo"), ("cuda", False, "nccl"), ("cuda", True, "cpu:gloo,cuda:nccl")],
)
def test_gpus_have_no_mesh_of_gloo_unless_it_is_asked_for(kind: str, asked: bool, expected: str) -> None:
    assert back_ends(kind, asked) == expected
