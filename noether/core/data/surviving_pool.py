"""Shares work among processes that may crash: an item whose process dies is named, and the others go on."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from noether.common.errors import RequestError
from noether.launch.processes.death_signal import die_with_parent

Item = TypeVar("Item")


def surviving_map(
    function: Callable[[Item], Any], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Any | RequestError]]:
    """Yields (item, result) in the order of completion; the result is a RequestError where the item was refused.

    Items are taken from their iterable only as processes come free. When a process dies (a reader of VTK crashed, or
    the system was out of memory), nobody knows which of the items under way it had: each of them is then made again
    alone, and the one that kills its process again is refused.

    workers: processes; 0, or a daemon, which may have none, works in this process.
    """
    waiting = iter(items)
    if not workers or multiprocessing.current_process().daemon:
        for item in waiting:
            try:
                yield item, function(item)
            except RequestError as error:
                yield item, error
        return
    while suspects := (yield from _run(function, waiting, workers)):
        for item in suspects:
            if (yield from _run(function, iter([item]), 1)):
                yield (
                    item,
                    RequestError(
                        "reading-process-died",
                        "the process that prepared it died",
                        seen="a reader of VTK crashed, or memory ran out and the system killed the process",
                        expected="complete files, and memory for one case in each process",
                        fix="--workers 1, or leave this case out",
                    ),
                )


def _run(
    function: Callable[[Item], Any], waiting: Iterator[Item], workers: int
) -> Generator[tuple[Item, Any | RequestError], None, list[Item]]:
    """Yields as `surviving_map` does until a process dies; returns the items that were under way then."""
    # Spawned: the caller may have threads.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    running: dict[Future[Any], Item] = {}
    taken: list[Item] = []
    try:
        while True:
            for item in islice(waiting, workers - len(running)):
                taken = [item]
                running[executor.submit(function, item)] = item
                taken = []
            if not running:
                return []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    yield running[future], future.result()
                except RequestError as error:
                    yield running[future], error
                del running[future]
    except BrokenProcessPool:
        return [*running.values(), *taken]
    finally:
        executor.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Have a worker end when its parent is gone, however that ended: the pool itself would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    parent = multiprocessing.parent_process()
    if not die_with_parent() and parent is not None:  # Not on Linux.
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
