"""The samples read do not depend on ranks and workers."""

import multiprocessing
import os
import random
import signal
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learned import one_rank

from noether.common.errors import RequestError
from noether.core.data.loader import evaluation_batches, stack_samples, training_batches
from noether.core.data.order import GlobalOrder, RankOrder, SampleKey, share_evaluation, split_validation
from noether.core.data.points import GEOMETRY, PointSampler, mean_of_points
from noether.launch.batches import plan_batches
from noether.launch.process_group.stop import AgreedStop, StopAgreed
from noether.launch.process_group.torch_internals import Patience
from tests.refusal import refusal


class Samples:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = torch.arange(20.0) + 100 * index
        return {
            "surface_points": torch.stack([numbers] * 3, dim=1),
            "surface_pressure": numbers,
            "volume_points": torch.zeros(6, 3),
            "reference_area": torch.ones(1),
        }


DRAW = PointSampler(seed=1, per_update={"surface": 8}, geometry=5)


def read() -> list[dict[str, torch.Tensor]]:
    order = RankOrder(GlobalOrder(7, 4, seed=2), (4,), 0, 0, 3)
    return list(training_batches(Samples(), [0, 1, 3, 4, 6, 8, 9], order, DRAW))


def test_points_and_their_values_stay_together() -> None:
    for batch in read():
        assert batch["surface_points"].shape == (4, 8, 3)
        assert torch.equal(batch["surface_points"][..., 0], batch["surface_pressure"])
        assert batch[GEOMETRY].shape == (4, 5, 3)
        assert batch["volume_points"].shape == (4, 6, 3)
        assert batch["reference_area"].shape == (4, 1)


