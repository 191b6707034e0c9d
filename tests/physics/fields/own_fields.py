"""A user's data set whose fields, inputs, parameters and outputs differ from those of the embedded cars."""

from pathlib import Path

import numpy as np
import torch

from noether.config.section import FieldConfig
from noether.core.tasks.base import Task
from noether.physics.fields.fields import FieldsTask
from noether.physics.models.upt import UPT

POINTS = {"surface": 40, "volume": 36, "probe": 20}


class Bodies:
    """Twelve bodies in free air, with pressure, wall shear stress and temperature on the surface, and a drag."""

    def __init__(self, split: str, root: Path | None = None, scale: float = 1.0, bad: str = "") -> None:
        self.split, self.scale, self.bad = split, scale, bad

    def __len__(self) -> int:
        return 12 if self.split == "train" else 4

    def about(self) -> dict:
        return {
            "fields": {"surface_pressure": {"points": "surface_points", "unit": "Pa"}},
            "outputs": {"drag": {"unit": "N"}},
            "parameters": {"wind_speed": {"unit": "m/s"}},
            "parts": {"surface": ["nose", "tail"]},
            "space": {"wind": [1.0, 0.0, 0.0], "up": [0.0, 0.0, 1.0], "ground": False},
        }

    def name(self, index: int) -> str:
        return f"body-{index:03d}"

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([index, self.split == "train"])
        speed = 20 + 20 * rng.random()
        sample = {}
        for prefix, count in POINTS.items():
            points = rng.normal(size=(count, 3))
            points *= (1.0 if prefix == "surface" else 1.5) / np.linalg.norm(points, axis=1, keepdims=True)
            sample |= {f"{prefix}_points": self.scale * points, f"{prefix}_normals": points}
            if prefix != "surface":
                sample[f"{prefix}_sdf"] = np.full(count, 0.5)
        points = sample["surface_points"] / self.scale
        pressure = 0.6 * speed**2 * (1 - 2.25 * (1 - points[:, 0] ** 2))
        sample |= {
            "surface_pressure": pressure,
            "surface_wall_shear": np.stack([0.01 * pressure, 0 * pressure, 0 * pressure + speed], axis=1),
            "surface_temperature": 300 + 10 * points[:, 2],
            "surface_curvature": points[:, :2],
            "surface_area": np.full(len(points), 4 * np.pi / len(points)),
            "surface_part": (points[:, 0] > 0).astype(np.int64),
            "volume_velocity": speed * sample["volume_normals"],
            "probe_turbulence": 10 ** (4 * sample["probe_points"][:, 0] / self.scale),
            "wind_speed": np.array(speed),
            "frontal_area": np.array(np.pi),
            "drag": np.array(0.1 * speed**2),
            "true_force": np.array([3.0, 2.0, 1.0]),
        }
        if self.bad == "hole" and index in (4, 5, 6):
            sample["surface_temperature"][3] = np.nan
        if self.bad == "geometry":
            sample["geometry_points"] = 0.25 * sample["surface_points"]
        whole = {key: torch.from_numpy(np.asarray(value)) for key, value in sample.items()}
        return {key: value.float() if value.is_floating_point() else value for key, value in whole.items()}


class RenamedUPT(UPT):
    """A user's subclass without `layout` whose prediction has another name than that of UPT."""

    def __init__(self, dim: int = 24, heads: int = 2) -> None:
        super().__init__(dim, heads, encoder_depth=1, decoder_depth=1, radius=300.0)

    def decode(self, latent, queries):
        fields = super().decode(latent, queries)
        return {"surface_temperature": fields["surface_pressure"]} if "surface_pressure" in fields else fields


class OnlyLoss(Task):
    """A user's task that names a field and defines only the loss."""

    def __init__(self):
        self.fields = {"surface_temperature": FieldConfig(points="surface_points", unit="K")}

    def loss(self, predictions, batch):
        return (predictions["surface_temperature"][..., 0] - batch["surface_temperature"]).square().mean()


class OwnError(FieldsTask):
    """A user's task on fields that defines its own error metrics."""

    def metrics(self, predictions, batch):
        return {"loss": self._sample_loss(predictions, self.prepare(batch))}
