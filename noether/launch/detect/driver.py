"""Asks the NVIDIA driver which GPUs there are, in a child process with a time limit: a broken one may never answer."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from noether.common.errors import RequestError

LIMIT_S = 15.0
"""Eight GPUs that nothing keeps awake (persistence mode off) take about a second each."""
MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH (nvml.h)."""
NOT_FOR_US = (4, 9, 12)
"""NVML_ERROR_NO_PERMISSION (devices that a job was not given), _DRIVER_NOT_LOADED and _LIBRARY_NOT_FOUND: no GPU."""

Trouble = Literal["", "mismatch", "hangs", "fails"]


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it.

    index: its place among the GPUs that this process may use. mig_uuids: its MIG instances; empty if it is not divided.
    fault: what NVML says in place of its facts, such as that it is lost; "" for a GPU that answers.
    """

    index: int
    uuid: str
    mig_uuids: tuple[str, ...] = ()
    fault: str = ""

    def is_called(self, name: str) -> bool:
        """Whether an entry of a device mask, an index or the beginning of a UUID, is this GPU as a whole."""
        if name.isascii() and name.isdigit():
            return self.index == int(name)
        return bool(self.uuid) and self.uuid.lower().startswith(name.lower())


@dataclass(frozen=True)
class Driver:
    """What the NVIDIA driver answers.

    gpus: None where no driver answers. trouble: what is wrong with a driver that is there; `error` in NVML's words.
    nodes: the devices in /dev.
    """

    version: str = ""
    gpus: tuple[Gpu, ...] | None = None
    error: str = ""
    trouble: Trouble = ""
    nodes: tuple[str, ...] = ()

    def refusal(self) -> RequestError | None:
        """Returns what is wrong and what to do; None where nothing is."""
        if self.trouble == "mismatch":
            return RequestError(
                "driver-mismatch",
                "the NVIDIA driver that is loaded is of another version than its library",
                seen=self.error,
                expected="one version of both: most likely the driver was updated, and the old one is still loaded",
                fix="restart this machine      (in a container: the library of the host, by --gpus all or --nv)",
            )
        if self.trouble == "hangs":
            return RequestError(
                "driver-hangs",
                "the NVIDIA driver does not answer",
                seen=self.error,
                expected="an answer within seconds",
                fix="another machine, or accelerator=cpu      (nvidia-smi will hang too: the driver needs a reset)",
            )
        if self.trouble == "fails":
            return RequestError(
                "driver-fails",
                "the NVIDIA driver is there and does not work",
                seen=self.error,
                expected="a driver that lists its GPUs",
                fix="another machine, or accelerator=cpu      (nvidia-smi and dmesg | grep NVRM say more)",
            )
        return None

    def listed(self) -> list[Gpu] | None:
        """Returns the GPUs in PCI order; None where the library or the driver is missing.

        Raises:
            RequestError: there is a driver, and it hangs, fails or does not fit its library.
        """
        if refusal := self.refusal():
            raise refusal
        return None if self.gpus is None else list(self.gpus)


def nvml_gpus() -> list[Gpu] | None:
    """Return the GPUs that the driver of this host lists, as `Driver.listed`.

    NVML creates no CUDA context, so that forking stays safe.
    """
    return ask_driver().listed()


@cache  # One that hangs is not waited for again, where a start that it refuses is placed to tell other hosts.
def ask_driver(seconds: float = LIMIT_S) -> Driver:
    """Returns what the driver answers within a time limit."""
    nodes = tuple(sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*")))
    try:
        found = ask_nvml(_read_nvml, seconds)
    except ImportError as error:
        return Driver(error=str(error), nodes=nodes)
    except TimeoutError as error:
        return Driver(error=str(error), trouble="hangs", nodes=nodes)
    except ChildProcessError as error:
        return Driver(error=str(error), trouble="fails", nodes=nodes)
    gpus = None
    if found["gpus"] is not None:
        gpus = tuple(Gpu(index, uuid, tuple(mig), fault) for index, uuid, mig, fault in found["gpus"])
    return Driver(found["version"], gpus, found["error"], found["trouble"], nodes)


def ask_nvml(question: Callable[[Any], Any], seconds: float) -> Any:
    """Returns what a question to NVML answers, given pynvml, in a child process; the answer goes through JSON.

    NVML is never used in this process itself: a fork of it would inherit its locks.

    Raises:
        ImportError: there is no pynvml.
        TimeoutError: there was no answer in time.
        ChildProcessError: the question or NVML ended the child.
    """
    import pynvml  # Before the fork: another thread of this process may hold the lock of imports.

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(question, pynvml, write)
    os.close(write)
    try:
        text = _read_within(read, seconds)
    finally:
        os.close(read)
        _end(child)
    if not text:
        raise ChildProcessError("NVML ended the process that asked it")
    return json.loads(text)


def _answer(question: Callable[[Any], Any], pynvml: Any, write: int) -> None:
    """The child: writes the answer and ends. Where NVML hangs for good, it holds nothing of its parent's."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.closerange(3, write)
        os.closerange(write + 1, 1024)
        os.write(write, json.dumps(question(pynvml)).encode())
    finally:
        os._exit(0)


def _read_nvml(pynvml: Any) -> dict[str, Any]:
    try:
        pynvml.nvmlInit()
        version = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus = [_read_gpu(pynvml, place) for place in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        trouble: Trouble = "" if error.value in NOT_FOR_US else "mismatch" if error.value == MISMATCH else "fails"
        return {"version": "", "gpus": None, "error": str(error), "trouble": trouble}
    own = [gpu for gpu in gpus if gpu is not None]
    return {"version": version, "gpus": [(i, *gpu) for i, gpu in enumerate(own)], "error": "", "trouble": ""}


def _read_gpu(pynvml: Any, place: int) -> tuple[str, Sequence[str], str] | None:
    """Returns (uuid, MIG instances, fault) of a GPU; None for one that this process may not use."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(place)
        return _text(pynvml.nvmlDeviceGetUUID(handle)), _mig_uuids(pynvml, handle), ""
    except pynvml.NVMLError as error:
        return None if error.value in NOT_FOR_US else ("", (), str(error))


def _mig_uuids(pynvml: Any, handle: Any) -> list[str]:
    try:
        places = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return []  # A GPU that cannot be divided answers "not supported".
    uuids = []
    for place in range(places):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError:
            continue  # No instance at this index.
        uuids.append(_text(pynvml.nvmlDeviceGetUUID(instance)))
    return uuids


def _text(value: str | bytes) -> str:
    # Older nvidia-ml-py returns bytes.
    return value.decode() if isinstance(value, bytes) else value


def _read_within(read: int, seconds: float) -> bytes:
    """Returns all that is written until the other end is closed. TimeoutError: that takes longer."""
    deadline = time.monotonic() + seconds
    parts: list[bytes] = []
    while True:
        if not select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"no answer within {seconds:g} s")
        part = os.read(read, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _end(child: int) -> None:
    """Ends the child. One that the kernel does not let go of is left behind."""
    os.kill(child, signal.SIGKILL)
    for _ in range(20):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.005)