def test_every_epoch_draws_other_points() -> None:
    sample = Samples()[0]
    draws = [DRAW.for_training(sample, SampleKey(0, epoch))["surface_pressure"] for epoch in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert len(draws[0].unique()) == 8


def test_only_the_training_indices_are_read() -> None:
    seen = {int(index) for batch in read() for index in batch["index"]}
    assert seen <= {0, 1, 3, 4, 6, 8, 9}


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_reads_every_sample_once_with_all_its_points(batch_size: int, num_workers: int) -> None:
    batches = list(evaluation_batches(Samples(), *share_evaluation(7, 1, batch_size), DRAW, num_workers=num_workers))
    assert [int(index) for batch in batches for index in batch["index"]] == list(range(7))
    assert all(batch["surface_points"].shape[1:] == (20, 3) for batch in batches)
    assert all(batch[GEOMETRY].shape[1:] == (5, 3) for batch in batches)


def test_reading_does_not_move_the_run_s_random_numbers() -> None:
    """A data loader draws a seed when it starts, and a resumed run starts the loader after a different update."""
    state = torch.get_rng_state()
    read()
    assert torch.equal(torch.get_rng_state(), state)


class Noisy(Samples):
    """A data set that draws from every global generator."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"noise": torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])}


def test_what_a_data_set_draws_in_a_loader_worker_follows_from_seed_epoch_and_sample() -> None:
    def noise(seed: int, share: int, rank: int, start: int) -> torch.Tensor:
        order = RankOrder(GlobalOrder(8, 4, seed=2), (share,), rank, start, 4)
        read = training_batches(Noisy(), list(range(8)), order, PointSampler(seed), num_workers=2)
        return torch.stack([batch["noise"] for batch in read])

    whole = noise(1, 4, 0, 0)
    assert torch.equal(noise(1, 4, 0, 1), whole[1:]), "resumed"
    assert torch.equal(torch.cat([noise(1, 2, rank, 0) for rank in range(2)], dim=1), whole), "on two ranks"
    assert not torch.equal(noise(2, 4, 0, 0), whole)
    assert len(whole.unique()) == whole.numel(), "each sample must get its own random numbers"


class Hanging(Samples):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0 if index < 2 else 60)
        return super().__getitem__(index)


@pytest.mark.parametrize("code", ["no-batch", ""], ids=["in time", "when told to stop"])
def test_a_wait_for_a_batch_that_never_comes_ends(code: str) -> None:
    stop, group = AgreedStop(), one_rank()
    with stop.listening():
        stop.join(group)
        patience = Patience(1.5 if code else 60, group.parent.while_waiting)
        batches = evaluation_batches(Hanging(), [[0, 1], [2, 3]], DRAW, num_workers=1, patience=patience)
        assert next(batches)["index"].tolist() == [0, 1]
        if not code:
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(RequestError if code else StopAgreed) as caught:
            next(batches)
    assert getattr(caught.value, "code", "") == code


def test_why_a_batch_cannot_be_sent_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own queue would print the error to stderr and drop the batch, and the reader would wait forever."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", str(folder))
    with pytest.raises(OSError, match="AF_UNIX path too long") as caught:
        list(evaluation_batches(Samples(), [[0, 1], [2, 3]], DRAW, num_workers=1, patience=Patience(20)))
    traceback.clear_frames(caught.tb)  # Loader workers end once no frame refers to them.


def test_samples_that_do_not_stack_name_the_key() -> None:
    samples = [{"a": torch.zeros(3)}, {"a": torch.zeros(4)}]
    for fix in ("trainer.max_batch_size=1", "def collate(self, samples)"):
        with refusal("batch-shapes-differ", seen="(3,), (4,)", fix=fix):
            stack_samples(samples, one_at_a_time="trainer.max_batch_size=1")
    with refusal("batch-keys-differ"):
        stack_samples([{"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(1)}])


def uneven_samples() -> list[dict[str, torch.Tensor]]:
    """Return two samples: the first has 3 surface points, the second has 2; both have 4 volume points."""
    return [
        {
            "surface_points": torch.ones(n, 3),
            "surface_pressure": torch.arange(1.0, n + 1),
            "surface_name": torch.zeros(2, 5),
            "anchor_surface_points": torch.ones(2, 3),
            "volume_points": torch.ones(4, 3),
        }
        for n in (3, 2)
    ]


def test_samples_of_differing_numbers_of_points_are_padded_with_a_mask() -> None:
    batch = stack_samples(uneven_samples(), pad=True)
    assert batch["surface_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert batch["surface_pressure"].tolist() == [[1, 2, 3], [1, 2, 0]]
    assert batch["surface_points"].shape == (2, 3, 3)
    # `surface_name` has 2 rows, as many as the second sample has points, but is not padded. Equal sets get no mask.
    assert batch["surface_name"].shape == (2, 2, 5)
    assert set(batch) == {*uneven_samples()[0], "surface_mask"}


def test_equal_samples_are_stacked_without_masks() -> None:
    samples = uneven_samples()[:1] * 2
    assert stack_samples(samples, pad=True).keys() == stack_samples(samples).keys() == samples[0].keys()


def test_padding_is_refused_to_models_that_do_not_read_masks() -> None:
    with pytest.raises(RequestError, match=r"shape of surface_points(.|\n)*reads_masks = True"):
        stack_samples(uneven_samples())


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, True, True], [True, True, False]])], ids=["all", "padded"])
def test_the_mean_is_over_real_points(mask) -> None:
    values = torch.tensor([[[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]], [[4.0, 0.0], [2.0, 2.0], [torch.nan, 9.0]]])
    if mask is None:
        values = values.nan_to_num(2.0)
    means = mean_of_points(values, mask).tolist()
    assert means == pytest.approx([2.0, 2.0] if mask is not None else [2.0, 19 / 6])


def test_evaluation_shows_as_many_anchors_as_training_has_points_without_their_fields() -> None:
    sample = {**Samples()[0], "surface_normals": torch.ones(20, 3), "volume_sdf": torch.ones(6)}
    shown = DRAW.for_evaluation(sample)
    anchors = {key: tuple(value.shape) for key, value in shown.items() if key.startswith("anchor_")}
    assert anchors == {"anchor_surface_points": (8, 3), "anchor_surface_normals": (8, 3)}
    places = shown["anchor_surface_points"][:, 0].tolist()
    assert len(set(places)) == 8
    assert places != sorted(places), "these are the first points of the mesh, not random points"
    assert torch.equal(DRAW.for_evaluation(sample)["anchor_surface_points"], shown["anchor_surface_points"])
    assert not [key for key in DRAW.for_training(sample, SampleKey(0, 0)) if key.startswith("anchor_")]


def seen(order: GlobalOrder, effective: int, limit: int | None, world: int, start: int = 0, stop: int = 12) -> list:
    """Return, for each update, the keys of its samples in the order of the ranks."""
    plan = plan_batches(effective, limit, world)
    ranks = [list(RankOrder(order, plan.micro_batch_sizes(), rank, start, stop)) for rank in range(world)]
    steps = plan.accumulation_steps
    return [
        [key for rank in ranks for micro in rank[update * steps : (update + 1) * steps] for key in micro]
        for update in range(stop - start)
    ]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_every_world_size_sees_the_same_global_batches(world: int, limit: int | None) -> None:
    order = GlobalOrder(samples=37, effective_batch_size=8, seed=5)
    assert seen(order, 8, limit, world) == [order.global_batch(update) for update in range(12)]


def test_another_world_size_goes_on_with_the_next_unseen_sample() -> None:
    order = GlobalOrder(samples=37, effective_batch_size=8, seed=5)
    resumed = seen(order, 8, None, 2, 0, 3) + seen(order, 8, 2, 1, 3, 7) + seen(order, 8, None, 4, 7, 12)
    assert resumed == seen(order, 8, None, 1, 0, 12)


def test_an_epoch_uses_no_sample_twice_and_the_next_is_another_order() -> None:
    order = GlobalOrder(samples=32, effective_batch_size=8, seed=0)
    epochs = [[key.sample for u in range(e * 4, e * 4 + 4) for key in order.global_batch(u)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(32))
    assert epochs[0] != epochs[1]


def test_the_seed_changes_the_order() -> None:
    assert GlobalOrder(32, 8, 0).global_batch(0) != GlobalOrder(32, 8, 1).global_batch(0)


@given(st.integers(2, 200), st.floats(0, 0.9))
def test_validation_is_cut_from_training_without_overlap(samples: int, fraction: float) -> None:
    train, validation = split_validation(samples, fraction)
    assert sorted([*train, *validation]) == list(range(samples))
    assert train
    assert len(validation) == min(round(samples * fraction), samples - 1)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_evaluation_counts_each_sample_once(samples: int, world: int, size: int, together: bool) -> None:
    dealt = [batch for rank in share_evaluation(samples, world, size, together=together) for batch in rank]
    assert sorted(index for batch in dealt for index in batch) == list(range(samples))
    assert max(map(len, dealt), default=0) <= size
    if together and dealt:  # The batches are the same on any number of ranks, and of nearly equal size.
        assert sorted(dealt, key=min) == share_evaluation(samples, 1, size, together=True)[0]
        assert min(map(len, dealt)) >= max(map(len, dealt)) - 1
