"""Reads `noether train …` in job scripts for the linter, by the grammar of this command line."""

from noether.errors import RequestError

# Composing a configuration takes a second to import, and most scripts have no `noether train`: inside the methods.


class OwnTrainLines:
    """What lint asks of this command line (`noether.lint.rank_rules.TrainLines`)."""

    def read(self, words: tuple[str, ...]) -> tuple[tuple[str, ...], str | None] | None:
        """Returns the overrides and the configuration file of `noether train WORDS`; None: it cannot be read."""
        from noether.cli.arguments import parse_arguments
        from noether.cli.commands import verbs
        from noether.config.schema import RunConfig

        try:
            line = parse_arguments(["train", *words], verbs(), tuple(RunConfig.model_fields))
        except RequestError:
            return None
        file = line.flags.get("hp")
        return line.positional, file if isinstance(file, str) else None

    def refusal(
        self, overrides: tuple[str, ...], file: str | None, ranks: int | None
    ) -> tuple[RequestError, bool] | None:
        """Returns why a training with so many ranks would be refused, and whether the batch is the reason."""
        from noether.config.compose import load_config
        from noether.planning.batches import plan_batches

        try:
            config = load_config(overrides, file)
        except RequestError as error:
            return error, False
        try:
            if ranks is not None:
                plan_batches(config.trainer.effective_batch_size, None, ranks)
        except RequestError as error:
            return error, True
        return None
