"""The faults that a drill can plant, each with what it does and what srobust does about it."""

from __future__ import annotations

from slurm_robust.model.drill import DrillFault
from slurm_robust.model.record import Record


class FaultText(Record):
    """One fault in words."""

    fault: DrillFault
    does: str
    recovery: str
    """What comes of it in a job without other faults."""


FAULTS = (
    FaultText(
        fault=DrillFault.KILL_RANK,
        does="SIGKILL to the worker",
        recovery="all ranks restart in place, within seconds",
    ),
    FaultText(
        fault=DrillFault.STOP_RANK,
        does="SIGSTOP to the worker, so that training hangs",
        recovery="the node is evicted: it costs a standby, or a requeue without one",
    ),
    FaultText(
        fault=DrillFault.HANG_RANK,
        does="the script stands still in Python and lets other threads run",
        recovery="a hang is seen, then all ranks restart in place",
    ),
    FaultText(
        fault=DrillFault.LOCK_RANK,
        does="the script stands still in C and keeps the interpreter's lock",
        recovery="a hang is seen, then all ranks restart in place",
    ),
    FaultText(
        fault=DrillFault.RAISE_ERROR,
        does="an exception in the script",
        recovery="all ranks restart in place once; the code would be blamed",
    ),
    FaultText(
        fault=DrillFault.NAN_LOSS,
        does="the rank reports NaN as its loss; the training itself is not touched",
        recovery="the nodes are tested, within minutes, then all ranks restart from before",
    ),
    FaultText(
        fault=DrillFault.SLOW_RANK,
        does="the rank rests after each optimizer step, for 5 minutes",
        recovery="slow steps are seen after a minute or two, then the rank moves to another node",
    ),
    FaultText(
        fault=DrillFault.GROW_MEMORY,
        does="the rank takes up to 512 MiB, a quarter of what is free at most, for 30 s",
        recovery="none: training goes on",
    ),
    FaultText(
        fault=DrillFault.KILL_LOADER,
        does="SIGKILL to one process of the rank's DataLoader",
        recovery="the script fails, then all ranks restart in place",
    ),
    FaultText(
        fault=DrillFault.STOP_LOADER,
        does="SIGSTOP to one process of the rank's DataLoader, so that training hangs",
        recovery="the node is evicted: it costs a standby, or a requeue without one",
    ),
    FaultText(
        fault=DrillFault.KILL_AGENT,
        does="SIGKILL to the agent of the rank's node, which takes its workers along",
        recovery="the agent is started again, then all ranks restart",
    ),
    FaultText(
        fault=DrillFault.KILL_CONTROLLER,
        does="SIGKILL to the controller",
        recovery="the next controller goes on within seconds; training does not notice",
    ),
)
