"""A user's script that trains with plain DDP, as under torchrun, or, with the argument `join`, with `noether.join`."""

import os
import signal
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import noether

with noether.join() if "join" in sys.argv else nullcontext():
    if "join" not in sys.argv:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, model = dist.get_rank(), DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for update in range(10):
        if "killed" in sys.argv and (rank, update) == (3, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((4, 2), rank + 1.0)).square().mean().backward()
        optimizer.step()
    learned = sum(weights.sum().item() for weights in model.parameters())
    print(f"rank {rank} of {dist.get_world_size()} on {os.uname().nodename} learned {learned:.6f}", flush=True)
if os.environ.get("SLURM_ARRAY_TASK_ID") == "1" and not os.environ.get("SLURM_RESTART_COUNT"):
    sys.exit(75)
