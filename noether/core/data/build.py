"""Find the data set that `dataset.kind` names, with its files and splits. Importing this module does not import torch.

Each built-in data set has a line in `noether/registry.py`.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from noether.common.console import Console
from noether.common.dotted_path import load_object
from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.config.section import Interval
from noether.config.sections_by_kind import CustomDatasetConfig
from noether.core.components import Component
from noether.core.data.shared_work import Progress, silent
from noether.registry import code_of

if TYPE_CHECKING:
    from noether.core.data.loader import Dataset

EXAMPLE = 'return {"KEY": torch.as_tensor(VALUES)} from __getitem__'


class OwnDataset:
    """Wraps the user's data set that the dotted path `kind` names; turns its NumPy arrays and numbers into tensors."""

    def __init__(self, dataset: Any, kind: str) -> None:
        self.dataset, self.kind = dataset, kind

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "kind"):  # While unpickling, `dataset` is not set yet.
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample as a dictionary of tensors. RequestError: it cannot be converted."""
        from torch import Tensor

        sample = self._read(index)
        if not isinstance(sample, Mapping):
            raise RequestError("sample-not-a-dictionary", f"a sample of {self.kind} is not a dictionary",
                               seen=f"sample {index} is a {type(sample).__name__}",
                               expected="named tensors: the model's inputs and the task's targets",
                               fix=EXAMPLE)  # fmt: skip
        if "index" in sample:
            raise RequestError("sample-key-reserved", f"samples of {self.kind} use a key that is reserved for batches",
                               seen="index", expected="other keys; in a batch, `index` (B,) contains sample indices",
                               fix="rename 'index' in __getitem__, and where the model or task reads it")  # fmt: skip
        return {
            str(key): value if isinstance(value, Tensor) else self._tensor(key, value, index)
            for key, value in sample.items()
        }

    def _read(self, index: int) -> Any:
        return self.dataset[index]

    def _tensor(self, key: str, value: Any, index: int) -> Any:
        import torch

        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            with suppress(TypeError):  # numbers longer than 64 bits
                return torch.as_tensor(np.array(value, value.dtype.newbyteorder("=")))
        if isinstance(value, (bool, int, float, complex)):
            return torch.tensor(value)
        what = f"a {type(value).__name__}" + (f" of {value.dtype}" if isinstance(value, np.ndarray) else "")
        raise RequestError("sample-not-a-tensor", f"{key} of the samples of {self.kind} is not a tensor",
                           seen=f"sample {index}: {key} is {what}",
                           expected="a tensor, a NumPy array of numbers, or a number",
                           fix=f"leave {key!r} out of the samples, or {EXAMPLE}")  # fmt: skip


STREAM_KNOWN, STREAM_KEPT = 1000, 10_000
"""The number of a stream's samples used for statistics, and the maximum number of samples in an evaluated split."""


class OwnStream(OwnDataset):
    """Access to a user's stream by index: reads ahead to the requested sample, or restarts from the beginning.

    samples: the number of training samples; for a stream without a length, the number that the run needs.
    kept: the samples of an evaluated split, in memory; their indices begin at `samples`.
    """

    def __init__(self, dataset: Any, kind: str, samples: int, kept: Sequence[Any]) -> None:
        super().__init__(dataset, kind)
        self.samples, self.kept = samples, kept
        self._reading: Iterator[Any] = iter(())
        self._next, self._process = 0, 0

    def __len__(self) -> int:
        return self.samples + len(self.kept)

    def _read(self, index: int) -> Any:
        if index >= self.samples:
            return self.kept[index - self.samples]
        if index < self._next or self._process != os.getpid():  # A forked process would share the stream's open files.
            self._reading, self._next, self._process = self._on_and_on(), 0, os.getpid()
        sample = next(islice(self._reading, index - self._next, None))
        self._next = index + 1
        return sample

    def _on_and_on(self) -> Iterator[Any]:
        read, before = 0, -1
        while read > before and not inspect.isgenerator(self.dataset):  # A generator can be read only once.
            before = read
            for sample in self.dataset:
                read += 1
                yield sample
        raise RequestError("stream-ended", f"{self.kind} gives no samples", seen=f"{read} samples, then no more",
                           expected="an __iter__ that starts at the first sample in every call",
                           fix="def __iter__(self): ...      (opens its source, and yields samples)")  # fmt: skip


