"""Samples → batches: what each rank reads, in which order, by how many processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from noether.common.signals import STOP_SIGNALS
from noether.data.order import RankOrder, SampleKey
from noether.data.padding import pad_samples
from noether.data.points import PointDraw, Sample
from noether.errors import RequestError
from noether.workers.death_signal import die_with_parent

# Loader processes are forked, even in a rank that a fork server started: started by the server too, they would import
# torch again, which takes seconds in each evaluation. They do no arithmetic that needs threads.
_FORK = "fork" if "fork" in multiprocessing.get_all_start_methods() else None

Batch = dict[str, Tensor]
"""Samples stacked along a new first axis; `index` (B,) holds their indices in the data set."""


class Dataset(Protocol):
    """What a data set must offer; the user's own too."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


class _TrainingReader:
    """Reads whole micro-batches, so that a memory-mapped data set is asked once a batch."""

    def __init__(self, dataset: Dataset, indices: Sequence[int], draw: PointDraw) -> None:
        self.dataset, self.indices, self.draw = dataset, indices, draw

    def __getitems__(self, keys: list[SampleKey]) -> Batch:
        own = [self.indices[key.sample] for key in keys]
        samples = [self.draw.for_training(self.dataset[i], key) for i, key in zip(own, keys, strict=True)]
        stacked = stack_samples(samples, pad=self.draw.pad, one_at_a_time="trainer.max_batch_size=1")
        return {**stacked, "index": torch.tensor(own)}


class _EvaluationReader:
    def __init__(self, dataset: Dataset, draw: PointDraw) -> None:
        self.dataset, self.draw = dataset, draw

    def __getitems__(self, indices: list[int]) -> Batch:
        samples = [self.draw.for_evaluation(self.dataset[i]) for i in indices]
        stacked = stack_samples(samples, pad=self.draw.pad, one_at_a_time="trainer.evaluation_batch_size=1")
        return {**stacked, "index": torch.tensor(indices)}


def training_batches(
    dataset: Dataset,
    indices: Sequence[int],
    order: RankOrder,
    draw: PointDraw,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Yields this rank's micro-batches in order.

    Args:
        dataset: the training split.
        indices: positions in the data set of the samples that `order` counts (the split without validation).
        order: which samples, in which order.
        draw: which of their points.
        num_workers: reading processes; 0 reads in this one.
        pin_memory: page-lock the batches, for asynchronous copies to a GPU.
    """
    return iter(_loader(_TrainingReader(dataset, indices, draw), order, num_workers, pin_memory))


def evaluation_batches(
    dataset: Dataset,
    indices: Sequence[int],
    batch_size: int,
    draw: PointDraw,
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Yields the given samples, each exactly once, with all their points."""
    batches = [list(indices[start : start + batch_size]) for start in range(0, len(indices), batch_size)]
    return iter(_loader(_EvaluationReader(dataset, draw), batches, num_workers, pin_memory))


def _loader(reader: Any, batches: Any, num_workers: int, pin_memory: bool) -> Iterable[Batch]:
    if not num_workers and not pin_memory:
        # As a DataLoader would, without what it does around each batch.
        return (reader.__getitems__(batch) for batch in batches)
    start: Callable[[int], None] | None = _start_loader_worker if num_workers else None
    return DataLoader(
        reader,
        batch_sampler=batches,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=_already_stacked,
        worker_init_fn=start,
        multiprocessing_context=_FORK if num_workers else None,
        # Of its own: every new iterator draws a seed, which would move the run's random numbers, and a resumed
        # run makes its iterators at other times.
        generator=torch.Generator(),
    )


def _already_stacked(batch: Any) -> Any:
    return batch


def _start_loader_worker(worker: int) -> None:
    # A rank ended by SIGKILL must not leave readers behind that hold its memory and its device.
    die_with_parent()
    # A scheduler signals every process of a step: the rank decides when to stop, and needs its readers until then.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def stack_samples(samples: Sequence[Sample], *, pad: bool = False, one_at_a_time: str = "") -> Batch:
    """Stacks samples along a new first axis; with `pad`, samples of differing numbers of points too, with masks.

    Args:
        samples: the samples of a batch.
        pad: whether model and task read masks.
        one_at_a_time: the setting that makes batches of one sample, for the message.

    Raises:
        RequestError: where samples differ in their keys or in the shape of one, naming it.
    """
    samples = pad_samples(samples) if pad else samples
    first = samples[0]
    for sample in samples[1:]:
        if sample.keys() != first.keys():
            odd = sorted(set(sample) ^ set(first))
            raise RequestError(
                "samples of one batch differ in their keys",
                seen=f"{', '.join(odd)} in some of them only",
                expected="the same keys in every sample",
                fix="give every sample the same keys" + (f", or {one_at_a_time}" if one_at_a_time else ""),
            )
    try:
        return {key: torch.stack([sample[key] for sample in samples]) for key in first}
    except RuntimeError:
        for key in first:
            shapes = {tuple(sample[key].shape) for sample in samples}
            if len(shapes) > 1:
                raise RequestError(
                    f"samples of one batch differ in the shape of {key}",
                    seen=", ".join(str(shape) for shape in sorted(shapes)),
                    expected="one shape, or a model and a task that read masks (reads_masks = True)",
                    fix=f"{one_at_a_time}      (one sample at a time)" if one_at_a_time else "one sample at a time",
                ) from None
        raise


def to_device(batch: Batch, device: torch.device, dtype: torch.dtype) -> Batch:
    """Moves a batch to a device; real tensors become `dtype`, complex ones its complex kind, integers stay."""
    return {key: value.to(device, type_like(value, dtype), non_blocking=True) for key, value in batch.items()}


def type_like(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which a tensor has the precision of `dtype`: real or complex as it is; integers stay."""
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype
