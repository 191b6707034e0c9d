"""A small model for tens to hundreds of cases: a point-wise MLP whose layers each case scales and shifts.

It is a neural field, conditioned by FiLM (Perez et al. 2018, arXiv 1709.07871) on the parameters or shape of a case. It
has no attention, so an update is cheap and needs only a few hundred points of many cases.
"""

import torch
from torch import Tensor, nn

from noether.core.data.layout import CAR_FLOW, Layout
from noether.physics.models.points import Batch, Latent, PointModel, mean_token, present

HALF_DOMAIN = 500.0
"""Half the length of the domain in the model's units: the network maps positions from 0..1000 to -1..1."""


class PointwiseMLP(PointModel):
    """A model that predicts fields at each point from the position and the case, and outputs of the case.

    dim, depth: channels and number of the hidden layers; layout: as for PointModel.
    case_dim: channels of the embedding that scales and shifts the layers; with few, tens of cases are not memorised.
    octaves: number of sine-cosine pairs per coordinate that the first layer reads besides the coordinate. The first
    pair is half a wave over the domain, and each further pair has half the wavelength of the previous pair.
    shape: whether to read the geometry's points; None: only if cases have no parameters. Two layers map each point to
    features, which are averaged (as in PointNet, Qi et al. 2017, arXiv 1612.00593).
    """

    points_per_update = 64  # An update reads many cases; more points of one case would add little information.
    geometry_points = 512

    def __init__(
        self,
        dim: int = 128,
        depth: int = 4,
        octaves: int = 3,
        case_dim: int = 64,
        *,
        shape: bool | None = None,
        layout: Layout = CAR_FLOW,
    ) -> None:
        super().__init__(layout, dim, 1, rotary=False, depth=depth, case_dim=case_dim)
        if layout.case_outputs:  # This head has no norm, which would hide how unusual a case's parameters are.
            self.case_head = nn.Sequential(nn.Linear(dim, sum(layout.case_outputs.values())))
        self.octaves = octaves
        read = 3 * (1 + 2 * octaves)
        self.embedding = nn.ModuleDict({points: nn.Linear(read, dim) for points in layout.outputs})
        reads_shape = shape if shape is not None else not layout.parameters
        self.shape = nn.Sequential(nn.Linear(read, dim), nn.GELU(), nn.Linear(dim, dim)) if reads_shape else None
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth - 1))
        self.activation = nn.GELU()
        known = sum(layout.parameters.values()) + (dim if reads_shape else 0)
        self.first = nn.Linear(known, dim)
        self.case = nn.Sequential(nn.Linear(known, case_dim), nn.GELU(), nn.Linear(case_dim, case_dim), nn.GELU())
        self.modulations = nn.ModuleList(nn.Linear(case_dim, 2 * dim) for _ in range(depth))
        for parameter in self.modulations.parameters():
            nn.init.zeros_(parameter)  # At first, the case does not scale or shift any layer.
        self.head = nn.Linear(dim, sum(layout.width(points) for points in layout.outputs)) if layout.outputs else None

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """Return the key of the geometry's points if cases have no parameters; else no key."""
        return () if layout.parameters else ("geometry_points",)

    def encode(self, batch: Batch) -> Latent:
        """Compute the latent of a case from its parameters and its shape.

        batch: the layout's parameters; if the model reads the shape, also `geometry_points` (B, Ng, 3) and, if some
        points are padding, `geometry_mask` (B, Ng).
        ValueError: an input of the model is not in the batch.
        """
        known, pooled = [], []
        if self.parameter_embedding is not None:
            pooled.append(self.parameter_embedding(batch).squeeze(1))
            known += [batch[name].reshape(pooled[0].shape[0], -1).to(self._dtype) for name in self.layout.parameters]
        if self.shape is not None:
            if "geometry_points" not in batch:
                raise ValueError("the model reads the shape: no geometry_points")
            points = self.shape(self._waves(batch["geometry_points"]))
            pooled.append(mean_token(points, batch.get("geometry_mask")))
            known.append(pooled[-1])
        return Latent(torch.cat(known, dim=-1).unsqueeze(1), None, torch.stack(pooled).sum(dim=0))

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """Decode the latent: return the fields at the points (B, N, 3) of each set in `queries`."""
        assert self.head is not None, "a layout without fields has nothing to decode"
        tokens = {
            points: self._with_features(queries, points, self.embedding[points](self._waves(queries[points])))
            for points in present(queries, self.layout)
        }
        x = torch.cat(list(tokens.values()), dim=1) + self.first(latent.read)
        case = self.case(latent.read)
        for number, modulation in enumerate(self.modulations):
            shift, scale = modulation(case).chunk(2, dim=-1)
            x = self.activation((self.layers[number - 1](x) if number else x) * (1 + scale) + shift)
        sizes = {points: own.shape[1] for points, own in tokens.items()}
        return self._by_shared_layers(self._in_parameter_precision(x), sizes, self.head)

    def _waves(self, points: Tensor) -> Tensor:
        """Scale coordinates (..., 3) to -1..1 and append their sines and cosines: (..., 3 · (1 + 2 · octaves))."""
        x = self._in_position_precision(points) / HALF_DOMAIN - 1
        octaves = torch.arange(self.octaves, device=x.device, dtype=x.dtype)
        phases = (x.unsqueeze(-1) * (torch.pi / 2 * 2**octaves)).flatten(-2)
        return torch.cat((x, phases.sin(), phases.cos()), dim=-1).to(self._dtype)
