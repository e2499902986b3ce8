"""A rank of a replay: what each step computed, as digests, and the end after a few steps.

``python -m slurm_robust.worker.replay KIND COMMAND ...`` runs it, in the environment that torchrun sets.
Groups of nodes replay the same steps and compare these digests (:mod:`slurm_robust.analysis.replay`), so a
run may depend on nothing but the script, its rank and the world's size: random generators start from a fixed
seed, and PyTorch is asked for deterministic algorithms. docs/replay.md says what is left to the script.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util import process
from slurm_robust.worker import rendezvous, script, trial

if TYPE_CHECKING:
    import torch


REPLAY = "SROBUST_REPLAY"
"""The file for the digests of this rank. A script that finds it set is being replayed."""

REPLAY_STEPS = "SROBUST_REPLAY_STEPS"
"""Steps after which the process ends, with code 0."""

PARENT = "SROBUST_REPLAY_PARENT"
"""Process id of the node's part, with which every rank ends."""

# What must be said before the process starts, or before CUDA and NCCL do. In a data parallel group of two the
# order of a sum does not matter; in a larger one a ring has one order, while NCCL's own choice depends on
# where the nodes are.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}


class Machine(Record, tag_field="what", tag="machine"):
    """What computes; only alike ones have the same bits."""

    name: str


class Gradients(Record, tag_field="what", tag="gradients"):
    """All gradients with which one optimizer makes its step ``step``, counted from 0 over all optimizers."""

    step: int
    digest: str
    is_finite: bool = True


class Loss(Record, tag_field="what", tag="loss"):
    """The numbers that the script reported after its step ``step``."""

    step: int
    digest: str
    is_finite: bool = True


class ReplayEnd(Record, tag_field="what", tag="end"):
    """The process has ended; added by the process that started it."""

    code: int  # negative for a signal


Line = Machine | Gradients | Loss | ReplayEnd


def read_lines(path: Path) -> tuple[Line, ...]:
    """The lines of one rank up to a torn one; none where there is no file. Raises ``OSError``."""
    decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
    found: list[Line] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    for line in data.split(b"\n")[:-1]:
        try:
            found.append(decoder.decode(line))
        except UNREADABLE:
            break
    return tuple(found)


def add_line(path: str | Path, line: Line) -> None:
    """Append ``line`` in one write. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


def record_steps(environ: Mapping[str, str]) -> None:
    """Record every step of every torch optimizer of this process, and end it after the last one.

    Called before the script. Imports torch. The process then ends in the middle of the script, without its
    exit handlers: after the last step there is nothing that it should still write.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    path, steps = environ[REPLAY], int(environ[REPLAY_STEPS])
    _make_repeatable()
    count = 0

    # Before the update, because a script may have its optimizer drop the gradients.
    def record(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        nonlocal count
        if count == 0:
            add_line(path, Machine(name=_machine()))
        add_line(path, _gradients(count, optimizer))
        count += 1
        if count == steps:
            trial.leave("replay")

    register_optimizer_step_pre_hook(torch.compiler.disable(record))  # type: ignore[no-untyped-call]


def _make_repeatable() -> None:
    import torch

    # Asked, not forced: an operation without a deterministic form would end a script that does well without.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def _gradients(step: int, optimizer: torch.optim.Optimizer) -> Gradients:
    """Of all parameters in the order in which the optimizer has them."""
    import torch

    digest, is_finite = xxhash.xxh3_128(), True
    for gradient in _local(p.grad for group in optimizer.param_groups for p in group["params"]):
        # Each of its own length, so that a gradient that is missing moves no other into its place.
        digest.update(struct.pack("<q", gradient.numel()))
        digest.update(gradient.cpu().view(torch.uint8).numpy().data)
        is_finite = is_finite and bool(torch.isfinite(gradient.float()).all())
    return Gradients(step=step, digest=digest.hexdigest(), is_finite=is_finite)


def _local(gradients: Iterable[torch.Tensor | None]) -> Iterable[torch.Tensor]:
    """This rank's own part of each, flat and dense."""
    import torch

    for gradient in gradients:
        if gradient is None:
            yield torch.empty(0)
            continue
        part: Any = gradient.detach()
        part = part.to_local() if hasattr(part, "to_local") else part
        part = part.to_dense().contiguous()
        # A single number may keep any stride, and torch views none but 1 as bytes.
        yield part.as_strided((part.numel(),), (1,))


def _machine() -> str:
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        # Both decide in which order a sum is made.
        name = f"{model}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"


def main() -> None:
    """Run the script as Python would have, with the recorder of its steps."""
    process.die_with_parent(int(os.environ[PARENT]))
    process.set_title(int(os.environ["RANK"]))
    process.prefer_for_oom()
    kind, command = CommandKind(sys.argv[1]), tuple(sys.argv[2:])
    trial.enter(kind, command)
    record_steps(os.environ)
    rendezvous.await_rank_zero()
    script.run(kind, command)


if __name__ == "__main__":
    # By the module's own name: this copy of it gives way to the user's __main__.
    from slurm_robust.worker import replay

    replay.main()
