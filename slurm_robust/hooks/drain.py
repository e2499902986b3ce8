"""Whether to drain or to return a node. Pure: Slurm's view, the checks' and our own record decide.

What is not known to be ours is never touched, and every state that is not known to be harmless is left to
others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_robust.config.node import Drain
from slurm_robust.hooks.record import DAY_S, DrainAction, DrainCause, OwnDrain, causes_of, has_passed
from slurm_robust.model.findings import Finding, Party
from slurm_robust.model.record import Record
from slurm_robust.nodes.reasons import TAG, has_ours
from slurm_robust.nodes.verdict import REASON_BYTES, Report

if TYPE_CHECKING:
    # Its package is not needed to decide, and a hook on a healthy node never asks Slurm.
    from slurm_robust.slurm.records import SlurmNode

HOUR_S = 3600.0
SITE_CHECKS = "site."
"""How names of a site's own checks begin; a mistake in one is the same on all nodes."""


# A node can be drained or returned in these base states only.
_BASES = frozenset({"IDLE", "ALLOCATED", "MIXED"})
# Marks that say nothing about what a person wants (scontrol(1), NODE STATE CODES). PLANNED and BLOCKED are
# the scheduler's; a planned node that is bad must be drained before the job for which it is kept. After a
# resume a healthy node is NOT_RESPONDING for 0.6 to 2 s on every release from 22.05 to 26.05.
_HARMLESS = frozenset(
    {"DRAIN", "COMPLETING", "NOT_RESPONDING", "RESERVED", "PLANNED", "BLOCKED", "PERFCTRS", "NPC"}
    | {"CLOUD", "DYNAMIC_NORM"}
)
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


class PartitionDrains(Record):
    """Drains of ours in one partition, the node in question left out."""

    partition: str
    nodes: int
    """All that the partition has."""

    drained: int = 0
    """Drains that stand."""

    this_hour: int = 0
    """Drains that began within the last hour."""


class DrainDecision(Record):
    """What to do, and why."""

    action: DrainAction
    why: str
    reason: str = ""
    stays: bool = False
    """Only a person undoes this drain."""

    later: bool = False
    """Nothing but a cap speaks against it now."""

    full: str = ""
    """The partition with that cap."""


def decide(
    node: SlurmNode,
    report: Report,
    record: OwnDrain,
    shares: Sequence[PartitionDrains],
    config: Drain,
    now: float,
) -> DrainDecision:
    """Return what to do with ``node``. ``record`` has counted this run already (:func:`after_run`).

    The same in observe mode, in which it is only reported. ``now``: seconds since 1970.
    """
    if state := untouchable(node):
        return _nothing(f"the node is {state}, which is not ours to change")
    if node.is_drained and not is_own(node, record):
        whose, reason = node.reason_user or "another user", node.reason or "no reason given"
        if is_tagged(node):
            return _nothing(f"drained as ours, but not with the reason that this node remembers: {reason}")
        return _nothing(f"drained by {whose}: {reason}")
    if report.fit:
        return _return(node, record, config) if node.is_drained else _nothing("the node is fit")
    if not causes_of(report):
        return _nothing("nothing has failed; what is only unknown does not drain")
    if node.is_drained:
        if set(causes_of(report)) <= set(record.causes):
            return _nothing("drained for this already")
        return DrainDecision(
            action=DrainAction.UPDATE_REASON,
            why="drained already, and something else has failed since",
            reason=report.reason,
            stays=record.stays,
        )
    return _drain(report, record, shares, config, now)


def may_be_common(report: Report) -> bool:
    """Return whether other nodes may well find the same: all but this node's own hardware or kernel."""
    return any(
        found.blame is not Party.NODE or found.check.startswith(SITE_CHECKS) for found in report.causes
    )


def untouchable(node: SlurmNode) -> str:
    """Return the states of the node that are not ours to touch; empty when there are none."""
    foreign = sorted(node.states - _BASES - _HARMLESS)
    return "+".join(foreign or ([] if node.states & _BASES else ["UNKNOWN"]))


def is_own(node: SlurmNode, record: OwnDrain) -> bool:
    """Return whether the drain of ``node`` is ours and its reason unchanged since."""
    return bool(record.reason) and node.reason in (record.reason, record.former) and is_tagged(node)


def is_tagged(node: SlurmNode) -> bool:
    """Return whether the node is drained with a reason of some node's own hook."""
    return node.is_drained and node.reason.startswith(TAG)