def is_stream(own: Any) -> bool:
    """Return whether a data set, or its class, yields samples in sequence instead of returning them by index."""
    kind = own if isinstance(own, type) else type(own)
    by_number = all(getattr(kind, name, None) is not None for name in ("__len__", "__getitem__"))
    named = any(base.__name__ == "IterableDataset" for base in kind.__mro__)  # torch's has a __getitem__ that raises.
    return hasattr(kind, "__iter__") and (named or not by_number)


def check_stream_length(own: Any, config: RunConfig) -> None:
    """Refuse a training length or an interval in epochs if the data set is a stream without a length."""
    if not is_stream(own) or hasattr(own, "__len__"):
        return
    settings = {f"{at}.{name}": value for at in ("trainer", "schedule") for name, value in getattr(config, at)}
    every = [name for name, value in settings.items() if isinstance(value, Interval) and value.unit == "epochs"]
    whole = ["trainer.max_epochs"] if config.trainer.max_epochs is not None else []
    if every or whole:
        raise RequestError(
            "stream-without-length", "a stream that has no length has no epochs",
            seen=", ".join(f"{name}={settings[name]}" for name in whole + every),
            expected="a length in updates or samples, or a stream with __len__",
            fix=" ".join(["trainer.max_updates=1000 trainer.max_epochs=null"] * len(whole)
                         + [f"'{name}=100 updates'" for name in every]),
        )  # fmt: skip


@dataclass(frozen=True)
class Splits:
    """The splits of a data set; the validation split consists of samples of `train`.

    validation: the indices in `train` that the data set itself holds out; None: the configuration holds out a share.
    """

    train: "Dataset"
    test: "Dataset"
    validation: Sequence[int] | None = None


@dataclass(frozen=True)
class DataSource:
    """The functions that provide the samples of a kind of data set.

    check: refuses a wrong dataset_root quickly, without making files or reading samples; takes the dataset section and
        dataset_root.
    open: opens both splits, in every worker; takes the dataset section and the folder or file of the data.
    prepare: makes missing files and verifies existing ones, once, in the parent process, without torch; takes the
        dataset section, dataset_root, which has passed `check`, and a Progress; returns the path that `open` reads.
        None: nothing is made, and `open` reads dataset_root.
    without_root: the text that `noether data describe` prints as the place of the data if there is no dataset_root.
    """

    check: Callable[[Any, Path | None], object]
    open: Callable[[Any, Any], Splits]
    prepare: Callable[[Any, Any, Progress], Path] | None = None
    without_root: str = "made by its own code"


def prepare_data(config: RunConfig, progress: Progress = silent) -> Path | None:
    """Make missing data and check existing data, before any worker starts.

    Return the folder of the data or its packed file; None if a user's data set has no dataset_root.
    RequestError: `dataset_root` lacks the data.
    """
    source, root = data_source(config), _root(config)
    source.check(config.dataset, root)
    return root if source.prepare is None else source.prepare(config.dataset, root, progress)


def check_data(config: RunConfig) -> None:
    """Refuse a `dataset_root` that `prepare_data` would refuse, without making or reading data."""
    data_source(config).check(config.dataset, _root(config))


def open_splits(config: RunConfig, folder: Path | None) -> Splits:
    """Open the training and the test split at the path that `prepare_data` returned."""
    return data_source(config).open(config.dataset, folder)


def data_source(config: RunConfig) -> DataSource:
    """Return the source of the configured kind of data; a dotted path names a user's data set."""
    kind, ours = config.dataset.kind, code_of("dataset")
    found: DataSource = load_object(kind, "dataset.kind", ours) if kind in ours else OWN_DATA
    return found


def _root(config: RunConfig) -> Path | None:
    return config.dataset_root.expanduser() if config.dataset_root else None


def own_dataset(dataset: CustomDatasetConfig, split: str, folder: Path | None) -> Component:
    """Return one split of the user's data set, as a component to build."""
    calls = {"__len__": (), "__getitem__": ("index",)}
    needed = {"__len__": ("the number of samples", "__iter__"),
              "__getitem__": ("the sample at this index, a dictionary", "__iter__")}  # fmt: skip
    given = {"split": split, "root": folder}
    return Component("dataset", dataset.kind, dataset.options(), given=given, calls=calls, needed=needed)


