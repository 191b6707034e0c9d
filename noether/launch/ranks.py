"""What a script of one's own may ask of its ranks: `with noether.join() as ranks:`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from noether.common.errors import RequestError
from noether.common.whole_file import UNFENCED
from noether.config.compose import load_config
from noether.config.distributed import with_environment
from noether.launch.process_group.group import Group, back_ends
from noether.launch.process_group.stop import AgreedStop
from noether.launch.processes.context import RunInfo, WorkerContext
from noether.launch.processes.listener import RunPorts
from noether.launch.processes.spawner import worker_contexts
from noether.launch.processes.worker import worker_environment
from noether.launch.script import here, place_script

Module = TypeVar("Module", bound=nn.Module)


class Ranks:
    """The ranks of a run, as the script of one of them sees it.

    rank, local_rank, world: this rank among all, among those of its host, and how many there are in all.
    device: the device of this rank. first: whether this is rank 0, which writes files and speaks.
    """

    def __init__(self, context: WorkerContext, stop: AgreedStop) -> None:
        self._stop, self._context = stop, context
        self.rank, self.local_rank, self.world = context.worker.rank, context.worker.local_rank, context.world_size
        self.first = self.rank == 0
        self.device = torch.device(str(context.worker.device))

    def wrap(self, model: Module) -> Module | DistributedDataParallel:
        """Return the model on this rank's device, in DDP where there are several ranks."""
        model = model.to(self.device)
        if self.world == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.world > 1:
            dist.barrier()

    @property
    def stop_asked(self) -> bool:
        """Whether all ranks stop now: a signal has come to one of them. Every rank asks equally often, once an update.

        Save, and leave by `sys.exit(75)`: a job of `noether submit run` is then queued again.
        """
        return bool(self._stop.agreed())

    @contextmanager
    def saving(self, folder: str | Path) -> Iterator[Path]:
        """A folder that appears whole, once every rank has written its files there, or not at all.

        Every rank enters it; one that is there already is replaced.
        """
        path = Path(folder)
        partial = [UNFENCED.partial(path) if self.first else path]
        if self.first:
            partial[0].mkdir()
        if self.world > 1:
            dist.broadcast_object_list(partial)
        yield partial[0]
        self.barrier()
        if self.first:
            UNFENCED.publish(partial[0], path)
        self.barrier()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the ranks of `noether run`, torchrun, srun or mpirun; alone, a script is the only rank of its run.

    The process group is that of `torch.distributed`, unless the script has initialised it already; it is left at the
    end. Stop signals are kept until `stop_asked` is looked at.

    RequestError: this one process would be responsible for several ranks.
    """
    context = here() or _context_of_environment()
    if context.worker.device.kind == "cuda":
        torch.cuda.set_device(torch.device(str(context.worker.device)))
    own = context.world_size > 1 and not dist.is_initialized()
    if own:
        dist.init_process_group(back_ends(context.worker.device.kind, False))
    stop = AgreedStop()
    with stop.listening():
        stop.join(Group(context, torch.device(str(context.worker.device))))
        yield Ranks(context, stop)
    if own:
        dist.destroy_process_group()


def _context_of_environment() -> WorkerContext:
    """Return the context of a process that torchrun, srun or mpirun has started as a rank, or nobody."""
    config = load_config([], None)
    placement = place_script(config)
    if placement.world_size > len(placement.workers) > 1:
        raise RequestError("rank-of-several-devices", "this process would be several ranks",
                           seen=placement.reasons["workers"], expected="a task for each device, or noether run",
                           fix="srun noether run train.py")  # fmt: skip
    if len(placement.workers) > 1:
        placement = place_script(load_config(["devices=1"], None))
    info = RunInfo(distributed=with_environment(config.distributed, os.environ))
    (context,) = worker_contexts(placement, RunPorts(), info)
    for name, value in worker_environment(context, {}).items():
        os.environ.setdefault(name, value)
    return context
