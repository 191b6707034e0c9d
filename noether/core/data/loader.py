"""Load batches: which samples each rank reads, in which order, and in which processes."""

import multiprocessing
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.queues import Queue
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from noether.common.errors import RequestError
from noether.common.processes import STOP_SIGNALS
from noether.core.data.build import OwnStream
from noether.core.data.order import GlobalOrder, RankOrder, SampleKey
from noether.core.data.points import PointSampler, Sample, pad_samples
from noether.launch.process_group.torch_internals import BATCH_POLL_S, FOR_EVER, Patience, awaited, send_error
from noether.launch.processes.death_signal import die_with_parent

# Loader processes are forked, even in a rank that a fork server started: if the server started them, each would import
# torch again, which takes seconds in every evaluation. They do no arithmetic that needs threads.
_FORK = "fork" if "fork" in multiprocessing.get_all_start_methods() else None

Batch = dict[str, Tensor]
"""Samples stacked along a new first axis; `index` (B,) holds their indices in the data set."""


class Dataset(Protocol):
    """The interface of every data set, built in or a user's own."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


def training_batches(
    dataset: Dataset,
    indices: Sequence[int],
    order: RankOrder,
    draw: PointSampler,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
    patience: Patience = FOR_EVER,
) -> Iterator[Batch]:
    """Yield this rank's micro-batches in order.

    Args:
        dataset, indices: the training split, and the indices of its samples that `order` arranges.
        order, draw: the samples of each micro-batch, and the choice of their points.
        num_workers: number of reading processes; 0: read in this process. A stream has at most one.
        pin_memory: page-lock the batches, for asynchronous copies to a GPU.
        patience: how long to wait for reading processes that return no batch.
    """

    def read(keys: list[SampleKey]) -> Batch:
        own = [indices[key.sample] for key in keys]
        samples = []
        for i, key in zip(own, keys, strict=True):
            if get_worker_info() is not None:  # Makes random numbers independent of the ranks and of a resume.
                seed_everything(draw.seed, key.epoch, key.sample)
            samples.append(draw.for_training(dataset[i], key))
        return batch_of(dataset, own, samples, pad=draw.pad, one_at_a_time="trainer.max_batch_size=1")

    workers = min(num_workers, 1) if isinstance(dataset, OwnStream) else num_workers
    return _loader(read, order, workers, pin_memory, patience)


def evaluation_batches(
    dataset: Dataset,
    batches: Sequence[Sequence[int]],
    draw: PointSampler,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
    patience: Patience = FOR_EVER,
) -> Iterator[Batch]:
    """Yield batches of samples as `draw.for_evaluation` returns them; `batches` gives the indices of each batch."""

    def read(own: Sequence[int]) -> Batch:
        samples = [draw.for_evaluation(dataset[i]) for i in own]
        return batch_of(dataset, own, samples, pad=draw.pad, one_at_a_time="trainer.evaluation_batch_size=1")

    return _loader(read, batches, num_workers, pin_memory, patience)


@dataclass(frozen=True)
class _Batches:
    """Gives a DataLoader whole batches, so that a memory-mapped data set is read once for each batch."""

    read: Callable[[Any], Batch]

    def __getitem__(self, entries: Any) -> Batch:
        return self.read(entries)


def _loader(
    read: Callable[[Any], Batch], batches: Any, num_workers: int, pin_memory: bool, patience: Patience
) -> Iterator[Batch]:
    if not num_workers and not pin_memory:
        # This yields what a DataLoader would, without its overhead for each batch.
        return map(read, batches)
    loader: Iterable[Batch] = DataLoader(
        _Batches(read),  # type: ignore[arg-type]
        sampler=batches,
        batch_size=None,
        num_workers=num_workers,
        pin_memory=pin_memory,
        timeout=BATCH_POLL_S if num_workers else 0,
        worker_init_fn=_start_loader_worker,
        multiprocessing_context=_FORK if num_workers else None,
        # A separate generator: every new iterator draws a seed, which would advance the run's random numbers, and a
        # resumed run creates its iterators at other times.
        generator=torch.Generator(),
    )
    return awaited(iter(loader), patience)


def seed_everything(seed: int, *stream: int) -> None:
    """Seed every global random number generator from the run's seed and the integers `stream` (rank, attempt, …)."""
    sequence = np.random.SeedSequence([seed, *stream])
    words = [int(word) for word in sequence.generate_state(3, np.uint32)]
    random.seed(words[0])
    np.random.seed(words[1])
    torch.manual_seed(words[2])


