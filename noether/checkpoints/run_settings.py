"""The settings and weights of an existing run that is resumed, evaluated or used to predict. No torch here."""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.checkpoints.format import META, CheckpointFolder, newest_intact
from noether.checkpoints.named import BEST, named_checkpoint
from noether.checkpoints.resume import ResumeRule, compare_configs
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import first_of
from noether.common.suggest import one_of
from noether.config.compose import compose_settings, dumped_layer, load_config, settings_with_origins, validate
from noether.config.explain import as_override
from noether.config.layers import SettingsLayer
from noether.config.overrides import parse_overrides, setting_value
from noether.config.schema import RunConfig
from noether.config.sweep import override_value
from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.plan import plan_run
from noether.launch.processes.context import RunInfo
from noether.launch.processes.run import run_placement
from noether.runs.continue_line import resume_word
from noether.runs.folder import RunFolder, existing_run, is_run, named_run, newest_run
from noether.runs.trust import approved_code


def run_settings(
    folder: RunFolder, checkpoint: CheckpointFolder | None, *, resumes: bool = False
) -> tuple[SettingsLayer, RunConfig]:
    """Return a run's settings from config.yaml, which every attempt writes, both as a layer and validated.

    If config.yaml cannot be read, use the verified settings in `checkpoint`; if that is None, raise RequestError. With
    `resumes=True`, also use these if resuming refuses config.yaml's changes: the attempt that made them saved nothing.
    """
    refused: list[str] = []
    try:
        layer = dumped_layer(folder.config)
        config = validate(layer.settings)
    except RequestError as error:
        if checkpoint is None:
            raise
        why = f"cannot be read ({error.summary})"
    else:
        if checkpoint is not None and resumes:
            changes = compare_configs(checkpoint.meta()["config"], config)
            refused = [str(change) for change in changes if change.rule is ResumeRule.REFUSED]
        if checkpoint is None or not refused:
            return layer, config
        why = f"differs from the settings of {checkpoint.path.name} ({first_of(refused, 3)})"
    say_of_settings(f"{folder.config} {why}; the settings in the checkpoint's {META} are used")
    settings = checkpoint.meta()["config"]
    return SettingsLayer(checkpoint.path / META, settings), validate(settings)


def say_of_settings(text: str) -> None:
    """Print a warning to stderr, to keep it out of a command's output."""
    Console(None, speaks=True, stream=sys.stderr).warn(text)


def load_run_config(overrides: Sequence[str], hp: str | None) -> RunConfig:
    """Compose the configuration from the result of `rebase_on_run`. RequestError: as for that and `load_config`."""
    return load_config(*rebase_on_run(overrides, hp))


def show_settings(overrides: Sequence[str], hp: str | None, *, as_json: bool) -> int:
    """Print every setting of a run with its origin; return the exit code."""
    found = settings_with_origins(*rebase_on_run(overrides, hp))
    if as_json:
        print(json.dumps({one.name: {"value": one.value, "origin": one.origin} for one in found}, indent=2))
        return ExitCode.DONE
    lines = [(shlex.quote(f"{one.name}={as_override(one.value)}"), one.origin) for one in found]
    widest = min(60, max(len(line) for line, _ in lines))
    for line, origin in lines:
        print(f"{line:<{widest}}   {origin}")
    return ExitCode.DONE


def rebase_on_run(
    overrides: Sequence[str], hp: str | None, *, submits: bool = False
) -> tuple[list[str], SettingsLayer | str | None]:
    """Return the overrides and the base settings to compose; the given overrides may name a run to resume.

    With resume=RUN, resume=RUN/checkpoints/NAME or resume=latest, and without `hp`, the base is the run's own settings.
    Changes that were accepted for an earlier attempt must be accepted again. submits: whether the settings are for a
    job. RequestError: the run's settings cannot be read, or name untrusted code that this user has not typed.
    """
    words, typed = list(overrides), _typed(overrides)
    folder, name = (None, None) if hp is not None and typed.get("resume") == "latest" else _resumed(typed, overrides)
    if folder is None or not is_run(folder.path):
        return words, hp  # `find_target` will report that there is nothing to resume.
    if other := _another_folder(folder, typed):
        begins = f"--hp {shlex.quote(str(folder.config))} resume=null {shlex.quote(f'initial_weights={folder.path}')}"
        raise RequestError(
            "resumed-by-another-name", f"resume={typed['resume']} continues in folder {folder.run_id}", seen=other,
            expected=f"no {other.partition('=')[0]}, or the same as that of {folder.path}",
            fix=f"leave {other} out\n{begins} {other}      (starts a new run from the best weights of that run)",
        )  # fmt: skip
    words.insert(0, f"output_path={override_value(str(folder.path.parent))}")  # The run may have been moved.
    if hp is not None:
        return words, hp
    again = f"--hp {shlex.quote(str(folder.config))} {resume_word(folder.path)}"
    try:
        # A job's script names config.yaml, so for a job this file itself must be readable.
        layer, own = run_settings(folder, None if submits else _checkpoint(folder, name), resumes=True)
    except RequestError as error:
        raise RequestError(
            "own-settings-unreadable", f"the settings of {folder.path} cannot be read", seen=error.summary,
            expected=f"{folder.config} with its original content",
            fix=f"--hp FILE {resume_word(folder.path)}      (FILE: the settings that the run was started with)",
        ) from None  # fmt: skip
    if not own.own_code(submits=submits).keys() <= {str(value) for value in typed.values()}:
        fix = f"{again}      (after reading that file)"
        approved_code(folder, own, layer.file or folder.config, trust=False, fix=fix, trains=True, submits=submits)
    if typed["resume"] == "latest":  # If the run was moved, its own output_path would find another run.
        words.append(f"resume={override_value(str(folder.path))}")
    return ["accept_changes=[]", *words], layer


