"""Base classes of the models of fields, which compute a latent once and read it at any number of query points."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from noether.common.errors import RequestError
from noether.core.data.layout import Layout
from noether.core.data.points import ANCHOR, mask_of
from noether.physics.models.layers.blocks import ParameterEmbedding, initialise_linear, publish_norms
from noether.physics.models.layers.positions import rotary_table, sincos_embedding
from noether.physics.models.layers.supernodes import SupernodePooling
from noether.physics.settings import check_heads

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Latent:
    """The encoding of a case, from which a model predicts.

    read: the keys, values or other data that the model's `decode` reads.
    condition: (B, 1, dim), the embedding of the case's parameters; None if the model reads no parameters.
    pooled: (B, dim), the mean of the tokens, from which outputs of the whole case are predicted.
    """

    read: Any
    condition: Tensor | None
    pooled: Tensor


class PointModel(nn.Module):
    """A model that predicts the fields of its layout at query points, and outputs of the whole case.

    `encode` computes a latent, from which `decode` predicts at queries. A prediction does not depend on the other
    queries, so queries can come in any order and in chunks of any size. Positions are scaled isotropically to about
    0..1000. Samples with different numbers of points are padded to form a batch: `<set>_mask` (B, N) is True for real
    points, and it is absent if all points are real. Predictions at padding are meaningless.

    layout: the fields, features, parameters and outputs of a case. The model makes weights only for entries of the
    layout, so that published models keep their sizes.
    dim: channels of a token.
    heads: number of attention heads; must divide `dim`.
    rotary: whether the model uses rotary positions; if so, dim / heads must be even and at least 6.
    counts: the other options (depths, slices, …) by name; each must be at least 1 or None.
    RequestError: the options do not fit each other, or the model cannot serve the layout; it names a setting to change.
    The configuration of a run is checked by the same rules before the model is built.
    """

    reads_masks = True
    """True: the model accepts padded batches."""
    points_per_update = 4096
    """Default number of points that an update draws from each set of a case."""

    def __init__(self, layout: Layout, dim: int, heads: int, *, rotary: bool = True, **counts: int | None) -> None:
        for name, value in {"dim": dim, "heads": heads, **counts}.items():
            if value is not None and value < 1:
                raise RequestError("model-option-below-one", f"model.{name} is below 1", seen=f"model.{name}={value}",
                                   expected="a whole number of at least 1", fix=f"model.{name}=1")  # fmt: skip
        check_heads(dim, heads, rotary=rotary)
        self.check_layout(layout)
        super().__init__()
        self.layout, self.dim, self.head_dim = layout, dim, dim // heads
        widths = {points: sum(keys.values()) for points, keys in layout.features.items()}
        self.features = nn.ModuleDict({points: nn.Linear(width, dim) for points, width in widths.items() if width})
        self.parameter_embedding = ParameterEmbedding(dict(layout.parameters), dim) if layout.parameters else None
        width = sum(layout.case_outputs.values())
        self.case_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, width)) if width else None

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """Return the keys, besides those of the layout, that this model needs in every sample."""
        return ()

    @classmethod
    def check_layout(cls, layout: Layout) -> None:
        """Raise RequestError if this model cannot serve a layout; by default, never raise."""

    def encode(self, batch: Batch) -> Latent:
        """Compute the latent that queries read, from a prepared batch."""
        raise NotImplementedError

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """Predict the fields at the points of each set in `queries`, from the latent that `encode` returned."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Batch:
        """Predict the fields at the query points, and the outputs of the case.

        Return the fields (B, N, C) of each set of points in the batch and the outputs of the case (B, C), scaled like
        the targets, which are normally standardised.
        ValueError: an input of the model is not in the batch.
        """
        latent = self.encode(batch)
        fields = self.decode(latent, batch) if self.layout.outputs else {}
        return {**fields, **self.case_outputs(latent)}

    def forward_in_chunks(self, batch: Batch, chunk_size: int) -> Batch:
        """Return the result of `forward`, computed for at most `chunk_size` queries at a time to bound memory."""
        latent = self.encode(batch)
        decode = partial(checkpoint, self.decode, use_reentrant=False) if torch.is_grad_enabled() else self.decode
        parts: dict[str, list[Tensor]] = {}
        for points in present(batch, self.layout) if self.layout.outputs else ():
            for chunk in _chunks(batch, points, chunk_size):
                for name, value in decode(latent, chunk).items():
                    parts.setdefault(name, []).append(value)
        return {name: torch.cat(values, dim=1) for name, values in parts.items()} | self.case_outputs(latent)

    def case_outputs(self, latent: Latent) -> Batch:
        """Predict the outputs of the whole case, each (B, C), from the pooled latent; {} if the layout has none."""
        if self.case_head is None:
            return {}
        pooled = self._in_parameter_precision(latent.pooled)
        return split_channels(in_full_precision(pooled, self.case_head), self.layout.case_outputs)

    def _by_shared_layers(self, x: Tensor, sizes: Mapping[str, int], *layers: nn.Module) -> Batch:
        """Apply layers to the concatenated tokens (B, N, dim) of several sets; return the fields of each set.

        The last layer outputs the channels of all sets' fields in the order of the layout; a set keeps its own.
        """
        predictions: Batch = {}
        widths = {points: self.layout.width(points) for points in self.layout.outputs}
        fields = in_full_precision(x, *layers).split(list(sizes.values()), dim=1)
        for points, part in zip(sizes, fields, strict=True):
            predictions |= split_channels(split_channels(part, widths)[points], self.layout.outputs[points])
        return predictions

    @property
    def conditioned(self) -> bool:
        """Whether the blocks are conditioned on the parameters of a case."""
        return bool(self.layout.parameters)

    def _condition(self, batch: Batch) -> Tensor | None:
        return None if self.parameter_embedding is None else self.parameter_embedding(batch)

    def _with_features(self, batch: Batch, points: str, embedded: Tensor) -> Tensor:
        """Add the embedding of a set's inputs, each (B, N) or (B, N, C), to `embedded`, its embedded positions."""
        if points not in self.features:
            return embedded
        keys = self.layout.features[points]
        prefix = "" if all(key in batch for key in keys) else ANCHOR
        if absent := [key for key in keys if prefix + key not in batch]:
            raise ValueError(f"the model reads {points} with {', '.join(keys)}: no {', '.join(absent)}")
        values = [batch[prefix + key] for key in keys]
        together = torch.cat([value.unsqueeze(-1) if value.ndim == 2 else value for value in values], dim=-1)
        out: Tensor = embedded + self.features[points](together.to(self._dtype))
        return out

    def _set_tokens(self, batch: Batch, points: str, mlp: nn.Module) -> tuple[Tensor, Tensor]:
        """Return a set's tokens (B, N, dim), made by `mlp` from positions and inputs, and the set's rotary table."""
        positions = self._in_position_precision(batch[points])
        tokens = mlp(self._with_features(batch, points, self._embed(positions)))
        return self._in_parameter_precision(tokens), rotary_table(positions, self.head_dim)

    def _sequence(self, batch: Batch, mlps: nn.ModuleDict) -> tuple[Tensor, Tensor, dict[str, int]]:
        """Join the points of all sets to one sequence; return its tokens, its rotary table and the size of each set."""
        sets = {points: self._set_tokens(batch, points, mlps[points]) for points in present(batch, self.layout)}
        tokens, tables = (torch.cat(parts, dim=1) for parts in zip(*sets.values(), strict=True))
        return tokens, tables, {points: own.shape[1] for points, (own, _) in sets.items()}

    def _embed(self, points: Tensor) -> Tensor:
        return sincos_embedding(points, self.dim).to(self._dtype)

    def _in_position_precision(self, points: Tensor) -> Tensor:
        # Positions of 0..1000 need at least float32; a float64 model takes them in float64.
        return points.to(torch.promote_types(self._dtype, torch.float32))

    def _in_parameter_precision(self, tokens: Tensor) -> Tensor:
        # Under autocast, a Linear returns bfloat16, whose 8 bits would lose small terms of a sum over 24 blocks.
        # Therefore the residual stream stays in the precision of the parameters, unlike the matrix products.
        return tokens.to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class AnchoredModel(PointModel):
    """A model whose points attend to the batch's anchors or, if there are none, to each other.

    The anchors of a set are the entries `anchor_<set>_…` of the batch, such as `anchor_surface_points`; without these
    entries, all points of the set are anchors. In evaluation, the number of a set's anchors is its number of points in
    training, so that attention covers equally many points, no matter how many points are predicted.
    """

    @classmethod
    def check_layout(cls, layout: Layout) -> None:
        """Raise RequestError if a layout has no set of points, because attention needs points."""
        if not layout.outputs:
            raise RequestError(
                "no-points-to-attend",
                f"{cls.__name__} needs a field at points, but task.fields has only outputs of the whole case",
                seen=f"task.fields of the whole case only: {', '.join(layout.case_outputs)}",
                expected="a field at surface_points or volume_points, or a model that reads the geometry alone",
                fix="model=upt",
            )

    def attend(self, context: Batch) -> tuple[Latent, Batch]:
        """Return the latent, and the fields at the points of `context`, which attend to each other."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Latent:
        """Compute the latent that queries read, from the anchors or, for a set without anchors, from all points."""
        anchors = {key.removeprefix(ANCHOR): value for key, value in batch.items() if key.startswith(ANCHOR)}
        replaced = tuple(key.removesuffix("points") for key in anchors if key in self.layout.outputs)
        kept = {key: value for key, value in batch.items() if not key.startswith((ANCHOR, *replaced))}
        return self.attend({**kept, **anchors})[0]

    def forward(self, batch: Batch) -> Batch:
        """Predict as `PointModel.forward` does. If the batch has no anchors, a single pass encodes and predicts."""
        if any(key.startswith(ANCHOR) for key in batch):
            return super().forward(batch)
        latent, fields = self.attend(batch)
        return {**fields, **self.case_outputs(latent)}


class SequenceModel(AnchoredModel):
    """A model that passes the points of all sets, as one sequence, through its blocks and a common head.

    The blocks have methods `with_keys_values` and `read` like those of TransformerBlock.
    """

    def _build(self, blocks: Iterable[nn.Module]) -> None:
        """Make the layers that follow the embedding of points, and initialise all weights of the model."""
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(self.dim)
        self.head = nn.Linear(self.dim, sum(self.layout.width(points) for points in self.layout.outputs))
        self.apply(initialise_linear)

    def _tokens(self, batch: Batch) -> tuple[Tensor, Tensor | None, dict[str, int]]:
        """Return the tokens (B, N, dim) of all sets, their rotary table (None without RoPE) and the sets' sizes."""
        raise NotImplementedError

    def attend(self, context: Batch) -> tuple[Latent, Batch]:
        """Return the latent with each block's keys and values, and the fields at the points of `context`."""
        x, table, sizes = self._tokens(context)
        mask = joined_masks([mask_of(context, points) for points in sizes], list(sizes.values()))
        condition, read = self._condition(context), []
        for block in blocks_of(self.blocks):
            x, attended_to = block.with_keys_values(x, table, mask, condition)
            read.append(attended_to)
        return Latent(read, condition, mean_token(x, mask)), self._by_shared_layers(x, sizes, self.norm, self.head)

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """Decode the latent: return the fields at the points (B, N, 3) of each set in `queries`."""
        x, table, sizes = self._tokens(queries)
        for block, attended_to in zip(blocks_of(self.blocks), latent.read, strict=True):
            x = block.read(x, attended_to, table, latent.condition)
        return self._by_shared_layers(x, sizes, self.norm, self.head)


