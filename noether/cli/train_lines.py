"""Reads `noether train …` in job scripts for the linter, by the grammar of this command line."""

from noether.cli.arguments import parse_arguments
from noether.errors import RequestError


def read_train_line(words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None] | None:
    """Returns the overrides and the configuration file of `noether train WORDS`; None: it cannot be read."""
    # A second of imports, and most scripts have no `noether train`.
    from noether.cli.commands import verbs
    from noether.config.schema import RunConfig

    try:
        line = parse_arguments(["train", *words], verbs(), tuple(RunConfig.model_fields))
    except RequestError:
        return None
    file = line.flags.get("hp")
    return line.positional, file if isinstance(file, str) else None
