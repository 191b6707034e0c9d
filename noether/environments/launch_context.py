"""What a launcher is told of the place where this process was started."""

from collections.abc import Mapping
from dataclasses import dataclass

from noether.environments.devices import DeviceInventory
from noether.environments.process_facts import NOTHING_KNOWN, ProcessFacts


@dataclass(frozen=True)
class LaunchContext:
    """Where this process was started: its variables, its devices, its host's name, and what else the system shows."""

    environ: Mapping[str, str]
    inventory: DeviceInventory
    host: str
    facts: ProcessFacts = NOTHING_KNOWN
