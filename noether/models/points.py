"""What every model of fields at points offers: a latent made once, and any number of queries answered from it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noether.data.padding import mask_of
from noether.data.points import ANCHOR
from noether.models.layers.positions import sincos_embedding

OUTPUTS = {
    "surface_points": ("surface_pressure", slice(0, 1)),
    "volume_points": ("volume_velocity", slice(1, 4)),
}
"""For each set of query points: the prediction's name and its channels of a head that both sets share."""

Batch = dict[str, Tensor]


class PointModel(nn.Module):
    """Predicts surface pressure and volume velocity at query points.

    `encode` makes a latent; `decode` asks it, and what it is asked never influences another answer, so that
    queries can come in any order and in chunks of any size. Positions arrive scaled
    isotropically to about 0..1000. A batch may hold samples of differing numbers of points, padded:
    `<set>_mask` (B, N) is True where a point is real, and absent where all are. Predictions at padding mean
    nothing.
    """

    reads_masks = True
    """Tells whoever makes batches that padded ones are understood."""

    def encode(self, batch: Batch) -> Any:
        """What queries read, from a prepared batch."""
        raise NotImplementedError

    def decode(self, latent: Any, queries: Batch) -> Batch:
        """The fields at the query points of `queries`, from what `encode` returned."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Batch:
        """Predict the fields at the query points.

        Returns:
            `surface_pressure` (B, Ns, 1) and `volume_velocity` (B, Nv, 3), each where its points are given,
            in whatever unit the targets are given in, normally standardised.

        Raises:
            ValueError: what the model needs is not in the batch.
        """
        return self.decode(self.encode(batch), batch)

    def forward_in_chunks(self, batch: Batch, chunk_size: int) -> Batch:
        """`forward` with at most `chunk_size` queries at a time, to bound memory; the result is the same."""
        latent = self.encode(batch)
        predictions = {}
        for points in present(batch):
            name, _ = OUTPUTS[points]
            parts = [self.decode(latent, part)[name] for part in _chunks(batch, points, chunk_size)]
            predictions[name] = torch.cat(parts, dim=1)
        return predictions

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

    def attend(self, context: Batch) -> tuple[Any, Batch]:
        """The latent, and the fields at the points of `context` themselves, which attend to each other."""
        raise NotImplementedError

    def encode(self, batch: Batch) -> Any:
        """What queries read: made from the anchors where the batch has them, else from all of its points."""
        return self.attend(context_of(batch))[0]

    def forward(self, batch: Batch) -> Batch:
        """As `PointModel.forward`; where all points are context, one pass makes and answers."""
        if any(key.startswith(ANCHOR) for key in batch):
            return super().forward(batch)
        return self.attend(batch)[1]


def context_of(batch: Batch) -> Batch:
    """The batch in which each query set that has anchors is replaced by them; without anchors, the batch."""
    anchors = {key.removeprefix(ANCHOR): value for key, value in batch.items() if key.startswith(ANCHOR)}
    replaced = tuple(key.removesuffix("points") for key in anchors if key in OUTPUTS)
    kept = {key: value for key, value in batch.items() if not key.startswith((ANCHOR, *replaced))}
    return {**kept, **anchors}


def present(batch: Batch) -> list[str]:
    """The query sets that a batch has.

    Raises:
        ValueError: it has none.
    """
    names = [points for points in OUTPUTS if points in batch]
    if not names:
        raise ValueError(f"nothing to predict: expected any of {list(OUTPUTS)}, got {sorted(batch)}")
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


def split_fields(fields: Tensor, sizes: Mapping[str, int]) -> Batch:
    """Takes a shared head's (B, N, 4) at the points of several sets apart into the predictions."""
    predictions = {}
    for points, part in zip(sizes, fields.split(list(sizes.values()), dim=1), strict=True):
        name, channels = OUTPUTS[points]
        predictions[name] = part[..., channels]
    return predictions


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
