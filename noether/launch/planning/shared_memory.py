"""Checks, before loader workers start, that /dev/shm has room for the batches they hand over. No torch."""

import shutil
from pathlib import Path

from noether.common.errors import RequestError
from noether.common.numbers import counted

FOLDER = Path("/dev/shm")
MEBIBYTE = 2**20
LEAST = 128 * MEBIBYTE
"""Twice what docker gives a container that asks for nothing (64 MiB)."""
PER_READER = 32 * MEBIBYTE
"""Two batches in flight (torch's prefetch_factor) of a few MiB each."""


def check_shared_memory(num_workers: int, ranks_here: int, size: int | None) -> None:
    """Refuse loader workers that would die of "Bus error" for want of shared memory, with the flag that gives more.

    num_workers: loader processes of each of the `ranks_here`, which share this machine's /dev/shm.
    size: bytes of /dev/shm in all; None where there is no such file system (not Linux).
    """
    readers = num_workers * ranks_here
    need = max(LEAST, readers * PER_READER)
    if not readers or size is None or size >= need:
        return
    roomy = max(1, -(-2 * need // 2**30))
    raise RequestError(
        "shared-memory-too-small",
        "/dev/shm is too small for loader workers",
        seen=f"{size // MEBIBYTE} MiB of shared memory, {counted(readers, 'loader worker')} on this "
        f"machine (num_workers={num_workers})",
        expected=f"at least {need // MEBIBYTE} MiB: workers pass batches through it, and crash if it is full",
        fix=f"docker run --shm-size={roomy}g …      (or --ipc=host; or num_workers=0, to read without workers)",
    )


def shared_memory_size(folder: Path = FOLDER) -> int | None:
    """Return the size of /dev/shm in bytes, or None where there is none."""
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None
