"""Choose where ranks meet: on rank 0's host, at a port that every rank can derive and that rank 0's parent reserves."""

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from noether.common.atomic_write import write_json
from noether.common.errors import RequestError
from noether.common.numbers import whole
from noether.common.safe_open import read_plain
from noether.common.sanitize import shortened
from noether.launch.detect.identity import RunIdentity
from noether.launch.detect.placement import Endpoint, as_pairs

_SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface.


def unresolved(name: str, host: str, seen: str, fix: str) -> RequestError:
    """Return the error for a host that cannot resolve the name of rank 0's host."""
    return RequestError("master-not-resolved", f"the master's name {name} does not resolve on {host}", seen=seen,
                        expected="a name or an address that every node can reach", fix=fix)  # fmt: skip


def not_permitted(address: str, port: int, host: str, error: PermissionError) -> RequestError:
    """Return the error for a host that forbids its own processes to connect to rank 0's host."""
    return RequestError(
        "connection-not-permitted", f"the system of {host} does not permit connections to {address} port {port}",
        seen=f"{error.strerror or error}, at once",
        expected="a host without a firewall rule, route or sandbox that forbids this connection",
        fix="master_addr=ADDRESS      (in a network between the hosts; or ask this host's administrator)",
    )  # fmt: skip


def find_address(host: str) -> str:
    """Return the address of a host, IPv4 if it has one. Raise socket.gaierror if the name does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"not a valid host name: {error}") from None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def interface_towards(address: str) -> str | None:
    """Return the name of the interface through which an address is reached, or None if it cannot be determined."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # For a datagram socket this only consults the routing table: nothing is sent.
            own = str(probe.getsockname()[0])
            # Search by address: the route to one of this host's own addresses leads through the loopback.
            return _interface_with_v6(own) if family == socket.AF_INET6 else _interface_with(probe, own)
    except OSError:
        return None


def _interface_with(probe: socket.socket, address: str) -> str | None:
    for _, name in socket.if_nameindex():
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
        except OSError:
            continue  # This interface has no IPv4 address.
        if socket.inet_ntoa(answer[20:24]) == address:
            return name
    return None


def _interface_with_v6(address: str) -> str | None:
    # Each line describes one address (proc(5)): 32 hexadecimal digits, index, prefix, scope, flags, name.
    digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        fields = line.split()
        if fields[0] == digits:
            return fields[5]
    return None


def check_interfaces(environ: Mapping[str, str]) -> None:
    """Raise RequestError if the user chose a network card for gloo that this host does not have."""
    asked, here = environ.get("GLOO_SOCKET_IFNAME", ""), [name for _, name in socket.if_nameindex()]
    if missing := [name for name in asked.split(",") if asked and name not in here]:
        raise RequestError("no-such-interface", f"this host has no network card {shortened(missing[0])}",
                           seen=as_pairs({"GLOO_SOCKET_IFNAME": asked}), expected=f"one of {', '.join(here)}",
                           fix="unset GLOO_SOCKET_IFNAME      (noether picks the card leading to rank 0)")  # fmt: skip


DEFAULT_PORT = 29500
"""Torch's default port. It is used if no port is set and none can be derived (`nodes=2`, RANK without MASTER_PORT)."""

# Derived ports are below Linux's ephemeral range (32768 and up, ip(7)), so that no outgoing connection uses one, and
# below 29500.
FIRST_DERIVED_PORT = 20000
DERIVED_PORTS = 9497  # A prime.
STEPS_PER_JOB = 101
# Ranks can connect long before rank 0 accepts them. The system's own limit (somaxconn) applies too.
BACKLOG = 4096


def _only(both: dict[str, str], refusal: RequestError) -> tuple[str, str]:
    """Return the value in `both`, and the name that sets it, or "" and "". Raise `refusal` if the two values differ."""
    asked = {both[name]: name for name in reversed(both) if both[name]}
    if len(asked) > 1:
        raise RequestError(**refusal.parts | {"seen": as_pairs(both)})
    return next(iter(asked.items()), ("", ""))


def asked_address(
    master_addr: str | None, environ: Mapping[str, str], fix: str = "unset MASTER_ADDR"
) -> tuple[str, str]:
    """Return the host in `master_addr` or MASTER_ADDR, and the name that sets it. RequestError: the two differ."""
    both = {"master_addr": master_addr or "", "MASTER_ADDR": environ.get("MASTER_ADDR", "")}
    refusal = RequestError("two-masters", "two different masters are set", expected="one address", fix=fix)
    return _only(both, refusal)


def refuse_loopback(address: str, source: str, nodes: int) -> None:
    """Raise RequestError if `address` is loopback and there are several nodes: each would find itself, not rank 0."""
    if nodes > 1 and is_loopback(address):
        raise RequestError(
            "master-is-loopback", f"{source}={address} means another machine on each of the {nodes} nodes",
            seen=f"{source}={address}, {nodes} nodes",
            expected="the host of rank 0, under a name or an address that every node knows",
            fix=f"{source}=HOST      (or do not set it, if the launcher knows rank 0's host)",
        )  # fmt: skip