def present(batch: Batch, layout: Layout) -> list[str]:
    """Return the names of the layout's sets that the batch contains as queries. ValueError: it contains none."""
    names = [points for points in layout.outputs if points in batch]
    if not names:
        raise ValueError(f"nothing to predict: expected any of {list(layout.outputs)}, got {sorted(batch)}")
    return names


def joined_masks(masks: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """Concatenate the masks (…, N) of several sets of points, each None without padding; None if all are None."""
    like = next((mask for mask in masks if mask is not None), None)
    if like is None:
        return None
    every = (like.new_ones(1) if mask is None else mask for mask in masks)
    shape = like.shape[:-1]
    return torch.cat([mask.expand(*shape, count) for mask, count in zip(every, counts, strict=True)], dim=-1)


def in_full_precision(x: Tensor, *layers: nn.Module) -> Tensor:
    """Apply a model's last layers without autocast: bfloat16 would add a rounding error of 0.2 % to predictions."""
    with torch.autocast(x.device.type, enabled=False):
        for layer in layers:
            x = layer(x)
    return x


def split_channels(values: Tensor, widths: Mapping[str, int]) -> Batch:
    """Split an array (…, C) by channels into named quantities; `widths` maps names to numbers of channels."""
    return dict(zip(widths, values.split(list(widths.values()), dim=-1), strict=True))


def mean_token(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean (B, dim) of the tokens (B, N, dim) without padding."""
    if mask is None:
        return tokens.mean(dim=1)
    return tokens.masked_fill(~mask.unsqueeze(-1), 0).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def blocks_of(modules: nn.Module) -> Iterable[Any]:
    """Return the modules of a ModuleList, typed as Any for calls to their methods."""
    return cast(Iterable[Any], modules)


def _chunks(batch: Batch, points: str, chunk_size: int) -> Iterator[Batch]:
    """Yield the entries of one query set, `chunk_size` points at a time."""
    size, prefix = batch[points].shape[:2], points.removesuffix("points")
    own = {key: value for key, value in batch.items() if key.startswith(prefix) and value.shape[:2] == size}
    for start in range(0, size[1], chunk_size):
        yield {key: value[:, start : start + chunk_size] for key, value in own.items()}


class Pooling(NamedTuple):
    """The settings for pooling the geometry's points into tokens.

    supernodes: number of geometry points that become supernodes; None: all points. The first points are taken, which is
    a random choice because data sets give geometry points in random order.
    radius: radius within which a supernode gathers geometry points, in the unit of the scaled positions.
    max_neighbours: maximum number of points that a supernode gathers; the nearest points are taken.
    """

    supernodes: int | None
    radius: float
    max_neighbours: int


class GeometryModel(PointModel):
    """A model that reads the shape as points of the geometry, which it pools into supernodes.

    layout, dim, heads: as for PointModel; depths: number of blocks by the name of the option, such as encoder_depth.
    """

    def __init__(self, layout: Layout, dim: int, heads: int, pooling: Pooling, **depths: int) -> None:
        supernodes, radius, max_neighbours = pooling
        if radius <= 0:
            raise RequestError("radius-not-positive", "model.radius is not positive", seen=f"model.radius={radius}",
                               expected="a length in the unit of the scaled positions, which span about 0..1000",
                               fix="model.radius=9.0")  # fmt: skip
        counts = {"supernodes": supernodes, "max_neighbours": max_neighbours, **depths}
        super().__init__(layout, dim, heads, rotary=True, **counts)
        self.heads, self.supernodes = heads, supernodes
        self.pooling = SupernodePooling(dim, radius, max_neighbours)

    def _blocks(self, kind: Callable[..., nn.Module], count: int) -> nn.ModuleList:
        return nn.ModuleList(kind(self.dim, self.heads, conditioned=self.conditioned) for _ in range(count))

    def _initialise(self) -> None:
        """Initialise all weights, and set the eps of the norms."""
        self.apply(initialise_linear)
        publish_norms(self)

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """Return the key of the geometry's points, which show the shape."""
        return ("geometry_points",)

    def _encode_geometry(
        self, batch: Batch, blocks: nn.ModuleList, condition: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pool the geometry and apply the blocks; return the supernodes' tokens (B, N, dim), rotary table and mask."""
        points, mask = self._in_position_precision(batch["geometry_points"]), batch.get("geometry_mask")
        supernodes = count_supernodes(self.supernodes, points.shape[1])
        tokens = self._in_parameter_precision(self.pooling(points, self._embed(points), supernodes, mask))
        table = rotary_table(points[:, :supernodes], self.head_dim)
        mask = None if mask is None else mask[:, :supernodes]
        for block in blocks:
            tokens = block(tokens, table, mask, condition)
        return tokens, table, mask


def count_supernodes(wanted: int | None, available: int) -> int:
    """Return the wanted number of supernodes, or all if None. ValueError: there are fewer geometry points."""
    if wanted is not None and available < wanted:
        raise ValueError(
            f"{wanted} supernodes cannot be taken from {available} geometry points: "
            f"set model.supernodes to {available} at most, or dataset.geometry_points to {wanted} or more"
        )
    return available if wanted is None else wanted
