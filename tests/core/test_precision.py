"""The precision of float32 products on GPUs, and the settings advised when memory is full. No GPU is needed."""

import pytest
import torch
from conftest import REPOSITORY, TINY
from misbehaving import WORDS

from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.core.precision import choose_precision, is_full, smaller_when_full
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
    # torch's compiler makes this query. torch refuses it once the precision was set by `fp32_precision`.
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
    assert said in plan.placement.reasons.get("products", "")
    assert bool(said) == ("products" in plan.placement.reasons)


ERRORS = {
    "the-gpu's-allocator": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
    "cublas": (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
    "cudnn": (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
    "python": (MemoryError(), True),
    "a-wrong-shape": (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    "another-status": (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
    "words-of-somebody-else": (ValueError("CUBLAS_STATUS_ALLOC_FAILED"), False),
}


@pytest.mark.parametrize(("error", "full"), ERRORS.values(), ids=ERRORS.keys())
def test_full_memory_is_recognised(error: BaseException, full: bool) -> None:
    assert is_full(error) is full


def test_the_cpus_own_allocator_says_it_as_expected() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50)
    assert is_full(raised.value)


@pytest.mark.parametrize(
    ("size", "fix"), [(8, "trainer.max_batch_size=4"), (3, "trainer.max_batch_size=1"), (1, "b=2")]
)
def test_half_the_size_is_advised(size: int, fix: str) -> None:
    with pytest.raises(RequestError) as raised, smaller_when_full("it", "trainer.max_batch_size", size, "b=2"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert (raised.value.code, raised.value.fix) == ("out-of-memory", fix)


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), smaller_when_full("it", "a", 8, "b"):
        raise RuntimeError("shapes")


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "words"), [(0, ()), (1, ("devices=2",))], ids=["one-rank", "the-second-of-two"])
def test_a_run_that_is_full_in_mid_training_says_what_to_change(rank, words, noether, tmp_path) -> None:
    how = ("model.how=allocate", f"model.rank={rank}", f"output_path={tmp_path}", "run_id=full")
    ended = noether("train", "--hp", str(TINY), *WORDS, *how, *words, PYTHONPATH=str(REPOSITORY / "tests"), code=2)
    assert "[out-of-memory]" in ended.err
    assert f"trainer.max_batch_size={4 // (rank + 1) // 2}\n" in ended.err
    assert "Traceback" not in ended.err
