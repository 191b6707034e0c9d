"""Optimisers and DDP without torch's compiler: the numbers are torch's, in a torch too that lacks the private names."""

import json
import subprocess
import sys

import pytest

LACKS = {
    "nothing": "",
    "wrappers that can be looked behind": (
        "import inspect; plain = inspect.unwrap\n"
        "inspect.unwrap = lambda method, **stop: plain(method, **stop) if stop else method"
    ),
    "the question for the compiler's mode": (
        "import types; plain = types.SimpleNamespace.__init__\n"
        "types.SimpleNamespace.__init__ = lambda self, **known: plain(\n"
        "    self, **{name: value for name, value in known.items() if name != 'get_optimize_ddp_mode'})"
    ),
    "DDP's context": "DistributedDataParallel._inside_ddp_forward.__wrapped__ = None",
    "the limit of collectives": "del dist.distributed_c10d._set_pg_timeout",
}
SCRIPT = """
import copy, json, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{lack}
from noether.config.optimizer import AdamWConfig, LionConfig, MuonConfig, SGDConfig
from noether.distributed.torch_internals import LightDDP, limit_collectives
from noether.training.optimizers import build_optimizer

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def losses(wrapper, config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x, optimizer, found = torch.randn(16, 4), build_optimizer(config, model), []
    wrapped = wrapper(model, gradient_as_bucket_view=True, static_graph=True)
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


def trained(lack: str) -> tuple[list[list[float]], bool]:
    script = SCRIPT.replace("{lack}", LACKS[lack])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    losses, compiler = json.loads(done.stdout.splitlines()[-1])
    return losses, compiler


@pytest.mark.slow
def test_the_compiler_is_not_imported_and_a_torch_without_the_private_names_trains_alike() -> None:
    losses, compiler = trained("nothing")
    assert not compiler, "it takes a process two seconds of a core"
    for lack in list(LACKS)[1:]:
        assert trained(lack)[0] == losses, lack
