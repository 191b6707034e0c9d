"""The ports on which this process listens: shut once the ranks have met, so that no stranger can disturb a run.

Gloo listens for as long as it lives, aborts the process at a connection that it cannot accept, and cannot be told to
stop. A filter on the listening socket drops every attempt to connect, in the kernel; connections that are there stay.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Collection

_SO_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""The one instruction of the filter: return 0, keep no byte of the packet (linux/filter.h)."""


def listening_descriptors(port: int | None = None) -> set[int]:
    """Returns the descriptors on which this process listens at a TCP port, or at this one; empty without /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:") and _listens(int(name), port):
                    found.add(int(name))
    return found


def _listens(descriptor: int, port: int | None) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        inet = copy.family in (socket.AF_INET, socket.AF_INET6)
        listens = inet and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        return listens and port in (None, copy.getsockname()[1])


def shut(descriptors: Collection[int]) -> int:
    """Drops every new connection to listening sockets; returns how many were shut.

    What the kernel does not shut (a sandbox, another system) stays open: that costs safety, and no run.
    """
    instructions = ctypes.create_string_buffer(_DROP)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    count = 0
    for descriptor in descriptors:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            count += 1
    return count
