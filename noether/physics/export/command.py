"""Run `noether export`: choose the model and start one worker. Does not import torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from noether.checkpoints.run_settings import ChosenModel, WantedModel, choose_model, run_here
from noether.common.errors import RequestError


@dataclass(frozen=True)
class ExportRequest:
    """A request to export a model: the model, the folder to write, and whether to include the compiled program."""

    chosen: ChosenModel
    out: Path
    program: bool


def export_here(wanted: WantedModel, out: str, *, program: bool, overwrite: bool) -> int:
    """Export a run's model, on the CPU.

    RequestError: `out` holds other files, or an earlier export and `overwrite` is False.
    """
    target = Path(out).expanduser()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not (target / "model.json").is_file():
            raise RequestError("not-an-export", f"{target} exists and is not an export", seen="files of another kind",
                               expected="a new folder, or one with an earlier export",
                               fix=f"noether export {wanted.run} {target}-export")  # fmt: skip
        if not overwrite:
            raise RequestError("export-exists", f"{target} already holds an export", seen=f"{target / 'model.json'}",
                               expected="a new folder, or --overwrite to replace the existing export",
                               fix=f"noether export {wanted.run} {target} --overwrite")  # fmt: skip
    chosen = choose_model(wanted)
    chosen = replace(chosen, config=chosen.config.model_copy(update={"accelerator": "cpu"}))
    request = ExportRequest(chosen, target, program)
    return run_here(chosen.config, "noether.physics.export.export.export_worker", request)
