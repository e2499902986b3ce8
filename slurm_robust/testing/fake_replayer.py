"""A replayer without nodes: it forms the real groups, and a test sets what each node does in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from slurm_robust.analysis.replay import (
    CannotReplay,
    Grid,
    GroupRun,
    GroupSeen,
    ReplayPhase,
    ReplayVerdict,
    conclude,
    fit,
    groups,
    is_settled,
    judge,
    nodes_of,
)
from slurm_robust.diagnostics.replay.steps import ReplayCommand
from slurm_robust.model.job import CommandKind
from slurm_robust.model.layout import ParallelLayout


class NodeDefect(Enum):
    """What is wrong with a node, hence with each group that it is in."""

    CORRUPTS = "other bits in its second step"
    NAN = "gradients that are not finite"
    CRASHES = "SIGSEGV"
    HANGS = "no result"


class FakeReplayer:
    """A :class:`~slurm_robust.diagnostics.replay.steps.Replayer`."""

    def __init__(self, faults: Mapping[str, NodeDefect] | None = None) -> None:
        self.faults = dict(faults or {})  # by node; all others are sound
        self.asked: list[tuple[str, ...]] = []  # the nodes of each call
        self.stopped = False

    def stop(self) -> None:
        """See the protocol."""
        self.stopped = True

    def replay(
        self,
        nodes: Sequence[str],
        layout: ParallelLayout,
        command: ReplayCommand,
        *,
        steps: int,
        budget_s: float,
    ) -> ReplayVerdict:
        """See the protocol."""
        self.asked.append(tuple(nodes))
        if command.kind is CommandKind.EXEC:
            return ReplayVerdict(reason="no replay: only a Python script or module can be replayed")
        if self.stopped:
            return ReplayVerdict(reason="no replay: it was stopped")
        try:
            grid = fit(len(nodes), layout)
        except CannotReplay as error:
            return ReplayVerdict(reason=f"no replay: {error}")
        horizontal = self._phase(ReplayPhase.HORIZONTAL, grid, nodes, steps)
        vertical = () if is_settled(horizontal) else self._phase(ReplayPhase.VERTICAL, grid, nodes, steps)
        return conclude(grid, nodes, horizontal, vertical)

    def _phase(
        self, phase: ReplayPhase, grid: Grid, nodes: Sequence[str], steps: int
    ) -> tuple[GroupSeen, ...]:
        return judge([self._run(nodes_of(grid, units, nodes), steps) for units in groups(phase, grid)])

    def _run(self, nodes: tuple[str, ...], steps: int) -> GroupRun:
        faults = [self.faults[node] for node in nodes if node in self.faults]
        loud = [fault.value for fault in faults if fault is not NodeDefect.CORRUPTS]
        digests = ["as in every group"] * steps
        if NodeDefect.CORRUPTS in faults:
            digests[1:] = [f"spoilt by {', '.join(nodes)}"] * (steps - 1)
        return GroupRun(nodes=nodes, steps=tuple(digests), kind=str(len(nodes)), trouble="; ".join(loud))
