"""Activations that are made again give the same gradients bit for bit, from less memory."""

import pytest
import torch
from point_models import SMALL, make_batch, small_model
from torch import nn

from noether.common.errors import RequestError
from noether.core.models.build import Recomputable, recompute_blocks, recomputed


def gradients(model, batch):
    """Of every parameter, and the bytes that autograd kept."""
    kept = set()

    def note(tensor):
        kept.add((tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()))
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = sum(field.square().mean() for field in model(batch).values())
        bytes_kept = sum(size for _, size in kept)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}, bytes_kept


@pytest.mark.parametrize("anchors", [None, 7], ids=["all-are-context", "anchors"])
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "mlp"])  # it has no blocks
def test_gradients_are_the_same_bit_for_bit_and_less_is_kept(kind, anchors):
    model, batch = small_model(kind).train(), make_batch(anchors=anchors)
    before, kept = gradients(model, batch)
    assert recompute_blocks(model) > 1
    after, kept_by_blocks = gradients(model, batch)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert kept_by_blocks < 0.8 * kept


class Dropping(Recomputable):
    """A block that draws random numbers."""

    @recomputed
    def forward(self, x):
        return nn.functional.dropout(x.sin(), 0.5).exp()


def test_random_numbers_are_those_of_the_first_pass():
    blocks, x = nn.Sequential(Dropping(), Dropping()), torch.randn(50, dtype=torch.float64, requires_grad=True)
    found = []
    for again in (False, True):
        if again:
            assert recompute_blocks(blocks) == 2
        torch.manual_seed(1)
        (gradient,) = torch.autograd.grad(blocks(x).sum(), x)
        found.append((gradient, torch.rand(3)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1]), "what is drawn afterwards is the same too"


def test_a_model_without_blocks_is_refused():
    with pytest.raises(RequestError) as refused:
        recompute_blocks(nn.Linear(2, 2))
    assert "trainer.recompute=true" in refused.value.seen
    assert refused.value.fix == "trainer.recompute=false"
