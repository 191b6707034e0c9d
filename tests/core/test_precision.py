"""How float32 is multiplied on GPUs: what a setting does to torch's flags, and what the plan says. No GPU is needed."""

import pytest
import torch

from noether.config.compose import load_config
from noether.core.precision import choose_precision
from noether.launch.plan import plan_run


@pytest.fixture(autouse=True)
def flags():
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, convolution.allow_tf32
    yield
    matmul.allow_tf32, convolution.allow_tf32 = before


@pytest.mark.parametrize("wanted", [True, False])
def test_the_setting_decides_on_a_gpu(wanted: bool) -> None:
    chosen = choose_precision(load_config([f"trainer.tf32={wanted}"]).trainer, torch.device("cuda:0"))
    assert chosen.weights == torch.float32
    assert torch.backends.cuda.matmul.allow_tf32 is wanted
    assert torch.backends.cudnn.allow_tf32 is wanted
    # Set through the newer interface, torch refuses this question, which its compiler asks.
    assert torch.get_float32_matmul_precision() == ("high" if wanted else "highest")


def test_a_cpu_multiplies_as_before() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    choose_precision(load_config([]).trainer, torch.device("cpu"))
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "TF32"), (["trainer.tf32=false"], "in float32 (trainer.tf32=false)"), (["trainer.precision=bf16"], "")],
)
def test_the_plan_of_gpus_says_which(words: list[str], said: str) -> None:
    plan = plan_run(load_config(words), environ={}, visible_devices="0,1")
    assert said in plan.reasons.get("products", "")
    assert bool(said) == ("products" in plan.reasons)
