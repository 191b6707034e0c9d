"""The table of commands: each typed name and its function, whose signature and docstring Fire shows as help."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeAlias

# The two files of commands import only the standard library; each function imports other packages when it is called.
from noether.cli import job_commands as jobs
from noether.cli import model_commands as models

Command: TypeAlias = Callable[..., int | None]


class Memberless:
    """Hides its members from Fire, which would take a typed word for a member's name: `noether keys`."""

    def __dir__(self) -> list[str]:
        return []


class CommandGroup(Memberless, dict[str, Any]):
    """Commands and groups of commands by name, with the group's help text."""

    def __init__(self, text: str, *commands: Command, **groups: Any) -> None:
        super().__init__({one.__name__: one for one in commands} | groups)
        self.__doc__ = text


COMMANDS = CommandGroup(
    """One training program for every machine.

    Any setting may be written as an override or as a flag, in any order:
      noether train --hp my.yaml +experiment/ellipsoid=full trainer.max_epochs=3 --devices 0,1
    noether COMMAND --help describes a command; noether help SECTION the settings of a section (noether help model),
    noether help SETTING one of them.

    Exit codes: 0 done, 1 failed, 2 the request was wrong, 69 not all ranks arrived in time (try again), 75 stopped
    with everything saved (to continue: noether train resume=RUN; the run keeps its settings).
    """,
    *(models.init, models.train, models.run, models.plan, models.settings, models.evaluate, models.predict),
    *(models.sensitivity, models.export, jobs.checkpoints, jobs.report, jobs.tensorboard, jobs.status, jobs.logs),
    *(jobs.watch, jobs.cancel, jobs.doctor, jobs.submit, jobs.lint, jobs.completion, jobs.help, jobs.version),
    data=CommandGroup("Inspect, prepare and describe data sets.", models.inspect, models.prepare, models.describe),
)
ALONE = ("init", "evaluate", "predict", "sensitivity", "export", "report", "data inspect", "data prepare")
"""Commands that must run in one process: several tasks of a launcher would all write the same files."""
SHARED = {
    "overrides": "settings and groups, as for train",
    "settings": "any setting: --devices 0,1 (noether help top-level), --trainer.max_epochs 3 (noether help trainer)",
    "run": "the run's folder: runs/NAME",
    "runs": "run folders, or folders that hold run folders (default: runs)",
    "hp": "a YAML file with settings, from anywhere; also as the first word: noether train my.yaml",
    "out": "the file to write: .vtu, .vtk or .vtp, which ParaView opens and --mesh reads",
    "json": "print one JSON object",
    "weights": "ema or raw (default: the EMA weights if the run has them)",
    "checkpoint": "best, latest or a name such as update-000001234 (default: best)",
    "mesh": "the surface: .stl, .vtk, .vtu, .vtp, .ply, .obj, or points as .npy (N, 3)",
    "scale": "length of one unit of the mesh, in metres: 0.001 for a mesh in mm (default: the training files' unit)",
    "axes": "files: the axes of the training files; model: the model's own (x across, y up, z along the wind)",
    "chunk": "points predicted at once: limits memory without changing the result",
    "set": "parameters of the case, and a reference_area, such as wind_speed=32,reference_area=2.1; may be repeated",
    "trust": "run code that the settings of another user's run name",
    "workers": "processes (default: one for each CPU, at most 16)",
}
"""Descriptions of parameters that several commands share; a command's own docstring takes precedence."""


def command_named(words: Sequence[str]) -> tuple[list[str], Any]:
    """Return the leading words up to a command's name, and the command or group that they name (None if unknown)."""
    path: list[str] = []
    found: Any = COMMANDS
    for word in words:
        if not isinstance(found, CommandGroup) or word.startswith("-"):
            break
        path.append(word)
        found = found.get(word.replace("-", "_"))
    return path, found


def flags_of(command: Command) -> dict[str, Any]:
    """Return the type of each flag of a command, by the flag's name."""
    return {name: one.annotation for name, one in signature(command).parameters.items() if one.kind is one.KEYWORD_ONLY}


def takes_settings(command: Command) -> bool:
    """Return whether a command accepts settings, written as overrides or as flags."""
    return "overrides" in signature(command).parameters


def words_of(command: Command) -> list[str]:
    """Return the names of the words that a command requires."""
    return [one.name for one in signature(command).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]


def verbs() -> dict[str, Command]:
    """Return every command by its full name, such as `train` or `data inspect`."""
    nested = {name: group for name, group in COMMANDS.items() if isinstance(group, CommandGroup)}
    alone = {name: command for name, command in COMMANDS.items() if name not in nested}
    return alone | {f"{name} {word}": command for name, group in nested.items() for word, command in group.items()}


def programs() -> dict[str, str]:
    """Return {name: command}: the names under which the image installs the program, and the command each name runs."""
    own = {word: word for word in COMMANDS if word not in ("help", "version")}
    return own | {"noether-train": "train", "noether-train-submit-job": "submit"}
