"""What a rank of a replay writes: the digests of what each of its steps computed.

Groups of nodes replay the same steps and compare these digests (:mod:`slurm_robust.analysis.replay`), so a
run may depend on nothing but the script, its rank and the world's size: random generators start from a fixed
seed, and PyTorch is asked for deterministic algorithms. docs/diagnostics.md#replay says what is left to
the script. :mod:`slurm_robust.worker.replay_rank` is the process.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slurm_robust.model.record import UNREADABLE, Record

REPLAY = "SROBUST_REPLAY"
"""The file for the digests of this rank. A script that finds it set is being replayed."""

REPLAY_STEPS = "SROBUST_REPLAY_STEPS"
"""Steps after which the process ends, with code 0."""

CODE = "SROBUST_REPLAY_CODE"
"""The :class:`~slurm_robust.worker.copied.CopiedCode` that it runs as JSON; not set for code in its place."""

PARENT = "SROBUST_REPLAY_PARENT"
"""Process id of the node's part, with which every rank ends."""

# What must be said before the process starts, or before CUDA and NCCL do. In a data parallel group of two the
# order of a sum does not matter; in a larger one a ring has one order, while NCCL's own choice depends on the
# places of the nodes.
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
    """Return the lines of one rank up to a torn one; none if there is no file. Raises ``OSError``."""
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
