"""Without torch's compiler, optimisers and DDP compute what torch's do, even if torch renames its private functions."""

import json
import subprocess
import sys

import pytest

LACKING = """
import inspect
plain = inspect.unwrap
inspect.unwrap = lambda method, **stop: plain(method, **stop) if stop else method
del dist.distributed_c10d._set_pg_timeout
from noether.launch.process_group import torch_internals
torch_internals._TOGETHER = "_no_name_of_torch_"  # The compiler itself needs those there are.
answers = torch_internals._Answers
torch_internals._Answers = lambda module, **known: answers(module=module)
"""
SCRIPT = """
import copy, json, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{lacking}
from noether.config.optimizer import AdamWConfig, LionConfig, MuonConfig, SGDConfig
from noether.launch.process_group.torch_internals import LightDDP, limit_collectives
from noether.training.optimizers import build_optimizer

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def losses(wrapper, config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    wrapped = wrapper(model, gradient_as_bucket_view=True, static_graph=True)
    x, optimizer, found = torch.randn(16, 4), build_optimizer(config, model), []
    for update in range(4):
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if update == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        found.append(loss.item())
    limit_collectives(60)
    return found


configs = [kind(learning_rate=0.1) for kind in (AdamWConfig, LionConfig, MuonConfig, SGDConfig)]
light, compiler = [losses(LightDDP, config) for config in configs], "torch._dynamo" in sys.modules
torch_own = [losses(DistributedDataParallel, config) for config in configs]
assert light == torch_own == [losses(LightDDP, config) for config in configs]
assert torch._dynamo.config.optimize_ddp is not None
print(json.dumps([light, compiler]))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_compiler_is_not_imported_and_a_torch_without_the_private_names_trains_alike() -> None:
    found = []
    for lacking in ("", LACKING):
        script = SCRIPT.replace("{lacking}", lacking)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (losses, compiler), (without, fallback) = found
    assert losses == without
    assert (compiler, fallback) == (False, True), "importing the compiler takes 2 s of processor time"
