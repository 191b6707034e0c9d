"""The settings of a run that goes on: its own, changed by what is typed; and the line that continues it. No torch."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noether.config.compose import compose_settings, dumped_layer, load_config, validate
from noether.config.layers import SettingsLayer
from noether.config.overrides import parse_overrides, setting_value
from noether.config.schema import RunConfig
from noether.config.sweep import override_value
from noether.errors import RequestError
from noether.runs.folder import RunFolder, named_run, newest_run
from noether.runs.trust import approved_code


def load_run_config(overrides: Sequence[str], hp: str | None) -> RunConfig:
    """Composes the configuration of a run, on the settings of the run that `resume` names.

    Raises:
        RequestError: as `config.compose.load_config` and `on_own_settings`.
    """
    return load_config(*on_own_settings(overrides, hp))


def on_own_settings(
    overrides: Sequence[str], hp: str | None, *, submits: bool = False
) -> tuple[list[str], SettingsLayer | str | None]:
    """Returns the words and the settings to compose, for words that may name a run to resume.

    With resume=RUN, resume=RUN/checkpoints/NAME or resume=latest, and no `hp`, they are the run's own config.yaml;
    the words are changes to it. What was accepted at an earlier start has to be accepted anew. `submits`: for a job.

    Raises:
        RequestError: the run's settings cannot be read, or name code that this user neither typed nor ran before.
    """
    words, typed = list(overrides), _typed(overrides)
    folder = None if hp is not None and typed.get("resume") == "latest" else _resumed(typed, overrides)
    if folder is None or not folder.config.exists():
        return words, hp  # Whether there is anything to resume is said where the run starts.
    if other := _another_folder(folder, typed):
        begins = f"--hp {shlex.quote(str(folder.config))} resume=null {shlex.quote(f'initial_weights={folder.path}')}"
        raise RequestError(
            "resumed-by-another-name",
            f"resume={typed['resume']} goes on in the folder of {folder.run_id}",
            seen=other,
            expected=f"no {other.partition('=')[0]}, or that of {folder.path}",
            fix=f"leave {other} out\n{begins} {other}      (a run of its own, from its best weights)",
        )
    words.insert(0, f"output_path={override_value(str(folder.path.parent))}")  # Where it lies, whatever settings say.
    if hp is not None:
        return words, hp
    again = f"--hp {shlex.quote(str(folder.config))} {_resume_word(folder.path)}"
    try:
        layer = dumped_layer(folder.config)
        own = validate(layer.settings)
    except RequestError as error:
        raise RequestError(
            "own-settings-unreadable",
            f"the settings of {folder.path} cannot be read",
            seen=error.summary,
            expected=f"{folder.config} as the run wrote it",
            fix=f"--hp FILE {_resume_word(folder.path)}      (the settings that the run was started with)",
        ) from None
    if not own.own_code(submits=submits).keys() <= {str(value) for value in typed.values()}:
        fix = f"{again}      (after reading that file)"
        approved_code(folder, own, folder.config, trust=False, fix=fix, trains=True, submits=submits)
    if typed["resume"] == "latest":  # Where the run was moved, its own output_path would find another.
        words.append(f"resume={override_value(str(folder.path))}")
    return ["accept_changes=[]", *words], layer


def _another_folder(folder: RunFolder, typed: Mapping[str, Any]) -> str:
    """Returns the word that asks for another folder than that of the run, which stays where it is; "" for none."""
    name, place = typed.get("run_id"), typed.get("output_path")
    if name is not None and str(name) != folder.run_id:
        return f"run_id={name}"
    is_other = place is not None and Path(str(place)).expanduser().resolve() != folder.path.resolve().parent
    return f"output_path={place}" if is_other else ""


def continue_line(folder: Path, verb: str = "train") -> str:
    """Returns the command that continues a run with its own settings."""
    return f"noether {verb} {_resume_word(folder)}"


def _resume_word(folder: Path) -> str:
    return shlex.quote(f"resume={override_value(str(folder))}")


def _typed(words: Sequence[str]) -> dict[str, Any]:
    """Returns the value that each setting was given last."""
    return {override.key_or_group: setting_value(override) for override in parse_overrides(words)}


def _resumed(typed: Mapping[str, Any], words: Sequence[str]) -> RunFolder | None:
    """Returns the folder that `resume` names, which may not exist; None where it names none."""
    named = typed.get("resume")
    if not isinstance(named, str) or named == "auto":
        return None
    if named == "latest":
        # With all words: an experiment of theirs may say where runs are.
        place = compose_settings(words).get("output_path", RunConfig.model_fields["output_path"].default)
        return newest_run(Path(str(place)).expanduser())
    return RunFolder(named_run(named)[0].resolve())
