"""Carries out `noether evaluate`: chooses the model and starts one worker. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from noether.checkpoints.run_settings import ChosenModel, WantedModel, choose_model, run_here
from noether.common.suggest import one_of
from noether.core.data.build import prepare_data


@dataclass(frozen=True)
class EvaluateRequest:
    """What is evaluated."""

    chosen: ChosenModel
    data: Path | None
    split: str
    as_json: bool
    vtk: bool


def evaluate_here(wanted: WantedModel, split: str, *, as_json: bool, vtk: bool) -> int:
    """Evaluates a split and prints the metrics; those of the test split are kept, and the report shows them.

    RequestError: no such split.
    """
    one_of("split", split, ("test", "validation", "train"))
    chosen = choose_model(wanted)
    config = chosen.config
    chosen.folder.check_writable(elsewhere=chosen.folder.as_copy("evaluate"))  # before the minutes, not after them
    request = EvaluateRequest(chosen, prepare_data(config), split, as_json, vtk)
    return run_here(config, "noether.training.evaluation.evaluate_worker", request)
