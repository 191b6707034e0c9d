"""The commands, called as `noether VERB …`: one method each, in the file of its subject."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from noether.cli.cluster_commands import ClusterCommands
from noether.cli.data_commands import DataCommands
from noether.cli.model_commands import ModelCommands
from noether.cli.run_commands import RunCommands
from noether.cli.training_commands import TrainingCommands

# Only the standard library in these files: `noether --help` answers at once, and torch comes in where it is used.


class Commands(TrainingCommands, ModelCommands, DataCommands, RunCommands, ClusterCommands):
    """noether: one training program for every machine."""


ALONE = ("init", "evaluate", "predict", "export", "report", "data inspect", "data prepare", "data pack")
"""Commands that run in one process and write files: several tasks of a launcher would write the same files."""


def _members() -> Iterator[tuple[str, Any]]:
    """Yields the commands and groups of commands, in the order of the help."""
    for subject in Commands.__bases__:
        yield from ((name, member) for name, member in vars(subject).items() if not name.startswith("_"))


def verbs() -> dict[str, Callable[..., Any]]:
    """Returns the commands by what is typed: one word, or the name of a group and a word ("data prepare")."""
    found: dict[str, Callable[..., Any]] = {}
    for name, member in _members():
        if inspect.isclass(member):
            found |= {f"{name} {verb}": getattr(member(), verb) for verb in vars(member) if not verb.startswith("_")}
        else:
            found[name] = getattr(Commands(), name)
    return found


def first_words() -> list[str]:
    """Returns what may follow `noether`: the commands, and the groups of commands."""
    return [name for name, _ in _members()]


def programs() -> dict[str, str]:
    """Returns the names under which the image installs the program, each with the command that it runs."""
    return {word: word for word in first_words()} | {"noether-train": "train", "noether-train-submit-job": "submit"}


def groups() -> dict[str, type]:
    """Returns the groups of commands by name."""
    return {name: member for name, member in _members() if inspect.isclass(member)}
