"""A week of a job in memory: the real core and policy, simulated nodes, faults, checkpoints and requeues.

A loop over discrete events. Time jumps from one to the next: to the next fault, or by half an hour while all
is well, and by seconds while the controller has something to do. Nothing sleeps, and nothing is drawn but the
faults, from a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from enum import Enum

from msgspec import structs

from slurm_robust.engine.transitions import ToGathering
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Alert, Party, Suggestion
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.policy.replacement import assign
from slurm_robust.wire.messages import Phase
from tests.builders.events import run_started
from tests.unit.engine.fake_job import Job, doing

WEEK_S = 7 * 86400.0
STEP_S = 12.0
RESTORE_S = 40.0
"""From the launch until the first step is begun."""

QUIET_S, BUSY_S = 1800.0, 3.0
"""How far time jumps while all is well, and while the controller has something to do."""

QUEUE_S = 90.0
"""For a requeued job to start again."""


class Blow(Enum):
    """What happens to a node."""

    CRASH = "a rank crashes"
    POWER = "the node dies"
    GPU = "a GPU has an error that needs a replacement"
    HANG = "a rank is stopped"

    @property
    def breaks_the_node(self) -> bool:
        return self is not Blow.CRASH


class Strike(Record):
    """At ``t`` seconds ``blow`` hits the node of slot ``slot``."""

    t: float
    blow: Blow
    slot: int


def drawn(seed: int, slots: int, every_s: float) -> tuple[Strike, ...]:
    """Faults of a week, ``every_s`` apart on average, none in its last hour."""
    chance = random.Random(seed)
    t, found = 0.0, []
    while (t := t + 3600.0 + chance.expovariate(1 / every_s)) < WEEK_S - 3600.0:
        found.append(Strike(t=t, blow=chance.choice(list(Blow)), slot=chance.randrange(slots)))
    return tuple(found)


class Run(Job):
    """One run of the Slurm job; the core takes in all that changed in a turn at once."""

    changed = False

    def tick(self) -> None:
        self.changed = True

    def turn(self, seconds: float) -> None:
        """Time passes, and all agents that live say how things are now."""
        self.mono += seconds
        self.wall += seconds
        for node in list(self.heartbeats):
            self.change(node, progress=self.older(node, seconds))
        self.changed = True
        while self.changed:  # orders that agents carry out at once
            self.changed = False
            self.act(self.core.on_tick(self.now()))

    def do_steps(self, step: int, age_s: float) -> None:
        """All ranks completed ``step`` so long ago, and kept a snapshot of it in memory."""
        for node in self.core.world.slots:
            self.heartbeats[node] = structs.replace(
                self.heartbeats[node],
                progress=tuple(
                    structs.replace(p, step=step, reported=True, age_s=age_s)
                    for p in self.heartbeats[node].progress
                ),
            )
        self.snapshot(step)

    def trains(self) -> bool:
        """Whether the ranks of all slots are alive."""
        state = self.core.state
        heartbeats = [self.heartbeats.get(node) for node in state.world.slots]
        return state.world.running and all(
            b is not None and (b.phase, b.generation, b.exits) == (Phase.RUNNING, state.world.generation, ())
            for b in heartbeats
        )


class Week:
    """Plays ``strikes`` on a job that gets ``slots + spares`` nodes of the cluster's ``pool``."""

    def __init__(self, strikes: Sequence[Strike], pool: int = 40, slots: int = 4, spares: int = 2) -> None:
        self.begun = 1.7e9
        self.pool = [f"n{i}" for i in range(1, pool + 1)]
        self.slots, self.spares = slots, spares
        self.target = int(WEEK_S / STEP_S * 0.97)
        """The last step of the training."""
        self.strikes = list(strikes)
        self.struck: list[tuple[str, Blow]] = []
        self.turns = self.runs = 0
        self.journal: list[ev.AnyEvent] = []
        self.hung = ""  # a node with a stopped rank
        self._generation, self._first_at, self._step = 0, math.inf, -1
        self._stored: set[tuple[int, int]] = set()
        self.job = self._next_run((1000.0, self.begun), None)

    def play(self) -> int:
        """Until the job ends for good; its exit code."""
        while self.job.code in (None, ExitCode.REQUEUED):
            job = self.job
            if job.code is not None:
                self.journal = job.journal
                self.job = self._next_run((job.mono + QUEUE_S, job.wall + QUEUE_S), job)
                continue
            assert job.wall - self.begun < 2 * WEEK_S, f"stage {job.stage}: {job.said[-5:]}"
            self.turns += 1
            job.turn(self._until_next())
            if job.requeued and job.core.leaving is None:  # TERM follows a requeue at once
                job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
            self._train()
            if self.strikes and self._due_s() <= 0.0 and self._is_quiet():
                self._strike(self.strikes.pop(0))
        self.journal = self.job.journal
        return self.job.code

    # -- Slurm's part ------------------------------------------------------------------------------

    def _next_run(self, clock: tuple[float, float], before: Run | None) -> Run:
        """Slurm gives the job healthy nodes, without those that it excludes."""
        wall = clock[1]
        state = fold(self.journal)
        broken = {node for node, blow in self.struck if blow.breaks_the_node}
        healthy = [n for n in self.pool if n not in broken and n not in state.evicted]
        nodes = tuple(healthy[: self.slots + self.spares])
        slots, spares = assign(nodes, self.slots, state.evicted, state.world.slots)
        history = self.journal or [
            run_started(t=wall, job_id=7, slots=self.slots, spares=self.spares),
        ]
        self.runs += 1
        return Run(
            history=(
                *history,
                ev.ControllerStarted(t=wall, epoch=self.runs, host=slots[0], pid=1, port=1),
                ev.AllocationTaken(
                    t=wall, restart_count=self.runs - 1, nodes=nodes, slots=slots, spares=spares
                ),
            ),
            first=ToGathering(start=True),
            memory=True,
            clock=clock,
            storage=before.storage if before is not None else (),
        )

    # -- the nodes' part ---------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        """A node of the generation that runs is hit."""
        job = self.job
        node = job.core.world.slots[strike.slot]
        rank = job.core.world.placement.ranks_of(node)[0]
        self.struck.append((node, strike.blow))
        match strike.blow:
            case Blow.CRASH:
                job.kill_rank(rank, signal=11)
            case Blow.POWER:
                job.power_cut(node)
            case Blow.GPU:
                job.change(node, alerts=(BAD_GPU,))
            case Blow.HANG:
                job.stacks[rank] = doing(rank, node, "work@train.py", "main@train.py", state="T")
                self.hung = node

    def _train(self) -> None:
        """Ranks have made the steps that there was time for; what was to go to storage is there."""
        job, state = self.job, self.job.core.state
        if self.hung not in state.world.slots:
            job.stacks.clear()
            self.hung = ""
        job.ages = not job.trains() or bool(self.hung)
        if job.ages:
            return
        if self._generation != state.world.generation:
            self._generation, self._step = state.world.generation, state.world.restored_step
            self._first_at = job.mono + RESTORE_S - STEP_S
        trained_s = job.mono - self._first_at
        step = min(state.world.restored_step + max(0, int(trained_s / STEP_S)), self.target)
        if step > self._step:
            self._step = step
            job.do_steps(step, trained_s % STEP_S)
            self._store(step)
        if step == self.target:
            job.finish()

    def _store(self, step: int) -> None:
        job, state = self.job, self.job.core.state
        if 0 <= job.flush_step <= step and (state.world.generation, job.flush_step) not in self._stored:
            self._stored.add((state.world.generation, job.flush_step))
            job.checkpoints[state.world.generation] = job.flush_step
            for node in state.world.slots:
                job.change(node, flushed=job.flush_step)

    # -- time --------------------------------------------------------------------------------------

    def _due_s(self) -> float:
        """Seconds until the next fault."""
        return self.begun + self.strikes[0].t - self.job.wall if self.strikes else math.inf

    def _is_quiet(self) -> bool:
        core = self.job.core
        return self.job.stage == "Running" and core.world.incident is None and core.trains and not self.hung

    def _until_next(self) -> float:
        if not self._is_quiet():
            return BUSY_S
        left_s = (self.target - self._step) * STEP_S
        return max(BUSY_S, min(QUIET_S, self._due_s(), left_s))


BAD_GPU = Alert(
    number=1, check="gpu.lost", subject="gpu3", text="XID 79, fell off the bus", blame=Party.NODE,
    suggestion=Suggestion.REPLACE, age_s=0.5,
)  # fmt: skip
