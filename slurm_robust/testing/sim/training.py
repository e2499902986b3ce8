"""Training in a simulated job: ranks that make each step together, and the storage that keeps it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from slurm_robust.engine.questions import Prune
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.progress import UPDATE, Progress
from slurm_robust.model.stacks import Frame, ProcessKind, ProcessStacks, RankStacks, ThreadStack
from slurm_robust.policy.restore import protected
from slurm_robust.testing.sim.timeline import Timeline
from slurm_robust.wire.messages import Launch, TakeStacks


@dataclass(eq=False)
class Rank:
    """One worker process. Times are those of the timeline."""

    node: str
    rank: int
    pid: int
    launch: Launch
    begun: float
    """When its node was told to launch it."""
    restored: bool = False
    restored_s: float = 0.0
    """Seconds from the order until it had."""
    step: int = -1
    """The newest that it has completed."""
    at: float = 0.0
    """When it did."""
    stopped: bool = False
    """It hangs."""
    shows: Callable[[TakeStacks], RankStacks] | None = None
    """Makes its stacks; None: it waits for the others or, if it hangs, its process is stopped (SIGSTOP)."""
    unkillable: bool = False
    """No signal ends it: it waits for a device."""
    spoils: bool = False
    """Its numbers are not finite from its next step on."""
    bad_step: int = -1
    phase: str = ""
    """What its step record says that it does between steps, since :attr:`phase_at`."""
    phase_at: float = -math.inf
    published: int = -1
    """The newest step that it has put on storage at request."""
    wanted: int = -1
    """The step of which a checkpoint was requested."""
    hold_s: float = 0.0
    """For how long it then begins no other step."""
    held_until: float = -math.inf
    stride: int = 0
    """Multiples of it go to peers, as it knows."""
    local_stride: int = 0
    """Snapshots are taken of multiples of it, as it knows."""
    kept: int = -1
    """The newest step of which it has taken one, or which it has restored."""
    killed: float | None = None
    loss: float = 2.5
    """The loss that it tells."""
    tail: tuple[str, ...] = ()
    """The last lines of its output."""

    @property
    def generation(self) -> int:
        """The generation of the launch."""
        return self.launch.generation

    def stacks(self, order: TakeStacks) -> RankStacks:
        """Return what py-spy shows of it."""
        if self.shows is not None:
            return self.shows(order)
        if self.stopped:
            return doing(self.rank, self.node, "work@train.py", "main@train.py", state="T")
        return waiting(self.rank, self.node)

    def progress(self, now: float, *, reported: bool = True) -> Progress:
        """Return its step record; ``reported``: by a script that uses our API."""
        if not reported:
            age_s = now - (self.at if self.step >= 0 else self.begun)
            return Progress(rank=self.rank, step=self.step, reported=False, age_s=age_s)
        bad = 0 <= self.bad_step <= self.step
        phase, phase_s = self.phase, now - self.phase_at
        if now < self.held_until:
            phase, phase_s = UPDATE, now - self.at
        return Progress(
            rank=self.rank,
            step=self.step,
            reported=True,
            age_s=now - (self.at if self.step >= 0 else self.begun),
            loss=None if self.step < 0 else math.nan if bad else self.loss,
            checkpoint=self.published,
            phase=phase,
            phase_s=phase_s,
            bad_step=self.bad_step if bad else -1,
            restored=self.restored,
        )


class SimulatedTraining:
    """Ranks of one generation that are all there, and none of which hangs, complete a step every ``step_s``.

    ``reaches``: whether all of some nodes reach each other; ``on_step``: told of each step that ranks have
    completed together. ``on_done``: of ranks that have no step left to do.
    """

    def __init__(
        self,
        timeline: Timeline,
        chance: Random,
        *,
        steps: int,
        step_s: float,
        reaches: Callable[[Collection[str]], bool],
        on_step: Callable[[Mapping[int, Rank], int], None],
        on_done: Callable[[Mapping[int, Rank]], None],
    ) -> None:
        self.steps, self.step_s = steps, step_s
        self.slow: dict[int, float] = {}
        """Factors by which ranks are slower."""
        self.factors: dict[str, float] = {}
        """How many times as long as others steps of a release take."""
        self.newest = -1
        """The newest step that was ever completed."""
        self.reports = True
        """Whether the script uses our API; without, its steps are counted, and it keeps nothing."""
        self.loss = 2.5
        """The loss that the script tells."""
        self.whole_s = self.blocked_s = 0.0
        """Seconds until a snapshot is whole, and for which one blocks training in any case."""
        self._timeline, self._chance, self._reaches = timeline, chance, reaches
        self._on_step, self._on_done = on_step, on_done
        self._members: dict[int, dict[int, Rank]] = defaultdict(dict)
        self._planned: dict[int, float] = {}  # when the step ends that a generation is at

    def enter(self, rank: Rank) -> None:
        """Let ``rank``, which has restored, meet the others of its generation."""
        self._members[rank.generation][rank.rank] = rank
        self.nudge(rank.generation)

    def leave(self, rank: Rank) -> None:
        """Take out ``rank``, which has ended; the others wait for it."""
        members = self._members[rank.generation]
        if members.get(rank.rank) is rank:
            del members[rank.rank]

    def step_of(self, generation: int, world_size: int) -> int:
        """Return the newest step that all ranks of ``generation`` have completed; -1 before their first, and
        while some are missing.
        """
        members = self._members.get(generation, {})
        return min((rank.step for rank in members.values()), default=-1) if len(members) == world_size else -1

    def nudge(self, generation: int) -> None:
        """Begin the next step, if nothing stands in the way any more."""
        if generation in self._planned or not self._is_able(generation):
            return
        if self._next_step(self._members[generation]) >= self.steps:
            self._on_done(dict(self._members[generation]))
            return
        self._plan(generation, self._timeline.now)

    def _plan(self, generation: int, begins: float) -> None:
        members = self._members[generation]
        slowest = max((self.slow.get(rank, 1.0) for rank in members), default=1.0)
        slowest *= max((self.factors.get(rank.launch.release, 1.0) for rank in members.values()), default=1.0)
        ends = begins + self.step_s * slowest * self._chance.uniform(0.97, 1.03)
        ends += max((self._blocked_s(rank) for rank in self._members[generation].values()), default=0.0)
        self._planned[generation] = ends
        self._timeline.after(ends - self._timeline.now, lambda: self._complete(generation, ends))

    def _blocked_s(self, rank: Rank) -> float:
        """Return for how long the snapshot of the step that was just made blocks the rank."""
        if not self.reports or rank.step < 0 or rank.step % rank.local_stride:
            return 0.0
        return self.blocked_s + max(0.0, self.whole_s - rank.local_stride * self.step_s)

    def nudge_all(self) -> None:
        """Do the same as :meth:`nudge`, for every generation."""
        for generation in list(self._members):
            self.nudge(generation)

    def leap(self, generation: int, until: float) -> float | None:
        """Complete all steps of ``generation`` that end before ``until``, but for the last step of all.

        Return when the newest ended, None if no step did.
        """
        members = self._members[generation]
        if not members or not self._is_able(generation):
            return None
        done = next(iter(members.values())).step
        first = done if done >= 0 else _restored(members)
        began = next(iter(members.values())).at if done >= 0 else self._timeline.now
        more = min(int((until - began) / self.step_s), self.steps - first - 2)
        if more <= 0:
            return None
        at = began + more * self.step_s
        for rank in members.values():
            rank.step, rank.at = first + more, at
        self.newest = max(self.newest, first + more)
        self._on_step(members, first + more)
        self._plan(generation, at)
        return at

    def _is_able(self, generation: int) -> bool:
        members = self._members[generation]
        now = self._timeline.now
        if not members or any(rank.stopped or now < rank.held_until for rank in members.values()):
            return False
        some = next(iter(members.values()))
        return len(members) == some.launch.world_size and self._reaches(
            {rank.node for rank in members.values()}
        )

    def _next_step(self, members: Mapping[int, Rank]) -> int:
        done = next(iter(members.values())).step
        return (done if done >= 0 else _restored(members)) + 1

    def _complete(self, generation: int, planned: float) -> None:
        if self._planned.get(generation) != planned:
            return  # a leap has passed over it
        del self._planned[generation]
        if not self._is_able(generation):
            return
        members = self._members[generation]
        step, now = self._next_step(members), self._timeline.now
        self.newest = max(self.newest, step)
        first_bad = min((r.bad_step for r in members.values() if r.bad_step >= 0), default=step)
        for rank in members.values():
            rank.step, rank.at = step, now
            if rank.bad_step < 0 and (rank.spoils or first_bad < step):
                rank.bad_step = step
            if rank.hold_s and step == rank.wanted:
                rank.held_until = now + rank.hold_s
                self._timeline.after(rank.hold_s, partial(self.nudge, generation))
        self._on_step(members, step)
        self.nudge(generation)


def _restored(members: Mapping[int, Rank]) -> int:
    restore = next(iter(members.values())).launch.restore
    return restore.step if restore is not None else -1


class FakeStorage:
    """Shared storage of checkpoints. ``hangs``: it does not answer; ``fails``: it refuses; ``shows``: it
    lists what was written.
    """

    def __init__(self) -> None:
        self.hangs = self.fails = False
        self.shows = True
        self.parts: dict[CheckpointId, set[int]] = defaultdict(set)
        self._worlds: dict[CheckpointId, int] = {}

    def write(self, ref: CheckpointId, ranks: Collection[int], world_size: int) -> None:
        """Take the parts of ``ranks``."""
        self.parts[ref].update(ranks)
        self._worlds[ref] = world_size

    def complete(self) -> dict[CheckpointId, Tier]:
        """Return the checkpoints of which every part is there."""
        return {ref: Tier.STORAGE for ref, ranks in self.parts.items() if len(ranks) == self._worlds[ref]}

    def listed(self) -> dict[CheckpointId, Tier]:
        """Return what it lists of them: a cache may show nothing yet."""
        return self.complete() if self.shows else {}

    def prune(self, asked: Prune, keep: int) -> None:
        """Remove what no restore needs; of the running generation the newest ``keep`` stay."""
        complete, generation = self.complete(), asked.generation
        stays = protected(asked.sealed, generation, complete, keep, asked.needed, asked.until)
        own = sorted((r for r in complete if r.generation == generation), reverse=True)
        for ref in complete:
            if ref not in stays and (ref.generation < generation or ref in own[keep:]):
                del self.parts[ref]


def doing(rank: int, node: str, *calls: str, state: str = "S") -> RankStacks:
    """Make the stacks of a rank whose main thread is in ``calls`` (``function@file``), innermost first."""
    frames = tuple(Frame(function=f, file=file) for f, _, file in (call.partition("@") for call in calls))
    thread = ThreadStack(frames=frames, name="MainThread", is_main=True)
    process = ProcessStacks(pid=100 + rank, kind=ProcessKind.WORKER, state=state, threads=(thread,))
    return RankStacks(rank=rank, node=node, processes=(process,), source="py-spy")


def stuck_in(rank: Rank, *calls: str) -> None:
    """Let a rank stand still in these calls of its own code."""
    stacks = doing(rank.rank, rank.node, *calls)
    rank.stopped, rank.shows = True, lambda _: stacks


def waiting(rank: int, node: str) -> RankStacks:
    """Make the stacks of a rank that waits for the others."""
    return doing(rank, node, "all_reduce@torch/distributed/distributed_c10d.py", "main@train.py")
