"""An update, an evaluation, a prediction and a snapshot on a GPU that does not exist: nothing waits, nothing mixes."""

import pytest
import torch
from torch import Tensor

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
from tests.gpu.fake_gpu import FakeGPU, needs_cuda_build

pytestmark = [
    needs_cuda_build,
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
OPTIMIZERS = ("adamw", "sgd", "lion", "muon")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory):
    """Composes the settings of a small run."""
    output = tmp_path_factory.mktemp("fake")

    def compose(*words: str):
        small = ["dataset.train_shapes=24", "dataset.test_shapes=4"] if "+experiment/mnist=convnet" not in words else []
        lengths = [] if small else ["~trainer.max_epochs"]
        return load_config(
            [
                f"output_path={output}",
                "trainer.effective_batch_size=2",
                "trainer.max_updates=4",
                *small,
                *lengths,
                *words,
            ]
        )

    return compose


class OnFakeGPU:
    """A run's parts: the state on cuda:N without values, and a batch of each kind on the host."""

    def __init__(self, config, gpu: FakeGPU, device: str = "cuda:0") -> None:
        self.gpu, self.device = gpu, torch.device(device)
        self.precision = choose_precision(config.trainer, self.device)
        problem = build_problem(config, prepare_data(config), torch.device("cpu"), self.precision)
        problem.fit()
        order = RankOrder(GlobalOrder(len(problem.train_indices), 2, 0), (2,), 0, 0, 4)
        self.batches = list(training_batches(problem.splits.train, problem.train_indices, order, problem.draw))[:2]
        self.test = next(evaluation_batches(problem.splits.test, [0, 1], 2, problem.draw))
        self.config, self.task, self.model = config, problem.task, gpu.place(problem.model, device)

    def state(self) -> TrainingState:
        ema = EmaWeights(self.model, 0.99) if self.config.trainer.ema_decay else None
        optimizer = build_optimizer(self.config.optimizer, self.model)
        return TrainingState(self.model, ema, optimizer, self.precision.scaler(), self.task, Progress())

    def on_device(self, batch):
        """As `to_device` copies from page-locked memory, which cannot be had without a driver."""
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
        gpu.waits.clear()  # The first update places what every later one uses.
        measured = updater.update(batches[1:], 1e-3)
        assert measured.loss.device == run.device
    assert dict(gpu.waits) == {}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_step_of_an_optimiser_waits_for_the_gpu(optimizer: str, settings, monkeypatch) -> None:
    run = placed(settings, "model=upt_small", POINTS, f"optimizer={optimizer}", "trainer.clip_gradient_norm=1.0")
    with run.gpu.running(monkeypatch) as gpu:
        updater = run.updater(run.state(), monkeypatch)
        for batch in (run.batches[0], run.batches[1]):
            gpu.waits.clear()
            updater.update([run.on_device(batch)], 1e-3)
    assert dict(gpu.waits) == {}


# Of classes, the true ones are read first: a GPU answers a wrong one with an assertion that ends the process.
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
    """A tensor that names "cuda", and so cuda:0, would meet those of cuda:1 here."""
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
    """The harness itself: a value asked for, a blocking copy, a copy of numbers, a mixed device."""
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
