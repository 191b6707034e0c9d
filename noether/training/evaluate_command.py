"""`noether evaluate`: choose the model and start one worker. This module does not import torch."""

from dataclasses import dataclass
from pathlib import Path

from noether.checkpoints.run_settings import ChosenModel, WantedModel, choose_model, run_here
from noether.common.suggest import one_of
from noether.core.data.build import prepare_data


@dataclass(frozen=True)
class EvaluateRequest:
    """The model, data and split to evaluate, and the form of the output."""

    chosen: ChosenModel
    data: Path | None
    split: str
    as_json: bool
    vtk: bool


def evaluate_here(wanted: WantedModel, split: str, *, as_json: bool, vtk: bool) -> int:
    """Evaluate a split and print its metrics; reports show the test split only. RequestError: no such split."""
    one_of("split", split, ("test", "validation", "train"))
    chosen = choose_model(wanted)
    config = chosen.config
    chosen.folder.check_writable(elsewhere=chosen.folder.as_copy("evaluate"))  # Check now: an evaluation takes minutes.
    request = EvaluateRequest(chosen, prepare_data(config), split, as_json, vtk)
    return run_here(config, "noether.training.evaluation.evaluate_worker", request)
