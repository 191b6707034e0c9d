"""Connects one worker to the other workers: it joins the process group, runs collectives, and leaves the group."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from noether.common.cpus import cpus_near, stay_on
from noether.launch.process_group.stores import (
    ControlChannel,
    choose_interface,
    exchange_listener,
    join_store,
    listening_descriptors,
    shut,
    without_dns,
)
from noether.launch.process_group.torch_internals import limit_collectives
from noether.launch.processes.context import MeetingPoint, WorkerContext, WorkerMessage

T = TypeVar("T")

PARENT_ANSWERS_S = 60.0
"""The seconds by which a rank's wait for its parent process's answer exceeds `init_timeout_s`."""
LONGEST_FINISH_S = 24 * 3600.0
"""The longest wait (s) for rank 0's last checkpoint, baselines and report. A rank's death still ends it at once."""


class Group:
    """The ranks of a run, as seen by one rank. If the run has only one rank, there is no process group.

    `parent`: the connection to the parent process, which follows this rank's collectives and agrees on stops.
    """

    def __init__(self, context: WorkerContext, device: torch.device, channel: ControlChannel | None = None) -> None:
        self._worker, self.rank = context.worker, context.worker.rank
        self.world_size = context.world_size
        self.device = device
        self.parent = context.parent
        self._settings = context.run_info.distributed
        # Decisions and objects use this separate channel, not the process group that sums the gradients.
        self._channel = channel

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes files and prints to the console."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor on the group's device over all ranks, in place, and return it. Every rank calls this."""
        if self.world_size > 1:
            with self.parent.waiting("all_reduce of numbers"):
                dist.all_reduce(tensor)
        return tensor

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on rank 0; on the other ranks, return an empty list."""
        if self._channel is None:
            return [value]
        with self.parent.waiting("gather on rank 0"):
            return self._channel.gather(value)

    def table(self, row: Sequence[float]) -> list[list[float]]:
        """Return the rows of all ranks, in rank order. Every rank calls this with a row of the same length."""
        if self.world_size == 1:
            return [list(row)]
        rows = torch.zeros(self.world_size, len(row), dtype=torch.float64)
        rows[self.rank] = torch.tensor(row, dtype=torch.float64)
        table: list[list[float]] = self.sum(rows.to(self.device)).tolist()
        return table

    def from_first(self, value: T) -> T:
        """Return rank 0's value on every rank; other ranks' values are ignored."""
        if self._channel is None:
            return value
        with self.parent.waiting("broadcast from rank 0"):
            first: T = self._channel.from_first(value)
            return first

    def once_per_host(self, make: Callable[[], T]) -> T:
        """Return the picklable result that `make` gives on this host's first rank. Every rank calls this."""
        own = (self._worker.node_rank, make()) if self._worker.local_rank == 0 else None
        made = self.from_first(self.gather(own))
        return dict(one for one in made if one is not None)[self._worker.node_rank]

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors on the group's device with rank 0's. Every rank calls this, with the same shapes."""
        if self.world_size > 1:
            for tensor in tensors:
                with self.parent.waiting("broadcast from rank 0"):
                    # Gloo cannot send complex numbers.
                    dist.broadcast(torch.view_as_real(tensor) if tensor.is_complex() else tensor, src=0)

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        if self._channel is not None:
            with self.parent.waiting("barrier"):
                self._channel.barrier()

    def wait_for_first(self, limit_s: float) -> None:
        """Call `barrier` after extra work of rank 0, with the longer of the limits `limit_s` and `init_timeout_s`."""
        if self._channel is not None:
            before = self._channel.limit_s
            self._channel.limit_s = max(limit_s, self._settings.init_timeout_s)
            self.barrier()
            self._channel.limit_s = before

    def expect_steady_pace(self) -> None:
        """Limit all later collectives to `distributed.timeout_s`. Every rank calls this, after an update.

        The first update takes the longest, because of lazy loading, compilation and new connections. A barrier comes
        before the limit is set, as in torchtitan, so that the limit never applies to a rank in that update.
        """
        if self._channel is None or self._channel.limit_s == self._settings.timeout_s:
            return
        self.barrier()
        self._channel.limit_s = self._settings.timeout_s
        limit_collectives(self._settings.timeout_s)


def nccl_defaults(environ: Mapping[str, str], log_folder: Path) -> dict[str, str]:
    """Return the variables that make a hung NCCL collective leave a trace in the logs. Set them before NCCL starts.

    Versions of torch differ in a variable's name. If the user has set either name, both names are left out.
    """
    wanted = {
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"): "2000",
        ("TORCH_NCCL_DUMP_ON_TIMEOUT",): "1",
        ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"): str(log_folder / "nccl-trace-rank-"),
    }
    unset = [names for names in wanted if not any(name in environ for name in names)]
    return {name: wanted[names] for names in unset for name in names}


@contextmanager
def joined_group(context: WorkerContext) -> Iterator[Group]:
    """Join the run's process group, and leave it after the block.

    Raises:
        NoetherError: see `meet`. If not all ranks can join, the parent process ends this process and prints the reason.

    Every reference to a DDP model must be dropped before the block ends. A reducer that is freed after
    `destroy_process_group` can deadlock with a gloo thread over the GIL (pytorch #56297).
    """
    device = torch.device(str(context.worker.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _stay_near(device)
    if context.world_size == 1:
        yield Group(context, device)
        return
    # Until its port is shut, the store on rank 0 looks up the name of every client that connects.
    with without_dns() if context.listen_socket is not None else nullcontext():
        point, store = meet(context)
        if device.type == "cuda":
            os.environ.update(nccl_defaults(os.environ, Path(point.log_folder)))
        before = listening_descriptors()
        initialise(context, device, store)
        limit_s = context.run_info.distributed.init_timeout_s
        channel = ControlChannel(store, context.worker.rank, context.world_size, point.secret, limit_s)
        group = Group(context, device, channel)
        group.barrier()  # After this barrier, only NCCL opens new connections.
        gloo = listening_descriptors() - before if device.type == "cpu" else set()
        shut(gloo | listening_descriptors(point.port))  # On rank 0, the store listens at `point.port`.
    yield group
    # This is not in a `finally`, because after a failure the peers may be gone, and nothing must wait for them. The
    # worker then exits by os._exit.
    dist.destroy_process_group()
    channel.leave()


def initialise(context: WorkerContext, device: torch.device, store: dist.Store) -> None:
    """Initialise torch's process group with this store, which all its ranks use."""
    settings = context.run_info.distributed
    dist.init_process_group(
        back_ends(device.type, settings.cpu_collectives),
        store=store,
        rank=context.worker.rank,
        world_size=context.world_size,
        timeout=timedelta(seconds=settings.init_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def meet(context: WorkerContext) -> tuple[MeetingPoint, dist.Store]:
    """Meet the other ranks; return the meeting point, and the store that rank 0 serves at this address.

    NoetherError: rank 0 has ended, or a launcher's store does not answer.
    """
    limit_s, listen = context.run_info.distributed.init_timeout_s, context.listen_socket
    if context.endpoint.served_by:
        port = exchange_listener(context.endpoint, context.restarts, context.listener_port, limit_s)
        if context.worker.rank > 0:
            context.parent.tell(WorkerMessage("listener", port))
    point = context.parent.meet(limit_s + PARENT_ANSWERS_S)
    store = join_store(point, listen.detach() if listen is not None else None, limit_s)
    choose_interface(point.address)
    return point, store


def _stay_near(device: torch.device) -> None:
    """Bind this process to the CPUs of its GPU's NUMA node, so that copies to the GPU stay on one socket.

    torchrun --numa-binding=node does the same; PyTorch's documentation reports a gain of 1 to 10 %. Nothing is bound if
    the rank computes with more threads than the NUMA node has CPUs.
    """
    own: Any = torch.cuda.get_device_properties(device)
    address = f"{own.pci_domain_id:04x}:{own.pci_bus_id:02x}:{own.pci_device_id:02x}.0"
    stay_on(cpus_near(address), torch.get_num_threads())


def back_ends(device_kind: str, cpu_collectives: bool) -> str:
    """Return torch's back ends for the default group: on GPUs NCCL, and with `cpu_collectives=True` also gloo."""
    if device_kind != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if cpu_collectives else "nccl"
