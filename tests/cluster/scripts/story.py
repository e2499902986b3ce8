"""A training whose weights do not depend on the number of ranks: gradients are sums of whole numbers.

Each step takes 60 samples, which the ranks share. A gradient of a sample is rounded to a multiple of 2**-24
and summed as a whole number, so no order of summing changes a bit. The model is replicated, as with any DDP.
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slurm_robust as sr

SAMPLES, UNIT = 60, 2.0**24

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--step-s", type=float, default=0.1)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--bug", type=Path, help="while this file is there, a step raises ValueError")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
weight, bias = model.module.weight, model.module.bias
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
for step in range(checkpointer.restore(), options.steps):
    if options.bug and options.bug.exists():
        raise ValueError(f"the learning rate of step {step} is not a number")
    samples = torch.randn(SAMPLES, 17, generator=torch.Generator().manual_seed(step))
    whole = torch.zeros(17, dtype=torch.int64)
    loss = 0.0
    with torch.no_grad():
        for sample in samples[rank::world]:
            x, y = sample[:16], sample[16]
            error = (weight[0] * x).sum() + bias[0] - y
            loss += float(error * error)
            whole += (torch.cat([error * x, error[None]]).double() * UNIT).round().long()
    dist.all_reduce(whole)
    gradient = (whole.double() / UNIT / SAMPLES).float()
    weight.grad, bias.grad = gradient[None, :16].clone(), gradient[16:].clone()
    optimizer.step()
    time.sleep(options.step_s)
    checkpointer.step(step, loss=loss / SAMPLES)
    print(f"step {step}", flush=True)
if rank == 0:
    state = b"".join(t.numpy().tobytes() for _, t in sorted(model.module.state_dict().items()))
    options.out.write_text(hashlib.sha256(state).hexdigest())
dist.destroy_process_group()
