"""The text of --help: of the program, of a group of commands, of one command. Only the standard library."""

import inspect
from collections.abc import Callable
from typing import Any

from noether.cli.arguments import flag_of
from noether.cli.commands import GROUPS, VERBS

EPILOGUE = """\
Settings may be written as Hydra overrides or as flags, in any order:
  noether train --hp my.yaml +experiment/ellipsoid=full trainer.max_epochs=3 --devices 0,1

Exit codes: 0 done, 1 failed, 2 the request was wrong, 75 stopped with everything saved (to continue:
  noether train resume=RUN; the run keeps its settings).
"""


def overview() -> str:
    """Returns the text of `noether --help`."""
    lines = ["noether: one training program for every machine", "", "usage: noether COMMAND …", ""]
    for name, function in VERBS.items():
        lines.append(f"  {name:<14} {_first_line(function)}")
    lines += [
        "",
        "noether COMMAND --help describes one command; noether help SECTION describes the settings of a section",
        "(noether help model), noether help SETTING one of them; noether --version prints the version.",
        "",
    ]
    return "\n".join(lines) + "\n" + EPILOGUE.rstrip()


def group_help(group: str) -> str:
    """Returns the text of `noether GROUP --help`."""
    lines = [f"usage: noether {group} COMMAND …", "", GROUPS[group], ""]
    lines += [
        f"  {name.partition(' ')[2]:<14} {_first_line(function)}"
        for name, function in VERBS.items()
        if name.startswith(f"{group} ")
    ]
    return "\n".join([*lines, "", f"noether {group} COMMAND --help describes one command."])


_OF_TRAINING = ("", "trainer", "dataset", "model", "task", "optimizer", "schedule")
READ_BY: dict[str, tuple[str, ...]] = dict.fromkeys(("train", "plan", "settings"), _OF_TRAINING)
READ_BY |= {"submit": ("slurm",), "data describe": ("dataset",)}
"""The sections of settings that a command reads itself, "" for the top level."""

METAVARS = {
    "hp": "FILE", "visible_devices": "LIST", "out": "FILE", "mesh": "FILE", "volume": "FILE", "truth": "FILE",
    "scale": "NUMBER", "chunk": "NUMBER", "keep": "NUMBER", "workers": "NUMBER", "rank": "NUMBER",
    "timeout": "SECONDS", "port": "NUMBER", "output_path": "FOLDER", "checkpoint": "NAME", "weights": "KIND",
    "of": "OUTPUT", "interval": "PERCENT",
}  # fmt: skip

SHARED = {
    "run": "the run's folder: runs/NAME",
    "hp": "a YAML file with settings, from anywhere",
    "json": "print one JSON object",
    "weights": "ema or raw (default: the EMA weights if the run has them)",
    "checkpoint": "best, latest or a name such as update-000001234 (default: best)",
    "mesh": "the surface: .stl, .vtk, .vtu, .vtp, .ply, .obj, or points as .npy (N, 3)",
    "scale": "length of one unit of the mesh, in metres: 0.001 for a mesh in mm (default: the training files' unit)",
    "axes": "files: the axes of the training files; model: the model's own (x across, y up, z along the wind)",
    "chunk": "points predicted at once: limits memory without changing the result",
    "set": "parameters of the case, and a reference_area, such as wind_speed=32,reference_area=2.1",
    "trust": "run code that the settings of another user's run name",
    "workers": "processes (default: one for each CPU, at most 16)",
}
"""What several commands say of a word or a flag; a command whose docstring describes it says that."""


def own_help(verb: str) -> str:
    """Returns what a command says of itself: usage, text, words and flags, without the settings that it reads."""
    function = VERBS[verb]
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    described = SHARED | dict(line.strip().split(": ", 1) for line in arguments.splitlines() if line.strip())
    usage, lines = [f"usage: noether {verb}"], []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            flag = flag_of(name)
            shown = flag if parameter.annotation is bool else f"{flag} {METAVARS.get(name, name.upper())}"
            usage.append(f"[{flag}]" if parameter.annotation is bool else f"[{shown}]")
        else:
            shown = name.upper()
            usage.append(f"[{shown} …]" if parameter.kind is parameter.VAR_POSITIONAL else shown)
        lines.append(f"  {shown:<36} {described[name]}")
    return "\n\n".join([" ".join(usage), text.strip(), "\n".join(lines)])


def command_help(verb: str) -> str:
    """Returns the text of `noether VERB --help`, from the function's signature and docstring."""
    parts = [own_help(verb)]
    if verb in READ_BY:
        from noether.cli.settings_help import settings_help

        parts.append(settings_help(verb))
    return "\n\n".join(parts)


def _first_line(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").splitlines()[0]
