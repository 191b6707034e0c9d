"""Keeps the memory that a training update frees, so that the next one need not ask the kernel for it again."""

import ctypes
import os
from collections.abc import Mapping

# From <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_IN_HEAP = 1 << 30
_GROWTH = 64 << 20


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Tells glibc to keep what this process frees; returns whether it did.

    An update on the CPU takes the memory of its activations and gives it back. By default glibc returns it to the
    kernel each time, which then clears every page anew: an eighth of the default model's time. The process keeps the
    memory of its largest update instead, which it would need again.

    Nothing is changed where the user has said how memory is kept (GLIBC_TUNABLES, MALLOC_…, another allocator in
    LD_PRELOAD), or where the C library is another one.
    """
    said = any(name.startswith("MALLOC_") for name in environ)
    if said or "malloc" in environ.get("GLIBC_TUNABLES", "") or "malloc" in environ.get("LD_PRELOAD", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        set_option = library.mallopt
        library.gnu_get_libc_version  # noqa: B018 - raises where the C library is another
    except (OSError, AttributeError):
        return False
    # The first option that is set ends glibc's own adjusting of the others, so that all three are given.
    return bool(
        set_option(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        and set_option(_TRIM_THRESHOLD, -1)
        and set_option(_TOP_PAD, _GROWTH)
    )
