"""An update, an evaluation, a prediction and a snapshot on a simulated GPU never wait for it and never mix devices.

Torch's FakeTensorMode gives tensors that have a device and a shape but no values. It needs a torch built for CUDA, but
no driver. An operation that mixes devices raises an error. So does an operation that needs a value (`item`,
`bool(tensor)`, `nonzero`), which on a GPU waits for all earlier work. Copies that wait raise no error: they are
recorded here, with the line of noether that makes them.

This cannot test the kernels, memory, NCCL, or the backward pass, whose engine asks the driver for streams. Gradients of
each parameter's shape are made by hand instead.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import noether
from noether.checkpoints.state import EmaWeights, Progress, TrainingState, saved_tensors
from noether.checkpoints.writer import StagingBuffer
from noether.config.compose import load_config
from noether.core.data.build import prepare_data
from noether.core.data.loader import evaluation_batches, to_device, training_batches
from noether.core.data.order import GlobalOrder, RankOrder
from noether.core.evaluate import predict
from noether.core.precision import choose_precision, evaluation_mode
from noether.core.problem import build_problem
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.training.optimizers import build_optimizer
from noether.training.update import Updater

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None, reason="needs torch for CUDA, which `make fake-gpu` installs"),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
    pytest.mark.filterwarnings("error:.*Disabling autocast"),
]

POINTS = "dataset.points_per_update={surface: 256, volume: 256}"
PROBLEMS = {
    "upt": ["model=upt_small", POINTS],
    "ab-upt": ["model=ab_upt_small", POINTS],
    "transformer": ["model=transformer_small", POINTS],
    "transolver": ["model=transolver_small", POINTS],
    "mlp": ["model=mlp", POINTS],
    "published-upt": ["model=upt", POINTS],
    "classes": ["+experiment/mnist=convnet"],
}
# Operations that torch does not support on tensors without values. They change lists of tensors in place.
WITHOUT_FAKE = {torch.ops.aten._fused_sgd_.default}
SOURCE = str(Path(noether.__file__).parent)


class FakeGPU(TorchDispatchMode):
    """A mode in which tensors of cuda:N have no values; `waits` counts copies that would wait, by line of noether."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "cpu":
            return args[0].dtype.is_floating_point or args[0].dtype == torch.bool  # The host never waits for itself.
        if func in WITHOUT_FAKE:
            devices = {tensor.device for group in args if isinstance(group, list) for tensor in group}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
            return None
        out = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default:
            self._copied(args[0], out, bool(kwargs.get("non_blocking")))
        elif func is torch.ops.aten.copy_.default:
            self._copied(args[1], args[0], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False)))
        return out

    def _copied(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        """Record a copy between host and GPU if it makes the host wait, even if it copies only a single number."""
        if source.device.type != target.device.type and not non_blocking:
            self.note(f"copy from {source.device.type} to {target.device.type}")

    def note(self, what: str) -> None:
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
            frame = frame.f_back
        where = "?" if frame is None else f"{frame.f_code.co_filename.removeprefix(SOURCE + '/')}:{frame.f_lineno}"
        self.waits[f"{what}, {where}"] += 1

    def place(self, value: Any, device: str = "cuda:0") -> Any:
        """Return a nested value with tensors on a fake GPU in place of its own; change a module in place."""
        if isinstance(value, nn.Module):
            for module in value.modules():
                for name, own in module._parameters.items():
                    if own is not None:
                        placed = self.place(own.detach(), device)
                        module._parameters[name] = nn.Parameter(placed, requires_grad=own.requires_grad)
                for name, own in module._buffers.items():
                    module._buffers[name] = self.place(own, device)
            return value
        if isinstance(value, Tensor):
            with self.fake:
                return torch.empty(value.shape, dtype=value.dtype, device=device)
        if isinstance(value, dict):
            return {key: self.place(item, device) for key, item in value.items()}
        return type(value)(self.place(item, device) for item in value) if isinstance(value, list | tuple) else value

    @contextmanager
    def running(self, patch: pytest.MonkeyPatch) -> Iterator["FakeGPU"]:
        """Run a block on the simulated GPU: replace queries of the driver, and record copies of Python numbers."""
        for name, stand_in in {
            "_lazy_init": lambda: None,
            "Event": _Event,
            "current_stream": lambda *one: _Event(),
            "is_bf16_supported": lambda *one: True,
        }.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)  # Keeps autocast on.
        make = torch.tensor

        def new_tensor(like: Tensor, data: Any, dtype: torch.dtype | None = None) -> Tensor:
            """Create the tensor on the device of `like`; under FakeTensorMode, torch would use cuda:0 for cuda:1."""
            return make(data, dtype=dtype or like.dtype, device=like.device)

        patch.setattr(Tensor, "new_tensor", self._noted(new_tensor, lambda args, options: args[0].device))
        patch.setattr(torch, "tensor", self._noted(torch.tensor, lambda args, options: options.get("device")))
        patch.setattr(torch, "as_tensor", self._noted(torch.as_tensor, lambda args, options: options.get("device")))
        with self.fake, self:
            yield self

    def _noted(self, make: Callable[..., Tensor], device_of: Callable[..., Any]) -> Callable[..., Tensor]:
        def noted(*args: Any, **options: Any) -> Tensor:
            device = device_of(args, options)
            if device is not None and torch.device(device).type == "cuda":
                self.note("copy of Python's numbers")
            return make(*args, **options)

        return noted


