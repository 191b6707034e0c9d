"""Shares work among processes that may crash: an item whose process dies is named, and the others go on."""

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from noether.data.shared_work import end_with_parent
from noether.errors import RequestError

Item = TypeVar("Item")


def surviving_map(
    function: Callable[[Item], Any], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Any | RequestError]]:
    """Yields (item, result) in the order of completion; the result is a RequestError where the item was refused.

    Items are taken from their iterable only as processes come free. When a process dies (a reader of VTK crashed, or
    the system was out of memory), nobody knows which of the items under way it had: each of them is then made again
    alone, and the one that kills its process again is refused.
    """
    waiting = iter(items)
    while suspects := (yield from _run(function, waiting, workers)):
        for item in suspects:
            if (yield from _run(function, iter([item]), 1)):
                yield (
                    item,
                    RequestError(
                        "reading-process-died",
                        "the process that read it died",
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
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)
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
