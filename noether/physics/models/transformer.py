"""Transformer: every point is a token and attends to all points. The other models are compared with it.

The source is Vaswani et al. 2017 (arXiv 1706.03762); the norms come first, and positions are sine-cosine and rotary.
The points of surface and volume form one sequence. There is no geometry branch: the surface points show the shape.
"""

from torch import Tensor, nn

from noether.core.data.layout import CAR_FLOW, Layout
from noether.physics.models.layers.blocks import MLP, TransformerBlock, publish_norms
from noether.physics.models.points import SequenceModel


class Transformer(SequenceModel):
    """A model that predicts fields at points by attention among all points.

    If the batch has anchors, points attend only to anchors, so that the model works at any resolution as in training.
    With the defaults, the model has 5,487,748 parameters.

    dim, heads, layout: as for PointModel with rotary positions; depth: number of transformer blocks.
    """

    def __init__(self, dim: int = 192, heads: int = 3, depth: int = 12, layout: Layout = CAR_FLOW) -> None:
        super().__init__(layout, dim, heads, depth=depth)
        self.point_mlp = nn.ModuleDict({points: MLP(dim, dim) for points in layout.outputs})
        self._build(TransformerBlock(dim, heads, conditioned=self.conditioned) for _ in range(depth))
        publish_norms(self)

    def _tokens(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, int]]:
        return self._sequence(batch, self.point_mlp)
