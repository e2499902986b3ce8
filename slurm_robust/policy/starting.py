"""What to do about a node on which no agent has joined. Pure; one node at a time.

An agent that does not come does not convict its node: that is given up only on Slurm's word, or when other
nodes' agents came and this one's did not, although it was started again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurm_robust.model.exits import Outlook, StepEnd, Witness
from slurm_robust.model.record import Record
from slurm_robust.util.text import count

MAX_STARTS = 2  # on one node, unless the reason may pass
PASSING_S = 900.0  # slurmctld may be away so long: its restart takes minutes on a large site
MAX_APART = 50  # steps of one node each, of which each is two processes on the host of the batch script
LONGEST_PAUSE_S = 30.0
# A slurmctld that has just come back refuses steps for want of memory until nodes have registered (measured).
UNSETTLED_S = 180.0
# After a step's end agents of it may live on, and are heard again within two heartbeats.
GRACE_S = 2.5
# Slurm ends what is left of such a step by SIGTERM and, after KillWait (30 s by default), by SIGKILL.
LAST_S = 35.0
ASK_S = 12.0  # Slurm's commands report a slurmctld that is gone after 9 s
ASK_AGAIN_S = 10.0
"""About a node whose agent fell silent; later and later."""


STORAGE_S = 1800.0
"""Only storage may have what training resumes from; another run may reach it, on other nodes."""

BUSY_S, IMPORT_S = 60.0, 180.0
"""At the start: how long a node may be silent, and how long it has at least for its imports."""


def silence_s(agent_start_s: float, dead_s: float, *, first: bool) -> float:
    """Return how long an agent's silence must last to count. ``first``: waiting is free, imports are slow."""
    return min(agent_start_s, BUSY_S) if first else dead_s


def is_everywhere(refused: int, fit_spares: int, *, first: bool) -> bool:
    """Return whether too many nodes refuse an agent (they lack the job directory) to blame single ones."""
    return first and refused > fit_spares


def went_with_step(end: StepEnd | None, node: str, heard_s: float) -> bool:
    """Return whether ``node`` is silent due to the ``end`` of the srun of which its agent was a task.

    ``heard_s``: seconds from the report of that end to the agent's newest sign of life. That is not so if the
    agent lived on or ended alone, or if srun names the node as the reason.
    """
    if end is None or end.is_task or node in end.named:
        return False
    return heard_s + end.age_s <= LAST_S


def may_yet_end(end: StepEnd, node: str, heard_s: float) -> bool:
    """Return whether the agent of ``node`` may follow the ``end`` of its srun: they end one after the other.

    ``heard_s``: as in :func:`went_with_step`. If srun names a node as the reason, others live on.
    """
    return went_with_step(end, node, heard_s) and not end.named


class StartAdvice(Enum):
    """What to do about the node."""

    WAIT = "wait"
    ASK = "ask Slurm about the node"
    AGAIN = "start an agent again"
    DOWN = "Slurm says that the node is not there"
    UNSTARTED = "no agent comes, and no further one is started"
    REFUSED = "Slurm starts no agent, which is not the node's fault"


class Start(Record):
    """The newest start of an agent on ``node``. Times in seconds."""

    node: str
    times: int
    """How many starts there were, with this one, without an agent that joined."""
    waited_s: float
    """Since this start."""
    tried_s: float
    """Since the first one."""
    end: StepEnd | None = None
    end_s: float = 0.0
    """Since ``end``, if there is one."""
    asked_s: float | None = None
    """Since Slurm was asked about the node, None if it was not."""
    witness: Witness | None = None
    """Slurm's answer."""
    unsettled: bool = False
    """A start before failed because slurmctld was away."""
    came_before: bool = False
    """Agents of this run came before, and no node has one now."""
    missed: bool = False
    """The node had an agent, which fell silent."""
    asks_again: bool = False
    """The last question about it was :data:`ASK_AGAIN_S` ago, or longer the longer the silence lasts."""

    @property
    def outlook(self) -> Outlook | None:
        """Whether the step that ended could start later; None while it has not ended."""
        if self.end is None:
            return None
        is_young = self.unsettled and self.tried_s < UNSETTLED_S
        if self.end.outlook is Outlook.UNKNOWN and self.end.named and self.node not in self.end.named:
            return Outlook.PASSES  # another node of the step is the reason
        return Outlook.PASSES if is_young else self.end.outlook


def apart(ends: Mapping[str, StepEnd | None]) -> tuple[str, ...]:
    """Return which nodes that are started again get steps of their own, by the ``ends`` of the last ones.

    If srun cannot start a task on one node, it ends the step on all of its nodes, whatever ``--no-kill`` says
    (22.05), and it would do so again.
    """
    return tuple(node for node, end in ends.items() if end and not end.is_task and node in end.named)


def judge(start: Start, patience_s: float) -> StartAdvice:
    """Give the answer for one node; ``patience_s``: how long an agent may take to join."""
    end, witness = start.end, start.witness
    if start.missed and end is None:
        if witness is not None and witness.against:
            return StartAdvice.DOWN  # beside the silence
        if start.asks_again:
            return StartAdvice.ASK
    if end is None and start.waited_s <= patience_s:
        return StartAdvice.WAIT
    if end is not None and start.outlook is not Outlook.STAYS and start.end_s < GRACE_S:
        return StartAdvice.WAIT
    if start.asked_s is None:
        return StartAdvice.ASK
    if witness is None and start.asked_s < ASK_S:
        return StartAdvice.WAIT
    if witness is not None and witness.against:
        return StartAdvice.DOWN
    if start.outlook is Outlook.STAYS:
        return StartAdvice.REFUSED
    passes = start.outlook is Outlook.PASSES
    # What has let agents come before is as it was, so whatever keeps all of them away may pass.
    is_over = start.tried_s >= PASSING_S if passes or start.came_before else start.times >= MAX_STARTS
    if not is_over:
        is_due = end is None or start.end_s >= min(2.0**start.times, LONGEST_PAUSE_S)
        return StartAdvice.AGAIN if is_due else StartAdvice.WAIT
    if passes:
        return StartAdvice.REFUSED
    return StartAdvice.UNSTARTED if end is None or start.node in end.named else StartAdvice.REFUSED


def format_start(start: Start) -> str:
    """Say why there is no agent, if it is known."""
    seconds = f"{start.tried_s:.0f} s" if start.tried_s >= 1 else ""
    parts = [", ".join(filter(None, (f"no agent has joined in {count(start.times, 'start')}", seconds)))]
    if start.missed:
        parts = [" for ".join(filter(None, ("its agent has been silent", seconds)))]
    if start.end is not None:
        parts.append(start.end.message or f"srun ended with exit code {start.end.code} without a message")
    if start.witness is not None:
        parts.append(f"Slurm says {start.witness.message}")
    elif start.asked_s is not None:
        parts.append("Slurm does not say how the node is")
    return "; ".join(parts)
