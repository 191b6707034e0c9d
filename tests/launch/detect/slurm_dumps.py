"""Environments of real Slurm processes, as the files in slurm_environments/ hold them.

A file has sections: `[name: N process(es), the same in all]` with the variables that its processes share, then
`[name: process 0 on n1]` with what each has for itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from noether.launch.detect.devices import GpuDriver
from noether.launch.detect.driver import Gpu

FOLDER = Path(__file__).parent / "slurm_environments"
_HEADING = re.compile(r"\[([^:]+): (?:(\d+) process\(es\), the same in all|process (\d+) on (\S+))\]")


@dataclass(frozen=True)
class DumpedProcess:
    """One process of a dump: its environment, and the host it ran on."""

    host: str
    environ: dict[str, str]


def four_gpus() -> list[Gpu]:
    """The driver of a node with four GPUs."""
    return [Gpu(index, f"GPU-{index}") for index in range(4)]


def no_gpus() -> None:
    """A node without a driver."""


def driver_of(environ: dict[str, str]) -> GpuDriver:
    """The job's GPUs are what Slurm masked; a job that asked for none is taken to run on a node that has none."""
    return four_gpus if "CUDA_VISIBLE_DEVICES" in environ else no_gpus


def dump_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read_dump(name: str) -> dict[str, list[DumpedProcess]]:
    """Every process of a dump by section, in the order of the file."""
    shared: dict[str, dict[str, str]] = {}
    counts: dict[str, int] = {}
    own: dict[str, list[tuple[str, dict[str, str]]]] = {}
    variables: dict[str, str] = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        heading = _HEADING.fullmatch(line)
        if heading and heading[2]:
            variables = shared[heading[1]] = {}
            counts[heading[1]] = int(heading[2])
        elif heading:
            variables = {}
            own.setdefault(heading[1], []).append((heading[4], variables))
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, f"{name}: {line}"
            variables[key] = value
    dump = {section: list(_processes(common, own.get(section, []))) for section, common in shared.items()}
    assert {section: len(processes) for section, processes in dump.items()} == counts, name
    return dump


def _processes(common: dict[str, str], own: list[tuple[str, dict[str, str]]]) -> Iterator[DumpedProcess]:
    if not own:
        yield DumpedProcess(common.get("HOSTNAME_", ""), common)
    for host, variables in own:
        yield DumpedProcess(host, {**common, **variables})
