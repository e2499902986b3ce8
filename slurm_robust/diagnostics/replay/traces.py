"""What the ranks of a group left in its folder, and what that says of the group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import xxhash

from slurm_robust.analysis.replay import GroupRun
from slurm_robust.worker.replay import Gradients, Line, Loss, Machine, ReplayEnd, read_lines

_FAILED = "failed"


def trace_path(folder: Path, rank: int) -> Path:
    """The digests of one rank."""
    return folder / f"rank-{rank:05d}.jsonl"


def output_path(folder: Path, rank: int) -> Path:
    """What one rank printed, for people."""
    return folder / f"rank-{rank:05d}.log"


def leave_failure(folder: Path, text: str) -> None:
    """Say that a rank has failed. The first one counts: others fail because of it. Raises ``OSError``."""
    try:
        with (folder / _FAILED).open("x") as file:
            file.write(text)
    except FileExistsError:
        pass


def has_failed(folder: Path) -> bool:
    """Whether a rank of the group has failed, so that the others wait for nothing.

    Lists the folder, which NFS asks the server for; it may remember for a minute that a file was not there.
    """
    try:
        return _FAILED in os.listdir(folder)
    except OSError:
        return False


def group_run(folder: Path, nodes: Sequence[str], nproc: int, waited_s: float) -> GroupRun:
    """What the group did, by its ranks' files; ``waited_s`` seconds were given to it. Raises ``OSError``."""
    trouble = (folder / _FAILED).read_text() or "a rank failed" if has_failed(folder) else ""
    ranks = [read_lines(trace_path(folder, rank)) for rank in range(len(nodes) * nproc)]
    machines = [line.name for lines in ranks for line in lines if isinstance(line, Machine)]
    silent = sorted({nodes[r // nproc] for r, lines in enumerate(ranks) if not _has_ended(lines)})
    if not trouble and silent:
        trouble = f"no result within {waited_s:.0f} s from {', '.join(silent)}"
    return GroupRun(
        nodes=tuple(nodes),
        steps=_steps(ranks),
        kind=f"{len(nodes)} x {nproc}: {'; '.join(machines)}",
        trouble=trouble or _oddity([line for lines in ranks for line in lines]),
    )


def _has_ended(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, ReplayEnd) for line in lines)


def _oddity(lines: Sequence[Line]) -> str:
    """What is wrong though all ranks ended in order."""
    steps = [line for line in lines if isinstance(line, Gradients | Loss)]
    if not any(isinstance(line, Gradients) for line in steps):
        return "it ended before the first optimizer step"
    bad = [line for line in steps if not line.is_finite]
    if not bad:
        return ""
    first = min(bad, key=lambda line: line.step)
    what = "gradients have" if isinstance(first, Gradients) else "the script reports"
    return f"{what} numbers that are not finite in step {first.step}"


def _steps(ranks: Sequence[Sequence[Line]]) -> tuple[str, ...]:
    """For each step a digest of all that all ranks said of it, in the order of the ranks."""
    said: dict[int, xxhash.xxh3_128] = {}
    for rank, lines in enumerate(ranks):
        for line in lines:
            if isinstance(line, Gradients | Loss):
                text = f"{rank} {type(line).__name__} {line.digest}\n"
                said.setdefault(line.step, xxhash.xxh3_128()).update(text.encode())
    return tuple(said[step].hexdigest() for step in sorted(said))
