"""What a launcher is told of the place where this process was started, and how it reads a number of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from noether.common.errors import RequestError
from noether.launch.detect.devices import DeviceInventory
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts


@dataclass(frozen=True)
class LaunchContext:
    """Where this process was started: its variables, its devices, its host's name, and what else the system shows."""

    environ: Mapping[str, str]
    inventory: DeviceInventory
    host: str
    facts: ProcessFacts = NOTHING_KNOWN


def whole_number(environ: Mapping[str, str], name: str) -> int:
    """Return the value of a launcher's variable that must be a number.

    Raises:
        RequestError: it is not a number.
    """
    text = environ[name]
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise RequestError(
        "variable-not-a-number",
        f"{name} is not a number",
        seen=f"{name}={text}",
        expected="a number",
        fix=f"unset {name}",
    )
