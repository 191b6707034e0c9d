"""The doctor's checks that need torch. They run in the doctor's ranks, which connect in the same way as a run's."""

import os
import statistics
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from noether.common.atomic_write import write_json
from noether.launch.process_group.stores import ControlChannel, choose_interface, exchange_listener, join_store
from noether.launch.processes.context import WorkerContext, WorkerMessage

SMALL_BYTES = 4 << 10
LARGE_BYTES = {"gloo": 16 << 20, "nccl": 128 << 20}
REPEATS = 5
GLOO_LIMIT, NCCL_LIMIT = timedelta(seconds=8), timedelta(seconds=14)


def walk_steps(context: WorkerContext, asks: int) -> None:
    """Take every step in one rank, and write each result to rank-N.json in the log folder. A failing step raises.

    `distributed.init_timeout_s` limits the wait for a launcher's store. `timeout_s` limits the wait for other ranks,
    which may still be importing torch. Of the ranks of a process, only rank `asks` lists the devices.
    """
    worker, limits, told = context.worker, context.run_info.distributed, dict[str, Any]()

    def done(step: str, **answer: Any) -> None:
        told[step] = answer
        write_json(context.run_info.log_folder / f"rank-{worker.rank}.json", told)

    done("torch", **_versions())
    done("devices", **_devices() if asks == worker.rank else {})
    if context.endpoint.served_by:
        port = exchange_listener(context.endpoint, context.restarts, context.listener_port, limits.init_timeout_s)
        if worker.rank > 0:
            context.parent.tell(WorkerMessage("listener", port))
    point = context.parent.meet(limits.heartbeat_timeout_s)
    listening = context.listen_socket.detach() if context.listen_socket is not None else None
    store = join_store(point, listening, limits.timeout_s)
    channel = ControlChannel(store, worker.rank, context.world_size, point.secret, limits.timeout_s)
    channel.barrier()
    done("store")

    choose_interface(point.address)
    dist.init_process_group("gloo", store=store, rank=worker.rank, world_size=context.world_size, timeout=GLOO_LIMIT)
    _check_sum(torch.device("cpu"), None)
    done("gloo", interface=os.environ.get("GLOO_SOCKET_IFNAME", ""))

    kinds = channel.from_first(channel.gather(worker.device.kind))
    on_gpus = [rank for rank, kind in enumerate(kinds) if kind == "cuda"]
    group, device = None, torch.device(str(worker.device))
    if on_gpus:
        group = dist.new_group(on_gpus, timeout=NCCL_LIMIT, backend="nccl")
        if worker.rank in on_gpus:
            torch.cuda.set_device(device)
            _check_sum(device, group)
    done("nccl")
    if len(on_gpus) < 2:
        done("bandwidth", **_measure("gloo", torch.device("cpu"), None))
    else:
        done("bandwidth", **_measure("nccl", device, group) if worker.rank in on_gpus else {})
    channel.barrier()
    channel.leave()


def _versions() -> dict[str, Any]:
    nccl = ""
    if dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    gloo = dist.is_available() and dist.is_gloo_available()
    return {"version": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl, "gloo": gloo}


def _devices() -> dict[str, Any]:
    """Return the count and names of torch's CUDA devices, and the error if a sum on the first device fails."""
    count, why = torch.cuda.device_count(), ""
    try:
        if count:
            torch.ones(8, device="cuda").sum().item()
    except Exception as error:  # CUDA would raise the same error in a run.
        why = str(error).splitlines()[0]
    names = [torch.cuda.get_device_name(index) for index in range(count)] if not why else []
    return {"count": count, "names": names, "why": why}


def _check_sum(device: torch.device, group: Any) -> None:
    ones = torch.ones(1024, device=device)
    dist.all_reduce(ones, group=group)
    size = dist.get_world_size(group)
    if not bool((ones == size).all()):
        raise ArithmeticError(f"the sum of ones over {size} ranks is {ones[0].item():g}")


def _measure(backend: str, device: torch.device, group: Any) -> dict[str, Any]:
    """Measure how long the group takes to sum a small and a large tensor.

    Return the time (µs) of the small sum and two bandwidths (MB/s) of the large sum: bytes divided by time, and this
    times 2 (n - 1) / n, the "bus" bandwidth, which does not depend on the rank count n (nccl-tests, PERFORMANCE.md).
    """

    def seconds(size: int, repeats: int) -> float:
        data, times = torch.zeros(size // 4, device=device), []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            dist.all_reduce(data, group=group)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    small, large, ranks = seconds(SMALL_BYTES, 4 * REPEATS), LARGE_BYTES[backend], dist.get_world_size(group)
    rate = large / seconds(large, REPEATS) / 1e6
    return {
        "backend": backend, "small_us": small * 1e6, "large_bytes": large, "mb_per_s": rate,
        "bus_mb_per_s": rate * 2 * (ranks - 1) / ranks,
    }  # fmt: skip
