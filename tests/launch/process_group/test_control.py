"""What ranks tell each other over the store: to everybody, in order, in time, and from nobody else."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from noether.common.errors import RanksLate
from noether.launch.process_group.control import ControlChannel, ForgedMessage

WORLD = 5


@pytest.fixture
def stores() -> list[dist.TCPStore]:
    limit = timedelta(seconds=20)
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    rest = [dist.TCPStore("127.0.0.1", first.port, is_master=False, timeout=limit) for _ in range(WORLD - 1)]
    return [first, *rest]


@pytest.fixture
def channels(stores: list[dist.TCPStore]) -> list[ControlChannel]:
    made = [ControlChannel(store, rank, WORLD, "secret") for rank, store in enumerate(stores)]
    for channel in made:
        channel.limit_s = 20.0
    return made


def on_all(channels: list[ControlChannel], do: Callable[[int, ControlChannel], Any]) -> list[Any]:
    with ThreadPoolExecutor(WORLD) as threads:
        return list(threads.map(do, range(WORLD), channels))


def test_objects_travel_both_ways_and_leave_nothing_behind(
    stores: list[dist.TCPStore], channels: list[ControlChannel]
) -> None:
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
    assert stores[0].num_keys() <= 6, "what was read is taken away"


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_is_said(channels: list[ControlChannel]) -> None:
    channels[0].limit_s = 0.3
    with pytest.raises(RanksLate) as late:
        channels[0].barrier()
    assert late.value.limit_s == 0.3


class Planted:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a stranger's object was read",))


@pytest.mark.parametrize("signature", [b"", b"0" * 32], ids=["none", "a guess"])
def test_what_a_stranger_wrote_is_not_read(
    stores: list[dist.TCPStore], channels: list[ControlChannel], signature: bytes
) -> None:
    stores[1].set("noether/1/object", signature + pickle.dumps(Planted()))
    with pytest.raises(ForgedMessage):
        channels[2].from_first(None)


def test_what_was_said_before_is_not_taken_for_something_else(
    stores: list[dist.TCPStore], channels: list[ControlChannel]
) -> None:
    channels[0].from_first("the first")
    text = stores[1].get("noether/1/object")
    channels[2].from_first(None)
    stores[1].set("noether/2/object", text)
    with pytest.raises(ForgedMessage):
        channels[2].from_first(None)