class _Event:
    """Replaces torch.cuda.Event and torch.cuda.Stream; no work is ever pending on this GPU."""

    def __init__(self, **settings: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "_Event") -> float:
        return 0.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that composes the settings of a small run from overrides."""
    output = tmp_path_factory.mktemp("fake")

    def compose(*words: str):
        small = ["dataset.train_shapes=24", "dataset.test_shapes=4"] if "+experiment/mnist=convnet" not in words else []
        lengths = [] if small else ["~trainer.max_epochs"]
        few = [f"output_path={output}", "trainer.effective_batch_size=2", "trainer.max_updates=4"]
        return load_config([*few, *small, *lengths, *words])

    return compose


class OnFakeGPU:
    """The parts of a run: its state on the fake cuda:N, and batches for training and evaluation on the host."""

    def __init__(self, config, gpu: FakeGPU, device: str = "cuda:0") -> None:
        self.gpu, self.device = gpu, torch.device(device)
        self.precision = choose_precision(config.trainer, self.device)
        problem = build_problem(config, prepare_data(config), torch.device("cpu"), self.precision)
        problem.fit()
        order = RankOrder(GlobalOrder(len(problem.train_indices), 2, 0), (2,), 0, 0, 4)
        self.batches = list(training_batches(problem.splits.train, problem.train_indices, order, problem.draw))[:2]
        self.test = next(evaluation_batches(problem.splits.test, [[0, 1]], problem.draw))
        self.config, self.task, self.model = config, problem.task, gpu.place(problem.model, device)

    def state(self) -> TrainingState:
        ema = EmaWeights(self.model, 0.99) if self.config.trainer.ema_decay else None
        optimizer = build_optimizer(self.config.optimizer, self.model)
        return TrainingState(self.model, ema, optimizer, self.precision.scaler(), self.task, Progress())

    def on_device(self, batch):
        """Copy a batch to the GPU as `to_device` does, but not through page-locked memory, which needs a driver."""
        return self.gpu.place(to_device(batch, torch.device("cpu"), self.precision.weights), str(self.device))

    def updater(self, state: TrainingState, patch: pytest.MonkeyPatch) -> Updater:
        worker = Worker(0, 0, 0, Device("cpu"))
        group = Group(WorkerContext(worker, 1, 1, "host", Endpoint("127.0.0.1", 0), 0, 1), self.device)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

        def made_by_hand(loss: Tensor) -> None:
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)

        patch.setattr(Tensor, "backward", made_by_hand)
        return Updater(state, group, self.config.trainer, self.precision, 1)


def placed(settings, *words: str, device: str = "cuda:0") -> OnFakeGPU:
    torch.manual_seed(0)
    return OnFakeGPU(settings(*words), FakeGPU(), device)


@pytest.mark.parametrize("precision", ["float32", "bf16", "float64"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_update_waits_for_the_gpu(problem: str, precision: str, settings, monkeypatch) -> None:
    run = placed(settings, *PROBLEMS[problem], f"trainer.precision={precision}", "trainer.ema_decay=0.99")
    with run.gpu.running(monkeypatch) as gpu:
        state = run.state()
        updater = run.updater(state, monkeypatch)
        batches = [run.on_device(batch) for batch in run.batches]
        updater.update(batches[:1], 1e-3)
        gpu.waits.clear()  # The first update may wait, because it makes the tensors that later updates reuse.
        measured = updater.update(batches[1:], 1e-3)
        assert measured.loss.device == run.device
    assert dict(gpu.waits) == {}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion", "muon"])
def test_no_step_of_an_optimiser_waits_for_the_gpu(optimizer: str, settings, monkeypatch) -> None:
    run = placed(settings, "model=upt_small", POINTS, f"optimizer={optimizer}", "trainer.clip_gradient_norm=1.0")
    with run.gpu.running(monkeypatch) as gpu:
        updater = run.updater(run.state(), monkeypatch)
        for batch in (run.batches[0], run.batches[1]):
            gpu.waits.clear()
            updater.update([run.on_device(batch)], 1e-3)
    assert dict(gpu.waits) == {}


# Classification is left out: it reads the true classes first, because an invalid class would crash a process on a GPU.
@pytest.mark.parametrize("problem", [name for name in PROBLEMS if name != "classes"])
def test_an_evaluation_waits_for_its_metrics_alone(problem: str, settings, monkeypatch) -> None:
    run = placed(settings, *PROBLEMS[problem])
    with run.gpu.running(monkeypatch) as gpu, torch.no_grad(), evaluation_mode(run.model):
        batch = run.on_device(run.test)
        for _ in range(2):
            gpu.waits.clear()
            predictions = predict(run.model, run.task.prepare(batch), None)
            metrics = run.task.metrics(predictions, batch)
            run.task.to_physical(predictions)
        assert {value.device for value in metrics.values()} == {run.device}
    assert dict(gpu.waits) == {}


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_everything_stays_on_the_gpu_of_its_rank(device: str, settings, monkeypatch) -> None:
    """A tensor that is created on "cuda", which means cuda:0, would raise an error in the case of cuda:1."""
    run = placed(settings, "model=upt_small", POINTS, "trainer.ema_decay=0.99", device=device)
    with run.gpu.running(monkeypatch):
        state = run.state()
        measured = run.updater(state, monkeypatch).update([run.on_device(run.batches[0])], 1e-3)
        tensors = [*state.model.state_dict().values(), *state.ema.model.state_dict().values(), measured.loss]
        tensors += [value for one in state.optimizer.state.values() for value in one.values() if value.ndim]
    assert {str(tensor.device) for tensor in tensors} == {device}


def test_a_snapshot_waits_once_and_leaves_the_gpu_alone(settings, monkeypatch) -> None:
    run = placed(settings, "model=upt_small", POINTS, "trainer.ema_decay=0.99")
    with run.gpu.running(monkeypatch) as gpu:
        state = run.state()
        run.updater(state, monkeypatch).update([run.on_device(run.batches[0])], 1e-3)
        tensors = saved_tensors(state)
        gpu.waits.clear()
        copies = StagingBuffer().copy(tensors)
        assert {tensor.device.type for file in copies.values() for tensor in file.values()} == {"cpu"}
    assert dict(gpu.waits) == {}


def test_what_waits_is_seen(settings, monkeypatch) -> None:
    """The fake GPU detects when the host reads a value, when a copy blocks or copies numbers, and mixed devices."""
    gpu = FakeGPU()
    with gpu.running(monkeypatch):
        here, there = torch.ones(3), torch.ones(3, device="cuda:0")
        with pytest.raises(Exception, match=r"item|data-dependent|_local_scalar_dense"):
            there.sum().item()
        here.to("cuda:0")
        there.new_tensor([1.0])
        torch.tensor([1.0], device="cuda:0")
        there.cpu()
        with pytest.raises(RuntimeError, match="device"):
            there + here
    assert sum(gpu.waits.values()) >= 4