def shares_of(nodes: Iterable[SlurmNode], name: str, now: float) -> tuple[PartitionDrains, ...]:
    """Return our drains in each partition of the node ``name``, itself left out. ``now``: slurmctld's."""
    every = tuple(nodes)
    shares = []
    for partition in next((node.partitions for node in every if node.name == name), ()):
        members = [node for node in every if partition in node.partitions]
        others = [node for node in members if node.name != name]
        # Slurm may keep the reason of a drain that was undone; it began within the hour anyway.
        recent = [n for n in others if has_ours(n.reason) and (n.reason_time or 0.0) > now - HOUR_S]
        drained = sum(node.is_drained and has_ours(node.reason) for node in others)
        shares.append(
            PartitionDrains(partition=partition, nodes=len(members), drained=drained, this_hour=len(recent))
        )
    return tuple(shares)


def beyond_cap(nodes: Iterable[SlurmNode], name: str, config: Drain) -> str:
    """Return why the drain of ``name``, which stands now, is one too many; empty when it is not.

    This is for a drain that Slurm perhaps took after its node's drain lock expired: it gives way to all
    others.
    """
    every = tuple(nodes)
    mine = next((node for node in every if node.name == name), None)
    if mine is None or mine.reason_time is None:
        return ""
    return next(
        filter(None, (_full(share, config) for share in shares_of(every, name, mine.reason_time))), ""
    )


def hindrance(
    node: SlurmNode, record: OwnDrain, findings: Sequence[Finding], left_out: Mapping[str, str], runs: int
) -> str:
    """Return what keeps a node drained that ``runs`` runs found fit, if only a person can change it, else "".

    ``findings`` and ``left_out`` are those of a whole periodic run.
    """
    if not record.reason or not is_own(node, record):
        return ""
    resume = f"scontrol update nodename={node.name} state=resume"
    if record.passes >= runs and "DOWN" in node.states:
        return f"it has passed, but Slurm has it DOWN, as after a boot, and no hook changes that: {resume}"
    if record.unproven < runs:
        return ""
    open_ = [cause for cause in record.causes if not has_passed(cause, findings)]
    text = "; ".join(
        f"{cause.check} {cause.subject}".rstrip() + _unseen(cause, findings, left_out) for cause in open_
    )
    if not text:
        return ""
    return f"{text}; if the node is well, return it: {resume}"


def _unseen(cause: DrainCause, findings: Sequence[Finding], left_out: Mapping[str, str]) -> str:
    own = [found for found in findings if found.check == cause.check]
    if cause.check in left_out:
        return f" is not checked: {left_out[cause.check]}"
    if not own:
        return " is not checked by the periodic check (removed, or only in srobust admin quarantine)"
    if cause.subject and all(found.subject not in (cause.subject, "") for found in own):
        return " is not there any more"
    return " is unknown"


# -- the cases ---------------------------------------------------------------------------------------


def _nothing(why: str) -> DrainDecision:
    return DrainDecision(action=DrainAction.NOTHING, why=why)


def _drain(
    report: Report, record: OwnDrain, shares: Sequence[PartitionDrains], config: Drain, now: float
) -> DrainDecision:
    for share in shares:
        if full := _full(share, config):
            return DrainDecision(action=DrainAction.NOTHING, why=full, later=True, full=share.partition)
    times = record.drains_since(now - DAY_S) + 1
    stays = times >= config.most_per_day
    reason = report.reason
    if stays:
        suffix = f" (drained {times} times in 24 h, stays)"
        reason = reason[: REASON_BYTES - len(suffix)] + suffix
    return DrainDecision(action=DrainAction.DRAIN, why="a check has failed", reason=reason, stays=stays)


def _return(node: SlurmNode, record: OwnDrain, config: Drain) -> DrainDecision:
    if not config.undrain:
        return _nothing("passed, but drain.undrain is off")
    if record.stays:
        return _nothing("drained too often within 24 h: a person must decide")
    if record.passes < config.pass_runs:
        return _nothing(f"passed {record.passes} runs in a row of {config.pass_runs} that are needed")
    if node.allocated_cpus or node.states & _BUSY:
        return _nothing("passed, but a job is still on it")
    if not node.responding:
        return _nothing("passed, but Slurm has not heard of it lately")
    return DrainDecision(action=DrainAction.UNDRAIN, why=f"passed {record.passes} runs in a row")


# -- caps --------------------------------------------------------------------------------------------


def _full(share: PartitionDrains, config: Drain) -> str:
    # The summand keeps 0.29 * 100 from being 28.
    most = max(1, math.floor(config.max_share * share.nodes + 1e-9))
    if share.drained >= most:
        return (
            f"cap: {share.drained} of the {share.nodes} nodes of {share.partition} are drained by srobust "
            f"already, at most {most} may be (drain.max_share)"
        )
    if share.this_hour >= config.max_per_hour:
        return (
            f"cap: {share.this_hour} nodes of {share.partition} were drained by srobust within an hour, at "
            f"most {config.max_per_hour} may be (drain.max_per_hour)"
        )
    return ""
