"""From what was typed to one call: commands, arguments, help, completion."""

from noether.cli.entry import main, submit_main, train_main

__all__ = ["main", "submit_main", "train_main"]
