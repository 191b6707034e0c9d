"""Measure the CPU seconds of commands that start no run; optionally compare them with those of another checkout.

    python benchmarks/commands.py [--against CHECKOUT] [--rounds N] [--json FILE]

The two checkouts take turns. CHECKOUT, made for example by `git worktree add CHECKOUT COMMIT`, is run by this Python.
"""

import os
import tempfile
from pathlib import Path

from record import REPOSITORY, cpu_seconds, finish, parser, row, told

HELP_GOAL_S = 0.25
COMMANDS = {
    "--help": ["--help"],
    "--version": ["--version"],
    "plan --help": ["plan", "--help"],
    "plan": ["plan", "accelerator=cpu"],
    "a refused flag": ["train", "--reest"],
    "a refused setting": ["train", "acelerator=cpu"],
    "Tab": ["__complete", "bash", "noether train trainer."],
}


def seconds(words: list[str], checkout: Path, folder: str) -> float:
    """Return the CPU seconds of one command, run with the code of a checkout."""
    return cpu_seconds(words, {**os.environ, "PYTHONPATH": str(checkout)}, folder, codes=(0, 2))


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--against", type=Path)
    options = own.parse_args()
    checkouts = [REPOSITORY, *([options.against.resolve()] if options.against else [])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            for checkout in checkouts:  # Not measured, because the first call writes bytecode.
                seconds(words, checkout, folder)
            rounds = [[seconds(words, one, folder) for one in checkouts] for _ in range(options.rounds or 5)]
            goal = HELP_GOAL_S if name.endswith(("help", "version")) else None
            rows.append(row(f"{name}: seconds", [times[0] for times in rounds], goal, at_least=False))
            if options.against:
                rows.append(row(f"{name}: ratio", [times[0] / times[1] for times in rounds]))
    finish("commands", rows, options.json)


if __name__ == "__main__":
    told(main)
