"""The commands, called as `noether VERB …`: one function each, in the file of its subject."""

from collections.abc import Callable, Mapping
from typing import Any

from noether.cli import cluster_commands, data_commands, model_commands, run_commands, training_commands
from noether.cli.arguments import parse_arguments
from noether.errors import RequestError

# Only the standard library in these files: `noether --help` answers at once, and torch comes in where it is used.

VERBS: Mapping[str, Callable[..., Any]] = {
    "init": training_commands.init,
    "train": training_commands.train,
    "plan": training_commands.plan,
    "settings": training_commands.settings,
    "evaluate": model_commands.evaluate,
    "predict": model_commands.predict,
    "sensitivity": model_commands.sensitivity,
    "export": model_commands.export,
    "data inspect": data_commands.inspect,
    "data prepare": data_commands.prepare,
    "data describe": data_commands.describe,
    "checkpoints": run_commands.checkpoints,
    "report": run_commands.report,
    "tensorboard": run_commands.tensorboard,
    "status": run_commands.status,
    "logs": run_commands.logs,
    "watch": run_commands.watch,
    "cancel": run_commands.cancel,
    "doctor": cluster_commands.doctor,
    "submit": cluster_commands.submit,
    "lint": cluster_commands.lint,
    "completion": cluster_commands.completion,
}
"""The commands by what is typed, in the order of the help: one word, or the name of a group and a word."""
GROUPS = {"data": "Inspect, prepare and describe data sets."}
ALONE = ("init", "evaluate", "predict", "sensitivity", "export", "report", "data inspect", "data prepare")
"""Commands that run in one process and write files: several tasks of a launcher would write the same files."""
FIRST_WORDS = tuple(dict.fromkeys(verb.partition(" ")[0] for verb in VERBS))
"""What may follow `noether`: the commands, and the groups of commands."""


def programs() -> dict[str, str]:
    """Returns the names under which the image installs the program, each with the command that it runs."""
    return {word: word for word in FIRST_WORDS} | {"noether-train": "train", "noether-train-submit-job": "submit"}


def read_train_line(words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None] | None:
    """Returns the overrides and the configuration file of `noether train WORDS`; None: it cannot be read.

    The linter asks it of job scripts.
    """
    # A second of imports, and most scripts have no `noether train`.
    from noether.config.schema import RunConfig

    try:
        line = parse_arguments(["train", *words], VERBS, tuple(RunConfig.model_fields))
    except RequestError:
        return None
    file = line.flags.get("hp")
    return line.positional, file if isinstance(file, str) else None
