"""Run `noether export`: choose the model and start one worker. Does not import torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from noether.checkpoints.run_settings import ChosenModel, WantedModel, choose_model, run_here
from noether.common.errors import RequestError


@dataclass(frozen=True)
class ExportRequest:
    """A request to export the model `chosen` to the folder `out`, with the compiled graph if `program` is True."""

    chosen: ChosenModel
    out: Path
    program: bool


def export_here(wanted: WantedModel, out: str, *, program: bool, overwrite: bool) -> int:
    """Export the model of a run to the folder `out`, on the CPU.

    RequestError: `out` contains other files, or it contains an export and `overwrite` is False.
    """
    target = Path(out).expanduser()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if not (target / "model.json").is_file():
            raise RequestError("not-an-export", f"{target} exists and is not an export", seen="files of another kind",
                               expected="a new folder, or the folder of an export",
                               fix=f"noether export {wanted.run} {target}-export")  # fmt: skip
        if not overwrite:
            raise RequestError("export-exists", f"{target} already holds an export", seen=f"{target / 'model.json'}",
                               expected="a new folder, or the flag --overwrite",
                               fix=f"noether export {wanted.run} {target} --overwrite")  # fmt: skip
    chosen = choose_model(wanted)
    chosen = replace(chosen, config=chosen.config.model_copy(update={"accelerator": "cpu"}))
    request = ExportRequest(chosen, target, program)
    return run_here(chosen.config, "noether.physics.export.export.export_worker", request)
