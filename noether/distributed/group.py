"""One worker talking to the others: joining the process group, collectives, and leaving it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from noether.distributed.network import interface_towards, resolve_host
from noether.launch.placement import WorkerContext

STORE_TIMEOUT = timedelta(minutes=10)
"""Long, since the slowest rank may be reading torch from a cold network file system."""


class Group:
    """The ranks of a run, as one of them sees it. With one rank no process group exists and nothing is sent."""

    def __init__(self, context: WorkerContext, device: torch.device) -> None:
        self.rank = context.worker.rank
        self.world_size = context.world_size
        self.local_rank = context.worker.local_rank
        self.device = device
        # Decisions (stop, objects) travel on the CPU and beside the gradients, never between them.
        self._control = dist.new_group(backend="gloo") if self.world_size > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and speaks on the console."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum of a tensor over all ranks, in place; every rank must call it."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def start_max(self, flag: Tensor) -> Any:
        """Starts the maximum of a CPU tensor over all ranks, in place; returns the work to wait for."""
        if self._control is None:
            return None
        return dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._control, async_op=True)

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value, in the order of ranks, on rank 0; an empty list on the others."""
        if self._control is None:
            return [value]
        gathered: list[Any] | None = [None] * self.world_size if self.is_first else None
        dist.gather_object(value, gathered, group=self._control)
        return gathered or []

    def from_first(self, value: Any) -> Any:
        """Returns rank 0's value on every rank; the others' are ignored."""
        if self._control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def barrier(self) -> None:
        """Waits for every rank."""
        if self._control is not None:
            dist.barrier(group=self._control)


def _meet(context: WorkerContext, address: str) -> dist.Store:
    """Returns the store of this run: rank 0 serves it on the port that its launcher has held, or a launcher does."""
    listen = context.listen_socket
    store = dist.TCPStore(
        address,
        context.endpoint.port,
        context.world_size,
        is_master=context.worker.rank == 0 and not context.endpoint.served_by,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listen.detach() if listen is not None else None,
    )
    # A launcher's store holds its own keys, and those of earlier attempts.
    return dist.PrefixStore(f"noether/{context.attempt}", store)


@contextmanager
def joined_group(context: WorkerContext) -> Iterator[Group]:
    """Joins the run's process group and leaves it.

    Everything that holds DDP must be gone before this is left: a reducer freed after
    `destroy_process_group` can deadlock with a gloo thread over the GIL (pytorch #56297).
    """
    device = torch.device(str(context.worker.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if context.world_size == 1:
        yield Group(context, device)
        return
    # Gloo otherwise binds what the host's own name resolves to: often 127.0.0.1, or nothing in a container.
    address = resolve_host(context.endpoint.host)
    interface = interface_towards(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    store = _meet(context, address)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=context.worker.rank,
        world_size=context.world_size,
        device_id=device if device.type == "cuda" else None,
    )
    yield Group(context, device)
    # Not in a `finally`: after a failure the peers may be gone, nothing must wait for them, and the worker
    # leaves by os._exit.
    dist.destroy_process_group()
