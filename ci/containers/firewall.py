"""Remove the iptables rules that the private engine's dockerd has added, when the engine stops.

dockerd leaves behind its chains, the rules that jump to these chains, and FORWARD's policy DROP. Rules that existed
before the private engine started are kept, because another engine on the machine may need them.
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from containers.shell import ImagesError, call

IPTABLES = "/usr/sbin/iptables"
TABLES = ("filter", "nat")
DOCKER_CHAIN = re.compile(r"\bDOCKER(-\S+)?(?=\s|$)")
# Matches docker's interfaces: the default bridge and the bridges of other networks.
DOCKER_BRIDGE = re.compile(r"\b(docker0|br-[0-9a-f]{12})\b")


def remember(record: Path) -> None:
    """Save the current rules to the file `record`, unless it exists already."""
    if not record.exists():
        record.write_text("\n".join(f"{table} {line}" for table in TABLES for line in _rules(table)) + "\n")


def restore(record: Path, networks: Sequence[str]) -> None:
    """Undo dockerd's changes since `remember`; `networks` are the prefixes of the private engine's addresses."""
    if not record.exists():
        return
    before = record.read_text().splitlines()
    for table in TABLES:
        known = {line.partition(" ")[2] for line in before if line.startswith(f"{table} ")}
        for words in undoing(known, _rules(table), networks):
            with contextlib.suppress(ImagesError):  # A container's rule is already gone with the container.
                call(IPTABLES, "-t", table, *words)
    record.unlink()


def undoing(before: set[str], now: Sequence[str], networks: Sequence[str]) -> list[list[str]]:
    """Return the arguments of the iptables calls that undo docker's changes between `before` and `now`.

    Args:
        before: the lines of `iptables -S` before dockerd started.
        now: the current lines of `iptables -S`, in order.
        networks: the address prefixes of the private engine's networks.
    """
    new = [line for line in now if line not in before]
    rules = [line for line in new if line.startswith("-A ") and _is_docker_s(line, networks)]
    chains = [line.split()[1] for line in new if line.startswith("-N ") and DOCKER_CHAIN.search(line)]
    policies = [line.split() for line in before if line.startswith("-P ") and line not in now]
    # Rules come first, because iptables cannot remove a chain to which a rule jumps.
    deleted = [["-D", *line.split()[1:]] for line in rules]
    return [*deleted, *(["-F", chain] for chain in chains), *(["-X", chain] for chain in chains), *policies]


def _is_docker_s(line: str, networks: Sequence[str]) -> bool:
    return bool(
        DOCKER_CHAIN.search(line) or DOCKER_BRIDGE.search(line) or any(f" {network}" in line for network in networks)
    )


def _rules(table: str) -> list[str]:
    with contextlib.suppress(ImagesError):
        return call(IPTABLES, "-t", table, "-S").splitlines()
    return []
