"""Make the fixture of a release: a tiny run with its checkpoint, its export, and the predictions of both.

    python -m tests.checkpoints.make_released

Writes tests/checkpoints/released/VERSION for this checkout's version. Run it once for each release, before the tag. An
existing fixture is replaced only with --again, which is for versions not yet released.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from noether import __version__
from noether.physics.export.exported_model import ExportedModel, load_exported

HERE = Path(__file__).parent / "released"
TINY = Path(__file__).parents[1] / "tiny.yaml"
SETTINGS = (
    *("accelerator=cpu", "devices=1", "trainer.max_updates=2", "trainer.keep_checkpoints=1"),
    *("model.dim=12", "model.heads=2", "model.supernodes=4"),
    *("dataset.train_shapes=8", "dataset.test_shapes=2", "trainer.evaluate_every=null"),
)
KEPT = ("config.yaml", "result.json", "checkpoints")


def inputs(export: ExportedModel) -> dict[str, torch.Tensor]:
    """Return fixed positions for each argument of an export, with 8 entries along a dimension of any size."""
    # Without random numbers, since their generator could change.
    given = {}
    for place, (name, shape) in enumerate(export.inputs.items()):
        sizes = [8 if size < 0 else size for size in shape]
        count = int(torch.tensor(sizes).prod()) if sizes else 1
        given[name] = torch.sin(torch.arange(count, dtype=torch.float32) + place).reshape(sizes)
    return given


def without_paths(program: Path) -> None:
    """Make the paths of source files in an exported program relative to the checkout."""
    here = f"{Path(__file__).resolve().parents[2]}/".encode()
    with zipfile.ZipFile(program) as old:
        parts = [(part.filename, old.read(part).replace(here, b"")) for part in old.infolist()]
    with zipfile.ZipFile(program, "w", zipfile.ZIP_STORED) as new:
        for name, content in parts:
            new.writestr(name, content)


def main() -> None:
    target = HERE / __version__
    if target.exists() and "--again" not in sys.argv:
        sys.exit(f"{target} is there already; --again replaces one that was not released yet")
    with tempfile.TemporaryDirectory() as scratch:
        run, export = Path(scratch) / "run", Path(scratch) / "export"
        noether = [sys.executable, "-m", "noether"]
        words = ["--hp", str(TINY), f"output_path={scratch}", "run_id=run", *SETTINGS]
        subprocess.run([*noether, "train", *words], check=True, timeout=600)
        subprocess.run([*noether, "export", str(run), str(export)], check=True, timeout=600)
        exported = load_exported(export, program=False)
        predicted = {name: value.tolist() for name, value in exported(inputs(exported)).items()}
        shutil.rmtree(target, ignore_errors=True)
        (target / "run").mkdir(parents=True)
        for name in KEPT:
            source = run / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target / "run" / name)
        shutil.copytree(export, target / "export")
        without_paths(target / "export" / "model.pt2")
    (target / "predicted.json").write_text(json.dumps(predicted) + "\n")


if __name__ == "__main__":
    main()
