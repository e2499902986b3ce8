"""The rungs of the recovery ladder, cheapest first (design, section 5).

Each is a function of what failed, of the rules and of the job's past; it returns a verdict, or None to pass
the failure on to the next rung. A new rung is a new function here or in :mod:`.evidence` and its place in
:data:`LADDER`.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.model.findings import Writer
from slurm_robust.model.incident import Blame, GenerationFailed, Symptom, Verdict
from slurm_robust.model.state import JobState
from slurm_robust.policy.evidence import (
    AGENT_ENDED,
    full_disk,
    gpu_memory_not_free,
    log_named,
    must_be_tested,
    nodes_named,
    out_of_memory,
    slow_to_die,
    tests_named,
    unexplained,
    unstarted,
    wrong_code,
)
from slurm_robust.policy.restore import failed_to_restore
from slurm_robust.policy.rules import Rules
from slurm_robust.policy.stacks import stacks_named


def agents_gone(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Every node of several went silent at once: their common step ended, or our own network did.

    One cause that takes all nodes is not the nodes' fault, so none of them is evicted.
    """
    if failed.alive or len(failed.lost) < 2:
        return None
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature="agents lost",
        reason=f"all {len(failed.lost)} agents went silent at once, so it is not the nodes",
        confidence=0.7,
        allowed=rules.limits.per_signature,
    )


def agent_ended(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Slurm says that the agents ended, and speaks with their nodes: once, that is no node's fault."""
    signature = AGENT_ENDED + ",".join(sorted(failed.lost))
    once = not any(attempt.signature == signature for attempt in state.attempts)
    if not failed.lost or not set(failed.lost) <= failed.ended.keys() or not once:
        return None
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature=signature,
        reason="; ".join(f"the agent on {node} ended ({failed.ended[node]})" for node in failed.lost),
        confidence=0.6,
        allowed=rules.limits.per_signature,
    )


def slurm_refuses(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Slurm starts no agent: neither another node nor another try helps, and its words say what does."""
    if not failed.refused:
        return None
    nodes = ",".join(failed.refused)
    return Verdict(
        rung=1,
        blame=Blame.NOBODY,
        signature="agents not started",
        reason=f"no agent starts on {nodes}: {next(iter(failed.refused.values()))}",
        allowed=0,
    )


def unreachable(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Many nodes fell silent together: it is not the nodes, and training goes on without them."""
    if not failed.unreachable or not failed.lost:
        return None
    return Verdict(
        rung=2,
        blame=Blame.NOBODY,
        signature=Symptom.UNREACHABLE.value,
        reason=failed.unreachable,
        confidence=0.7,
        allowed=rules.limits.per_signature,
    )


def nobody_can_start(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """No node at all can start a worker, so it is not the nodes: the environment or the code."""
    if not failed.unable:
        return None
    node, text = next(iter(failed.unable.items()))
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature="no worker can be started",
        reason=f"no node can start a worker; {node} says: {text}",
        allowed=0,
    )


def restore_failed(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 6: a copy of what was to be restored is missing or damaged; what is left decides.

    A copy that fails is removed by its reader, so the next choice is another one.
    """
    bad = [e for e in failed.exits if failed_to_restore(e.exit)]
    if not bad or failed.restore is None:
        return None
    exit, node = bad[0].exit, bad[0].node
    error = exit.error
    assert error is not None
    kind = error.type.rpartition(".")[2]
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=f"restore failed: {failed.restore}",
        reason=f"restore failed: rank {exit.rank} on {node}: {kind}: {error.message}",
        confidence=0.9,
        allowed=rules.limits.per_signature,
    )


def transient(failed: GenerationFailed, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 6: nothing speaks against a node or the code, so the same again in place."""
    found = unexplained(failed)
    tested = f"; tests: {failed.diagnosis.reason}" if failed.diagnosis is not None else ""
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=found.signature,
        reason=found.reason + tested,
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


Rung = Callable[[GenerationFailed, Rules, JobState], Verdict | None]
LADDER: tuple[Rung, ...] = (
    slurm_refuses,
    out_of_memory,
    agents_gone,
    agent_ended,
    unreachable,
    nodes_named,
    unstarted,
    nobody_can_start,
    restore_failed,
    log_named,
    full_disk,
    tests_named,
    gpu_memory_not_free,
    wrong_code,
    stacks_named,
    slow_to_die,
    must_be_tested,
    transient,
)

WRITTEN_BY: dict[Rung, Writer] = {
    nodes_named: Writer.OWNER,
    unstarted: Writer.ROOT,
    log_named: Writer.OWNER,
    full_disk: Writer.USER,
    tests_named: Writer.OWNER,
    stacks_named: Writer.OWNER,
}
"""Rungs that blame nodes, with the least of those who can bring that about.

They take a node from the job whose own processes have said so, and lead root to a test of it, never to a
drain. What other users of a node can write takes a node from a job once at most.
"""
