"""The command line that resumes a run with its own settings. No torch."""

import shlex
from pathlib import Path

from noether.config.sweep import override_value


def continue_line(folder: Path, verb: str = "train") -> str:
    """Return the command that resumes a run with its own settings."""
    return f"noether {verb} {resume_word(folder)}"


def resume_word(folder: Path) -> str:
    """Return the `resume=FOLDER` argument for a run, quoted for a shell."""
    return shlex.quote(f"resume={override_value(str(folder))}")
