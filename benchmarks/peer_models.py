"""Models of other projects, made to read our batches: measured where they are installed, and never imported otherwise.

pip install nvidia-physicsnemo      (Apache 2.0; with it come torchvision and about sixty others: use a venv)
"""

import importlib.util
from typing import Any

from plain_models import fields_of, points_and_known
from torch import nn

PEERS = {"transolver": "physicsnemo"}
"""The module that has a model of that name."""


def installed_peer(model: str) -> str | None:
    """Returns the module with a peer of a model, if it is installed here."""
    module = PEERS.get(model)
    return module if module and importlib.util.find_spec(module) else None


class PhysicsNeMoTransolver(nn.Module):
    """PhysicsNeMo's Transolver of the same sizes, on the same seven inputs of a point."""

    def __init__(self, dim: int, heads: int, depth: int, slices: int, mlp_ratio: int) -> None:
        super().__init__()
        from physicsnemo.models.transolver import Transolver  # type: ignore[import-not-found]

        sizes = {"n_layers": depth, "n_hidden": dim, "n_head": heads, "mlp_ratio": mlp_ratio, "slice_num": slices}
        self.network = Transolver(functional_dim=4, embedding_dim=3, out_dim=4, use_te=False, **sizes)

    def forward(self, batch: dict[str, Any]) -> Any:
        """Returns the fields at the points of a prepared batch."""
        points, known, sizes = points_and_known(batch)
        return fields_of(self.network(known, embedding=points), sizes)
