"""The rows of a run as curves: complete for the report, thinned for a browser. No torch here."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noether.runs.metrics import OF_THE_LOOP, Metric
from noether.runs.records import RECENT_ROWS, Row, mapping, mean_rate, metrics_of_row, number
from noether.runs.report.palette import BANDS

Array = NDArray[np.float64]
Whose = tuple[str, str, str]
"""The split, weights and metric of a curve."""
PARTS = tuple(part for _, parts in BANDS.values() for part in parts)
MOST_CURVES = 400
"""Maximum number of curves. A run has a few dozen; a row with a hundred thousand names is damage or malice."""
CLOCK = 150
"""Number of buckets in the curve that maps updates to epochs and time."""


class _Curve:
    """Values over updates, in the order in which they were logged."""

    def __init__(self) -> None:
        self.x, self.y = array("d"), array("d")

    def add(self, x: float, y: float) -> None:
        self.x.append(x)
        self.y.append(y)

    def rising(self) -> tuple[Array, Array]:
        """Return the curve sorted by x. Of values with equal x, keep the last: a resumed run repeats updates."""
        x, y = np.array(self.x), np.array(self.y)
        places = _rising(x)
        return x[places], y[places]

    def thinned(self, buckets: int, low: float, high: float) -> tuple[list[float], list[float | None]]:
        x, y = self.rising()
        # Take one more value on each side, so that the curve reaches the edges of the visible range.
        first = max(0, int(np.searchsorted(x, low, "left")) - 1)
        last = int(np.searchsorted(x, high, "right")) + 1
        x, y = thinned(x[first:last], y[first:last], buckets)
        # Six digits are more than a screen can show, and half as many as Python would write.
        return x.tolist(), [None if value != value else float(f"{value:.6g}") for value in y.tolist()]


@dataclass
class Evaluation:
    """One evaluation of a split, after an update, with one kind of weights."""

    update: int
    split: str
    weights: str
    metrics: Mapping[str, Any]


@dataclass
class History:
    """The curves of a run, and the few rows that a summary needs.

    curves: keyed by split, weights and metric, such as ("validation", "ema", "loss") or ("training", "", "loss").
    selected_weights: the kind of weights used for selection, for each evaluated split. times: the seconds of each part
    of the time. epochs, seconds: curves over updates; `seconds` counts from 1970. recent: the last RECENT_ROWS training
    rows. rows: the number of rows that were added. selected_by: the metric that decides which evaluation is best.
    hosts: the host of each rank that was ever the slowest. whole_time: the last `time_use` row.
    """

    curves: dict[Whose, _Curve] = field(default_factory=dict)
    selected_weights: dict[str, str] = field(default_factory=dict)
    times: dict[str, _Curve] = field(default_factory=dict)
    epochs: _Curve = field(default_factory=_Curve)
    seconds: _Curve = field(default_factory=_Curve)
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    rows: int = 0
    update: int | None = None
    epoch: float | None = None
    last: Evaluation | None = None
    best: Evaluation | None = None
    selected_by: Metric = OF_THE_LOOP[0]
    hosts: dict[int, str] = field(default_factory=dict)
    whole_time: Row = field(default_factory=dict)

    def add(self, rows: Iterable[Row]) -> None:
        """Add further rows, in their order."""
        for row in rows:
            self.rows += 1
            self.update = row["update"] if self.update is None else max(self.update, row["update"])
            epoch = number(row, "epoch")
            self.epoch = self.epoch if epoch is None else epoch
            if row["kind"] == "training":
                self._add_training(row)
            elif row["kind"] == "evaluation":
                self._add_evaluation(row)
            elif row["kind"] == "epoch":
                self._add_numbers(row)
            elif row["kind"] == "time_use":
                self.whole_time = row

    def _add_training(self, row: Row) -> None:
        self.recent.append(row)
        self.epochs.add(row["update"], number(row, "epoch") or 0.0)
        self.seconds.add(row["update"], number(row, "time") or float("nan"))
        self._add_numbers(row)
        seconds = mapping(row, "time_use")
        if seconds:
            for part in PARTS:
                self.times.setdefault(part, _Curve()).add(row["update"], number(seconds, part) or 0.0)
        slowest = mapping(row, "slowest")
        rank, host = slowest.get("rank"), slowest.get("host")
        if isinstance(rank, int) and isinstance(host, str) and len(self.hosts) < 100_000:
            self.hosts[rank] = host

    def _add_evaluation(self, row: Row) -> None:
        split, weights, metrics = self._add_numbers(row)
        if not row.get("selected"):
            return
        self.selected_weights[split] = weights
        self.last = Evaluation(row["update"], split, weights, metrics)
        own, best = (number(of, self.selected_by.name) for of in (metrics, self.best.metrics if self.best else {}))
        if self.selected_by.is_better(own, best):
            self.best = self.last

    def _add_numbers(self, row: Row) -> tuple[str, str, Mapping[str, Any]]:
        """Add a row's metrics to the curves; return their split, weights and values."""
        split, weights, values = metrics_of_row(row)
        for name in values:
            full = split, weights, name
            if full not in self.curves and len(self.curves) >= MOST_CURVES:
                continue
            found = number(values, name)
            # JSON has no NaN, so a NaN loss was logged as null; it becomes a gap in the curve.
            self.curves.setdefault(full, _Curve()).add(row["update"], float("nan") if found is None else found)
        return split, weights, values

    def curve(self, split: str, weights: str, metric: str) -> tuple[Array, Array]:
        """Return the updates and values (n,) of a curve; NaN for non-finite values, n = 0 if there is no such curve."""
        return self.curves.get((split, weights, metric), _Curve()).rising()

    def thinned(
        self, buckets: int, low: float, high: float
    ) -> dict[tuple[str, str, str], tuple[list[float], list[float | None]]]:
        """Return every curve between the updates `low` and `high`, with at most about twice `buckets` values."""
        return {name: curve.thinned(buckets, low, high) for name, curve in self.curves.items()}

    def clock(self) -> dict[str, list[float]]:
        """Return updates ("x") with their epochs and seconds since the first row, for linear interpolation."""
        x, epochs, seconds = (np.array(values) for values in (self.epochs.x, self.epochs.y, self.seconds.y))
        places = np.arange(len(x))[_rising(x)]
        places = places[np.isfinite(seconds[places])]
        places = places[_extremes(seconds[places], CLOCK)]
        past = seconds[places] - (seconds[places].min() if len(places) else 0.0)
        return {"x": x[places].tolist(), "epoch": epochs[places].tolist(), "seconds": np.round(past, 1).tolist()}

    def updates_per_epoch(self) -> float | None:
        """Return the updates per epoch according to the last training row; None if unknown."""
        x, epochs = self.epochs.rising()
        return float(x[-1] / epochs[-1]) or None if len(x) and epochs[-1] else None

    def table(self) -> Iterator[tuple[str, str, str, float, float]]:
        """Yield split, weights, metric, update and value of every logged value."""
        for whose, curve in self.curves.items():
            yield from ((*whose, x, y) for x, y in zip(curve.x, curve.y, strict=True))

    def time_shares(
        self, buckets: int | None = None, low: float = -np.inf, high: float = np.inf
    ) -> tuple[Array, dict[str, Array]]:
        """Return updates (n,), and each band's share (n,) of the time since the update before; n = 0 without any rows.

        buckets: the approximate maximum number of updates to return between `low` and `high`; None: one for each row.
        """
        curves = [self.times.get(part, _Curve()).rising() for part in PARTS]
        x, table = curves[0][0], np.array([y for _, y in curves])
        inside = (x >= low) & (x <= high)
        x, table = _block_sums(x[inside], table[:, inside], buckets or len(x))
        shares = dict(zip(PARTS, table / np.maximum(table.sum(axis=0), 1e-12), strict=True))
        return x, {name: sum((shares[part] for part in own), np.zeros(len(x))) for name, (_, own) in BANDS.items()}

    def recent_pace(self) -> dict[str, Any]:
        """Summarize the recent training rows: mean pace, bands of the time, the slowest rank, and the last values."""
        rows = list(self.recent)
        parts = {part: sum(number(mapping(row, "time_use"), part) or 0.0 for row in rows) for part in PARTS}
        whole = sum(parts.values())
        bands = {name: sum(parts[part] for part in own) / whole for name, (_, own) in BANDS.items()} if whole else {}
        return {
            "samples_per_second": mean_rate(rows),
            "bands": bands,
            "slowest": _slowest(rows),
            **{name: number(rows[-1], name) if rows else None for name in ("loss", "memory_mib", "device_use")},
        }


