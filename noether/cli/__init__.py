"""The command line: turns the typed words into one function call, and provides help and completion."""

from noether.cli.entry import main as main
