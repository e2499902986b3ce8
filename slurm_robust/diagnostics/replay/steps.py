"""The real replayer: groups of nodes as concurrent job steps, one phase after the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec

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
from slurm_robust.diagnostics.replay.node import ReplayedRelease, ReplayTask, group_run, has_failed
from slurm_robust.model.job import CommandKind
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient, StepHandle
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.errors import SlurmCommandError
from slurm_robust.slurm.records import Allocation

# Each poll lists the folders of all groups that still run.
_POLL_S = 0.5
_CLEAR_AWAY_S = 15.0
# When most groups have ended, one that takes this many times as long gives no result any more.
_PATIENCE = 3.0
_MIN_PATIENCE_S = 30.0
_STOPPED = "no replay: it was stopped"


class ReplayCommand(Record):
    """What every rank runs: the user's script, with arguments that make it small."""

    kind: CommandKind
    command: tuple[str, ...]
    cwd: str  # the folder in which it runs
    release: ReplayedRelease | None = None  # whose code it is, None for the code in its place


class Replayer(Protocol):
    """Replays the job's training in crossed groups of nodes. The job's own workers are stopped before."""

    def replay(
        self,
        nodes: Sequence[str],
        layout: ParallelLayout,
        command: ReplayCommand,
        *,
        steps: int,
        budget_s: float,
    ) -> ReplayVerdict:
        """Find which nodes compute what the others do not, in ``steps`` optimizer steps of ``command``.

        ``nodes`` are in the order of their slots; ``layout`` is that of the job, of whose sizes all but
        ``dp`` are kept. Blocks for ``budget_s`` seconds at most, and a few more for clearing away; nothing of
        it runs on afterwards. What goes wrong on nodes or with Slurm is not raised: the reason says it.
        """
        ...

    def stop(self) -> None:
        """End :meth:`replay` now, from any thread, or immediately if it begins later, without a verdict."""
        ...


