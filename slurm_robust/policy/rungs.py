"""The rungs of the recovery ladder that exist so far, cheapest first (design, section 5).

Each is a function of what failed and of the rules; it returns a verdict, or None to pass the failure
on to the next rung. A new rung is a new function here and its place in :data:`LADDER`.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_robust.model.incident import Blame, GenerationFailed, Verdict
from slurm_robust.policy.restore import failed_to_restore
from slurm_robust.policy.rules import Rules


def agents_gone(failed: GenerationFailed, rules: Rules) -> Verdict | None:
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


def node_named(failed: GenerationFailed, rules: Rules) -> Verdict | None:
    """Rung 1: the observation itself names the node."""
    everywhere = bool(failed.unable) and not failed.lost and set(failed.unable) >= set(failed.alive)
    suspects = failed.lost if everywhere else (*failed.lost, *failed.unable)
    if not suspects:
        return None
    why = [f"{node} gives no sign of life" for node in failed.lost]
    if not everywhere:
        why += [f"{node}: {text}" for node, text in failed.unable.items()]
    return Verdict(
        rung=1,
        blame=Blame.NODE,
        signature=f"node {','.join(sorted(suspects))}",
        reason="; ".join(why),
        suspects=suspects,
        allowed=rules.limits.per_signature,
    )


def nobody_can_start(failed: GenerationFailed, rules: Rules) -> Verdict | None:
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


def restore_failed(failed: GenerationFailed, rules: Rules) -> Verdict | None:
    """Rung 6: a copy of what was to be restored is missing or damaged; what is left decides.

    A copy that fails is removed by its reader, so the next choice is another one.
    """
    bad = [e for e in failed.exits if failed_to_restore(e.exit)]
    if not bad or not failed.restore:
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


def user_exception(failed: GenerationFailed, rules: Rules) -> Verdict | None:
    """Rung 3: the first rank to fail raised an exception in code that can be named."""
    if failed.root is None or failed.root.exit.error is None or not failed.root.exit.error.file:
        return None
    rank, error = failed.root.exit.rank, failed.root.exit.error
    place = f"{error.type} at {error.file}:{error.line}"
    return Verdict(
        rung=3,
        blame=Blame.CODE,
        signature=place,
        reason=f"rank {rank} raised {place}: {error.message}",
        confidence=0.8,
        allowed=min(1, rules.limits.per_signature),
    )


def transient(failed: GenerationFailed, rules: Rules) -> Verdict | None:
    """Rung 6: nothing speaks against a node or the code, so the same again in place."""
    if failed.root is None:
        what, reason = "silent end", "the workers ended without an exit that explains it"
    else:
        exit = failed.root.exit
        what = exit.describe().partition(": ")[2]
        reason = f"{exit.describe()} on {failed.root.node}, nothing names a culprit"
    return Verdict(
        rung=6,
        blame=Blame.NOBODY,
        signature=what,
        reason=reason,
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


Rung = Callable[[GenerationFailed, Rules], Verdict | None]
LADDER: tuple[Rung, ...] = (
    agents_gone,
    node_named,
    nobody_can_start,
    restore_failed,
    user_exception,
    transient,
)
