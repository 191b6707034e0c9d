"""All uses of torch's private names. Each text says what the use gains, and what happens if torch lacks the name.

Why the compiler is avoided: a process's first optimiser and first DDP import torch._dynamo, to guard their methods from
compilation and to ask how to reduce. The import takes 2.2 s of CPU time, after 2.4 s for torch itself (torch 2.13,
AdamW's first step; `benchmarks/launch.py` times the whole command). The trainer compiles only the model, so nothing
else needs a guard. If torch lacks a private name, torch's own methods are used, and they import the compiler.
"""

import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from inspect import isgeneratorfunction, unwrap
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from noether.common.errors import MidRunError

T = TypeVar("T")


class WithoutCompiler(Optimizer):
    """An optimiser whose methods do not import the compiler, because `unwrap` removes the guard that would.

    The attribute `needed` holds the names that `needed_state` returns for every parameter.
    """

    needed: tuple[str, ...] = ()
    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)

    def needed_state(self, parameter: Tensor) -> tuple[str, ...]:
        """Return the names of the state that the optimiser needs for this parameter, after the first update."""
        return self.needed


class LightSGD(WithoutCompiler, SGD):
    """SGD whose step does not import the compiler."""

    needed = ("momentum_buffer",)
    step = torch.no_grad()(unwrap(SGD.step))


class LightAdamW(WithoutCompiler, AdamW):
    """AdamW whose step does not import the compiler."""

    needed = ("step", "exp_avg", "exp_avg_sq")
    step = torch.no_grad()(unwrap(AdamW.step))


class LightDDP(DistributedDataParallel):
    """DDP for a model that is not compiled. It does not ask the compiler or guard its methods from compilation."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        with _compiler_stand_in():
            super().__init__(*args, **settings)

    if isgeneratorfunction(_unguarded := unwrap(getattr(DistributedDataParallel, "_inside_ddp_forward", iter))):
        _inside_ddp_forward = contextmanager(_unguarded)


class _Answers(SimpleNamespace):
    """A stub of a module of the compiler. It knows some names, and imports the compiler for any other name."""

    def __getattr__(self, name: str) -> Any:
        import torch._dynamo  # noqa: F401 (loads the requested modules)

        return getattr(sys.modules[self.__dict__["module"]], name)


@contextmanager
def _compiler_stand_in() -> Iterator[None]:
    """Replace the compiler by a stub, unless it is already imported. DDP then uses its own reducer, its default."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    utils = _Answers(module="torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
    stand_in = _Answers(module="torch._dynamo", utils=utils)
    torch._dynamo = stand_in  # type: ignore[assignment]
    try:
        yield
    finally:
        if torch._dynamo is stand_in:  # type: ignore[comparison-overlap]
            del torch._dynamo


_TOGETHER = "_foreach_"


class _Foreach:
    """Operations on lists of tensors, named like the operations on one tensor: `foreach.mul_(tensors, 2)`.

    A GPU runs one kernel for many tensors; a loop would run one kernel per tensor. On a CPU, 150 small weights take
    half of a loop's time (lerp_: 0.50 instead of 1.02 ms, one thread). If torch lacks an operation, a loop is used.
    """

    def __getattr__(self, name: str) -> Any:
        def one_by_one(tensors: Sequence[Tensor], *others: Any, **options: Any) -> list[Tensor]:
            rows = (other if isinstance(other, (list, tuple)) else repeat(other) for other in others)
            return [getattr(first, name)(*rest, **options) for first, *rest in zip(tensors, *rows, strict=False)]

        return getattr(torch, f"{_TOGETHER}{name}", one_by_one)


foreach = _Foreach()


class LightFlopCounter(TorchDispatchMode):
    """Counts the floating-point operations inside its block in `flops`, by torch's own formulas.

    torch's own counter imports the compiler, which takes more than a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def limit_collectives(seconds: float) -> None:
    """Set the time limit of the process group's collectives; if torch lacks the private name, change nothing."""
    set_timeout = getattr(distributed_c10d, "_set_pg_timeout", None)
    if set_timeout is not None:
        set_timeout(timedelta(seconds=seconds), dist.group.WORLD)


BATCH_POLL_S = 1
"""The timeout (s) of a DataLoader that is read through `awaited`."""


