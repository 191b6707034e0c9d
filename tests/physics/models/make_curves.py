"""Make the stored loss curves: the losses of 20 updates of each model, in float64, on one CPU rank.

    python -m tests.physics.models.make_curves [MODEL ...]

If a change alters the learned weights, make new curves and give the reason in the changelog.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent / "loss_curves"
TINY = Path(__file__).parents[2] / "tiny.yaml"
MODELS = {
    "upt": (),
    "ab_upt": ("model=ab_upt_small", "model.geometry_depth=1", "model.supernodes=8", "model.radius=200.0"),
    "transformer": ("model=transformer_small", "model.depth=2"),
    "transolver": ("model=transolver_small", "model.depth=2", "model.slices=8"),
}
SETTINGS = (
    *("trainer.precision=float64", "trainer.max_updates=20", "trainer.log_every=1 updates"),
    *("trainer.evaluate_every=null", "trainer.checkpoint_every=null", "accelerator=cpu", "devices=1"),
)


def words_of(model: str) -> list[str]:
    """Return the arguments of `noether train` that make a model's curve."""
    small = () if model == "upt" else ("model.dim=32", "model.heads=2")
    base = TINY if model == "upt" else TINY.with_name("tiny_points.yaml")
    return ["--hp", str(base), *MODELS[model], *small, *SETTINGS]


def losses(metrics: Path) -> list[float]:
    """Return the loss of each update in a metrics.jsonl."""
    rows = map(json.loads, metrics.read_text().splitlines())
    return [row["loss"] for row in rows if row["kind"] == "training"]


def main(models: Sequence[str]) -> None:
    HERE.mkdir(exist_ok=True)
    for model in models or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            words = [*words_of(model), f"output_path={scratch}", "run_id=curve"]
            subprocess.run([sys.executable, "-m", "noether", "train", *words], check=True, timeout=600)
            curve = losses(Path(scratch) / "curve" / "metrics.jsonl")
        (HERE / f"{model}.json").write_text(json.dumps(curve, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
