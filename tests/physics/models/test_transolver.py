"""Transolver: its slices point by point, and what it reads. What all models promise is tested in test_point_models."""

import math

import pytest
import torch
from point_models import draw, make_batch, small_model

from noether.physics.models.transolver import SliceAttention


def random_attention(dim=12, heads=3, slices=5):
    torch.manual_seed(0)
    attention = SliceAttention(dim, heads, slices).double()
    for parameter in attention.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 0.9)
    return attention


@pytest.mark.parametrize("slices", [5, 3], ids=["head-by-head", "joined"])
def test_slice_attention_is_the_paper_s_formula_point_by_point(slices):
    """w = softmax(W x / τ); token = Σ w f / (Σ w + 1e-5); softmax(q·k / √4) v; Σ w · token."""
    attention, x = random_attention(slices=slices), draw(7, 12, 1)
    weights = attention.slice_weights(x)
    found = attention.scatter(weights, attention.slice_tokens(x, weights))
    for b in range(2):
        heads = []
        for h in range(3):
            channels = slice(4 * h, 4 * h + 4)
            w, tokens = [], []
            for n in range(7):
                logits = attention.slice(attention.assigned(x[b, n])[channels]) / attention.temperature[h]
                w.append([math.exp(logit) for logit in logits.tolist()])
                w[n] = [value / sum(w[n]) for value in w[n]]
            for g in range(slices):
                total = sum(w[n][g] for n in range(7)) + 1e-5
                tokens.append(sum(w[n][g] * attention.features(x[b, n])[channels] for n in range(7)) / total)
            tokens = torch.stack(tokens)
            scores = attention.query(tokens) @ attention.key(tokens).T / 4**0.5
            attended = scores.softmax(dim=-1) @ attention.value(tokens)
            heads.append(torch.stack([sum(w[n][g] * attended[g] for g in range(slices)) for n in range(7)]))
        expected = attention.output(torch.cat(heads, dim=-1))
        torch.testing.assert_close(found[b], expected, rtol=0, atol=1e-12)


def test_first_temperature_is_a_half_for_every_head_and_does_not_decay():
    temperature = SliceAttention(12, 3, 5).temperature
    assert temperature.tolist() == [0.5, 0.5, 0.5]
    assert temperature.ndim == 1, "parameters of two axes or more decay"


@pytest.mark.parametrize("absent", ["surface_normals", "volume_normals", "volume_sdf"])
def test_what_a_point_shows_must_be_there(absent):
    batch = {key: value for key, value in make_batch().items() if key != absent}
    with pytest.raises(ValueError, match=f"no {absent}"):
        small_model("transolver")(batch)


def test_the_seven_inputs_are_standardised_over_all_points_of_the_training_samples():
    model, batch = small_model("transolver"), make_batch()
    samples = [{key: value[one : one + 1] for key, value in batch.items()} for one in range(2)]
    model.fit_inputs(samples)
    inputs = torch.cat([model._point_inputs(batch, name).flatten(0, 1) for name in model.layout.outputs])
    torch.testing.assert_close(inputs.mean(dim=0), torch.zeros(7, dtype=inputs.dtype), rtol=0, atol=1e-9)
    torch.testing.assert_close(inputs.std(dim=0, correction=0), torch.ones(7, dtype=inputs.dtype), rtol=0, atol=1e-9)
