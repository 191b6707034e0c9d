"""Names the settings in which a host differs from rank 0's, the versions of noether and torch before all."""

from collections.abc import Mapping
from typing import Any

from noether.errors import RequestError
from noether.workers.handshake import printable

VERSIONS = ("noether", "torch")
MOST_NAMED, LONGEST_VALUE = 4, 80


def settings_differ(first: Mapping[str, Any], other: Mapping[str, Any], host: str) -> RequestError:
    """Returns how a run is refused whose settings, by dotted names, are `first` where rank 0 is, `other` on a host."""
    differ = [name for name in {**first, **other} if first.get(name) != other.get(name)]
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
        fix=f"the same {'image or environment' if by_version else 'settings'} on every host",
    )
