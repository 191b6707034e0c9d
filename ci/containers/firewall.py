"""The machine's iptables rules: what dockerd adds to them is taken out again when our own engine stops.

dockerd leaves its chains, the rules that lead to them and the policy DROP of FORWARD behind. What was there before our
engine started is not touched, so another engine of the machine keeps its rules.
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from containers.shell import ImagesError, call

IPTABLES = "/usr/sbin/iptables"
TABLES = ("filter", "nat")
DOCKER_CHAIN = re.compile(r"\bDOCKER(-\S+)?(?=\s|$)")
# Interfaces of docker's: its default bridge, and those of networks.
DOCKER_BRIDGE = re.compile(r"\b(docker0|br-[0-9a-f]{12})\b")


def remember(record: Path) -> None:
    """Write down the rules that are there now, unless an earlier start has."""
    if not record.exists():
        record.write_text("\n".join(f"{table} {line}" for table in TABLES for line in _rules(table)) + "\n")


def restore(record: Path, networks: Sequence[str]) -> None:
    """Take out what dockerd has added since `remember`; `networks` are beginnings of our engine's addresses."""
    if not record.exists():
        return
    before = record.read_text().splitlines()
    for table in TABLES:
        known = {line.partition(" ")[2] for line in before if line.startswith(f"{table} ")}
        for words in undoing(known, _rules(table), networks):
            with contextlib.suppress(ImagesError):  # Gone already: a container's rule goes with the container.
                call(IPTABLES, "-t", table, *words)
    record.unlink()


def undoing(before: set[str], now: Sequence[str], networks: Sequence[str]) -> list[list[str]]:
    """Return the arguments of iptables that turn `now` into `before` again, as far as docker made the difference.

    Args:
        before: lines of `iptables -S` before dockerd started.
        now: such lines now, in their order.
        networks: beginnings of the addresses of our engine's networks.
    """
    new = [line for line in now if line not in before]
    rules = [line for line in new if line.startswith("-A ") and _is_docker_s(line, networks)]
    chains = [line.split()[1] for line in new if line.startswith("-N ") and DOCKER_CHAIN.search(line)]
    policies = [line.split() for line in before if line.startswith("-P ") and line not in now]
    # Rules first, for a chain that a rule leads to cannot be removed.
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
