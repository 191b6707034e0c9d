"""Works out where ranks meet that were started apart: the host of rank 0, and a port that each finds alike."""

import ipaddress
from collections.abc import Mapping

from noether.environments.endpoint import LOOPBACK
from noether.errors import RequestError

DEFAULT_PORT = 29500
"""The port of a start that has nothing to derive one from (`nodes=2`, RANK without MASTER_PORT); torch's own."""

# Below Linux's ephemeral range (32768 and up, ip(7)), so no outgoing connection sits on it, and below 29500.
FIRST_DERIVED_PORT = 20000
DERIVED_PORTS = 9497  # A prime.
STEPS_PER_JOB = 101


def asked_port(
    master_port: int | None, environ: Mapping[str, str], fix: str = "unset MASTER_PORT"
) -> tuple[int, str] | None:
    """Return the port that was asked for and the line that did, or None: `master_port`, else MASTER_PORT.

    Args:
        master_port: the setting; 0 and None ask for nothing, as do MASTER_PORT=0 and an empty one.
        environ: the environment.
        fix: the line to write where the two differ, or MASTER_PORT is not a port.

    Raises:
        RequestError: not a port, or two different ports.
    """
    asked: dict[str, str] = {}
    if master_port:
        asked[f"master_port={master_port}"] = str(master_port)
    if environ.get("MASTER_PORT", "0") not in ("", "0"):
        asked[f"MASTER_PORT={environ['MASTER_PORT']}"] = environ["MASTER_PORT"]
    if len(set(asked.values())) > 1:
        raise RequestError(
            "two different ports are asked for",
            seen=", ".join(asked),
            expected="one port",
            fix=fix,
        )
    if not asked:
        return None
    source, text = next(iter(asked.items()))
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise RequestError(
            f"{text} is not a port",
            seen=source,
            expected="1 to 65535, or 0 for a free one",
            fix="master_port=0" if source.startswith("master_port") else fix,
        )
    return int(text), source


def derived_port(job_id: int, step_id: int) -> int:
    """Return the port of a job step: 20000 + (101 × job + step) mod 9497, which is 20000 to 29496.

    Every rank of a step finds the same port without asking anyone, and two steps of one job find different
    ones: from the job id alone they would collide, and a rank of one step could join the other's store. Steps
    numbered below 101 of jobs fewer than 93 apart never share a port.
    """
    return FIRST_DERIVED_PORT + (STEPS_PER_JOB * job_id + step_id) % DERIVED_PORTS


def master_from_environment(environ: Mapping[str, str], first_host: str, source: str) -> str | None:
    """Return MASTER_ADDR where it can be the host of rank 0, or None where it is not set.

    It may say the first host in another way: with a domain, with a suffix for another network (`n1-ib`), or as an
    address, which nothing here can check. Any other name is the trap of a list read from the job while the step
    runs elsewhere: no rank 0 listens there, and every rank would wait for it.

    Args:
        environ: the environment.
        first_host: the host that rank 0 runs on.
        source: what that was read from.

    Raises:
        RequestError: MASTER_ADDR is another host, or this one only.
    """
    address = environ.get("MASTER_ADDR", "")
    if not address:
        return None
    short, first = address.partition(".")[0].lower(), first_host.partition(".")[0].lower()
    if is_address(address) and not is_loopback(address):
        return address
    if short == first or (short.startswith(first + "-") and not is_loopback(address)):
        return address
    what = "means each node itself" if is_loopback(address) else f"is not {first_host}, where rank 0 runs"
    raise RequestError(
        f"MASTER_ADDR={address} {what}",
        seen=f"MASTER_ADDR={address}, {source}",
        expected=f"{first_host}, which needs no variable",
        fix="unset MASTER_ADDR      (or master_addr=HOST, if rank 0 has another name)",
    )


def is_address(text: str) -> bool:
    """Whether the text is an IP address and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the host means each machine itself."""
    return host.lower() in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)
