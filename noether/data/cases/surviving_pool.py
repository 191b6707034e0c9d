"""Shares work among processes that may crash: an item whose process dies is named, and the others go on."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from noether.data.shared_work import end_with_parent
from noether.errors import RequestError

Item = TypeVar("Item")


def surviving_map(
    function: Callable[[Item], Any], items: Sequence[Item], workers: int
) -> Iterator[tuple[Item, Any | RequestError]]:
    """Yields (item, result) in the order of completion; the result is a RequestError where the item was refused.

    When a process dies (a reader of VTK crashed, or the system was out of memory), nobody knows which of the items
    under way it had: each of them is then made again alone, and the one that kills its process again is refused.
    """
    waiting, suspects = deque(items), deque[Item]()
    while waiting or suspects:
        if suspects:
            yield from _run(function, deque([suspects.popleft()]), 1, suspects, alone=True)
        else:
            yield from _run(function, waiting, workers, suspects, alone=False)


def _run(
    function: Callable[[Item], Any], waiting: deque[Item], workers: int, suspects: deque[Item], *, alone: bool
) -> Iterator[tuple[Item, Any | RequestError]]:
    # Spawned: the caller may have threads.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)
    running: dict[Future[Any], Item] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                item = waiting[0]
                running[executor.submit(function, item)] = item
                waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item = running.pop(future)
                try:
                    yield item, future.result()
                except BrokenProcessPool:
                    running[future] = item
                    raise
                except RequestError as error:
                    yield item, error
    except BrokenProcessPool:
        lost = list(running.values())
        if alone and lost:
            yield (
                lost[0],
                RequestError(
                    "the process that read it died",
                    seen="a reader of VTK crashed, or the system ended the process for want of memory",
                    expected="whole files, and memory for one case in each process",
                    fix="--workers 1, or leave this case out",
                ),
            )
        elif not alone:
            suspects.extend(lost)
    finally:
        executor.shutdown(cancel_futures=True)