def _open_own(dataset: CustomDatasetConfig, folder: Path | None) -> Splits:
    splits = {}
    for name in ("train", "test"):
        built = own_dataset(dataset, name, folder).build()
        _check_batching(built, dataset.kind)
        splits[name] = OwnDataset(built, dataset.kind)
        if is_stream(built):
            splits[name] = _open_stream(built, name, dataset, folder)
        if not len(splits[name]):
            raise RequestError("empty-split", f"the {name} split of {dataset.kind} is empty", seen="0 samples",
                               expected="at least one",
                               fix=f"give {dataset.kind} samples for split={name!r}")  # fmt: skip
    return Splits(splits["train"], splits["test"])


def _open_stream(built: Any, split: str, dataset: CustomDatasetConfig, folder: Path | None) -> OwnStream:
    """Return the training stream with the validation split in memory, or the whole test split in memory."""
    kept, samples = built, 0
    if split == "train":
        kept = own_dataset(dataset, "validation", folder).build() if dataset.validation_fraction else ()
        split, samples = "validation", len(built) if hasattr(built, "__len__") else STREAM_KNOWN
    kept = list(islice(kept, STREAM_KEPT + 1)) if is_stream(kept) else kept
    if len(kept) > STREAM_KEPT:
        raise RequestError("stream-too-long", f"the {split} split of {dataset.kind} does not fit into memory",
                           seen=f"more than {STREAM_KEPT} samples", expected="a split that fits into memory",
                           fix=f"yield from itertools.islice(SAMPLES, 1000)      (if split == {split!r})")  # fmt: skip
    return OwnStream(built, dataset.kind, samples, kept)


TAKES = {"collate": ("samples",), "sampler": ("indices", "generator")}
UNCALLED = {"collate_fn": "collate", "batch_sampler": "sampler", "worker_init_fn": "__getitem__"}
"""{argument of PyTorch's DataLoader: the data set's method that replaces it here}"""


def _check_batching(built: Any, kind: str) -> None:
    """Refuse a data set with DataLoader hooks that noether does not call: training would use other batches."""
    # torch's Subset and ConcatDataset hide the attributes of the data sets in them.
    inside = vars(built) if type(built).__module__ == "torch.utils.data.dataset" else {}
    hidden = [inside.get("dataset"), *inside.get("datasets", ())]
    takes = {"collate": TAKES["collate"], "__iter__": ()} if is_stream(built) else TAKES | {"__getitem__": ("index",)}
    for name in (*TAKES, *UNCALLED):
        own: Any = getattr(built, name, None)
        instead = UNCALLED.get(name, name)
        instead = instead if instead in takes else "__iter__"
        with suppress(TypeError, KeyError):
            inspect.signature(own).bind(*takes[name])
            own = own if isinstance(own, type) else None
        if own is not None or any(hasattr(one, name) for one in hidden):
            raise RequestError(
                "dataset-batching-unused", f"{kind} has a {name} that nothing would call",
                seen=repr(own or hidden)[:100],
                expected="collate(samples) or sampler(indices, generator) instead; a stream can have only collate",
                fix=f"def {instead}({', '.join(['self', *takes[instead]])}) in {kind}",
            )  # fmt: skip


def check_folder(dataset: Any, root: Path | None) -> None:
    """Refuse a dataset_root that is not a folder."""
    if root is not None and not root.is_dir():
        raise RequestError("dataset-root-not-a-folder", f"dataset_root={root} is not a folder",
                           seen="no such folder" if not root.exists() else "a file",
                           expected=f"the folder that {dataset.kind} reads", fix="dataset_root=FOLDER",
                           mount=str(root.absolute()))  # fmt: skip


OWN_DATA = DataSource(check_folder, _open_own)
"""A user's data set, which `dataset.kind` names by dotted path."""


def prepare_with_bar(config: RunConfig, console: Console) -> Path | None:
    """Call `prepare_data` and show its progress."""
    with progress_bar(console, "preparing the data", "samples") as report:
        return prepare_data(config, report)


@contextmanager
def progress_bar(console: Console, what: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, or else print a line after each tenth; yield the function that reports progress."""
    parts = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(f"{things}, left"), TimeRemainingColumn())
    progress = ProgressBar(*parts, console=console.terminal, disable=not console.is_live, transient=True)
    bar = progress.add_task(what, total=None)
    last = -1

    def report(done: int, total: int) -> None:
        nonlocal last
        if last < 0:
            progress.start()
        progress.update(bar, completed=done, total=total)
        tenth = 10 * done // max(total, 1)
        if not console.is_live and tenth > last and total > 20:
            console.say(f"{what}: {done} of {total} {things}")
        last = max(last, tenth)

    try:
        yield report
    finally:
        progress.stop()