def _slowest(rows: list[Row]) -> dict[str, Any] | None:
    lags: dict[int, list[float]] = {}
    hosts: dict[int, Any] = {}
    for row in rows:
        slowest = mapping(row, "slowest")
        rank, behind = slowest.get("rank"), number(slowest, "behind")
        if isinstance(rank, int) and behind is not None:
            lags.setdefault(rank, []).append(behind)
            hosts[rank] = slowest.get("host")
    if not lags:
        return None
    rank = max(lags, key=lambda one: (len(lags[one]), sum(lags[one])))
    behind, times = sum(lags[rank]) / len(lags[rank]), len(lags[rank])
    return {"rank": rank, "host": hosts[rank], "behind": behind, "times": times, "of": len(rows)}


def thinned(x: Array, y: Array, buckets: int) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each bucket of a curve, in order of their x.

    The size of a bucket is a power of two, and buckets are counted from the start, so that a growing curve does not
    shimmer: its buckets stay the same until their size doubles. A bucket with only NaN stays a gap. The last value is
    always kept.

    x, y: (n,); x rises.
    buckets: at least 1; a curve of at most twice as many values is returned unchanged.
    """
    places = _extremes(y, buckets)
    return x[places], y[places]


def _extremes(y: Array, buckets: int) -> NDArray[np.intp]:
    """Return the indices of the values that `thinned` keeps."""
    n = len(y)
    if n <= 2 * buckets:
        return np.arange(n)
    size = _bucket_size(n, buckets)
    rows = -(-n // size)
    padded = np.full(rows * size, np.nan)
    padded[:n] = y
    table = padded.reshape(rows, size)
    empty = np.isnan(table).all(axis=1)
    low = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    high = np.where(np.isnan(table), -np.inf, table).argmax(axis=1)
    start = np.arange(rows) * size
    low, high = np.where(empty, 0, low) + start, np.where(empty, 0, high) + start
    return np.unique(np.concatenate([low, high, [n - 1]]))


def _bucket_size(n: int, buckets: int) -> int:
    return int(2 ** np.ceil(np.log2(n / buckets)))


def _block_sums(x: Array, table: Array, buckets: int) -> tuple[Array, Array]:
    """Sum a table's columns in blocks as large as `thinned`'s buckets; return the x of each block's end, and the sums.

    x: (n,). table: (parts, n), in seconds, so that sums over a block give its shares of the time.
    buckets: approximate number of blocks.
    """
    n = len(x)
    if n <= buckets:
        return x, table
    size = _bucket_size(n, buckets)
    starts = np.arange(0, n, size)
    ends = np.minimum(starts + size, n) - 1
    return x[ends], np.add.reduceat(table, starts, axis=1)


def _rising(x: Array) -> slice | NDArray[np.intp]:
    """Return indices that sort a curve by x and keep the last of equal x; a full slice if x already rises."""
    if bool((np.diff(x) > 0).all()):
        return slice(None)
    return np.asarray(len(x) - 1 - np.unique(x[::-1], return_index=True)[1])
