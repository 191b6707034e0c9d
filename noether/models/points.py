"""What every model of fields at points offers: a latent made once, and any number of queries answered from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noether.data.layout import CAR_FLOW, Layout
from noether.data.padding import mask_of
from noether.data.points import ANCHOR
from noether.errors import RequestError
from noether.models.layers.conditioning import ParameterEmbedding
from noether.models.layers.positions import sincos_embedding

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Latent:
    """What queries are answered from.

    read: what the model's own `decode` attends to.
    condition: (B, 1, dim), the embedding of the case's parameters; None for models that read none.
    pooled: (B, dim), the mean of the tokens: what outputs of the whole case are made of.
    """

    read: Any
    condition: Tensor | None
    pooled: Tensor


class PointModel(nn.Module):
    """Predicts the fields of its layout at query points, and outputs of the whole case.

    `encode` makes a latent; `decode` asks it, and what it is asked never influences another answer, so that
    queries can come in any order and in chunks of any size. Positions arrive scaled
    isotropically to about 0..1000. A batch may hold samples of differing numbers of points, padded:
    `<set>_mask` (B, N) is True where a point is real, and absent where all are. Predictions at padding mean
    nothing.
    """

    reads_masks = True
    """Tells whoever makes batches that padded ones are understood."""
    layout: Layout = CAR_FLOW

    @classmethod
    def needs(cls, layout: Layout) -> tuple[str, ...]:
        """Returns the keys that every sample must have for this model, beside the layout's own."""
        return ()

    @classmethod
    def check_layout(cls, layout: Layout) -> None:
        """Refuses a layout that this model cannot serve. RequestError; default: every layout is served."""

    def encode(self, batch: Batch) -> Latent:
        """What queries read, from a prepared batch."""
        raise NotImplementedError

    def decode(self, latent: Latent, queries: Batch) -> Batch:
        """The fields at the query points of `queries`, from what `encode` returned."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Batch:
        """Predict the fields at the query points, and the outputs of the case.

        Returns:
            Each field (B, N, C) of the sets of points that the batch has, each output of the case (B, C), in
            whatever unit the targets are given in, normally standardised.

        Raises:
            ValueError: what the model needs is not in the batch.
        """
        latent = self.encode(batch)
        fields = self.decode(latent, batch) if self.layout.outputs else {}
        return {**fields, **self.case_outputs(latent)}

    def forward_in_chunks(self, batch: Batch, chunk_size: int) -> Batch:
        """`forward` with at most `chunk_size` queries at a time, to bound memory; the result is the same."""
        latent = self.encode(batch)
        parts: dict[str, list[Tensor]] = {}
        for points in present(batch, self.layout) if self.layout.outputs else ():
            for chunk in _chunks(batch, points, chunk_size):
                for name, value in self.decode(latent, chunk).items():
                    parts.setdefault(name, []).append(value)
        return {name: torch.cat(values, dim=1) for name, values in parts.items()} | self.case_outputs(latent)

    def case_outputs(self, latent: Latent) -> Batch:
        """The outputs of the whole case, each (B, C), from the pooled latent; nothing where the layout has none."""
        if self.case_head is None:
            return {}
        together = in_full_precision(latent.pooled, self.case_head)
        widths = self.layout.case_outputs
        return dict(zip(widths, together.split(list(widths.values()), dim=-1), strict=True))

    def _build_shared(self, layout: Layout, dim: int) -> None:
        """Makes what every model has: embeddings of features and parameters, and the head of the case's outputs.

        Nothing is made for a layout that has none, so that the published models keep their sizes.
        """
        self.check_layout(layout)
        self.layout = layout
        widths = {points: sum(keys.values()) for points, keys in layout.features.items()}
        self.features = nn.ModuleDict({points: nn.Linear(width, dim) for points, width in widths.items() if width})
        self.parameter_embedding = ParameterEmbedding(dict(layout.parameters), dim) if layout.parameters else None
        width = sum(layout.case_outputs.values())
        self.case_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, width)) if width else None

    @property
    def conditioned(self) -> bool:
        """Whether the blocks are given the parameters of a case."""
        return bool(self.layout.parameters)

    def _condition(self, batch: Batch) -> Tensor | None:
        return None if self.parameter_embedding is None else self.parameter_embedding(batch)

    def _with_features(self, batch: Batch, points: str, embedded: Tensor) -> Tensor:
        """Adds the embedding of a set's further inputs, each (B, N) or (B, N, C), to that of its positions."""
        if points not in self.features:
            return embedded
        keys = self.layout.features[points]
        prefix = "" if all(key in batch for key in keys) else ANCHOR
        if absent := [key for key in keys if prefix + key not in batch]:
            raise ValueError(f"the model reads {points} with {', '.join(keys)}: no {', '.join(absent)}")
        values = [batch[prefix + key] for key in keys]
        values = [value.unsqueeze(-1) if value.ndim == 2 else value for value in values]
        layer = self.features[points]
        out: Tensor = embedded + layer(torch.cat(values, dim=-1).to(self._dtype))
        return out

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        fit_old_weights(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _embed(self, points: Tensor, dim: int) -> Tensor:
        return sincos_embedding(points, dim).to(self._dtype)

    def _in_position_precision(self, points: Tensor) -> Tensor:
        # At least float32, which positions of 0..1000 need; float64 in a float64 model, so that all of it is.
        return points.to(torch.promote_types(self._dtype, torch.float32))

    def _in_parameter_precision(self, tokens: Tensor) -> Tensor:
        # Under autocast a Linear returns bfloat16; summed up over 24 blocks, its 8 bits would lose the
        # small updates. The residual stream stays in the parameters' precision, the matrix products do not.
        return tokens.to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class AnchoredModel(PointModel):
    """A model whose points attend to points: to the batch's anchors, or where it has none to each other.

    A batch's anchors of a set (`anchor_surface_points` and what else begins so) stand for that set; without
    them all its points do. Evaluation gives as many anchors as training has points, so that attention is
    over as many of them as the weights have learned with, however many points are asked for.
    """

    @classmethod
    def check_layout(cls, layout: Layout) -> None:
        """Refuses a layout without a set of points: there would be nothing to attend to."""
        if not layout.outputs:
            raise RequestError(
                f"{cls.__name__} attends among points at which fields are predicted, and there are none",
                seen=f"task.fields of the whole case only: {', '.join(layout.case_outputs)}",
                expected="a field at surface_points or volume_points, or a model that reads the geometry alone",
                fix="model=upt",
            )

    def attend(self, context: Batch) -> tuple[Latent, Batch]:
        """The latent, and the fields at the points of `context` themselves, which attend to each other."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Latent:
        """What queries read: made from the anchors where the batch has them, else from all of its points."""
        return self.attend(context_of(batch, self.layout))[0]

    def forward(self, batch: Batch) -> Batch:
        """As `PointModel.forward`; where all points are context, one pass makes and answers."""
        if any(key.startswith(ANCHOR) for key in batch):
            return super().forward(batch)
        latent, fields = self.attend(batch)
        return {**fields, **self.case_outputs(latent)}


def context_of(batch: Batch, layout: Layout = CAR_FLOW) -> Batch:
    """The batch in which each query set that has anchors is replaced by them; without anchors, the batch."""
    anchors = {key.removeprefix(ANCHOR): value for key, value in batch.items() if key.startswith(ANCHOR)}
    replaced = tuple(key.removesuffix("points") for key in anchors if key in layout.outputs)
    kept = {key: value for key, value in batch.items() if not key.startswith((ANCHOR, *replaced))}
    return {**kept, **anchors}


def present(batch: Batch, layout: Layout = CAR_FLOW) -> list[str]:
    """The query sets of a layout that a batch has.

    Raises:
        ValueError: it has none.
    """
    names = [points for points in layout.outputs if points in batch]
    if not names:
        raise ValueError(f"nothing to predict: expected any of {list(layout.outputs)}, got {sorted(batch)}")
    return names


def joined_masks(batch: Batch, names: list[str]) -> Tensor | None:
    """The masks of several sets, one after the other as their points are."""
    masks = [mask_of(batch, name) for name in names]
    if all(mask is None for mask in masks):
        return None
    sizes = [batch[name].shape[:2] for name in names]
    like = next(mask for mask in masks if mask is not None)
    return torch.cat(
        [like.new_ones(size) if mask is None else mask for mask, size in zip(masks, sizes, strict=True)], 1
    )


def in_full_precision(x: Tensor, *layers: nn.Module) -> Tensor:
    """The last layers outside autocast: a bfloat16 result would put a rounding error of 0.2 % on every prediction."""
    with torch.autocast(x.device.type, enabled=False):
        for layer in layers:
            x = layer(x)
    return x


def split_fields(fields: Tensor, sizes: Mapping[str, int], layout: Layout = CAR_FLOW) -> Batch:
    """Takes a shared head's (B, N, C) at the points of several sets apart into the predictions.

    The head has the channels of every field of every set, one after the other, in the order of the layout.
    """
    predictions: Batch = {}
    first, channel = {}, 0
    for points in layout.outputs:
        first[points] = channel
        channel += layout.width(points)
    for points, part in zip(sizes, fields.split(list(sizes.values()), dim=1), strict=True):
        predictions |= split_channels(part[..., first[points] : first[points] + layout.width(points)], points, layout)
    return predictions


def split_channels(fields: Tensor, points: str, layout: Layout) -> Batch:
    """Takes the channels (B, N, C) of one set apart into its fields."""
    widths = layout.outputs[points]
    return dict(zip(widths, fields.split(list(widths.values()), dim=-1), strict=True))


def mean_token(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The mean (B, dim) of the real tokens of (B, N, dim)."""
    if mask is None:
        return tokens.mean(dim=1)
    return tokens.masked_fill(~mask.unsqueeze(-1), 0).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def fit_old_weights(state_dict: dict[str, Tensor], prefix: str, model: PointModel) -> None:
    """Reduces weights of the published layout to a layout of some of its fields.

    Models used to have a head for surface pressure and volume velocity whichever of them was trained, so a checkpoint
    of a run on the surface alone has rows and layers that this model does not have. Nothing else is changed.
    """
    missing = [points for points in CAR_FLOW.outputs if points not in model.layout.outputs]
    known = all(CAR_FLOW.outputs.get(points) == fields for points, fields in model.layout.outputs.items())
    head = state_dict.get(f"{prefix}head.weight")
    if not missing or not known or head is None or len(head) != 4:
        return
    rows = slice(0, 1) if "surface_points" in model.layout.outputs else slice(1, 4)
    for part in ("weight", "bias"):
        state_dict[f"{prefix}head.{part}"] = state_dict[f"{prefix}head.{part}"][rows]
    for key in [key for key in state_dict if key.startswith(prefix) and any(f".{name}." in key for name in missing)]:
        del state_dict[key]


def count_supernodes(wanted: int | None, available: int) -> int:
    """The number of supernodes to take from so many geometry points.

    Raises:
        ValueError: there are fewer.
    """
    if wanted is not None and available < wanted:
        raise ValueError(
            f"{wanted} supernodes cannot be taken from {available} geometry points: "
            f"set model.supernodes to {available} at most, or dataset.geometry_points to {wanted} or more"
        )
    return available if wanted is None else wanted


def _chunks(batch: Batch, points: str, chunk_size: int) -> Iterator[Batch]:
    """The entries of one query set, so many points at a time."""
    size, prefix = batch[points].shape[:2], points.removesuffix("points")
    own = {key: value for key, value in batch.items() if key.startswith(prefix) and value.shape[:2] == size}
    for start in range(0, size[1], chunk_size):
        yield {key: value[:, start : start + chunk_size] for key, value in own.items()}
