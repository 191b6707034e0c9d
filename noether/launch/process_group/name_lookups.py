"""Looks up hosts without DNS, while strangers can connect to the store of the ranks.

torch's store looks up the name of whoever connects, in the one thread that serves all ranks. Where DNS does not know
the address, or does not answer, each connection costs that thread seconds, and a few strangers keep all ranks waiting.
"""

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SWITCH = Path("/etc/nsswitch.conf")
DEFAULT = "files dns"


@contextmanager
def without_dns() -> Iterator[None]:
    """Answers look-ups of hosts in this process from /etc/hosts alone; then from what the machine is set to."""
    _look_up_in("files")
    try:
        yield
    finally:
        _look_up_in(_setting(SWITCH.read_text(errors="replace") if SWITCH.is_file() else ""))


def _setting(switch: str) -> str:
    """Returns where hosts are looked up, by the text of nsswitch.conf."""
    found = re.search(r"^\s*hosts:([^#\n]+)", switch, re.MULTILINE)
    return found[1].strip() if found else DEFAULT


def _look_up_in(sources: str) -> None:
    # nss.h of glibc; a system with another C library has no such function, and keeps its look-ups.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", sources.encode())
