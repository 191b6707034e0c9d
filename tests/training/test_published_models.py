"""The published recipes match the publications; samples of differing sizes train and score as if each were alone."""

import json
from pathlib import Path

import pytest
import yaml

from noether.config.compose import load_config
from noether.runs.folder import RunFolder


def defined(metrics: dict[str, float | None]) -> dict[str, float]:
    """Return the metrics that have a value: a car without drag has no R²."""
    return {name: value for name, value in metrics.items() if value is not None}


RECIPES = {
    "upt": ("lion", 5e-5, 0.05, "cosine", 1, 500, 0.9999, 0.25, 1.0),
    "ab_upt": ("lion", 5e-5, 0.05, "cosine", 1, 500, 0.9999, 0.25, 1.0),
    "transformer": ("lion", 5e-5, 0.05, "cosine", 1, 500, 0.9999, 0.25, 1.0),
    "transolver": ("adamw", 1e-3, 0.0, "one_cycle", 1, 200, None, None, 0.5),
}


@pytest.mark.parametrize("experiment", RECIPES)
def test_recipes_are_the_published_ones(experiment) -> None:
    config = load_config([f"+experiment/shapenet={experiment}_published", "dataset=ellipsoid"])
    optimizer, schedule, trainer = config.optimizer, config.schedule, config.trainer
    pressure, velocity = (config.task.fields[name].weight for name in ("surface_pressure", "volume_velocity"))
    found = (
        *(optimizer.kind, optimizer.learning_rate, optimizer.weight_decay, schedule.kind),
        *(trainer.effective_batch_size, trainer.max_epochs, trainer.ema_decay, trainer.clip_gradient_norm, pressure),
    )
    assert (config.model.kind, *found) == (experiment, *RECIPES[experiment])
    assert velocity == 1.0
    if schedule.kind == "cosine":
        assert (str(schedule.warmup), schedule.final_learning_rate) == ("5 %", 1e-6)
        assert optimizer.betas == (0.9, 0.99)
    else:
        assert schedule.final_division == 1000


@pytest.mark.parametrize("experiment", RECIPES)
def test_the_recipe_for_several_devices_differs_in_batch_rate_and_ema_only(experiment) -> None:
    one, several = (
        load_config([f"+experiment/shapenet={name}", "dataset=ellipsoid"])
        for name in (f"{experiment}_published", experiment)
    )
    assert (several.trainer.effective_batch_size, several.trainer.max_batch_size) == (8, "auto")
    ratio = several.optimizer.learning_rate / one.optimizer.learning_rate
    assert ratio == pytest.approx(8**0.5, rel=0.02)
    if one.trainer.ema_decay is not None:
        assert several.trainer.ema_decay == pytest.approx(one.trainer.ema_decay**8, abs=1e-5)
    batch = {key: getattr(several.trainer, key) for key in ("effective_batch_size", "max_batch_size", "ema_decay")}
    same_batch = one.trainer.model_copy(update=batch)
    same_rate = one.optimizer.model_copy(update={"learning_rate": several.optimizer.learning_rate})
    assert one.model_copy(update={"trainer": same_batch, "optimizer": same_rate}) == several


UNEVEN = """
import torch


class Cars:
    \"\"\"Made-up fields at 20 to 30 points of the surface, fewer or more around it; no two samples alike.\"\"\"

    def __init__(self, split, root):
        self.first = 100 * len(split)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        rng = torch.Generator().manual_seed(self.first + index)
        surface, volume = 20 + index, 25 - index
        x, y = torch.rand(surface, 3, generator=rng), torch.rand(volume, 3, generator=rng)
        normals = {"surface_normals": x, "volume_normals": y, "volume_sdf": y[:, 0]}
        fields = {"surface_pressure": x[:, 0], "volume_velocity": 2 * y}
        return {"surface_points": x, "volume_points": y} | fields | normals
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["upt", "transolver"])
def test_samples_of_differing_numbers_of_points_train_and_score_as_they_do_alone(kind, noether, tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    sizes = {"upt": {"encoder_depth": 1, "decoder_depth": 1, "supernodes": 8}, "transolver": {"depth": 2}}[kind]
    settings = {
        "defaults": [{"/optimizer": "adamw"}, {"/task": "car_fields"}, "_self_"],
        "dataset": {"kind": "uneven.Cars", "validation_fraction": 0.25},
        "model": {"kind": kind, "dim": 24, "heads": 2, **sizes},
        "accelerator": "cpu",
        "devices": "1",
        "trainer": {"effective_batch_size": 3, "max_updates": 4, "evaluation_batch_size": 4},
        "tracker": {"tensorboard": False, "report": False},
        "run_id": "run",
    }
    (tmp_path / "uneven.yaml").write_text(yaml.safe_dump(settings))
    noether("train", "--hp", "uneven.yaml", cwd=tmp_path, code=0)
    folder = RunFolder(tmp_path / "runs" / "run")
    together = json.loads(folder.result.read_text())["metrics"]
    config = yaml.safe_load(folder.config.read_text())
    config["trainer"]["evaluation_batch_size"] = 1
    folder.config.write_text(yaml.safe_dump(config))
    alone = noether("evaluate", "runs/run", "--json", cwd=tmp_path, code=0)
    assert defined(json.loads(alone.out)["metrics"]) == pytest.approx(defined(together), rel=1e-4)
