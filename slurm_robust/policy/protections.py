"""What protects a job and what does not, as its configuration and its nodes say before it begins. Pure.

A protection that is silently off is found out when it is needed, so each job names the protections that it
lacks. Whether the script saves its steps is not known here: only training shows that.
"""

from __future__ import annotations

from typing import NamedTuple

from slurm_robust.config.job import JobConfig


class Protection(NamedTuple):
    """One protection by its name; ``lacking``: why the job does not have it, "" if it does."""

    name: str
    lacking: str = ""


def lost_node(config: JobConfig, *, requeues: bool = True) -> str:
    """Return what the loss of a node does when no standby is left: ``costs a requeue``.

    ``requeues``: Slurm may requeue the job.
    """
    if config.mode == "observe":
        return "is not answered: mode is observe"
    text = "costs a requeue"
    if not config.slurm.requeue:
        text = "ends the job: slurm.requeue is false"
    elif not requeues:
        text = "ends the job: Slurm may not requeue it (sbatch --requeue)"
    borrows = config.companions.partition or config.companions.reservation is not None
    if borrows:
        text = f"costs the wait for another one from outside the allocation; if none comes, it {text}"
    return text


def protections(
    config: JobConfig, slots: int, spares: int, *, requeues: bool = True
) -> tuple[Protection, ...]:
    """List all that there are, for a job that trains on ``slots`` nodes and has ``spares`` more.

    ``requeues``: Slurm may requeue it.
    """
    checkpoint, detect, companions = config.checkpoint, config.detect, config.companions
    limits = config.limits
    observe = "mode is observe" if config.mode == "observe" else ""
    no_restart = "limits allow none" if 0 in (limits.total, limits.per_hour, limits.per_day) else ""
    borrows = companions.partition or companions.reservation is not None
    alone = "one node" if slots + spares < 2 else ""
    memory = "" if checkpoint.memory else "checkpoint.memory is false"
    # The first cause that holds is told.
    table = {
        "restarts": (observe, no_restart),
        "hangs": (observe, "" if detect.hang else "detect.hang is false"),
        "faults of nodes": (observe, "" if detect.inspect else "detect.inspect is false"),
        "spare nodes": (
            observe,
            "" if spares or borrows else f"spares is 0: a lost node {lost_node(config, requeues=requeues)}",
        ),
        "requeue": (
            observe,
            "" if config.slurm.requeue else "slurm.requeue is false",
            "" if requeues else "Slurm may not requeue the job: submit with --requeue",
        ),
        "takeover of the controller": (
            observe,
            "" if config.timings.takeover_s is not None else "timings.takeover_s is null",
            alone,
        ),
        "saves with Checkpointer in memory": (memory,),
        "saves with Checkpointer on a second node": (
            memory,
            "" if checkpoint.peers else "checkpoint.peers is false",
            "training on one node" if slots < 2 else "",
        ),
    }
    return tuple(Protection(name, next(filter(None, causes), "")) for name, causes in table.items())


def told(found: tuple[Protection, ...]) -> str:
    """Return the line for the job's log: ``protected: restarts, hangs; not: spare nodes (spares is 0)``."""
    protected = ", ".join(one.name for one in found if not one.lacking)
    lacking = ", ".join(f"{one.name} ({one.lacking})" for one in found if one.lacking)
    return f"protected: {protected or 'nothing'}" + (f"; not: {lacking}" if lacking else "")
