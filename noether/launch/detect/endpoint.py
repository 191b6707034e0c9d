"""Reserves a port: the parent process binds it and listens on it, then hands the open socket to rank 0."""

import errno
import ipaddress
import socket
from dataclasses import dataclass, replace

from noether.common.errors import RequestError
from noether.launch.detect.placement import Endpoint

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Ranks may connect long before rank 0 accepts; the system's own limit (somaxconn) still applies.
BACKLOG = 4096


@dataclass(frozen=True)
class HeldPort:
    """A reserved port: `endpoint` has its actual number, `socket` is listening on it."""

    endpoint: Endpoint
    socket: socket.socket

    def close(self) -> None:
        """Close this process's copy of the socket; a copy given to a worker stays open."""
        self.socket.close()


def hold_port(endpoint: Endpoint) -> HeldPort:
    """Bind the endpoint's port (for port 0 a free one), listen on it, and keep it.

    If the parent process only looked for a free port and closed it again, another job could take it before rank 0
    binds it. Instead the socket kept here goes to rank 0 through multiprocessing, and from there to
    `torch.distributed.TCPStore(master_listen_fd=...)`. The port is never free in between, and ranks that
    connect early wait in its queue. A loopback endpoint is bound to that address only, so that nothing
    outside the machine can reach the store; any other is bound on every interface.

    Raises:
        RequestError: the port is taken, or this user may not bind it.
    """
    address = ""
    if is_loopback(endpoint.host):  # 127.0.1.1, as Debian's /etc/hosts calls a host itself: the ranks connect there.
        address = endpoint.host if is_address(endpoint.host) else "127.0.0.1"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        dual = False
        if address == "" and socket.has_dualstack_ipv6():
            family, dual = socket.AF_INET6, True
        held = socket.create_server((address, endpoint.port), family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except (OSError, OverflowError) as error:
        raise _port_error(endpoint, error) from error
    return HeldPort(replace(endpoint, port=held.getsockname()[1]), held)


def _port_error(endpoint: Endpoint, error: Exception) -> RequestError:
    busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    state = "is taken by another program" if busy else f"cannot be bound: {error}"
    expected = "a port that no other program on this machine listens on"
    if isinstance(error, PermissionError):
        expected, fix = "a port above 1023, which every user may bind", "master_port=29500      (on every host)"
    elif endpoint.asked_by == "MASTER_PORT":
        fix = "unset MASTER_PORT"
    elif endpoint.asked_by and is_loopback(endpoint.host):
        fix = "master_port=0      (any free port)"
    else:
        # Ranks that were started separately cannot learn which port is free: all must be given the same number.
        fix = endpoint.another_port
    return RequestError(
        "port-unusable",
        f"port {endpoint.port} {state}",
        seen=f"{endpoint.asked_by or 'port'}={endpoint.port}, on {endpoint.host}",
        expected=expected,
        fix=fix,
    )


def is_address(text: str) -> bool:
    """Return whether the text is an IP address, not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback name or address, which on every machine means that machine itself."""
    return host.lower() in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)
