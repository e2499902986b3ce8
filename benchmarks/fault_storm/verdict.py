"""What the storm led to: who was evicted for nothing, and how soon training went on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.fault_storm.plan import CONVICTS, Kind
from benchmarks.samples import Summary
from slurm_robust.controller.shrink import TAKEN_BY_SLURM
from slurm_robust.model import events as ev

GRACE_S = 180.0
"""A fault that is over still explains an eviction: a decision may wait for tests, storage or a takeover."""


@dataclass
class Planted:
    """One fault that was planted. ``node``: "" where it hit none; times are ``time.time()``.

    ``new_step_s``: until training made a step that it had not made before.
    """

    number: int
    kind: Kind
    midway: bool
    target: str
    node: str
    t: float
    mended: float | None = None
    before: int = -1
    new_step_s: float | None = None


def innocents(journal: Sequence[ev.AnyEvent], planted: Sequence[Planted]) -> list[ev.NodeEvicted]:
    """Evictions of nodes on which no fault had been that may evict.

    Where Slurm takes a node from the job, since its slurmd does not respond, the job goes on without it.
    """
    taken = {e.node for e in journal if isinstance(e, ev.NodeGivenBack) and e.how == TAKEN_BY_SLURM}

    def explains(fault: Planted, evicted: ev.NodeEvicted) -> bool:
        until = (fault.mended if fault.mended is not None else fault.t) + GRACE_S
        convicts = fault.kind in CONVICTS or (fault.kind is Kind.KILL_SLURMD and fault.node in taken)
        return fault.node == evicted.node and convicts and fault.t <= evicted.t <= until

    evictions = [event for event in journal if isinstance(event, ev.NodeEvicted)]
    return [e for e in evictions if not any(explains(fault, e) for fault in planted)]


def by_kind(planted: Sequence[Planted]) -> dict[str, Summary]:
    """Seconds to the new step of those faults to which no other one was added."""
    disturbed = {fault.number - 1 for fault in planted if fault.midway}
    alone = [f for f in planted if not f.midway and f.number not in disturbed]
    times = {
        kind: [f.new_step_s for f in alone if f.kind is kind and f.new_step_s is not None] for kind in Kind
    }
    return {kind.value: Summary.of(found) for kind, found in times.items() if found}


def unequal(found: Mapping[int, set[str]], expected: Mapping[int, set[str]]) -> list[int]:
    """Steps whose weights were ever others than those of the undisturbed training."""
    return sorted(step for step, hashes in found.items() if hashes != expected.get(step))
