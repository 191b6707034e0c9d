import pytest
from hypothesis import given
from hypothesis import strategies as st

from noether.config.trainer import TrainerConfig
from noether.core.data.order import GlobalOrder
from noether.launch.batches import BatchPlan, plan_batches
from noether.training.run_length import plan_length
from tests.refusal import refusal


@pytest.mark.parametrize(
    ("effective", "limit", "world", "plan", "micro_batches"),
    [
        pytest.param(8, None, 1, BatchPlan(8, 8, 8, 1), (8,), id="whole-batch"),
        pytest.param(8, None, 4, BatchPlan(8, 2, 2, 1), (2,), id="shared"),
        pytest.param(8, 2, 1, BatchPlan(8, 8, 2, 4), (2, 2, 2, 2), id="accumulated"),
        pytest.param(64, 4, 8, BatchPlan(64, 8, 4, 2), (4, 4), id="limit-is-per-device-and-always-obeyed"),
        pytest.param(10, 8, 1, BatchPlan(10, 10, 5, 2), (5, 5), id="evenly-rather-than-full"),
        pytest.param(7, 3, 1, BatchPlan(7, 7, 3, 3), (3, 3, 1), id="uneven-rest"),
        pytest.param(4, 100, 2, BatchPlan(4, 2, 2, 1), (2,), id="limit-above-share"),
    ],
)
def test_batches(effective, limit, world, plan, micro_batches) -> None:
    assert plan_batches(effective, limit, world) == plan
    assert plan.micro_batch_sizes() == micro_batches


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 64))
def test_micro_batches_add_up_and_never_exceed_the_limit(share: int, limit: int, world: int) -> None:
    plan = plan_batches(share * world, limit, world)
    sizes = plan.micro_batch_sizes()
    assert sum(sizes) * world == share * world
    assert max(sizes) == plan.micro <= limit
    assert min(sizes) >= 1
    assert len(sizes) == plan.accumulation_steps


def test_a_batch_that_cannot_be_shared_names_the_nearest_sizes() -> None:
    with refusal(words="the nearest are 62 and 64") as caught:
        plan_batches(63, None, 2)
    assert "trainer.effective_batch_size=62      or trainer.effective_batch_size=64" in str(caught.value)


@pytest.mark.parametrize(("unit", "count", "total"), [("epochs", 3, 36), ("updates", 5, 5), ("samples", 20, 2)])
def test_lengths_are_updates(unit: str, count: int, total: int) -> None:
    trainer = TrainerConfig(effective_batch_size=8, **{f"max_{unit}": count})
    planned = plan_length(GlobalOrder(100, 8, 0), trainer)
    assert (planned.updates_per_epoch, planned.total_updates) == (12, total)


def test_a_data_set_smaller_than_a_batch_is_refused() -> None:
    with refusal("too-few-samples"):
        plan_length(GlobalOrder(7, 8, 0), TrainerConfig(effective_batch_size=8, max_epochs=1))
