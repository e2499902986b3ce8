"""Judges what a job left on GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.health.check import View
from slurm_robust.health.gpus.facts import GpuProcess, GpuUse, Use
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion

LEFTOVERS = "gpu.leftovers"

# Daemons of the site that hold GPUs between jobs, by the first letters of their names.
_DAEMONS = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persiste", "dcgm")


def judge_leftovers(view: View[GpuUse], config: NodeConfig) -> Iterator[Finding]:
    """Nothing runs on a GPU, and its memory is free, where no job is meant to run."""
    if not view.job_gone:
        return
    for gpu in view.facts.gpus:
        strangers = [process for process in gpu.processes if not process.name.startswith(_DAEMONS)]
        known = len(strangers) < len(gpu.processes)
        too_much = not known and (gpu.memory_mb or 0) > config.gpu.max_leftover_memory_mb
        bad = ""
        if strangers:
            bad = f"left by a job: {_words(strangers)}; kill it"
        elif too_much:
            bad = f"{gpu.memory_mb} MiB in use by no process"
        yield _finding(gpu, bad, config, Party.JOB if strangers else Party.NODE)


def _finding(gpu: Use, bad: str, config: NodeConfig, blame: Party) -> Finding:
    return Finding(
        check=LEFTOVERS,
        outcome=Outcome.FAIL if bad else Outcome.PASS,
        subject=gpu.label,
        text=bad,
        value=f"{len(gpu.processes)} processes, {'?' if gpu.memory_mb is None else gpu.memory_mb} MiB",
        limit=f"{config.gpu.max_leftover_memory_mb} MiB",
        source="compute processes and memory in use",
        blame=blame if bad else Party.NODE,
        suggestion=Suggestion.RESET if bad else Suggestion.NONE,
    )


def _words(processes: list[GpuProcess]) -> str:
    # A process may call itself what it likes.
    names = [
        "".join(c if c.isascii() and c.isprintable() else "?" for c in one.name) or "process"
        for one in processes[:2]
    ]
    words = ", ".join(f"{name} ({one.pid})" for name, one in zip(names, processes, strict=False))
    return words + (f" and {len(processes) - 2} more" if len(processes) > 2 else "")
