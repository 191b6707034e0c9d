"""The shared layers agree with independent computations by loops, 2×2 matrices, torch's attention or NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noether.physics.models.layers import positions, supernodes
from noether.physics.models.layers.blocks import (
    SelfAttention,
)
from noether.physics.models.layers.positions import rotary_table, rotate, sincos_embedding
from noether.physics.models.layers.supernodes import (
    SupernodePooling,
    _distances_by_axes,
    radius_neighbours,
)


def random(*shape, scale=1.0, seed=0):
    return scale * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def phases(point, width):
    """Return the angles by the published formula: ω_k = 10000^(−2k/m), axis after axis."""
    m = max(even for even in range(0, width + 1, 2) if even <= width / len(point))
    return [[x * 10000 ** (-2 * k / m) for k in range(m // 2)] for x in point]


@pytest.mark.parametrize(("dim", "axes", "padding"), [(192, 3, 0), (64, 3, 4), (20, 3, 2), (7, 3, 1), (10, 2, 2)])
def test_sincos_embedding_is_sine_then_cosine_per_axis_then_zeros(dim, axes, padding):
    points = random(5, axes, scale=1000)
    for point, embedded in zip(points.tolist(), sincos_embedding(points, dim), strict=True):
        expected = []
        for axis in phases(point, dim):
            expected += [math.sin(phase) for phase in axis] + [math.cos(phase) for phase in axis]
        expected += [0.0] * padding
        torch.testing.assert_close(embedded, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-11)


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", [sincos_embedding, rotary_table], ids=["sincos", "rope"])
def test_positions_are_never_computed_in_half_precision(make, given):
    points = random(2, 4, 3, scale=1000).to(given)
    outside = make(points, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = make(points, 24)
    assert outside.dtype == inside.dtype == torch.promote_types(given, torch.float32)
    assert torch.equal(outside, inside)


@pytest.mark.parametrize(("head_dim", "angles", "zeros"), [(64, 30, 2), (32, 15, 1), (24, 12, 0), (10, 3, 2)])
def test_rotary_table_has_one_group_of_angles_per_axis_then_zero_angles(head_dim, angles, zeros):
    points = random(4, 3, scale=1000)
    for point, table in zip(points.tolist(), rotary_table(points, head_dim), strict=True):
        expected = [phase for axis in phases(point, head_dim) for phase in axis] + [0.0] * zeros
        assert len(expected) == angles + zeros == head_dim // 2
        expected = [[math.cos(angle), math.sin(angle)] for angle in expected]
        torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-11)


def test_widths_without_room_are_refused():
    for make, width in ((sincos_embedding, 5), (rotary_table, 4), (rotary_table, 21)):
        with pytest.raises(ValueError, match="must be even, not 21" if width == 21 else "no room for 3 axes"):
            make(random(2, 3), width)


@pytest.mark.parametrize("form", [rotate, positions._rotate_real, positions._rotate_complex])
def test_rope_is_a_2x2_rotation_of_each_adjacent_pair(form):
    batch, tokens, head_dim = 2, 5, 22
    x = random(batch, tokens, head_dim)
    points = random(batch, tokens, 3, scale=1000, seed=1)
    rotated = form(x, rotary_table(points, head_dim))
    for b in range(batch):
        for n in range(tokens):
            angles = [angle for axis in phases(points[b, n].tolist(), head_dim) for angle in axis] + [0.0, 0.0]
            for pair, angle in enumerate(angles):
                matrix = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
                channels = slice(2 * pair, 2 * pair + 2)
                expected = torch.tensor(matrix, dtype=torch.float64) @ x[b, n, channels]
                torch.testing.assert_close(rotated[b, n, channels], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("rotated", [1, 2])
def test_parts_of_a_fused_projection_are_rotated_as_each_alone(rotated):
    fused, table = random(2, 5, 3, 3, 16).requires_grad_(), rotary_table(random(2, 5, 3, scale=1000, seed=1), 16)
    parts, alone = positions.rotate_first(fused, table, rotated), fused.unbind(2)
    expected = [rotate(one, table) if part < rotated else one for part, one in enumerate(alone)]
    assert all(torch.equal(one, other) for one, other in zip(parts, expected, strict=True))
    ours, theirs = (torch.autograd.grad(sum(o.sin().sum() for o in p), fused)[0] for p in (parts, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def unturned(points):
    """Return the rotary table, for 8 channels, of points at the origin, where all angles are 0."""
    return rotary_table(torch.zeros(2, points, 3, dtype=torch.float64), 8)


def torch_attention(dim, heads):
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(dim, heads, batch_first=True, dtype=torch.float64)
    nn.init.normal_(reference.in_proj_bias)
    nn.init.normal_(reference.out_proj.bias)
    return reference


def test_self_attention_is_torch_multihead_attention_and_nothing_attends_to_padding():
    reference, ours = torch_attention(24, 3), SelfAttention(24, 3).double()
    ours.query_key_value.load_state_dict({"weight": reference.in_proj_weight, "bias": reference.in_proj_bias})
    ours.output.load_state_dict(reference.out_proj.state_dict())
    x, mask = random(2, 7, 24), torch.arange(7) < torch.tensor([[7], [4]])
    table, of_context = unturned(7), unturned(9)
    torch.testing.assert_close(ours.with_keys_values(x, table)[0], reference(x, x, x)[0], rtol=0, atol=1e-12)
    expected = reference(x, x, x, key_padding_mask=~mask)[0]
    torch.testing.assert_close(ours.with_keys_values(x, table, mask)[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.read(x, ours.keys_values(x, table, mask), table), expected, rtol=0, atol=1e-12)
    context = random(2, 9, 24, seed=1)
    read = ours.read(x, ours.with_keys_values(context, of_context)[1], table)
    torch.testing.assert_close(read, reference(x, context, context)[0], rtol=0, atol=1e-12)


def brute_force(points, centres, radius, max_neighbours):
    """Return, for each centre, the indices of its nearest points within the radius, nearest first."""
    distances = np.linalg.norm(centres[:, None] - points[None], axis=-1)
    order = np.argsort(distances, axis=1)[:, :max_neighbours]
    return [[int(i) for i in row if distance[i] <= radius] for row, distance in zip(order, distances, strict=True)]


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_distances_of_gpus_are_as_exact_as_those_of_the_cpu(axes: int) -> None:
    """If neighbours are 0.001 apart at coordinates of 1000, distances by a matrix product would be wrong by 0.7."""
    centres = (1000 + random(2, 7, axes)).float()
    points = torch.cat((centres + 1e-3 * random(2, 7, axes), 1000 * random(2, 40, axes)), dim=1).float()
    exact = torch.cdist(centres.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.allclose(_distances_by_axes(centres, points).double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("max_distances", [1, 2 * 50 * 7, 2**24], ids=["centre-by-centre", "by-7", "at-once"])
@pytest.mark.parametrize(
    ("radius", "max_neighbours"),
    [(9.0, 32), (40.0, 32), (40.0, 3), (40.0, 1), (1e-6, 4), (1e6, 50), (1e6, 1000)],
    ids=["few", "many", "cut-at-3", "cut-at-1", "only-itself", "all", "more-slots-than-points"],
)
@pytest.mark.parametrize("counts", [(50, 50), (50, 31)], ids=["all", "padding-is-nobody-s-neighbour"])
def test_radius_search_is_brute_force(radius, max_neighbours, max_distances, counts, monkeypatch):
    monkeypatch.setattr(supernodes, "MAX_DISTANCES", max_distances)
    points, mask = random(2, 50, 3, scale=100), torch.arange(50) < torch.tensor(counts)[:, None]
    centres = points[:, :20]
    found = radius_neighbours(points, centres, radius, max_neighbours, mask=None if mask.all() else mask)
    assert found.indices.shape == found.found.shape == (2, 20, min(max_neighbours, 50))
    for b, count in enumerate(counts):
        expected = brute_force(points[b, :count].numpy(), centres[b].numpy(), radius, max_neighbours)
        for m in range(20):
            assert found.indices[b, m][found.found[b, m]].tolist() == expected[m]


def test_radius_search_includes_the_boundary():
    points = torch.tensor([[[0.0, 0, 0], [3, 4, 0], [0, 0, 5.001]]])
    assert radius_neighbours(points, points[:, :1], 5.0, 3).found.tolist() == [[[True, True, False]]]


def test_radius_search_is_exact_in_float32_far_from_the_origin():
    # For so many points, torch.cdist would use a matrix product, which loses digits at such coordinates.
    points = (990 + random(1, 400, 3, scale=10)).float()
    found = radius_neighbours(points, points, 0.7, 32)
    expected = brute_force(points[0].double().numpy(), points[0].double().numpy(), 0.7, 32)
    assert [row[mask].tolist() for row, mask in zip(found.indices[0], found.found[0], strict=True)] == expected


@pytest.mark.parametrize("block", [1, 2 * 8 * 12, 10**6], ids=["centre-by-centre", "by-2", "at-once"])
@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("max_neighbours", [2, 8, 64])
def test_pooling_is_the_mean_of_messages_edge_by_edge_and_so_is_its_gradient(count, max_neighbours, block, monkeypatch):
    monkeypatch.setattr(supernodes, "NUMBERS_OF_A_BLOCK", block)
    torch.manual_seed(0)
    pooling = SupernodePooling(12, 40.0, max_neighbours).double()
    points, embedding = random(2, 30, 3, scale=100), random(2, 30, 12, seed=1).requires_grad_()
    pooled, expected = pooling(points, embedding, count), []
    for b in range(2):
        for m, sources in enumerate(brute_force(points[b].numpy(), points[b, :count].numpy(), 40.0, max_neighbours)):
            pairs = [torch.cat((embedding[b, source], embedding[b, m])) for source in sources]
            messages = [pooling.message_out(F.gelu(pooling.message_in(pair))) for pair in pairs]
            expected.append(pooling.combine(torch.cat((torch.stack(messages).mean(dim=0), embedding[b, m]))))
    expected = torch.stack(expected).view(2, count, 12)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-12)
    parts = (embedding, *pooling.parameters())
    ours, theirs = (torch.autograd.grad(made.sin().sum(), parts) for made in (pooled, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_pooling_in_half_precision_takes_the_other_form_and_agrees():
    pooling, points, embedding = SupernodePooling(12, 40.0, 8), random(2, 30, 3, scale=100).float(), random(2, 30, 12)
    half = pooling.bfloat16()(points, embedding.bfloat16(), 5)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), pooling.double()(points, embedding, 5), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("count", [50, 3000], ids=["partitioned", "by-topk"])
def test_float32_neighbours_are_the_nearest_from_the_nearest_on(count):
    points = torch.rand(1, count, 3, generator=torch.Generator().manual_seed(0)) * 100
    points[0, 7] = points[0, 3]  # Both points have the same position.
    distances = torch.cdist(points[:, :5], points, compute_mode="donot_use_mm_for_euclid_dist")
    found = radius_neighbours(points, points[:, :5], 1e6, 16)
    values = distances.gather(2, found.indices)
    assert torch.equal(values, distances.sort(dim=2).values[..., :16])
    assert found.indices[0, 3, :2].sort().values.tolist() == [3, 7]
