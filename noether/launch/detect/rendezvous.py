"""Works out where separately started ranks meet: the host of rank 0, and a port that each rank derives by itself."""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.launch.detect.endpoint import is_address, is_loopback
from noether.launch.detect.placement import PortSource

DEFAULT_PORT = 29500
"""The port to use if there is nothing to derive one from (`nodes=2`, RANK without MASTER_PORT): torch's default."""

# Derived ports are below Linux's ephemeral range (32768 and up, ip(7)), so that no outgoing connection uses one, and
# below 29500.
FIRST_DERIVED_PORT = 20000
DERIVED_PORTS = 9497  # A prime.
STEPS_PER_JOB = 101


def asked_address(
    master_addr: str | None, environ: Mapping[str, str], fix: str = "unset MASTER_ADDR"
) -> tuple[str, str]:
    """Return the host that `master_addr` or MASTER_ADDR asks for, and which of them does; "" and "" if neither.

    `fix` is shown if the two differ.

    Raises:
        RequestError: the two differ.
    """
    both = {"master_addr": master_addr, "MASTER_ADDR": environ.get("MASTER_ADDR")}
    asked = {address: name for name, address in reversed(both.items()) if address}
    if len(asked) > 1:
        raise RequestError(
            "two-masters",
            "two different masters are asked for",
            seen=", ".join(f"{name}={address}" for name, address in both.items()),
            expected="one address",
            fix=fix,
        )
    return next(iter(asked.items()), ("", ""))


def refuse_loopback(address: str, source: str, nodes: int) -> None:
    """Refuse an address at which each of several nodes would look for rank 0 on itself.

    Raises:
        RequestError: there are several nodes, and `source` asks for a loopback address.
    """
    if nodes > 1 and is_loopback(address):
        raise RequestError(
            "master-is-loopback",
            f"{source}={address} means each of the {nodes} nodes itself",
            seen=f"{source}={address}, {nodes} nodes",
            expected="the host of rank 0, under a name or an address that every node knows",
            fix=f"{source}=HOST      (or leave it out where the launcher knows rank 0's host)",
        )


def port_of(
    master_port: int | None,
    environ: Mapping[str, str],
    otherwise: tuple[int, str] | None = None,
    fix: str = "unset MASTER_PORT",
) -> tuple[int, PortSource, str]:
    """Return where the ranks meet: the port that `master_port` or MASTER_PORT asks for, which of them does, the reason.

    `otherwise` is the port if none is asked for, with its reason; None: the default. 0, None, MASTER_PORT=0 and an
    empty MASTER_PORT ask for none. `fix` is shown if the two differ or MASTER_PORT is not a port.

    Raises:
        RequestError: a value is not a port, or the two differ.
    """
    asked: dict[PortSource, str] = {}
    if master_port:
        asked["master_port"] = str(master_port)
    if environ.get("MASTER_PORT", "0") not in ("", "0"):
        asked["MASTER_PORT"] = environ["MASTER_PORT"]
    if len(set(asked.values())) > 1:
        raise RequestError(
            "two-ports",
            "two different ports are asked for",
            seen=", ".join(f"{name}={text}" for name, text in asked.items()),
            expected="one port",
            fix=fix,
        )
    if not asked:
        port, reason = otherwise or (DEFAULT_PORT, f"port {DEFAULT_PORT}, the default")
        return port, "", reason
    source, text = next(iter(asked.items()))
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise RequestError(
            "not-a-port",
            f"{text} is not a port",
            seen=f"{source}={text}",
            expected="1 to 65535, or 0 for any free port",
            fix="master_port=0" if source == "master_port" else fix,
        )
    return int(text), source, f"{source}={int(text)}"


def derived_port(job_id: int, step_id: int) -> int:
    """Return the port of a job step: 20000 + (101 × job + step) mod 9497, which is 20000 to 29496.

    Every rank of a step computes the same port without communication, and two steps of a job get different ports.
    If only the job id were used, they would share one, and a rank of one step could join the other's store.
    Two steps never share a port if their numbers are below 101 and their job ids are less than 93 apart.
    """
    return FIRST_DERIVED_PORT + (STEPS_PER_JOB * job_id + step_id) % DERIVED_PORTS


def derived(job_id: int, step_id: int, named: str) -> tuple[int, str]:
    """Return `derived_port` and the reason for it, in which `named` says what the numbers are ("job 12 + step 0")."""
    reason = f"port {FIRST_DERIVED_PORT} + ({STEPS_PER_JOB} × {named}) mod {DERIVED_PORTS}"
    return derived_port(job_id, step_id), reason


def refuse_other_master(address: str, first_host: str, source: str) -> None:
    """Refuse a MASTER_ADDR that cannot be the host of rank 0.

    It may name the first host in another form: with a domain, with a suffix for another network (`n1-ib`), or as an
    address, which cannot be checked here. Any other name is refused: it was typically taken from the job's node list
    while the step runs on other nodes, so rank 0 would not listen there and every rank would wait in vain.

    `source` is what `first_host`, the host of rank 0, was read from.

    Raises:
        RequestError: MASTER_ADDR is another host.
    """
    short, first = address.partition(".")[0].lower(), first_host.partition(".")[0].lower()
    if short == first or is_address(address) or short.startswith(first + "-"):
        return
    raise RequestError(
        "master-address",
        f"MASTER_ADDR={address} is not {first_host}, where rank 0 runs",
        seen=f"MASTER_ADDR={address}, {source}",
        expected=f"{first_host}, which is used if MASTER_ADDR is not set",
        fix="unset MASTER_ADDR      (and master_addr=HOST, if rank 0's host has another name)",
    )