def _start_loader_worker(worker: int) -> None:
    # A rank killed by SIGKILL must not leave readers that hold its memory and its device.
    die_with_parent()
    # A scheduler signals every process of a step, but the rank decides when to stop and needs its readers until then.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def training_order(dataset: Dataset, indices: Sequence[int], effective_batch_size: int, seed: int) -> GlobalOrder:
    """Return the order of a run's samples: a permutation, a stream's order, or the draws of the data set's `sampler`.

    RequestError: the sampler is not reproducible, varies in length between epochs, or draws outside `indices`.
    """
    if isinstance(dataset, OwnStream):
        return GlobalOrder(len(indices), effective_batch_size, seed, lambda epoch: range(len(indices)))
    own: Any = getattr(dataset, "sampler", None)
    if own is None:
        return GlobalOrder(len(indices), effective_batch_size, seed)
    places = {index: place for place, index in enumerate(indices)}

    def draw(epoch: int) -> list[int]:
        words = np.random.SeedSequence([seed, epoch]).generate_state(1)
        return [int(index) for index in own(list(indices), torch.Generator().manual_seed(int(words[0])))]

    @lru_cache(maxsize=2)
    def drawn(epoch: int) -> np.ndarray:
        found = draw(epoch)
        strange = [f"sample {index}" for index in found if index not in places]
        if strange or len(found) != count or found != draw(epoch):
            raise RequestError(
                "sampler-unusable", "the data set's sampler does not return a reproducible order",
                seen=strange[0] if strange else f"{count} samples, then {len(found)} or other samples in epoch {epoch}",
                expected="the same number of `indices` in every epoch, drawn only with `generator`",
                fix="return torch.tensor(indices)[torch.randperm(len(indices), generator=generator)]",
            )  # fmt: skip
        return np.array([places[index] for index in found])

    count = len(draw(0))
    return GlobalOrder(len(drawn(0)), effective_batch_size, seed, drawn)


def batch_of(
    dataset: Dataset, indices: Sequence[int], samples: Sequence[Sample], *, pad: bool = False, one_at_a_time: str = ""
) -> Batch:
    """Make a batch of samples by the data set's own `collate` or, if it has none, by `stack_samples`."""
    own: Any = getattr(dataset, "collate", None)
    made: Any = stack_samples(samples, pad=pad, one_at_a_time=one_at_a_time) if own is None else own(samples)
    batch = made if isinstance(made, Mapping) else {"what it returns": str(type(made))}
    for key, value in batch.items() if own is not None else ():
        if key == "index" or not isinstance(value, Tensor) or value.shape[:1] != (len(samples),):
            raise RequestError("collate-unusable", "the data set's collate does not return a batch",
                               seen=f"{key}: {tuple(value.shape) if isinstance(value, Tensor) else value}"[:100],
                               expected=f"a dictionary of tensors with a row for each sample, ({len(samples)}, …)"
                               + " under other keys than index" * (key == "index"),
                               fix='return {"KEY": torch.stack([sample["KEY"] for sample in samples])}')  # fmt: skip
    return {**batch, "index": torch.tensor(indices)}


def stack_samples(samples: Sequence[Sample], *, pad: bool = False, one_at_a_time: str = "") -> Batch:
    """Stack samples along a new first axis. With `pad`, pad samples to equal numbers of points, and add masks.

    RequestError: the samples differ in their keys or in the shape of an array. `one_at_a_time` is the setting that the
    error suggests, for batches of one sample.
    """
    samples = pad_samples(samples) if pad else samples
    first = samples[0]
    for sample in samples[1:]:
        if sample.keys() != first.keys():
            odd = sorted(set(sample) ^ set(first))
            raise RequestError(
                "batch-keys-differ", "samples of one batch differ in their keys",
                seen=f"{', '.join(odd)} in some of them only", expected="the same keys in every sample",
                fix="noether data describe      (names such samples); then give every sample the same keys",
            )  # fmt: skip
    try:
        return {key: torch.stack([sample[key] for sample in samples]) for key in first}
    except RuntimeError:
        for key in first:
            shapes = {tuple(sample[key].shape) for sample in samples}
            if len(shapes) > 1:
                raise RequestError(
                    "batch-shapes-differ", f"samples of one batch differ in the shape of {key}",
                    seen=", ".join(str(shape) for shape in sorted(shapes)),
                    expected="one shape in every sample; if model and task have reads_masks = True, SET_points and\n"
                    "the arrays with a row for each of these points may differ in their number of rows",
                    fix=f"{one_at_a_time or 'use a batch size of 1'}      (one sample in each batch)\n"
                    "def collate(self, samples) in your data set      (makes a padded batch, with a mask)",
                ) from None  # fmt: skip
        raise


def to_device(batch: Batch, device: torch.device, dtype: torch.dtype) -> Batch:
    """Move a batch to a device, and convert each of its tensors to the type that `type_like` gives for `dtype`."""
    return {key: value.to(device, type_like(value, dtype), non_blocking=True) for key, value in batch.items()}


def type_like(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return `dtype` for a real tensor, the complex form of `dtype` for a complex one; integers keep their type."""
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype
