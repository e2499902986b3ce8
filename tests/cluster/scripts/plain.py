"""A script without a word of slurm_robust; progress is seen through the optimizer's hook."""

import argparse
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--step-s", type=float, default=0.1)
parser.add_argument("--evaluation-s", type=float, default=0.0, help="rank 0 evaluates so long, half way")
options = parser.parse_args()
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(options.steps):
    end = time.monotonic() + options.evaluation_s
    while step == options.steps // 2 and dist.get_rank() == 0 and time.monotonic() < end:
        with torch.no_grad():
            model(torch.randn(2, 4)).sum().item()
    model(torch.randn(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    time.sleep(options.step_s)
dist.destroy_process_group()
