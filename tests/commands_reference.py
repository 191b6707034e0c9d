"""Writes docs/commands.md, the help of every command: `make docs`."""

from noether.cli.commands import VERBS
from noether.cli.help import own_help


def commands_reference() -> str:
    """Returns the page as Markdown."""
    parts = [
        "# Commands",
        "",
        "Written by `make docs` from the commands themselves: what `noether COMMAND --help` says.",
        "",
    ]
    for verb in VERBS:
        parts += [f"## noether {verb}", "", "```text", own_help(verb), "```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    print(commands_reference(), end="")
