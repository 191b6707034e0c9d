"""Imports run downwards only: the floors of the package are one list, and CONTRIBUTING's table is that list."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "noether"

FLOORS = (
    ("errors",),
    ("common",),
    ("config",),
    ("environments",),
    ("runs",),
    ("workers", "tracking"),
    ("distributed",),
    ("data",),
    ("models", "tasks"),
    ("planning",),
    ("checkpoints",),
    ("learning",),
    ("evaluation",),
    ("report",),
    ("training",),
    ("sweep",),
    ("slurm", "doctor", "lint", "watch", "project"),
    ("cli",),
)
"""From the ground up. A room may import from the floors below it, and from itself."""

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    """Returns the room of "noether.room.module"."""
    return module.split(".")[1] if "." in module else ""


def imports_of(file: Path) -> set[str]:
    """Returns the rooms that a file imports from, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("noether"):
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "noether" else [node.module]
            )
            found |= {room_of(str(name)) for name in names}
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("noether")}
    return {room for room in found if room in FLOOR_OF}


ROOMS = sorted(path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py")


def test_every_room_has_a_floor() -> None:
    assert {room for room in ROOMS if not room.startswith("__")} == set(FLOOR_OF)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_run_downwards(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room.startswith("__"):
        pytest.skip("the package itself and `python -m noether`")
    upward = {other for other in imports_of(file) if other != room and FLOOR_OF[other] >= FLOOR_OF[room]}
    assert not upward, f"{file.relative_to(REPOSITORY)} imports from {upward}, which is not below {room}"


def test_contributing_lists_the_floors() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    rows = [
        re.findall(r"`noether/(\w+)(?:/|\.py)`", line.split("|")[2])
        for line in text.splitlines()
        if re.match(r"\| \d+ \|", line)
    ]
    assert tuple(tuple(row) for row in rows) == FLOORS


def test_few_modules_stand_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 4
