"""From what was typed to one call: commands, arguments, help, completion."""

from noether.cli.entry import main as main
