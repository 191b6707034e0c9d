"""Says in what a host of a start differs from rank 0's: settings and versions, ranks, devices."""

from collections.abc import Mapping
from typing import Any

from noether.common.errors import RequestError
from noether.launch.detect.identity import RunIdentity
from noether.launch.processes.context import RunInfo
from noether.launch.processes.handshake import LONGEST_IDENTITY, printable

VERSIONS = ("noether", "torch")
MOST_NAMED, LONGEST_VALUE = 4, 80


def settings_differ(
    first: Mapping[str, Any], other: Mapping[str, Any], host: str, two_runs: str
) -> RequestError | None:
    """Returns how a run is refused whose settings, by dotted names, are `first` where rank 0 is, `other` on a host.

    None where they are the same, or those of one are not known. `two_runs` is what helps where two runs are meant.
    """
    differ = [name for name in {**first, **other} if first.get(name) != other.get(name)]
    if not (first and other and differ):
        return None
    by_version = any(name in VERSIONS for name in differ)
    more = f" and {len(differ) - MOST_NAMED} more" if len(differ) > MOST_NAMED else ""

    def named(settings: Mapping[str, Any]) -> str:
        values = {name: settings.get(name, "(no such setting)") for name in differ[:MOST_NAMED]}
        pairs = (f"{printable(name)}={printable(value, LONGEST_VALUE)}" for name, value in values.items())
        return ", ".join(pairs) + more

    return RequestError(
        "hosts-differ",
        f"{host} has other settings or versions than rank 0",
        seen=f"{named(other)} on {host}",
        expected=f"{named(first)}, as where rank 0 is",
        fix=f"the same {'image or environment' if by_version else 'settings'} on every host{two_runs}",
    )


def ranks_differ(first: RunInfo, other: RunIdentity, host: str, two_runs: str) -> RequestError | None:
    """Returns how a host is refused that has other ranks or devices than rank 0 has; None where it has not."""
    own, seen = first.identity, f"{printable(other, LONGEST_IDENTITY)} on {host}"
    expected = f"{own}, as where rank 0 is"
    if own.world_size != other.world_size:
        return RequestError(
            "world-sizes-differ",
            f"the run was started with {own.world_size} ranks where rank 0 is, and with {other.world_size} on {host}",
            seen=seen,
            expected=expected,
            fix=f"start {own.world_size} ranks in all, with the same command on every host{two_runs}",
        )
    if own.device_kind != other.device_kind:
        return RequestError(
            "device-kinds-differ",
            f"rank 0 computes on {own.device_kind}, and {host} on {other.device_kind}",
            seen=seen,
            expected=expected,
            fix="noether doctor      (on the host without a GPU; or accelerator=cpu on every host)",
        )
    return None
