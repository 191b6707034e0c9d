"""Ask the NVIDIA driver for its GPUs, in a thread with a time limit, because a broken driver may never answer."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from noether.common.errors import RequestError
from noether.common.numbers import whole
from noether.config.distributed import DistributedConfig

LIMIT_S = DistributedConfig().driver_timeout_s
MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h)."""
NOT_FOR_US = (4, 9, 12)
"""NVML errors that mean no GPU: NO_PERMISSION (the GPU is not for this job), DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND."""

Trouble = Literal["", "mismatch", "hangs", "fails"]


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it.

    `index`: the GPU's index among those that this process may use. `mig_uuids`: the GPU's MIG instances, if it has any.
    `fault`: NVML's error if the GPU does not answer, for example because it is lost; otherwise "".
    """

    index: int
    uuid: str
    mig_uuids: tuple[str, ...] = ()
    fault: str = ""

    def is_called(self, name: str) -> bool:
        """Return whether `name`, an index or the beginning of a UUID in a device mask, refers to this whole GPU."""
        if (number := whole(name)) is not None:
            return self.index == number
        return bool(self.uuid) and self.uuid.lower().startswith(name.lower())


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver's answer. `gpus`: None if there is no driver. `trouble`, `error`: set if the driver fails."""

    version: str = ""
    gpus: tuple[Gpu, ...] | None = None
    error: str = ""
    trouble: Trouble = ""
    nodes: tuple[str, ...] = ()  # The driver's device files in /dev.

    def refusal(self) -> RequestError | None:
        """Return the error that shows what is wrong and what to do; None if nothing is wrong."""
        if self.trouble == "mismatch":
            return RequestError(
                "driver-mismatch", "the loaded NVIDIA driver and its library have different versions",
                seen=self.error,
                expected="equal versions (most likely the driver was updated, but the old driver is still loaded)",
                fix="restart this machine      (in a container: use the host's library, by --gpus all or --nv)",
            )  # fmt: skip
        if self.trouble == "hangs":
            return RequestError(
                "driver-hangs", "the NVIDIA driver does not answer", seen=self.error,
                expected="an answer within distributed.driver_timeout_s",
                fix="another machine, or accelerator=cpu      (if nvidia-smi hangs too, the driver needs a "
                "reset; if it is only slow: distributed.driver_timeout_s=300)",
            )  # fmt: skip
        if self.trouble == "fails":
            return RequestError(
                "driver-fails", "the NVIDIA driver is present but does not work", seen=self.error,
                expected="a driver that lists its GPUs",
                fix="another machine, or accelerator=cpu      (nvidia-smi and dmesg | grep NVRM say more)",
            )  # fmt: skip
        return None

    def listed(self) -> list[Gpu] | None:
        """Return the GPUs in PCI order; None if the library or the driver is missing. RequestError: see `refusal`."""
        if refusal := self.refusal():
            raise refusal
        return None if self.gpus is None else list(self.gpus)


def nvml_gpus(limit_s: float = LIMIT_S) -> list[Gpu] | None:
    """Return the GPUs that this host's driver lists (see `Driver.listed`), waiting for at most `limit_s` seconds."""
    return ask_driver(limit_s).listed()


@cache  # If the driver hangs, the launch is placed a second time to inform other hosts, and must not wait again.
def ask_driver(limit_s: float = LIMIT_S) -> Driver:
    """Return the driver's answer within a time limit."""
    import pynvml

    nodes = tuple(sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*")))
    try:
        version, gpus = ask_nvml(_list_gpus, limit_s)
        return Driver(version, gpus, nodes=nodes)
    except TimeoutError as error:
        return Driver(error=str(error), trouble="hangs", nodes=nodes)
    except pynvml.NVMLError as error:
        trouble: Trouble = "" if error.value in NOT_FOR_US else "mismatch" if error.value == MISMATCH else "fails"
        return Driver(error=str(error), trouble=trouble, nodes=nodes)


def ask_nvml(question: Callable[[Any], Any], limit_s: float) -> Any:
    """Initialise NVML in a thread, call `question` there with the module pynvml, and return its answer.

    NVML creates no CUDA context, and the thread shuts NVML down. After an answer, this process can therefore fork
    workers: no lock of NVML is held. After a TimeoutError it must not fork, because the thread may hold the locks
    forever: a launch is then refused, and the doctor spawns its workers instead of forking them.

    TimeoutError, pynvml.NVMLError: there was no answer in time, or NVML does not answer the question.
    """
    import pynvml

    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            pynvml.nvmlInit()
            try:
                found = question(pynvml)
            finally:
                pynvml.nvmlShutdown()
            answer.set_result(found)
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return answer.result()


def _list_gpus(pynvml: Any) -> tuple[str, tuple[Gpu, ...]]:
    """Return the driver's version, and the GPUs that this process may use."""
    found = [_read_gpu(pynvml, place) for place in range(pynvml.nvmlDeviceGetCount())]
    own = [gpu for gpu in found if gpu is not None]
    return pynvml.nvmlSystemGetDriverVersion(), tuple(Gpu(index, *gpu) for index, gpu in enumerate(own))


def _read_gpu(pynvml: Any, place: int) -> tuple[str, tuple[str, ...], str] | None:
    """Return (uuid, MIG instances, fault) of the GPU at `place`, or None if this process may not use this GPU."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(place)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        return None if error.value in NOT_FOR_US else ("", (), str(error))
    instances = []
    with suppress(pynvml.NVMLError):  # A GPU that cannot be divided answers "not supported".
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError):  # There may be no instance at this place.
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                instances.append(pynvml.nvmlDeviceGetUUID(instance))
    return uuid, tuple(instances), ""