class StepReplayer:
    """A :class:`~slurm_robust.diagnostics.replay.steps.Replayer` by steps of this job.

    ``folder``, on storage that all nodes share, gets a new folder for each replay with what every rank
    computed and printed. ``ports`` are those at which ranks may meet, None for any free one.
    """

    def __init__(
        self,
        slurm: SlurmClient,
        allocation: Allocation,
        folder: Path,
        *,
        ports: range | None = None,
        lent: Lent | None = None,
    ) -> None:
        """Take ``lent``, the nodes of companions."""
        self._slurm = slurm
        self._lent = lent or Lent(allocation)
        self._folder = folder
        self._ports = tuple(ports or (0,))
        self._stopped = threading.Event()

    def stop(self) -> None:
        """See the protocol."""
        self._stopped.set()

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
        begun = time.monotonic()
        if command.kind is CommandKind.EXEC:
            return ReplayVerdict(reason="no replay: only a Python script or module can be replayed")
        if self._stopped.is_set():
            return ReplayVerdict(reason=_STOPPED)
        try:
            order = _Order(
                folder=_new_folder(self._folder),
                grid=fit(len(nodes), layout),
                nodes=tuple(nodes),
                nproc=layout.nproc_per_node,
                steps=steps,
                command=command,
            )
            horizontal = self._phase(ReplayPhase.HORIZONTAL, order, begun + budget_s / 2)
            vertical: tuple[GroupSeen, ...] = ()
            if not is_settled(horizontal) and not self._stopped.is_set():
                vertical = self._phase(ReplayPhase.VERTICAL, order, begun + budget_s)
        except (CannotReplay, OSError) as error:
            return ReplayVerdict(reason=f"no replay: {error}")
        if self._stopped.is_set():
            return ReplayVerdict(reason=_STOPPED)
        verdict = conclude(order.grid, order.nodes, horizontal, vertical)
        return msgspec.structs.replace(verdict, took_s=time.monotonic() - begun)

    def _phase(self, phase: ReplayPhase, order: _Order, deadline: float) -> tuple[GroupSeen, ...]:
        """Return what was seen of each group; ``deadline`` is by ``time.monotonic()``. Raises ``OSError``."""
        begun = time.monotonic()
        running: list[_Group] = []
        try:
            for number, units in enumerate(groups(phase, order.grid)):
                members = nodes_of(order.grid, units, order.nodes)
                group = _Group(order.folder / f"{phase.value}-{number}", members)
                running.append(group)
                if order.grid.holds_model(len(units)):
                    self._start(group, order, deadline - begun)
                else:
                    group.left_out = "too few nodes for a replica of the model"
            self._wait(running, begun, deadline)
        finally:
            self._clear_away([group for group in running if not group.is_gone()])
        waited_s = time.monotonic() - begun
        return judge([group.run(order.nproc, waited_s) for group in running])

    def _start(self, group: _Group, order: _Order, limit_s: float) -> None:
        group.folder.mkdir()
        task = ReplayTask(
            folder=str(group.folder),
            nodes=group.nodes,
            nproc=order.nproc,
            steps=order.steps,
            limit_s=limit_s,
            kind=order.command.kind,
            command=order.command.command,
            cwd=order.command.cwd,
            ports=self._ports,
            release=order.command.release,
        )
        try:
            for request in self._lent.steps(
                group.nodes, task.command_line(), name=group.step_name, environ=os.environ
            ):
                group.handles.append(self._slurm.launch_step(request, group.folder / "step.log"))
        except SlurmCommandError as error:
            group.trouble = f"it cannot be started: {error}"

    def _wait(self, running: Sequence[_Group], begun: float, deadline: float) -> None:
        """Wait until all groups ended or failed, most ran and the others are far behind, or ``deadline``."""
        left = list(running)
        took: list[float] = []
        while True:
            now = time.monotonic()
            ended = [group for group in left if group.has_ended()]
            left = [group for group in left if group not in ended]
            took += [now - begun for group in ended if not group.has_trouble()]
            left_s = begun + patience_s(took, len(running), deadline - begun) - now
            if not left or left_s <= 0 or self._stopped.wait(min(_POLL_S, left_s)):
                return

    def _clear_away(self, running: Sequence[_Group]) -> None:
        """End these groups' steps; tasks outlive their srun on some releases, so steps are cancelled too."""
        handles = [handle for group in running for handle in group.handles]
        if not handles:
            return
        for handle in handles:
            handle.kill()
        names = {group.step_name for group in running}
        deadline = time.monotonic() + _CLEAR_AWAY_S
        try:
            jobs = {self._lent.holder(node).job_id for group in running for node in group.nodes}
            for step in [step for job in jobs for step in self._slurm.steps(job)]:
                if step.name in names and time.monotonic() < deadline:
                    self._slurm.cancel(step.job_id, step_id=step.step_id, signal="KILL")
        except SlurmCommandError:
            pass  # Each node ends its part by itself when the time is over.
        while any(handle.poll() is None for handle in handles) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def patience_s(took: Sequence[float], groups: int, limit_s: float) -> float:
    """Return how long groups are waited for, when some of them ran to their end in ``took`` seconds each."""
    if 2 * len(took) <= groups:
        return limit_s
    return min(limit_s, max(_PATIENCE * median(took), _MIN_PATIENCE_S))


class _Order(Record):
    """What is replayed, and how its groups are formed."""

    folder: Path  # of this replay
    grid: Grid
    nodes: tuple[str, ...]
    nproc: int
    steps: int
    command: ReplayCommand


class _Group:
    """One group while it runs."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.handles: list[StepHandle] = []
        self.left_out = ""
        self.trouble = ""

    @property
    def step_name(self) -> str:
        """Unlike that of every other step of the job."""
        return f"{self.folder.parent.name}-{self.folder.name}"

    def is_gone(self) -> bool:
        """Return whether nothing of it runs."""
        return all(handle.poll() is not None for handle in self.handles)

    def has_ended(self) -> bool:
        """Return whether there is nothing to wait for."""
        return self.is_gone() or has_failed(self.folder)

    def has_trouble(self) -> bool:
        """Return whether it did not run, or not to its end."""
        return bool(self.left_out or self.trouble) or has_failed(self.folder)

    def run(self, nproc: int, waited_s: float) -> GroupRun:
        """Return what it did. Raises ``OSError``."""
        if self.left_out or self.trouble:
            return GroupRun(nodes=self.nodes, left_out=self.left_out, trouble=self.trouble)
        return group_run(self.folder, self.nodes, nproc, waited_s)


def _new_folder(parent: Path) -> Path:
    """Make ``replay-1``, ``replay-2``, … in ``parent``. Raises ``OSError``."""
    parent.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while True:
        folder = parent / f"replay-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
