"""Tests torch, its store, gloo and NCCL between the ranks. This is the only part of the doctor that imports torch."""

import os
import statistics
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from noether.launch.detect.placement import Endpoint
from noether.launch.process_group.stores import choose_interface, exchange_listener, join_store
from noether.launch.processes.rank_state import MeetingPoint

SMALL_BYTES = 4 << 10
LARGE_BYTES = {"gloo": 16 << 20, "nccl": 128 << 20}
REPEATS = 5


class TorchSteps:
    """The steps of one rank, in the order of the chain: `on_NAME` answers a request. Each needs those before it."""

    def __init__(self) -> None:
        self.store: Any = None
        self.nccl: Any = None
        self.rank = self.world = 0

    def on_torch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the versions of torch, CUDA and NCCL, and whether torch has gloo."""
        nccl = ""
        if dist.is_available() and dist.is_nccl_available():
            nccl = ".".join(map(str, torch.cuda.nccl.version()))
        gloo = dist.is_available() and dist.is_gloo_available()
        return {"version": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl, "gloo": gloo}

    def on_devices(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the CUDA devices that torch can use, after computing a sum on the first."""
        count, why = torch.cuda.device_count(), ""
        try:
            if count:
                torch.ones(8, device="cuda").sum().item()
        except Exception as error:  # A run would get the same error from CUDA.
            why = str(error).splitlines()[0]
        names = [torch.cuda.get_device_name(index) for index in range(count)] if not why else []
        return {"count": count, "names": names, "why": why}

    def on_listener(self, request: dict[str, Any]) -> dict[str, Any]:
        """Writes the port of rank 0's listener to the store that a launcher serves, or reads it there."""
        endpoint = Endpoint(**request["endpoint"])
        return {"port": exchange_listener(endpoint, request["restarts"], request["port"], request["seconds"])}

    def on_store(self, request: dict[str, Any]) -> dict[str, Any]:
        """Joins the ranks' store, writes a value, and reads what the next rank wrote."""
        self.rank, self.world = request["rank"], request["world"]
        self.store = join_store(MeetingPoint(**request["point"]), request.get("listen_fd"), request["seconds"])
        self.store.set(f"here/{self.rank}", "1")
        self.store.get(f"here/{(self.rank + 1) % self.world}")
        return {}

    def on_gloo(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forms a gloo group and sums a tensor over all ranks."""
        choose_interface(request["point"]["address"])
        limit = timedelta(seconds=request["seconds"])
        dist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.world, timeout=limit)
        return self._sum(torch.device("cpu"), None) | {"interface": os.environ.get("GLOO_SOCKET_IFNAME", "")}

    def on_nccl(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forms an NCCL group of the ranks with a GPU and sums a tensor over them."""
        limit = timedelta(seconds=request["seconds"])
        self.nccl = dist.new_group(request["gpu_ranks"], timeout=limit, backend="nccl")
        if self.rank not in request["gpu_ranks"]:
            return {}
        torch.cuda.set_device(request["device"])
        return self._sum(torch.device("cuda", request["device"]), self.nccl)

    def on_bandwidth(self, request: dict[str, Any]) -> dict[str, Any]:
        """Times sums of a small and a large tensor over all ranks.

        Returns the microseconds of the small sum and the MB/s of the large one: bytes divided by time, and the "bus"
        bandwidth, 2 (n - 1) / n times that, which is independent of the number n of ranks (nccl-tests, PERFORMANCE.md).
        """
        backend = request["backend"]
        device = torch.device("cuda", request["device"]) if backend == "nccl" else torch.device("cpu")
        group = self.nccl if backend == "nccl" else None
        if backend == "nccl" and self.rank not in request["gpu_ranks"]:
            return {}

        def seconds(size: int, repeats: int) -> float:
            data, times = torch.zeros(size // 4, device=device), []
            for _ in range(repeats + 1):
                started = time.perf_counter()
                dist.all_reduce(data, group=group)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                times.append(time.perf_counter() - started)
            return statistics.median(times[1:])

        small, large = seconds(SMALL_BYTES, 4 * REPEATS), LARGE_BYTES[backend]
        rate = large / seconds(large, REPEATS) / 1e6
        count = len(request["gpu_ranks"]) if backend == "nccl" else self.world
        return {
            "small_us": small * 1e6,
            "large_bytes": large,
            "mb_per_s": rate,
            "bus_mb_per_s": rate * 2 * (count - 1) / count,
        }

    def _sum(self, device: Any, group: Any) -> dict[str, Any]:
        ones = torch.ones(1024, device=device)
        dist.all_reduce(ones, group=group)
        size = dist.get_world_size(group)
        if not bool((ones == size).all()):
            raise ArithmeticError(f"the sum of ones over {size} ranks is {ones[0].item():g}")
        return {"size": size}
