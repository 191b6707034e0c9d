"""Hosts are looked up without DNS while strangers can connect, and as the machine is set to afterwards."""

import ctypes
import subprocess
import sys

import pytest

from noether.launch.process_group.name_lookups import DEFAULT, _setting

LOOK_UP = """
import socket, sys
from noether.launch.process_group.name_lookups import without_dns
def known(name):
    try:
        return bool(socket.getaddrinfo(name, 1))
    except socket.gaierror as error:
        return error.errno
before = known("localhost")
with without_dns():
    within, unknown = known("localhost"), known("no-such-host.invalid.")
print(before, within, unknown == socket.EAI_NONAME, known("localhost"))
"""


@pytest.mark.parametrize(
    ("switch", "sources"),
    [
        (
            "passwd: files\nhosts: files mdns4_minimal [NOTFOUND=return] dns\n",
            "files mdns4_minimal [NOTFOUND=return] dns",
        ),
        ("hosts:\tfiles dns # ours\n", "files dns"),
        ("#hosts: db\n  hosts:  dns\n", "dns"),
        ("", DEFAULT),
    ],
    ids=["debian", "comment", "indented", "no such file"],
)
def test_the_setting_of_the_machine_is_read(switch: str, sources: str) -> None:
    assert _setting(switch) == sources


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "__nss_configure_lookup"), reason="another C library than glibc")
def test_only_the_hosts_file_is_asked() -> None:
    """Without a DNS server the answer would be EAI_AGAIN; from the file alone it is final."""
    done = subprocess.run([sys.executable, "-c", LOOK_UP], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True", "True", "True"]
