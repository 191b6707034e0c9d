"""Rows of a history become curves; a long curve is replaced by one with fewer points that looks the same."""

import numpy as np
import pytest

from noether.runs.metrics import Metric
from noether.runs.records import last_evaluation
from noether.runs.report.history import MOST_CURVES, History, thinned


def training(update: int, **more: object) -> dict[str, object]:
    return {"kind": "training", "update": update, "epoch": update / 10, "time": 1000.0 + update, "loss": 1.0, **more}


def evaluation(update: int, loss: float, weights: str = "ema") -> dict[str, object]:
    metrics = {"loss": loss, "pressure/mae": 3 * loss}
    whose = {"split": "validation", "weights": weights, "selected": weights == "ema"}
    return {"kind": "evaluation", "update": update, **whose, "metrics": metrics}


def test_a_spike_in_a_million_rows_is_still_seen() -> None:
    x = np.arange(1_000_000.0)
    y = np.sin(x / 1e5)
    y[123_456], y[777_777] = 50.0, -50.0
    short_x, short_y = thinned(x, y, 300)
    assert len(short_x) <= 1201
    assert short_y.max() == 50.0
    assert short_y.min() == -50.0
    assert short_x[-1] == x[-1]
    assert (np.diff(short_x) > 0).all()
    assert np.isin(short_y, y).all(), "the values must be measured ones"


def test_a_growing_curve_keeps_its_points() -> None:
    """Complete buckets stay unchanged until their size doubles; otherwise the curve would flicker with every row."""
    rng = np.random.default_rng(0)
    x, y = np.arange(1200.0), rng.normal(size=1200)
    before, after = thinned(x[:1000], y[:1000], 100), thinned(x, y, 100)
    whole = before[0] < 992
    assert set(before[0][whole]) <= set(after[0])


def test_a_stretch_without_numbers_stays_a_gap() -> None:
    y = np.ones(10_000)
    y[4000:6000] = np.nan
    short_x, short_y = thinned(np.arange(10_000.0), y, 100)
    gap = np.isnan(short_y)
    assert gap.any()
    assert ((short_x[gap] >= 4000) & (short_x[gap] < 6000)).all()


def test_a_loss_that_was_no_number_is_a_gap_and_means_over_an_epoch_are_curves_of_their_own() -> None:
    history, epoch = History(), {"kind": "epoch", "update": 2, "epoch": 1.0, "metrics": {"accuracy": 0.5}}
    history.add([training(2), epoch, training(4, loss=None), training(6)])
    curves = history.thinned(100, 0, 10)
    assert curves["training", "", "loss"] == ([2, 4, 6], [1.0, None, 1.0])
    assert curves["epoch", "", "accuracy"] == ([2], [0.5])


def test_a_part_of_a_curve_reaches_its_edges() -> None:
    history = History()
    history.add([training(update) for update in range(0, 1000, 10)])
    x, _ = history.thinned(100, 95, 205)["training", "", "loss"]
    assert x == [90.0, *range(100, 201, 10), 210.0]


def test_rows_out_of_order_and_twice_become_one_curve() -> None:
    history = History()
    history.add([training(10), training(20), training(10, loss=7.0), training(15)])
    assert history.thinned(100, 0, 99)["training", "", "loss"] == ([10, 15, 20], [7.0, 1.0, 1.0])


SAID = [evaluation(10, 0.5), evaluation(10, 0.1, "raw"), evaluation(20, 0.3), evaluation(20, 0.2, "raw"),
        evaluation(30, 0.4)]  # fmt: skip


@pytest.mark.parametrize("rows", [SAID, SAID[1::-1] + SAID[3:1:-1] + SAID[4:]], ids=["said", "said-in-any-order"])
def test_best_and_last_evaluation_are_of_the_selected_weights(rows: list[dict[str, object]]) -> None:
    history = History()
    for row in rows:
        history.add([row])
    assert (history.best.update, history.best.weights) == (20, "ema")
    assert history.last.update == 30
    assert history.selected_weights == {"validation": "ema"}
    assert last_evaluation(rows)["metrics"]["loss"] == 0.4
    assert last_evaluation(rows[:-1])["metrics"]["loss"] == 0.3
    assert history.thinned(9, 0, 99)["validation", "raw", "loss"] == ([10, 20], [0.1, 0.2])


def test_an_evaluation_whose_selected_row_is_lost_is_not_the_last() -> None:
    history = History()
    history.add([SAID[0], SAID[3]])
    assert history.last.update == 10
    assert last_evaluation([SAID[0], SAID[3]])["metrics"]["loss"] == 0.5


def test_the_best_evaluation_is_that_of_the_metric_that_selects() -> None:
    history = History(selected_by=Metric("accuracy", better="higher"))
    for update, accuracy in ((10, 0.7), (20, 0.9), (30, 0.8)):
        row = evaluation(update, update / 10)
        history.add([{**row, "metrics": {**row["metrics"], "accuracy": accuracy}}])
    assert history.best.update == 20


def test_shares_of_the_time_sum_to_one_also_when_thinned() -> None:
    history = History()
    parts = {"forward": 1.0, "backward": 2.0, "reduction": 0.5, "data": 0.1, "other": 0.4}
    history.add([training(update, time_use=parts) for update in range(1, 5001)])
    updates, shares = history.time_shares(100, 0, 1e9)
    assert len(updates) <= 200
    assert np.allclose(sum(shares.values()), 1)
    assert shares["forward"][0] == pytest.approx(0.25)


def test_the_slowest_rank_is_the_one_that_most_often_was() -> None:
    history = History()
    for update in range(10):
        rank = 3 if update % 3 else 1
        history.add([training(update, slowest={"rank": rank, "host": f"node{rank}", "behind": 0.1})])
    slowest = history.recent_pace()["slowest"]
    assert (slowest["rank"], slowest["host"], slowest["times"], slowest["of"]) == (3, "node3", 6, 10)
    assert slowest["behind"] == pytest.approx(0.1)


def test_a_row_of_a_hundred_thousand_names_does_not_fill_the_memory() -> None:
    history = History()
    history.add([training(1, **{f"n{k}": 1.0 for k in range(100_000)})])
    assert len(history.curves) == MOST_CURVES


@pytest.mark.parametrize(
    "more",
    [{"loss": "high"}, {"loss": 10**400}, {"time_use": [1]}, {"slowest": "rank 1"},
     {"slowest": {"rank": "x", "behind": "y"}}, {"time": "late", "epoch": None}],
    ids=str,
)  # fmt: skip
def test_rows_of_strange_values_are_taken_as_far_as_they_go(more: dict[str, object]) -> None:
    history = History()
    history.add([training(1, **more), {"kind": "evaluation", "update": 2, "metrics": "none"}, training(3)])
    assert history.update == 3
    history.thinned(10, 0, 9)
    history.time_shares(10, 0, 9)
    history.recent_pace()