def port_of(
    master_port: int | None,
    environ: Mapping[str, str],
    otherwise: tuple[int, str] | None = None,
    fix: str = "unset MASTER_PORT",
) -> tuple[int, str, str]:
    """Return the ranks' port, the name of what sets it (`master_port`, MASTER_PORT or ""), and the reason.

    `otherwise`: the port to use if none is set, and its reason; if None, the default port. A `master_port` of 0 or
    None and a MASTER_PORT of 0 or "" set no port. `fix`: the error's fix if MASTER_PORT is no port or differs.

    RequestError: a value is not a port, or `master_port` and MASTER_PORT differ.
    """
    both = {"master_port": str(master_port or ""), "MASTER_PORT": environ.get("MASTER_PORT", "")}
    both = {name: "" if text == "0" else text for name, text in both.items()}
    refusal = RequestError("two-ports", "two different ports are set", expected="one port", fix=fix)
    text, name = _only(both, refusal)
    if not text:
        port, reason = otherwise or (DEFAULT_PORT, f"port {DEFAULT_PORT}, the default")
        return port, "", reason
    number = whole(text)
    if number is None or number > 65535:
        raise RequestError("not-a-port", f"{shortened(text)} is not a port", seen=f"{name}={shortened(text)}",
                           expected="1 to 65535, or 0 for any free port",
                           fix="master_port=0" if name == "master_port" else fix)  # fmt: skip
    return number, name, f"{name}={number}"


def derived(job_id: int, step_id: int, named: str) -> tuple[int, str]:
    """Return the port of a job step, 20000 + (101 × job + step) mod 9497, and the reason. Ports are 20000 to 29496.

    `named` describes the ids in the reason ("job 12 + step 0").
    Every rank of a step computes the same port without communication, and two steps of a job get different ports.
    A port derived from the job id alone would be the same for all steps, so a rank could join another step's store.
    Two steps never share a port if their step ids are below 101 and their job ids are less than 93 apart.
    """
    port = FIRST_DERIVED_PORT + (STEPS_PER_JOB * job_id + step_id) % DERIVED_PORTS
    return port, f"port {FIRST_DERIVED_PORT} + ({STEPS_PER_JOB} × {named}) mod {DERIVED_PORTS}"


def refuse_other_master(address: str, first_host: str, source: str) -> None:
    """Raise RequestError if MASTER_ADDR cannot mean rank 0's host, `first_host`, which was read from `source`.

    MASTER_ADDR can name this host in another form: with a domain, with a suffix for another network (`n1-ib`), or as
    an address, which cannot be checked here. Any other name is refused. Typically, a script took it from the job's node
    list, but the step runs on other nodes; rank 0 would not listen there, and every rank would time out.
    """
    short, first = address.partition(".")[0].lower(), first_host.partition(".")[0].lower()
    if short == first or is_address(address) or short.startswith(first + "-"):
        return
    raise RequestError(
        "master-address", f"MASTER_ADDR={address} is not {first_host}, where rank 0 runs",
        seen=f"MASTER_ADDR={address}, {source}", expected=f"{first_host}, or no MASTER_ADDR (same effect)",
        fix="unset MASTER_ADDR      (and master_addr=HOST, if rank 0's host has another name)",
    )  # fmt: skip


@dataclass(frozen=True)
class HeldPort:
    """A reserved port. `endpoint` contains the port's actual number; `socket` listens on the port."""

    endpoint: Endpoint
    socket: socket.socket

    def close(self) -> None:
        """Close this process's copy of the socket. A worker's copy stays open."""
        self.socket.close()


def hold_port(endpoint: Endpoint) -> HeldPort:
    """Bind the endpoint's port (for port 0, any free port) and listen on it, so that no other job can take the port.

    multiprocessing passes the socket to rank 0, which passes it to `torch.distributed.TCPStore(master_listen_fd=...)`.
    Ranks that connect before rank 0 accepts connections wait in the socket's queue. For a loopback endpoint, the socket
    listens on that address only, so that other machines cannot reach the store; otherwise, on every interface.

    RequestError: the port is taken, or this user is not allowed to bind it.
    """
    address = ""
    if is_loopback(endpoint.host):  # Debian's /etc/hosts has 127.0.1.1 for the host itself: the ranks connect there.
        address = endpoint.host if is_address(endpoint.host) else "127.0.0.1"
    try:
        dual = address == "" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
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
        # Ranks that were started separately cannot find out which port is free: the user must give all the same port.
        fix = endpoint.another_port
    return RequestError("port-unusable", f"port {endpoint.port} {state}",
                        seen=f"{endpoint.asked_by or 'port'}={endpoint.port}, on {endpoint.host}", expected=expected,
                        fix=fix)  # fmt: skip


def is_address(text: str) -> bool:
    """Return whether the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback name or address, by which every machine means itself."""
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


@dataclass(frozen=True)
class PublishedPort:
    """The file `FOLDER/rendezvous/IDENTITY.json` with rank 0's address. It is removed once all ranks have joined."""

    folder: Path
    identity: RunIdentity

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / "rendezvous" / f"{self.identity.digest}.json"

    def write(self, host: str, port: int) -> None:
        """Write rank 0's host and port atomically, so that nobody reads half a file. OSError: the write failed."""
        write_json(self.path, {"host": host, "port": port, "identity": str(self.identity)})

    def read(self) -> tuple[str, int] | None:
        """Return the host and the port, or None if nothing is published."""
        try:
            # List the folder first: a network file system may cache for a while that a file did not exist.
            os.listdir(self.path.parent)
            content = json.loads(read_plain(self.path))
            return str(content["host"]), int(content["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Remove the file; if its folder is then empty, remove the folder too."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()