def _another_folder(folder: RunFolder, typed: Mapping[str, Any]) -> str:
    """Return the override that asks for another folder, which a resumed run cannot use; "" if there is none."""
    name, place = typed.get("run_id"), typed.get("output_path")
    if name is not None and str(name) != folder.run_id:
        return f"run_id={name}"
    is_other = place is not None and Path(str(place)).expanduser().resolve() != folder.path.resolve().parent
    return f"output_path={place}" if is_other else ""


def _typed(words: Sequence[str]) -> dict[str, Any]:
    """Return the last value typed for each setting."""
    return {override.key_or_group: setting_value(override) for override in parse_overrides(words)}


def _resumed(typed: Mapping[str, Any], words: Sequence[str]) -> tuple[RunFolder | None, str | None]:
    """Return the run folder and the checkpoint name in `resume`, each None if not named. They need not exist."""
    named = typed.get("resume")
    if not isinstance(named, str) or named == "auto":
        return None, None
    if named == "latest":
        # Compose all overrides, because an experiment that they name may set output_path.
        place = compose_settings(words).get("output_path", RunConfig.model_fields["output_path"].default)
        return newest_run(Path(str(place)).expanduser()), None
    run, name = named_run(named)
    return RunFolder(run.resolve()), name


def _checkpoint(folder: RunFolder, name: str | None) -> CheckpointFolder | None:
    """Return the checkpoint to resume from: the one called `name`, else the newest intact one; None if none exists."""
    with suppress(RequestError):
        if name is not None:
            return named_checkpoint(folder, name, "", whole=False)
    return newest_intact(folder.checkpoints, whole=False)


@dataclass(frozen=True)
class ChosenModel:
    """A run's model: its checkpoint, its kind of weights ("ema" or "raw"), and its settings for one local device.

    code: the dotted paths in the settings that may be imported.
    """

    folder: RunFolder
    config: RunConfig
    code: Collection[str]
    checkpoint: CheckpointFolder
    weights: str


@dataclass(frozen=True)
class WantedModel:
    """A request for a model of a run.

    checkpoint: None means that in `run` (RUN/checkpoints/NAME), else the best. weights: None means EMA, if any.
    """

    run: str
    checkpoint: str | None
    weights: str | None
    trust: bool


def choose_model(wanted: WantedModel) -> ChosenModel:
    """Find a run's model and verify its whole checkpoint.

    RequestError: there is no such run, checkpoint or kind of weights, the checkpoint is damaged, or code is untrusted.
    """
    run, name = named_run(wanted.run)
    folder = existing_run(run)
    chosen = named_checkpoint(folder, wanted.checkpoint or name, "--checkpoint {}" + BEST)
    layer, config = run_settings(folder, chosen)
    code = approved_code(folder, config, layer.file or folder.config, wanted.trust, trains=False)
    for change in compare_configs(chosen.meta()["config"], config):
        if change.rule is not ResumeRule.ALLOWED:
            say_of_settings(f"{folder.config} differs from the checkpoint's settings: {change}")
    weights = one_of("weights", wanted.weights or chosen.weights[0], chosen.weights)
    trainer = config.trainer.model_copy(update={"max_batch_size": None})
    here = {"accelerator": "auto", "devices": "1", "trainer": trainer}  # This machine need not be the one that trained.
    config = config.model_copy(update=here | dict.fromkeys(("master_port", "nodes", "node_rank", "master_addr")))
    return ChosenModel(folder, config, code, chosen, weights)


def run_here(config: RunConfig, target: str, request: Any) -> int:
    """Run one worker on this machine. Inside a job or a launcher, ignore its ranks, which are meant for training."""
    kept = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    visible = {name: value for name, value in os.environ.items() if name in kept}
    plan = plan_run(config, environ=visible, facts=NOTHING_KNOWN)
    # Write logs elsewhere: the run's own logs must stay as they are, and its folder may be read-only.
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        return run_placement(plan.placement, target, request, Path(scratch), RunInfo(logs_stay=False))
