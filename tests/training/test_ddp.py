"""DDP without torch's compiler makes the same gradients, and does not import it."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from noether.training.ddp import LightDDP

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
x = torch.randn(16, 4)


def gradients(wrapper, static):
    wrapped = wrapper(model, gradient_as_bucket_view=True, static_graph=static)
    for _ in range(2):
        model.zero_grad()
        wrapped(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


light = [gradients(LightDDP, static) for static in (False, True)]
assert "torch._dynamo" not in sys.modules
torch_own = [gradients(torch.nn.parallel.DistributedDataParallel, static) for static in (False, True)]
assert "torch._dynamo" in sys.modules
after = [gradients(LightDDP, static) for static in (False, True)]
assert all(torch.equal(a, b) for one in (light, after) for mine, own in zip(one, torch_own) for a, b in zip(mine, own))
assert torch._dynamo.config.optimize_ddp is not None
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_gradients_are_those_of_torchs_ddp() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
