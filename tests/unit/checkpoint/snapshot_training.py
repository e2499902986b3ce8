"""A training whose right state after every step is known, for tests of snapshots.

Run as a program it forks trainings and kills them::

    python -m tests.unit.checkpoint.snapshot_training random FOLDER ROUNDS SEED   at random moments
    python -m tests.unit.checkpoint.snapshot_training copying FOLDER              in the middle of a copy
    python -m tests.unit.checkpoint.snapshot_training committing FOLDER           copied, but not yet whole

and prints a line of JSON per round: the last step whose step() was begun, and what whole images hold.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slurm_robust.checkpoint.buffers import TensorPlace
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import open_image, read_header
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Snapshot, Training
from slurm_robust.checkpoint.tree import tensor_in, unflatten
from slurm_robust.model.copies import CheckpointId

RUN = "5-test"
UNUSUAL = {
    "transposed": torch.arange(100_000.0).view(100, 1000).t(),
    "odd size": torch.arange(100_001).to(torch.uint8),
    "odd address": torch.arange(200_000).to(torch.uint8)[1:100_001],
    "every other": torch.arange(100_000.0)[::2],
    "expanded": torch.arange(10.0).expand(10_000, 10),
    "bfloat16": torch.arange(50_000).to(torch.bfloat16),
}


class PlusOne(torch.optim.Optimizer):
    """Adds one to every parameter and counts in its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("count", torch.zeros_like(parameter)).add_(1)
                parameter.add_(1)


class Counting(nn.Module):
    """Parameters that are N + 1 after step N, and a buffer that the forward pass of step N makes N + 1."""

    def __init__(self, elements: int, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(elements) for _ in range(tensors))
        self.register_buffer("seen", torch.zeros(100_000))

    def forward(self) -> None:
        self.seen.add_(1)


class Example:
    """A model, its optimizer, and snapshots of both in ``folder``."""

    def __init__(
        self,
        folder: MemoryFolder,
        *,
        generation: int = 1,
        elements: int = 50_000,
        tensors: int = 3,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.generation = generation
        self.model = Counting(elements, tensors)
        self.optimizer = PlusOne(self.model.parameters())
        self.average = Counting(elements, 1)  # changed by nobody's optimizer
        entries = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        self.training = Training(entries=entries)
        restored = options.pop("restored", None)
        place = TensorPlace(
            header=header(generation), first_on_node=True, ranks_on_node=1, nodes=1, restored=restored
        )
        self.snapshotter = Snapshotter(folder, place, **options)

    def compute(self) -> None:
        self.model()

    def update(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            self.average.weights[0].add_(1)

    def take(self, step: int, **wanted: Any) -> None:
        self.snapshotter.take(step, self.training, **wanted)

    def train(self, steps: range) -> None:
        for step in steps:
            self.compute()
            self.update()
            self.take(step)

    def hold_thread(self) -> threading.Event:
        """Keep the thread that copies from beginning until the event is set."""
        gate = threading.Event()
        self.snapshotter._thread.submit(gate.wait)
        return gate

    def steps(self) -> list[int]:
        self.snapshotter.settle()
        return steps_in(self.folder)


def header(generation: int, step: int = 0) -> PartHeader:
    return PartHeader(run_id=RUN, layout="", generation=generation, step=step, rank=0, world_size=1)


def steps_in(folder: MemoryFolder) -> list[int]:
    """Steps of the whole images, sorted."""
    found = [read_header(path) for path in folder.path.glob("own-*")]
    return sorted(one.step for one in found if one is not None)


def state_at(folder: MemoryFolder, step: int, generation: int = 1) -> Snapshot:
    """What the image of ``step`` holds, verified and copied."""
    path = folder.find(0, CheckpointId(generation=generation, step=step))
    assert path is not None
    image = open_image(path)
    image.verify(2)
    tensors = [tensor_in(data, spec).clone() for data, spec in zip(image.data(), image.tensors, strict=True)]
    tree = unflatten(image.tree, tensors)
    image.close()
    return Snapshot(own=tree["own"], shared={}, rng=tree["rng"])


def is_right(snapshot: Snapshot, step: int) -> bool:
    """Every tensor is what :class:`Example` has after ``step``."""
    own = snapshot.own
    values = [value for name, value in own["model"].items() if name.startswith("weights")]
    values += [own["model"]["seen"], own["average"]["weights.0"]]
    values += [state["count"] for state in own["optimizer"]["state"].values()]
    return all(bool((value == step + 1).all()) for value in values)


# -- killed ---------------------------------------------------------------------------------------


def train_and_tell(folder: MemoryFolder, generation: int, begun: mmap.mmap) -> None:
    example = Example(folder, generation=generation, elements=100_000)
    number = memoryview(begun).cast("q")  # one store; struct clears the bytes first, and may be killed then
    for step in range(10**9):
        example.compute()
        example.update()
        number[0] = step
        example.take(step)


def killed_at_random(folder: MemoryFolder, rounds: int, seed: int) -> None:
    dice, pause = random.Random(seed), threading.Event()
    for generation in range(1, rounds + 1):
        begun = mmap.mmap(-1, 8)
        struct.pack_into("<q", begun, 0, -1)
        pid = os.fork()
        if pid == 0:
            train_and_tell(folder, generation, begun)
        while struct.unpack("<q", begun)[0] < 4:
            pause.wait(0.0005)
        pause.wait(dice.uniform(0.0, 0.02))
        tell_after_kill(folder, generation, pid, begun)


def killed_with_gate(folder: MemoryFolder, stage: str) -> None:
    begun = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        example = Example(folder)
        example.train(range(5))
        example.compute()
        example.update()
        example.snapshotter.settle()
        struct.pack_into("<q", begun, 0, 5)
        if stage == "copying":
            example.hold_thread()
            example.take(5)
        else:
            example.snapshotter._finish = lambda job: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[method-assign]
            example.take(5)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    tell_after_kill(folder, 1, pid, begun)


def tell_after_kill(folder: MemoryFolder, generation: int, pid: int, begun: mmap.mmap) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    images = [(image.step, image.generation) for image in folder.inventory()]
    mine = sorted(step for step, one in images if one == generation)
    right = all(is_right(state_at(folder, step, generation), step) for step in mine)
    print(json.dumps({"begun": struct.unpack("<q", begun)[0], "whole": mine, "right": right}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # else every fork does, at the first torch.compiler.disable()
    what, place = sys.argv[1:3]
    folder = MemoryFolder(Path(place), RUN)
    if what == "random":
        killed_at_random(folder, int(sys.argv[3]), int(sys.argv[4]))
    else:
        killed_with_gate(folder, what)


if __name__ == "__main__":
    main()
