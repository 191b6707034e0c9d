"""The command line: from typed words to one function call, with help and completion."""

from noether.cli.entry import main as main
