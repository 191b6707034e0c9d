"""The state from which a run resumes bit for bit: weights, EMA weights, optimiser, scaler, random states."""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator, TypeAdapter
from safetensors.torch import load_file
from torch import Tensor, nn

from noether.checkpoints.format import META, WEIGHTS, CheckpointFolder
from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.core.data.loader import seed_everything
from noether.core.models.build import TensorModel
from noether.core.tasks.base import Task
from noether.launch.process_group.group import Group
from noether.launch.process_group.torch_internals import foreach
from noether.runs.continue_line import continue_line
from noether.runs.metrics import weights_name
from noether.runs.records import parse_object


class EmaWeights:
    """An exponential moving average (EMA) of a model's weights, kept in a copy of the model.

    At the n-th update, the decay is min(decay, (1 + n) / (10 + n)), which is smaller during the first updates.
    Therefore the random initial weights are forgotten after a few hundred updates, however large `decay` is.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._followed: nn.Module | None = None

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Move the average towards `model`, which has made `updates` updates."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        if self._followed is not model:
            # Collect the tensors only once: that takes as long as an update of a small model.
            self._followed = model
            self._ema = [parameter.detach() for parameter in self.model.parameters()]
            self._weights = [parameter.detach() for parameter in model.parameters()]
            self._own_buffers, self._buffers = list(self.model.buffers()), list(model.buffers())
        foreach.lerp_(self._ema, self._weights, 1 - decay)
        if self._buffers:
            foreach.copy_(self._own_buffers, self._buffers)


@dataclass
class Progress:
    """The progress of a run: `updates` counts complete updates, and `samples` their samples over all ranks.

    best_metric: the best value of the selection metric so far, as measured.
    rows: number of rows in the history, without the rows that are written after the checkpoint of their update.
    evaluations_without_improvement: number of consecutive evaluations without a better selection metric.
    ended: whether a callback has ended the run.
    followed: the selection metrics passed so far to a schedule that depends on them (torch's ReduceLROnPlateau).
    evaluation_pending: whether a stop cut short this update's evaluation; if so, a resumed run evaluates first.
    """

    updates: int = 0
    samples: int = 0
    best_metric: float | None = None
    skipped_in_a_row: int = 0
    rows: int = 0
    evaluation_pending: bool = False
    evaluations_without_improvement: int = 0
    ended: bool = False
    followed: list[float] = field(default_factory=list)


@dataclass
class TrainingState:
    """Everything that changes while a run trains. `model` is the plain module, not wrapped in DDP or compiled."""

    model: nn.Module
    ema: EmaWeights | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    task: Task
    progress: Progress

    @property
    def selected_weights(self) -> str:
        """The kind of weights whose metrics select checkpoints and are reported for the run."""
        return next(iter(self.evaluation_models()))

    def evaluation_models(self) -> dict[str, nn.Module]:
        """Return the models to evaluate, keyed by kind of weights; the selected kind comes first."""
        models = {"raw": self.model}
        return {"ema": self.ema.model, **models} if self.ema else models


def saved_tensors(state: TrainingState) -> dict[str, dict[str, Tensor]]:
    """Return a checkpoint's tensors by file and tensor name. They share the memory of the state's tensors."""
    tensors = {WEIGHTS[kind]: model_tensors(model) for kind, model in state.evaluation_models().items()}
    kept = ((name, value) for name, value in _optimizer_state(state) if isinstance(value, Tensor))
    tensors["optimizer.safetensors"] = dict(kept)
    return {file: {name: _for_file(value) for name, value in own.items()} for file, own in tensors.items()}


def saved_texts(state: TrainingState) -> dict[str, str]:
    """Return the text of a checkpoint's JSON files by file name: the counters, and the task's statistics."""
    # Store Python numbers as JSON: a tensor would be less exact.
    numbers = {name: value for name, value in _optimizer_state(state) if isinstance(value, (int, float))}
    optimizer = {"numbers": numbers, "groups": _changed_groups(state.optimizer)}
    counters = {"progress": asdict(state.progress), "scaler": state.scaler.state_dict(), "optimizer": optimizer}
    return {"state.json": json.dumps(counters, indent=2), "task.json": json.dumps(state.task.state(), indent=2)}


def state_bytes(state: TrainingState) -> int:
    """Estimate a checkpoint's size in bytes: weights, EMA weights, and two moments of the optimiser."""
    return sum(parameter.nbytes for parameter in state.model.parameters()) * (4 if state.ema else 3)


def load_checkpoint(state: TrainingState, group: Group, checkpoint: CheckpointFolder, seed: int) -> None:
    """Load a checkpoint into a state built from the same settings. Every rank calls this."""
    load_weights(state.model, checkpoint, "raw")
    if state.ema is not None:
        load_weights(state.ema.model, checkpoint, "ema")
    with checkpoint.loading("optimizer.safetensors") as path:
        _load_optimizer(state, load_file(path))
    with checkpoint.loading("state.json") as path:
        counters = parse_object(path.read_bytes())
        state.progress = PROGRESS.validate_python(counters["progress"])
        if state.progress.updates != checkpoint.updates:
            raise ValueError(f"update {state.progress.updates} in {checkpoint.path.name}")
        state.scaler.load_state_dict(counters["scaler"])
        parameters, kept = dict(state.model.named_parameters()), counters["optimizer"]
        for path, number in kept["numbers"].items():
            name, _, key = path.rpartition("/")
            state.optimizer.state[parameters[name]][key] = number
        for settings, changed in zip(state.optimizer.param_groups, kept["groups"], strict=False):
            settings.update(changed)
    load_task_state(state.task, checkpoint)
    if checkpoint.meta()["world_size"] == group.world_size:
        with checkpoint.loading("random.safetensors") as path:
            _restore_random_state(load_file(path), group)
    else:
        # The number of ranks has changed: seed the ranks afresh for this update.
        seed_everything(seed, group.rank, state.progress.updates)


def load_weights(model: nn.Module, checkpoint: CheckpointFolder, weights: str) -> None:
    """Load the `raw` or `ema` weights of a checkpoint into a model.

    RequestError: the checkpoint was written by another model, lacks these weights, or is damaged.
    """
    file, named = WEIGHTS[weights], weights_name(weights)
    if weights not in checkpoint.weights:
        raise RequestError("no-such-weights", f"checkpoint {checkpoint.path.name} has no {named}",
                           seen=f"no {file} in {checkpoint.path}",
                           expected="a run that has used EMA weights from its start",
                           fix="trainer.ema_decay=null")  # fmt: skip
    with checkpoint.loading(file) as path:
        tensors = load_file(path)
    try:
        own = model_tensors(model)
        load_tensors(model, {name: _as_kept(value, own.get(name)) for name, value in tensors.items()})
    except RuntimeError as error:
        # torch lists every key that differs; the first is enough.
        run = checkpoint.path.parent.parent
        differing = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        kind = type(model.model if isinstance(model, TensorModel) else model)
        fix = f"{continue_line(run)}      (config.yaml was edited: the model of {checkpoint.path / META})"
        if not kind.__module__.startswith("noether."):
            fix = f"{kind.__qualname__} of {kind.__module__} as it was at that time      (or run_id=ANOTHER_NAME)"
        raise RequestError("checkpoint-of-another-model",
                           f"checkpoint {checkpoint.path.name} was written by another model",
                           seen=differing[0] + (f"  (and {len(differing) - 1} more)" if len(differing) > 1 else ""),
                           expected="the model of the run that is resumed", fix=fix) from None  # fmt: skip


def load_task_state(task: Task, checkpoint: CheckpointFolder) -> None:
    """Restore a task's statistics of the training split."""
    with checkpoint.loading("task.json") as path:
        content = parse_object(path.read_bytes())
        # After an accepted change of settings, a task may have other entries. The entries that both the checkpoint and
        # the task contain must have the same structure, both before the load (fitted here) and after it.
        for fitted in (True, False):
            known = {key: value for key, value in json.loads(json.dumps(task.state())).items() if key in content}
            here, there = set(_shapes(known)), set(_shapes({key: content[key] for key in known}))
            if any(known.values()) and (strange := (there - here) or (fitted and here - there)):
                place, kind = min(strange)
                raise ValueError(
                    f"{place} ({kind}) is only {'in this program' if (place, kind) in here else 'in the checkpoint'}"
                )
            task.load_state(content)


def _shapes(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the type of every value in JSON content; treat int and float as one type."""
    yield place, "number" if type(value) in (int, float) else type(value).__name__
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _shapes(part, f"{place}.{key}".removeprefix("."))


FIRST_NAMES = {"evaluations_in_vain": "evaluations_without_improvement"}
"""The current names of renamed counters, by the name that checkpoints of older versions contain."""
PROGRESS = TypeAdapter(
    Annotated[Progress, BeforeValidator(lambda read: {FIRST_NAMES.get(key, key): value for key, value in read.items()})]
)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name.

    A state_dict may contain extra state (get_extra_state): neuraloperator's models store their options there, and
    Transformer Engine's models their scaling factors. Checkpoints omit this state, and a resumed run reports it.
    """
    return {name: value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def load_tensors(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load a model's parameters and buffers, but no extra state. RuntimeError: names or shapes differ."""
    extra = {name: value for name, value in model.state_dict().items() if name.endswith("_extra_state")}
    model.load_state_dict({**extra, **tensors})


def _for_file(value: Tensor) -> Tensor:
    """Return a tensor that safetensors can store: complex128 becomes pairs (…, 2) of float64."""
    return torch.view_as_real(value.detach()) if value.dtype == torch.complex128 else value.detach()


def _as_kept(value: Tensor, own: Tensor | None) -> Tensor:
    """Undo `_for_file` for a tensor that will be loaded into `own`."""
    pairs = own is not None and own.dtype == torch.complex128 and value.shape == (*own.shape, 2)
    return torch.view_as_complex(value) if pairs else value


def _optimizer_state(state: TrainingState) -> Iterator[tuple[str, Any]]:
    """Yield the optimiser's state as pairs ("PARAMETER/KEY", value)."""
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def group_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the settings of an optimiser's parameter groups, without the learning rate, which the schedule sets."""
    given = ("params", "lr")
    return [{key: kept for key, kept in group.items() if key not in given} for group in optimizer.param_groups]


def _changed_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the group settings that a user's optimiser, such as Prodigy, has changed since it was built."""
    if (built := getattr(optimizer, "built_groups", None)) is None:
        return []
    pairs = zip(group_settings(optimizer), built, strict=True)
    return [{key: kept for key, kept in now.items() if key not in first or kept != first[key]} for now, first in pairs]


def _load_optimizer(state: TrainingState, tensors: dict[str, Tensor]) -> None:
    names = dict(state.model.named_parameters())
    if strange := [key for key in tensors if key.rpartition("/")[0] not in names]:
        raise ValueError(f"the model has no parameter of {first_of(sorted(strange), 5)}")
    # Keep counters ("step") where torch creates them: on the CPU, unless the optimiser is fused or capturable.
    counts_on_device = any(state.optimizer.defaults.get(option) for option in ("fused", "capturable"))
    needed = getattr(state.optimizer, "needed_state", None)  # A user's own optimiser checks its state itself.
    for name, parameter in names.items():
        prefix = f"{name}/"
        named = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        own = {key: _as_kept(value, parameter) for key, value in named.items()}
        for key, value in own.items():
            if needed is not None and value.ndim and value.shape != parameter.shape:
                raise ValueError(f"{name}/{key} of shape {tuple(value.shape)}, not {tuple(parameter.shape)}")
        if own and needed is not None and (lacking := set(needed(parameter)) - own.keys()):
            raise ValueError(f"{name} lacks {', '.join(sorted(lacking))}")
        if own:
            state.optimizer.state[parameter] = {
                key: value.to(parameter.device) if value.ndim or counts_on_device else value
                for key, value in own.items()
            }


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of all random number generators of this rank, as tensors by name."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    own = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor([float("nan") if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    return own


def _restore_random_state(tensors: dict[str, Tensor], group: Group) -> None:
    prefix = f"rank{group.rank}/"
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    torch.set_rng_state(own["torch"])
    version, *words = own["python"].tolist()
    gauss = own["python_gauss"].item()
    random.setstate((version, tuple(words), None if gauss != gauss else gauss))
    *keys, position, has_gauss = own["numpy"].tolist()
    cached = own["numpy_gauss"].item()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    if group.device.type == "cuda" and "cuda" in own:
        torch.cuda.set_rng_state(own["cuda"], group.device)
