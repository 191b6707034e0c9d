"""The cgroups that limit this process, versions 1 and 2 (cgroups(7))."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def own_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yields the folders of this process's group of a controller ("cpu", "pids") and of all groups above it.

    A container sees its own group where cgroups are mounted, whatever path /proc/self/cgroup has; folders that are not
    there are among them.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and controller not in controllers.split(","):
            continue
        for tree in (mount, mount / "unified") if number == "0" else (mount / controllers, mount / controller):
            group = tree / path.lstrip("/")
            while group.is_relative_to(tree):
                yield group
                group = group.parent


def number_in(path: Path, prefix: str = "") -> int | None:
    """Returns the whole number that a file of the kernel's holds, after a prefix; None where it holds none."""
    with suppress(OSError, ValueError):
        return int(path.read_text().removeprefix(prefix))
    return None
