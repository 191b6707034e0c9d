"""Adapters of other projects' models to noether's batches; a model is measured only if its package is installed.

pip install nvidia-physicsnemo      (Apache 2.0; installs torchvision and about sixty other packages: use a venv)
"""

import importlib.util
from typing import Any

import torch
from plain_models import fields_of, points_and_known
from torch import Tensor, nn

PEERS = {"transolver": "physicsnemo"}
"""The peer of each model: the Python module that implements it."""


def installed_peer(model: str) -> str | None:
    """Return the Python module with a peer of the model; None if there is no such module or it is not installed."""
    module = PEERS.get(model)
    return module if module and importlib.util.find_spec(module) else None


NAMES = {
    "input_mlp.": "preprocess.layers.",
    "attention_norm.": "ln_1.",
    "attention.temperature": "Attn.temperature",
    "attention.assigned.": "Attn.in_project_x.",
    "attention.features.": "Attn.in_project_fx.",
    "attention.slice.": "Attn.in_project_slice.",
    "attention.output.": "Attn.out_linear.",
    "mlp_norm.": "ln_mlp1.0.",
    "mlp.expand.": "ln_mlp1.1.layers.0.",
    "mlp.contract.": "ln_mlp1.1.layers.2.",
}
"""Parts of the names of Transolver's weights: each in noether, and its replacement in PhysicsNeMo."""


class PhysicsNeMoTransolver(nn.Module):
    """PhysicsNeMo's Transolver, with the sizes, the weights and the seven inputs per point of noether's Transolver."""

    added_to_slices = 1e-2
    """What PhysicsNeMo adds to the sum of a slice's weights, to divide by it; noether and the authors add 1e-5."""
    input_mean: Tensor
    input_deviation: Tensor

    def __init__(self, own: nn.Module, dim: int, heads: int, depth: int, slices: int, mlp_ratio: int) -> None:
        super().__init__()
        from physicsnemo.models.transolver import Transolver

        sizes = {"n_layers": depth, "n_hidden": dim, "n_head": heads, "mlp_ratio": mlp_ratio, "slice_num": slices}
        self.network = Transolver(functional_dim=4, embedding_dim=3, out_dim=4, use_te=False, **sizes)
        weights = own.state_dict()
        self.register_buffer("input_mean", weights.pop("input_mean"))
        self.register_buffer("input_deviation", weights.pop("input_deviation"))
        self.network.load_state_dict(_renamed(weights, depth))

    def forward(self, batch: dict[str, Any]) -> Any:
        """Return the predicted fields at the points of a prepared batch."""
        points, known, sizes = points_and_known(batch)
        inputs = (torch.cat((points, known), dim=-1) - self.input_mean) / self.input_deviation
        return fields_of(self.network(inputs[..., 3:], embedding=inputs[..., :3]), sizes)


def _renamed(weights: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Rename noether's weights for PhysicsNeMo; join query, key and value, and add the placeholder to a bias."""
    last = f"blocks.{depth - 1}.ln_mlp2"
    found = {
        f"{last}.{place}.{kind}": weights.pop(f"{name}.{kind}")
        for place, name in enumerate(("norm", "head"))
        for kind in ("weight", "bias")
    }
    weights["input_mlp.2.bias"] = weights["input_mlp.2.bias"] + weights.pop("placeholder")
    for number in range(depth):
        attention = f"blocks.{number}.attention"
        parts = [weights.pop(f"{attention}.{name}.weight") for name in ("query", "key", "value")]
        found[f"blocks.{number}.Attn.qkv_project.weight"] = torch.cat(parts)
        weights[f"{attention}.temperature"] = weights[f"{attention}.temperature"].view(1, 1, -1, 1)
    for name, value in weights.items():
        ours = next(part for part in NAMES if part in name)
        found[name.replace(ours, NAMES[ours])] = value
    return found
