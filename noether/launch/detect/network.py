"""Finds the address of the master, and the network interface of this host that leads to it. No torch here."""

import fcntl
import socket
import struct
from pathlib import Path

from noether.common.errors import RequestError

_SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface.


def unresolved(name: str, host: str, seen: str, fix: str = "master_addr=ADDRESS") -> RequestError:
    """Returns how a run is refused on a host where the name of rank 0's host does not resolve."""
    return RequestError(
        "master-not-resolved",
        f"the master's name {name} does not resolve on {host}",
        seen=seen,
        expected="a name or an address that every node can reach",
        fix=fix,
    )


def not_permitted(address: str, port: int, host: str, error: PermissionError) -> RequestError:
    """Returns how a run is refused on a host whose own system forbids the connection to rank 0's host."""
    return RequestError(
        "connection-not-permitted",
        f"the system of {host} does not permit connections to {address} port {port}",
        seen=f"{error.strerror or error}, at once",
        expected="no rule of a firewall, a route or a sandbox of this host against it",
        fix="master_addr=ADDRESS      (in a network between the hosts; or ask who runs this host)",
    )


def find_address(host: str) -> str:
    """Returns the address of a host, IPv4 if it has one. Raises socket.gaierror if the name does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"not a valid host name: {error}") from None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def interface_towards(address: str) -> str | None:
    """Returns the name of the interface through which an address is reached, or None if that cannot be found out."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # For a datagram socket this only consults the routing table: nothing is sent.
            own = str(probe.getsockname()[0])
            # The interface is found by its address, because the route to an own address would be the loopback.
            return _interface_with_v6(own) if family == socket.AF_INET6 else _interface_with(probe, own)
    except OSError:
        return None


def _interface_with(probe: socket.socket, address: str) -> str | None:
    for _, name in socket.if_nameindex():
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
        except OSError:
            continue  # An interface without an IPv4 address.
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None


def _interface_with_v6(address: str) -> str | None:
    # One address per line (proc(5)): 32 hexadecimal digits, index, prefix, scope, flags, name.
    digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        fields = line.split()
        if fields[0] == digits:
            return fields[5]
    return None
