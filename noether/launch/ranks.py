"""The interface between a user's own script and its ranks: `with noether.join() as ranks:`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from noether.common.atomic_write import ASIDE, UNFENCED, flush, remove
from noether.common.errors import ExitCode, RequestError
from noether.config.compose import load_config
from noether.config.distributed import with_environment
from noether.launch.detect.endpoint import hold_port
from noether.launch.process_group.group import Group, initialise
from noether.launch.process_group.stop import AgreedStop
from noether.launch.process_group.stores import choose_interface
from noether.launch.process_group.torch_internals import settle_gloo
from noether.launch.processes.context import RunInfo, WorkerContext
from noether.launch.processes.listener import RunPorts
from noether.launch.processes.spawner import worker_contexts
from noether.launch.processes.worker import changed_environment, worker_environment
from noether.launch.script import here, place_script

Module = TypeVar("Module", bound=nn.Module)


class Ranks:
    """The ranks of a run, as seen by the script that runs on one rank.

    `rank`: this rank's id in the run. `local_rank`: its index among the ranks of its host. `world`: the world size.
    `device`: the device of this rank. `first`: whether this is rank 0, which writes files and prints.
    """

    def __init__(self, context: WorkerContext, device: torch.device, at_end: ExitStack) -> None:
        self.rank, self.local_rank, self.world = context.worker.rank, context.worker.local_rank, context.world_size
        self.first, self.device = self.rank == 0, device
        self._group, self._at_end = Group(context, device), at_end
        self._stop: AgreedStop | None = None

    def wrap(self, model: Module, **options: Any) -> Module | DistributedDataParallel:
        """Move the model to this rank's device; if there are several ranks, wrap it in DDP with the given options."""
        model = model.to(self.device)
        if self.world == 1:
            return model
        options.setdefault("device_ids", [self.device] if self.device.type == "cuda" else None)
        return DistributedDataParallel(model, **options)

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        self._any(False)

    def _any(self, value: bool) -> bool:
        return any(own for (own,) in self._group.table([value]))

    @property
    def stop_asked(self) -> bool:
        """True if all ranks must stop now, because a rank got a signal. Every rank must read this once per update.

        After the first read, signals no longer end a rank. If the value is true, the script must save and call
        `sys.exit(75)`; a job of `noether submit run` is then requeued. Outside `noether run`, each read all-reduces.
        """
        if self._stop is None:
            self._stop = self._at_end.enter_context(AgreedStop().listening())
            self._stop.join(self._group)
        return bool(self._stop.agreed())

    @contextmanager
    def saving(self, folder: str | Path) -> Iterator[Path]:
        """Yield a temporary folder; once every rank has written its files into it, rename it to `folder`.

        Every rank must enter this block. An existing `folder` is replaced by the rename, and kept if a rank fails.
        """
        path = Path(folder).absolute()
        partial = path.with_name(f".{path.name}.partial")
        if self.first:
            remove(partial)  # A run that was killed may have left this folder.
            partial.mkdir(parents=True)
        self.barrier()
        try:
            yield partial
            for file in partial.rglob("*"):
                with suppress(FileNotFoundError):  # Other ranks may still be renaming or deleting their files.
                    flush(file)
        except BaseException:
            remove(partial)
            raise
        self.barrier()
        if self.first:
            UNFENCED.publish(partial, path)
            flush(path.parent)
        self.barrier()

    def saved(self, folder: str | Path) -> Path | None:
        """Return the folder that `saving` made, or None if rank 0 does not find it. Every rank must call this."""
        path = Path(folder).absolute()
        if self.first and not path.exists():  # On NFS, a run may have been killed between the two renames of `publish`.
            for aside in path.parent.glob(f".{path.name}.*{ASIDE}"):
                aside.rename(path)
        return path if self._any(self.first and path.is_dir()) else None


_joined: Ranks | None = None
_store: dist.Store | None = None
_count = 0


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the ranks that `noether run`, torchrun, srun or mpirun started; without a launcher, there is one rank.

    This initialises the process group of `torch.distributed`, and destroys it after the block; if the script has
    initialised the group itself, the group is used and kept. A nested `joined` block yields the same object.

    RequestError: this one process would be responsible for several ranks, or rank 0 cannot bind its port.
    """
    global _joined
    if _joined is not None:
        yield _joined
        return
    context = here() or _context_of_environment()
    device = torch.device(str(context.worker.device))
    variables = {name: value for name, value in worker_environment(context, {}).items() if name not in os.environ}
    with changed_environment(variables), ExitStack() as at_end:
        if device.type == "cuda":
            if here():  # `noether run` set LOCAL_RANK, and if necessary the mask, so that they select this device.
                device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        own = context.world_size > 1 and not dist.is_initialized()
        if own:
            _initialise_by_environment(context, device)
        _joined = Ranks(context, device, at_end)
        try:
            yield _joined
        except BaseException as end:
            # After a failure the other ranks may be gone, so this rank does not wait for them.
            own &= isinstance(end, SystemExit) and end.code in (None, ExitCode.DONE, ExitCode.CHECKPOINTED)
            raise
        finally:
            _joined = None
            if context.world_size > 1 and not here():  # Ranks of `noether run` exit without finalising the interpreter.
                settle_gloo()
            if own and dist.is_initialized():
                dist.destroy_process_group()


def _initialise_by_environment(context: WorkerContext, device: torch.device) -> None:
    """Initialise torch's process group from the variables that torch itself reads."""
    global _store, _count
    if _store is None:  # The store is kept for a script that joins again.
        if context.worker.rank == 0 and not (here() or context.endpoint.served_by):
            hold_port(context.endpoint).close()  # If the port is taken, this raises noether's own error.
        choose_interface(os.environ["MASTER_ADDR"])
        limit_s = context.run_info.distributed.init_timeout_s
        _store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=limit_s)))
    _count += 1
    initialise(context, device, dist.PrefixStore(f"noether/{_count}", _store))


def _context_of_environment() -> WorkerContext:
    """Return the context of a process that torchrun, srun or mpirun started as a rank, or that no launcher started."""
    config = load_config([], None)
    placement = place_script(config)
    if placement.world_size > len(placement.workers) > 1:
        raise RequestError("rank-of-several-devices", "one process cannot run several ranks of this script",
                           seen=placement.reasons["workers"], expected="one task per device, or noether run",
                           fix="srun noether run train.py")  # fmt: skip
    if len(placement.workers) > 1:
        placement = place_script(load_config(["devices=1"], None))
    info = RunInfo(distributed=with_environment(config.distributed, os.environ))
    return worker_contexts(placement, RunPorts(), info)[0]