@dataclass(frozen=True)
class Patience:
    """The seconds to wait for a batch, and a function that is called every second during the wait, and may raise."""

    limit_s: float = math.inf
    meanwhile: Callable[[], None] = lambda: None


FOR_EVER = Patience()


def awaited(batches: Iterator[T], patience: Patience) -> Iterator[T]:
    """Yield a DataLoader's batches. After a timeout, which loses no batch, ask again as long as `patience` allows.

    MidRunError: no batch came within the limit of `patience`, although no worker has ended.
    """
    began = time.monotonic()
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if not str(error).startswith("DataLoader timed out"):
                raise
            try:
                patience.meanwhile()
                if time.monotonic() - began >= patience.limit_s:
                    raise MidRunError(
                        "no-batch",
                        "the loader workers have not sent a batch in time",
                        seen=f"none within {patience.limit_s:g} s (distributed.init_timeout_s); no worker has ended",
                        expected="a batch within distributed.init_timeout_s",
                        fix="num_workers=0      (to see where reading hangs; or distributed.init_timeout_s=1800)",
                    ) from None
            except BaseException:
                _end_workers(batches)
                raise
            continue
        yield batch
        began = time.monotonic()


def _end_workers(batches: Any) -> None:
    """Kill the loader workers: a DataLoader would wait five seconds for each hung worker."""
    raises = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise when a worker ends.
    for worker in getattr(batches, "_workers", ()):
        worker.kill()
        worker.join()
    signal.signal(signal.SIGCHLD, raises)


def send_error(queue: Any, error: Exception, item: Any) -> None:
    """Send the reader the error of a batch that a loader worker cannot send; without it, the reader would hang."""
    if isinstance(item, tuple) and not isinstance(item[1], ExceptionWrapper):
        why = ExceptionWrapper((type(error), error, error.__traceback__), "as a loader worker sent a batch")
        queue.put((item[0], why))


def keep_groups_apart() -> None:
    """Make each process group that is initialised from the environment use its own keys in the shared store.

    Otherwise a new group would find the addresses of the ranks of an old, destroyed group.
    """
    handlers: dict[str, Any] = getattr(sys.modules["torch.distributed.rendezvous"], "_rendezvous_handlers", {})
    number, by_environment = count(), handlers.get("env", dist.rendezvous)

    def own_keys(*request: Any, **options: Any) -> Iterator[tuple[dist.Store, int, int]]:
        for store, rank, world in by_environment(*request, **options):
            yield dist.PrefixStore(f"group-{next(number)}", store), rank, world

    if "env" in handlers:
        handlers["env"] = own_keys


def keep_destroyed_groups() -> None:
    """Keep a process group in memory until its rank exits, even if the script destroys the group.

    The last reference to a group is often in a DDP model, which is freed when the script ends. Gloo's group would then
    wait for a thread which may wait for Python's lock, held by the script: a deadlock, under torchrun too (#56297).
    """
    kept, destroy, module = list[Any](), dist.destroy_process_group, sys.modules["torch.distributed.distributed_c10d"]

    def destroy_kept(*group: Any, **named: Any) -> None:
        kept.extend(getattr(getattr(module, "_world", None), "pg_map", ()))
        destroy(*group, **named)

    for place in (dist, module):
        place.destroy_process_group = destroy_kept  # type: ignore[attr-defined]


def settle_gloo(limit_s: float = 2.0) -> None:
    """Wait until gloo's threads have freed their tensors, but at most `limit_s` seconds.

    A thread that frees a tensor takes Python's lock. While the interpreter exits, this aborts the rank with the message
    "terminate called without an active exception"; under torchrun on a busy machine, one in six scripts aborted.
    """
    end, before = time.monotonic() + limit_s, None
    while time.monotonic() < end:
        time.sleep(0.02)  # The sleep releases Python's lock; threads that wait for the lock wake every 5 ms.
        with suppress(OSError):  # A listed thread may have ended.
            told = [path.read_text(errors="replace") for path in Path("/proc/self/task").glob("*/status")]
            gloo = [re.findall(r"\nState:\t.|ctxt_switches:\t\d+", one) for one in told if "pt_gloo_runloop" in one]
            if gloo == before and all(found[0] == "\nState:\tS" for found in gloo):
                return
            before = gloo
