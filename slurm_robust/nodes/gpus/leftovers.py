"""Judges what a job left on GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import View
from slurm_robust.nodes.checks.processes import is_user
from slurm_robust.nodes.gpus.facts import MPS, GpuProcess, GpuUse, Use
from slurm_robust.util.text import ascii_line, some_of

LEFTOVERS = "gpu.leftovers"

STANDS_S = 60.0
"""Memory that no living process holds, and that has not become less for so long, is not being freed. By what
is reported, a driver takes 26 s for 243 GB of registered memory, and more than 30 s if a kernel thread does
the rest.
"""

_SOURCE = "compute processes and memory in use"
# Runs further apart than this may have a job between them, which leaves as much as the one before.
_APART_S = 30.0
_SAME_MB = 16

# Daemons of the site that hold GPUs between jobs, by the first letters of their names.
_DAEMONS = (MPS, "nv-hostengine", "nvidia-persiste", "dcgm")


def judge_leftovers(view: View[GpuUse], config: NodeConfig) -> Iterator[Finding]:
    """Judge that nothing runs on a GPU, and that its memory is free, if no job is meant to run.

    What has ended needs time to give its memory back: as long as that may be so, it is unknown.
    """
    if not view.job_gone:
        return
    for gpu in view.facts.gpus:
        living = [
            process for process in gpu.processes if not _is_daemon(process, config) and not process.ending
        ]
        if living:
            yield _finding(gpu, config, f"left by a job: {_named(living)}; kill it", blame=Party.JOB)
        elif not is_held(gpu, config):
            yield _finding(gpu, config)
        elif (stands_s := _stands_s(view, gpu, config)) >= STANDS_S:
            yield _finding(gpu, config, f"{_what(gpu, config)}, and no less for {stands_s:.0f} s")
        else:
            yield _finding(gpu, config, f"{_what(gpu, config)}: is being freed, or stuck", Outcome.UNKNOWN)


def is_held(gpu: Use, config: NodeConfig) -> bool:
    """Return whether memory or processes are left of something that has ended."""
    if any(process.ending and not _is_daemon(process, config) for process in gpu.processes):
        return True
    return not gpu.processes and (gpu.memory_mb or 0) > config.gpu.max_leftover_memory_mb


def is_being_freed(findings: Iterable[Finding]) -> bool:
    """Return whether it is worth checking again soon."""
    return any(
        found.check == LEFTOVERS and found.outcome is Outcome.UNKNOWN and found.source == _SOURCE
        for found in findings
    )


def _stands_s(view: View[GpuUse], gpu: Use, config: NodeConfig) -> float:
    """Return for how many seconds runs that follow each other closely have found no less."""
    begun = view.at
    for sample in reversed(view.before):
        if sample.boot_id != view.boot_id or not 0 <= begun - sample.at <= _APART_S:
            break
        old = next((one for one in sample.facts.gpus if one.index == gpu.index), None)
        if old is None or not is_held(old, config) or (old.memory_mb or 0) > (gpu.memory_mb or 0) + _SAME_MB:
            break
        begun = sample.at
    return view.at - begun


def _is_daemon(process: GpuProcess, config: NodeConfig) -> bool:
    """Return whether it is a daemon. A user's program may have any name."""
    is_system = process.uid is not None and not is_user(process.uid, config)
    return is_system and process.name.startswith(_DAEMONS)


def _what(gpu: Use, config: NodeConfig) -> str:
    dead = [process for process in gpu.processes if process.ending and not _is_daemon(process, config)]
    return f"{'?' if gpu.memory_mb is None else gpu.memory_mb} MiB in use by " + (
        f"what has ended: {_named(dead)}" if dead else "no process"
    )


def _finding(
    gpu: Use, config: NodeConfig, bad: str = "", outcome: Outcome = Outcome.FAIL, blame: Party = Party.NODE
) -> Finding:
    return Finding(
        check=LEFTOVERS,
        outcome=outcome if bad else Outcome.PASS,
        subject=gpu.label,
        text=bad,
        value=f"{len(gpu.processes)} processes, {'?' if gpu.memory_mb is None else gpu.memory_mb} MiB",
        limit=f"{config.gpu.max_leftover_memory_mb} MiB",
        source=_SOURCE,
        blame=blame,
        suggestion=Suggestion.RESET if bad and outcome is Outcome.FAIL else Suggestion.NONE,
    )


def _named(processes: list[GpuProcess]) -> str:
    # A process may call itself what it likes.
    return some_of([f"{ascii_line(one.name, 40) or 'process'} ({one.pid})" for one in processes], 2)
