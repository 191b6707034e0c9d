"""The four models as a good PyTorch user would write them, for comparison: the same weights give the same outputs.

Attention is softmax(QKᵀ / √d)V. Rotary positions are sines and cosines, applied to pairs of channels. Each supernode's
edges are (source, supernode) pairs, whose messages index_add sums, as in torch_geometric. A k-d tree finds neighbours,
as in torch_cluster on a CPU. Parameters are named as in noether's models, so that weights can be copied.
"""

from typing import Any, cast

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.nn import functional as F

from noether.physics.models.layers.blocks import DIGITS
from noether.physics.models.layers.positions import sincos_embedding

Positions = tuple[Tensor, Tensor]
Batch = dict[str, Tensor]
FIELDS = {"surface_points": ("surface_pressure", 0, 1), "volume_points": ("volume_velocity", 1, 4)}


def rotary(points: Tensor, width: int) -> Positions:
    """Return cosines and sines (B, 1, N, width / 2) of the rotary angles of all three axes, padded with the angle 0."""
    m = width // 6 * 2
    frequencies = 10_000.0 ** (-2 * torch.arange(m // 2, device=points.device) / m)
    angles = (points[..., None] * frequencies).flatten(-2)
    angles = F.pad(angles, (0, width // 2 - angles.shape[-1]))[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, at: Positions) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = at
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def by_head(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(F.gelu(self.expand(x)))


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, at: Positions, context: Tensor | None = None, context_at: Positions | None = None
    ) -> Tensor:
        """Let the tokens x attend to each other or, with the same weights, to the tokens of `context`."""
        if context is None:
            q, k, v = (by_head(part, self.heads) for part in self.query_key_value(x).chunk(3, dim=-1))
            return self.output(attention(rotate(q, at), rotate(k, at), v))
        assert context_at is not None
        q = by_head(self.query_key_value(x).chunk(3, dim=-1)[0], self.heads)
        _, k, v = (by_head(part, self.heads) for part in self.query_key_value(context).chunk(3, dim=-1))
        return self.output(attention(rotate(q, at), rotate(k, context_at), v))


def layer_norm(dim: int) -> nn.Module:
    """Return a layer norm with the published eps of all models but Transolver."""
    return nn.LayerNorm(dim, eps=1e-6)


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = layer_norm(dim), layer_norm(dim)
        self.attention, self.mlp = SelfAttention(dim, heads), MLP(dim, 4 * dim)

    def forward(
        self, x: Tensor, at: Positions, context: Tensor | None = None, context_at: Positions | None = None
    ) -> Tensor:
        context = None if context is None else self.attention_norm(context)
        x = x + self.attention(self.attention_norm(x), at, context, context_at)
        return x + self.mlp(self.mlp_norm(x))


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value, self.output = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor, at: Positions, context_at: Positions) -> Tensor:
        q = by_head(self.query(x), self.heads)
        k, v = (by_head(part, self.heads) for part in self.key_value(context).chunk(2, dim=-1))
        return self.output(attention(rotate(q, at), rotate(k, context_at), v))


class PerceiverBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.context_norm, self.mlp_norm = (layer_norm(dim) for _ in range(3))
        self.attention, self.mlp = CrossAttention(dim, heads), MLP(dim, 4 * dim)

    def forward(self, x: Tensor, context: Tensor, at: Positions, context_at: Positions) -> Tensor:
        x = x + self.attention(self.attention_norm(x), self.context_norm(context), at, context_at)
        return x + self.mlp(self.mlp_norm(x))


class SupernodePooling(nn.Module):
    def __init__(self, dim: int, radius: float, max_neighbours: int) -> None:
        super().__init__()
        self.radius, self.max_neighbours = radius, max_neighbours
        self.message_in, self.message_out = nn.Linear(2 * dim, dim), nn.Linear(dim, dim)
        self.combine = nn.Linear(2 * dim, dim)

    def edges(self, points: Tensor, supernodes: int) -> Positions:
        """Return the source and the supernode of each edge, as indices into the flattened batch."""
        sources, targets = [], []
        count = points.shape[1]
        for number, cloud in enumerate(points.cpu().numpy()):
            k = min(self.max_neighbours, count)
            _, found = cKDTree(cloud).query(cloud[:supernodes], k, distance_upper_bound=np.nextafter(self.radius, 1e9))
            found = found.reshape(supernodes, k)
            centre, slot = np.nonzero(found < count)
            sources.append(found[centre, slot] + number * count)
            targets.append(centre + number * supernodes)
        return torch.from_numpy(np.concatenate(sources)), torch.from_numpy(np.concatenate(targets))

    def forward(self, points: Tensor, embedding: Tensor, supernodes: int) -> Tensor:
        batch, _, dim = embedding.shape
        source, target = self.edges(points, supernodes)
        all_points, centres = embedding.flatten(0, 1), embedding[:, :supernodes].reshape(-1, dim)
        messages = self.message_out(F.gelu(self.message_in(torch.cat((all_points[source], centres[target]), dim=-1))))
        total = torch.zeros_like(centres).index_add(0, target, messages)
        count = torch.zeros(len(centres)).index_add(0, target, torch.ones(len(target)))
        mean = total / count.clamp(min=1)[:, None]
        return self.combine(torch.cat((mean, centres), dim=-1)).view(batch, supernodes, dim)


def fields_of(x: Tensor, sizes: dict[str, int]) -> Batch:
    parts = zip(sizes, x.split(list(sizes.values()), dim=1), strict=True)
    return {FIELDS[name][0]: part[..., FIELDS[name][1] : FIELDS[name][2]] for name, part in parts}


def points_of(batch: Batch) -> tuple[Tensor, dict[str, int]]:
    sizes = {name: batch[name].shape[1] for name in FIELDS}
    return torch.cat([batch[name] for name in FIELDS], dim=1), sizes


class UPT(nn.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        encoder_depth: int,
        decoder_depth: int,
        supernodes: int | None,
        radius: float,
        max_neighbours: int,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.supernodes = dim, heads, supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.encoder = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(encoder_depth))
        self.query_mlp = nn.ModuleDict({name: MLP(dim, dim) for name in FIELDS})
        self.decoder = nn.ModuleList(PerceiverBlock(dim, heads) for _ in range(decoder_depth))
        self.norm, self.head = layer_norm(dim), nn.Linear(dim, 4)

    def forward(self, batch: Batch) -> Batch:
        geometry = batch["geometry_points"]
        supernodes = self.supernodes or geometry.shape[1]
        z = self.pooling(geometry, sincos_embedding(geometry, self.dim), supernodes)
        z_at = rotary(geometry[:, :supernodes], self.dim // self.heads)
        for block in self.encoder:
            z = block(z, z_at)
        points, sizes = points_of(batch)
        x = torch.cat([self.query_mlp[name](sincos_embedding(batch[name], self.dim)) for name in FIELDS], dim=1)
        at = rotary(points, self.dim // self.heads)
        for block in self.decoder:
            x = block(x, z, at, z_at)
        return fields_of(self.head(self.norm(x)), sizes)


class ABUPT(nn.Module):
    def __init__(
        self,
        dim: int,
        heads: int,
        geometry_depth: int,
        physics_depth: int,
        branch_depth: int,
        supernodes: int | None,
        radius: float,
        max_neighbours: int,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.supernodes = dim, heads, supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)
        self.geometry = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(geometry_depth))
        self.point_mlp = nn.ModuleDict({name: MLP(dim, dim) for name in FIELDS})
        self.read_geometry = PerceiverBlock(dim, heads)
        self.physics = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(2 * physics_depth + 1))
        self.branch = nn.ModuleDict(
            {name: nn.ModuleList(TransformerBlock(dim, heads) for _ in range(branch_depth)) for name in FIELDS}
        )
        self.head = nn.ModuleDict({name: nn.Linear(dim, to - since) for name, (_, since, to) in FIELDS.items()})

    def forward(self, batch: Batch) -> Batch:
        geometry, width = batch["geometry_points"], self.dim // self.heads
        supernodes = self.supernodes or geometry.shape[1]
        z = self.pooling(geometry, sincos_embedding(geometry, self.dim), supernodes)
        z_at = rotary(geometry[:, :supernodes], width)
        for block in self.geometry:
            z = block(z, z_at)
        at = {name: rotary(batch[name], width) for name in FIELDS}
        x = {
            name: self.read_geometry(mlp(sincos_embedding(batch[name], self.dim)), z, at[name], z_at)
            for name, mlp in self.point_mlp.items()
        }
        one, other = FIELDS
        for number, block in enumerate(self.physics):
            if number % 2:
                x = {
                    one: block(x[one], at[one], x[other], at[other]),
                    other: block(x[other], at[other], x[one], at[one]),
                }
            else:
                x = {name: block(x[name], at[name]) for name in x}
        for name, blocks in self.branch.items():
            for block in cast(nn.ModuleList, blocks):
                x[name] = block(x[name], at[name])
        return {FIELDS[name][0]: self.head[name](x[name]) for name in x}


class Transformer(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.point_mlp = nn.ModuleDict({name: MLP(dim, dim) for name in FIELDS})
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(depth))
        self.norm, self.head = layer_norm(dim), nn.Linear(dim, 4)

    def forward(self, batch: Batch) -> Batch:
        points, sizes = points_of(batch)
        at = rotary(points, self.dim // self.heads)
        x = torch.cat([self.point_mlp[name](sincos_embedding(batch[name], self.dim)) for name in FIELDS], dim=1)
        for block in self.blocks:
            x = block(x, at)
        return fields_of(self.head(self.norm(x)), sizes)


class SliceAttention(nn.Module):
    def __init__(self, dim: int, heads: int, slices: int) -> None:
        super().__init__()
        width = dim // heads
        self.heads = heads
        self.assigned, self.features = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.slice = nn.Linear(width, slices)
        self.temperature = nn.Parameter(torch.full((heads,), 0.5))
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        assigned, features = by_head(self.assigned(x), self.heads), by_head(self.features(x), self.heads)
        weights = torch.softmax(self.slice(assigned) / self.temperature[:, None, None], dim=-1)
        tokens = torch.einsum("bhnc,bhng->bhgc", features, weights) / (weights.sum(dim=2)[..., None] + 1e-5)
        q, k, v = self.query(tokens), self.key(tokens), self.value(tokens)
        tokens = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1) @ v
        return self.output(torch.einsum("bhgc,bhng->bhnc", tokens, weights).transpose(1, 2).flatten(2))


def points_and_known(batch: Batch) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return points (B, N, 3) of both sets, distances with directions (B, N, 4), and the point count of each set."""
    points, sizes = points_of(batch)
    surface, volume = sizes.values()
    zeros = points.new_zeros(len(points), surface, 1)
    distance = torch.cat((zeros, batch["volume_sdf"].reshape(-1, volume, 1)), dim=1)
    normals = torch.cat((batch["surface_normals"], batch["volume_normals"]), dim=1)
    return points, torch.cat((distance, normals), dim=-1), sizes


class TransolverBlock(nn.Module):
    def __init__(self, dim: int, heads: int, slices: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = SliceAttention(dim, heads, slices), MLP(dim, mlp_ratio * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transolver(nn.Module):
    input_mean: Tensor
    input_deviation: Tensor

    def __init__(self, dim: int, heads: int, depth: int, slices: int, mlp_ratio: int) -> None:
        super().__init__()
        self.input_mlp = nn.Sequential(nn.Linear(7, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.placeholder = nn.Parameter(torch.rand(dim) / dim)
        self.register_buffer("input_mean", torch.zeros(7))
        self.register_buffer("input_deviation", torch.ones(7))
        self.blocks = nn.ModuleList(TransolverBlock(dim, heads, slices, mlp_ratio) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 4)

    def forward(self, batch: Batch) -> Batch:
        points, known, sizes = points_and_known(batch)
        inputs = (torch.cat((points, known), dim=-1) - self.input_mean) / self.input_deviation
        x = self.input_mlp(inputs) + self.placeholder
        for block in self.blocks:
            x = block(x)
        return fields_of(self.head(self.norm(x)), sizes)


PLAIN = {"upt": UPT, "ab_upt": ABUPT, "transformer": Transformer, "transolver": Transolver}


def plain_copy(own: nn.Module, kind: str, sizes: dict[str, Any]) -> nn.Module:
    """Return the model `kind` as implemented here, with the weights of noether's model `own`."""
    plain: nn.Module = PLAIN[kind](**sizes)
    plain.load_state_dict({name: value for name, value in own.state_dict().items() if name != DIGITS})
    return plain
