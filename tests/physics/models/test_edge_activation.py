import pytest
import torch
from torch.nn import functional as F

from noether.physics.models.layers import edge_activation
from noether.physics.models.layers.edge_activation import summed_activation
from noether.physics.models.layers.supernodes import radius_neighbours


def edges(count=9, slots=6, dim=4, points=20, least=0):
    made = torch.Generator().manual_seed(0)
    sources = torch.randn(points, dim, generator=made, dtype=torch.float64, requires_grad=True)
    centres = torch.randn(count, dim, generator=made, dtype=torch.float64, requires_grad=True)
    rows = torch.randint(points, (count, slots), generator=made)
    found = torch.arange(slots) < torch.randint(least, slots + 1, (count, 1), generator=made)
    return sources, centres, rows, found


def plain(sources, centres, rows, found):
    return (F.gelu(sources[rows] + centres[:, None]) * found[..., None]).sum(dim=1)


@pytest.mark.parametrize("block", [1, 2 * 6 * 4, 10**6], ids=["centre-by-centre", "by-2", "at-once"])
@pytest.mark.parametrize("least", [0, 6], ids=["with-empty-slots", "all-slots-filled"])
def test_blocks_are_the_sum_over_edges_and_its_gradient(monkeypatch, block, least):
    monkeypatch.setattr(edge_activation, "NUMBERS_OF_A_BLOCK", block)
    given = edges(least=least)
    assert torch.allclose(summed_activation(*given), plain(*given), rtol=0, atol=1e-13)
    for own, expected in zip(
        torch.autograd.grad(summed_activation(*given).sin().sum(), given[:2]),
        torch.autograd.grad(plain(*given).sin().sum(), given[:2]),
        strict=True,
    ):
        assert torch.allclose(own, expected, rtol=0, atol=1e-12)


def test_half_precision_takes_the_other_form_and_agrees():
    sources, centres, rows, found = (one.detach() for one in edges())
    halves = summed_activation(sources.bfloat16(), centres.bfloat16(), rows, found)
    assert halves.dtype == torch.bfloat16
    assert torch.allclose(halves.double(), plain(sources, centres, rows, found), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("count", [50, 3000], ids=["partitioned", "by-topk"])
def test_float32_neighbours_are_the_nearest_from_the_nearest_on(count):
    points = torch.rand(1, count, 3, generator=torch.Generator().manual_seed(0)) * 100
    points[0, 7] = points[0, 3]  # Points at one place are told apart by their order.
    distances = torch.cdist(points[:, :5], points, compute_mode="donot_use_mm_for_euclid_dist")
    found = radius_neighbours(points, points[:, :5], 1e6, 16)
    values = distances.gather(2, found.indices)
    assert torch.equal(values, distances.sort(dim=2).values[..., :16])
    assert found.indices[0, 3, :2].sort().values.tolist() == [3, 7]
