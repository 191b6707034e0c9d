"""Generate docs/commands.md, the help of every command (`make docs`)."""

from noether.cli.binding import bind
from noether.cli.commands import verbs


def commands_reference() -> str:
    parts = [
        "# Commands\n",
        "`make docs` generates this page from the output of `noether COMMAND --help`.\n",
    ]
    for verb in verbs():
        parts += [f"## noether {verb}", "", "```text", *bind([*verb.split(), "--help"]).words, "```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    print(commands_reference(), end="")
