import pytest
from hypothesis import given
from hypothesis import strategies as st

from noether.core.data.order import GlobalOrder, RankOrder, share_evaluation, split_validation
from noether.launch.planning.batches import plan_batches


def seen(order: GlobalOrder, effective: int, limit: int | None, world: int, start: int = 0, stop: int = 12) -> list:
    """The samples of each update, in order, as all ranks together see them."""
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


@given(st.integers(0, 50), st.integers(1, 9))
def test_evaluation_counts_each_sample_once(samples: int, world: int) -> None:
    dealt = [index for rank in range(world) for index in share_evaluation(samples, rank, world)]
    assert sorted(dealt) == list(range(samples))
