"""One life of a simulated job, by the policy and the fold of its journal alone (``fidelity: policy``).

:func:`slurm_robust.policy.decide.decide` decides everything, on a state that is folded from real events. How
long things take, and what tests find, is drawn. The result is the journal of each job of the life, which
:mod:`slurm_robust.ledger` reads as it reads that of a real job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from random import Random

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, Fault, Symptom, TestResult
from slurm_robust.model.job import CommandKind
from slurm_robust.model.progress import CHECKPOINT, EVALUATION, PaceHistory
from slurm_robust.model.record import Record
from slurm_robust.model.release import Candidate, Requester, When
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.world import World
from slurm_robust.policy.decide import at_the_end, decide
from slurm_robust.policy.repeats import left_behind, suspected
from slurm_robust.policy.replacement import assign
from slurm_robust.policy.replenish import missing_standbys, next_attempt
from slurm_robust.policy.rollback import LEAST_STEPS
from slurm_robust.policy.rules import Rules
from slurm_robust.policy.sampling import reason_to_go_on
from slurm_robust.simulator.damage import BEHIND_NODES, ENDS_NODES, Damage
from slurm_robust.simulator.faults import SimulatedFault, given_faults
from slurm_robust.simulator.seen import Strike, fault_seen
from slurm_robust.simulator.site import SimulatedSite
from slurm_robust.simulator.spec import FaultOf, FaultSource, Spec
from slurm_robust.simulator.spread import parse, rate, seconds
from slurm_robust.testing.clock import FakeClock
from slurm_robust.testing.sim.environment import SimulatedRelease, release_of
from slurm_robust.testing.sim.timeline import Timeline
from slurm_robust.version import __version__

BEGUN = 1.7e9
"""When every life begins, in seconds since 1970."""

_CLOCK_S = 1e-6
"""As exactly are times since 1970 known."""

_SOON_S = 0.01
"""What is due as soon as this is due now: times of a spec are rounded, and so are those of the wall clock."""

WARNED_S = 120.0
"""How long before the time limit a run begins to leave."""

SUSPECTS_S = 1800.0
"""How often suspected standbys are looked at."""

_WRONG_NUMBERS = (FaultOf.NAN, FaultOf.CORRUPTION)


class SimulatedLife(Record):
    """What became of one simulated job."""

    seed: int
    journals: tuple[tuple[ev.AnyEvent, ...], ...]
    """Of each job of the life: the owner submits another one when one has ended with an error."""
    end: float
    """Until when it was watched, in seconds since 1970."""
    is_done: bool
    """Training has done all of its steps."""
    struck: int
    """Faults that struck the job."""
    evicted_right: int
    """Evictions of nodes that were broken …"""
    evicted_wrong: int
    """… and of nodes that were not."""
    named: tuple[str, ...] = ()
    """Nodes against which something spoke: they were at fault, or a fault that was none named them."""
    died: tuple[tuple[float, str], ...] = ()
    """When nodes lost their power, by the wall clock, and with it all memory."""
    astray: tuple[str, ...] = ()
    """Nodes that neither the job nor Slurm has at the end: there must be none."""


class TimeIsOver(Exception):
    """The life is not watched any longer, or training is done."""


class _LimitIsNear(Exception):
    """The time limit of this run of the job is near."""


class _Next(Enum):
    TRAIN = "the next generation is launched"
    REQUEUE = "the job is queued again"
    OVER = "the job has ended"


class PolicyLife:
    """Plays one life. Create it, then call :meth:`play` once."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self._chance = Random(f"life {seed}")
        self._clock = FakeClock(BEGUN)
        self._timeline = Timeline(self._clock)
        self._site = SimulatedSite(spec, self._timeline, self._chance)
        self._horizon = seconds(spec.time)
        self._step_s = seconds(spec.job.step)
        self._every, _ = _checkpoints(spec)
        self._spent_s = extra_s(spec)
        self._stall_s = sum(self._spent_s.values())
        self._rules = Rules(config=spec.policy)
        self._journals: list[list[ev.AnyEvent]] = []
        self._state = JobState()
        self._strikes: list[Strike] = []  # that the controller has not dealt with
        given = given_faults(spec, f"faults {seed}")
        self._given = deque(fault for fault in given if not fault.source.starting)
        self._given_starts = deque(fault for fault in given if fault.source.starting)
        self._next_update = self._next_restart = math.inf
        self._updates = deque(sorted(map(seconds, spec.owner.updates_after)))
        self._preemptions = deque(sorted(map(seconds, spec.cluster.preempted_after)))
        self._queued_at = 0.0
        self._losses = deque(sorted(map(seconds, spec.cluster.lost_after)))
        self._releases: dict[str, SimulatedFault | None] = {}  # what each release brought
        self._companions = 0
        self._companion_of: dict[str, int] = {}
        # Of the generation that trains:
        self._first_at, self._first_step, self._pace_s = math.inf, 0, self._step_s + self._stall_s
        self._begun_with = 0  # its first step
        self._trains_since, self._trained_before_s = math.inf, 0.0
        self._counted = -1  # the step that the journal has
        # What memory and storage have:
        self._memory: CheckpointId | None = None
        self._gone: set[int] = set()  # slots whose node has lost what it had
        self._moved: set[int] = set()  # slots whose node has another place now
        self._written: list[CheckpointId] = []  # to storage
        self._struck = self._right = self._wrong = 0
        self._at_fault: set[str] = set()  # nodes at which something was wrong, also if it does not last
        self._shown: set[str] = set()  # nodes at which a hang or a slowdown was seen
        self._leaves_at = math.inf  # when the time limit of this run is near
        self._storage_back = 0.0  # when the storage answers again
        self._is_done = False
        self._damage = Damage(spec, self._site, self._timeline, self._chance, seed, self._strike)
        self._plan_owner()

    # -- the life --------------------------------------------------------------------------------------

    def play(self) -> SimulatedLife:
        """Play it to its end."""
        try:
            for number in range(1 + self.spec.owner.stops_after):
                self._submit(number)
                while self._run() is _Next.REQUEUE:
                    pass
                self._wait(self._draw(self.spec.owner.resubmit))
                self._damage.bugs.clear()  # a person has looked at it
        except TimeIsOver:
            pass
        if self._first_at <= self._now and self._world.running:
            self._count_steps(self._now)
        return SimulatedLife(
            seed=self.seed,
            journals=tuple(tuple(journal) for journal in self._journals),
            end=self._wall,
            is_done=self._is_done,
            struck=self._struck,
            evicted_right=self._right,
            evicted_wrong=self._wrong,
            named=tuple(self._damage.named),
            died=tuple(self._damage.died),
            astray=tuple(node for node in self._site.names if not self._is_somewhere(node)),
        )

    def _is_somewhere(self, node: str) -> bool:
        state = self._state
        return self._site.has(node) or node in (
            *state.held,
            *state.world.slots,
            *state.spares,
            *state.lenders,
        )

    @property
    def _now(self) -> float:
        return self._timeline.now

    @property
    def _wall(self) -> float:
        return self._clock.now

    @property
    def _world(self) -> World:
        return self._state.world

    def _draw(self, text: str) -> float:
        return parse(text).draw(self._chance)

    def _record(self, event: ev.AnyEvent) -> None:
        self._journals[-1].append(event)
        self._state = apply(event, self._state)

    def _wait(self, s: float) -> None:
        """Let time pass, with all that happens meanwhile."""
        until = min(self._now + s, self._horizon, self._leaves_at)
        while self._timeline.step(until):
            pass
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        if self._now >= self._horizon - _SOON_S:
            raise TimeIsOver
        if self._now >= self._leaves_at - _SOON_S:
            raise _LimitIsNear

    # -- what happens ----------------------------------------------------------------------------------

    def _plan_given(self) -> None:
        """Plan the next of the faults that come when the job has trained for a given time."""
        if self._given:
            due_s = self._given[0].t - self._trained_s
            self._timeline.after(due_s, partial(self._strike_given, self._world.generation))

    def _strike_given(self, generation: int) -> None:
        if not self._world.running or self._world.generation != generation or self._first_at > self._now:
            return
        if self._given and self._given[0].t <= self._trained_s + _SOON_S:
            self._strike(self._given.popleft())
            self._plan_given()

    @property
    def _trained_s(self) -> float:
        """For how long the job has trained in all."""
        return self._trained_before_s + max(0.0, self._now - self._trains_since)

    def _stop_training(self) -> None:
        self._trained_before_s, self._trains_since = self._trained_s, math.inf

    def _strike(self, fault: SimulatedFault) -> None:
        """Have ``fault`` strike a node of the cluster, or the job as it is now."""
        world, kind = self._world, fault.source.kind
        nodes = self._damage.nodes_of(fault, world, self._state.spares)
        if not nodes:
            return
        nodes = self._damage.do(fault, nodes, world)
        if kind is FaultOf.STORAGE:
            self._storage_back = max(self._storage_back, self._now + self._draw(fault.source.lasts))
        mine = tuple(one for one in nodes if world.placement.holds(one))
        # Before the first step nobody sees that steps are slow, and a start waits for the storage.
        if (
            world.running
            and mine
            and (kind not in (FaultOf.STORAGE, FaultOf.SLOW) or self._first_at < math.inf)
        ):
            self._hit(fault, mine)
        for one in nodes:
            if kind in ENDS_NODES and self._site.has(one):
                self._site.repair_idle(one)
            elif kind in ENDS_NODES and one in self._state.spares:
                self._lose_standby(one, kind)

    def _hit(self, fault: SimulatedFault, nodes: tuple[str, ...]) -> None:
        if fault.source.kind in (FaultOf.HANG, FaultOf.SLOW):  # with two of its ranks, it is the node's
            self._damage.named |= dict.fromkeys(node for node in nodes if node in self._shown)
            self._shown.update(nodes)
        if fault.at_node and fault.source.kind not in BEHIND_NODES:
            self._at_fault.update(nodes)
        values = {name: getattr(fault, name) for name in fault.__struct_fields__}
        self._strikes.append(Strike(**{**values, "t": self._now, "nodes": nodes}))

    def _lose_standby(self, node: str, kind: FaultOf) -> None:
        if kind is FaultOf.NODE:
            event = ev.SpareSetAside(t=self._wall, node=node, reason="does not respond", usable=False)
            self._record(event)
            if node in self._companion_of:  # its companion ends with it; another node stays until the end
                self._return(node)
            return
        self._record(ev.NodeEvicted(t=self._wall, node=node, reason="a GPU is lost", incident=0))
        self._right += 1
        self._let_evicted_go()

    def _let_evicted_go(self) -> None:
        """Give back the evicted nodes that are not in use again for want of others."""
        state = self._state
        in_use, held = {*state.world.slots, *state.spares}, set(state.held)
        for node in state.evicted:
            if node in in_use:
                continue
            if node in held:
                self._record(ev.NodeGivenBack(t=self._wall, node=node, how="by shrinking the job"))
                self._return(node)
            elif node in self._companion_of:
                self._return(node)

    def _again(self, generation: int, fault: SimulatedFault, node: str) -> None:
        """Have what persists strike again, unless that generation is over, or it was dealt with."""
        world = self._world
        if not world.running or world.generation != generation:
            return
        if self._damage.is_there(fault, node, world):
            self._hit(fault, (node or self._chance.choice(world.slots),))

    def _plan_repeats(self) -> None:
        """Plan when what is wrong with nodes and the code strikes the generation that has just begun."""
        generation = self._world.generation
        for after_s, fault, node in self._damage.repeats(self._world):
            self._timeline.after(after_s, partial(self._again, generation, fault, node))

    # -- the owner -------------------------------------------------------------------------------------

    def _plan_owner(self) -> None:
        owner = self.spec.owner
        for name, text in (("_next_update", owner.updates), ("_next_restart", owner.manual_restarts)):
            often = rate(text).of_job(self.spec.job.nodes, self.spec.job.nodes * self.spec.job.gpus_per_node)
            at = self._now + self._chance.expovariate(often) if often else math.inf
            setattr(self, name, at)

    def _submit(self, number: int) -> None:
        spec, before = self.spec, self._state
        self._journals.append([])
        self._state = JobState()
        job = 1000 + number
        self._record(
            ev.RunStarted(
                t=self._wall,
                run_id=f"seed-{self.seed}",
                job_id=job,
                kind=CommandKind.SCRIPT.value,
                command=("train.py",),
                cwd="/",
                slots=spec.job.nodes,
                spares=spec.job.spares,
                nproc_per_node=1,
                version=__version__,
            )
        )
        if number:
            self._record(
                ev.Continued(
                    t=self._wall,
                    from_job=job - 1,
                    from_folder=f"/{job - 1}",
                    generation=before.world.generation,
                    sealed=before.world.sealed,
                    best_step=before.world.best_step,
                    reports=True,
                    slots=spec.job.nodes,
                    stored=self._stored,
                )
            )
        self._take_release(f"{len(self._releases):012x}", None)

    def _take_release(self, name: str, brings: SimulatedFault | None) -> None:
        self._releases[name] = brings
        self._record(ev.ReleaseTaken(t=self._wall, release=release_of(name, SimulatedRelease())))

    # -- a run of the job ------------------------------------------------------------------------------

    def _run(self) -> _Next:
        self._allocate()
        phases = self.spec.phases
        more_s = seconds(phases.first_start_per_1000_nodes) * len(self._world.slots) / 1000
        try:
            self._wait(self._draw(phases.first_start) + more_s)
            then = self._launch()
            while then is _Next.TRAIN:
                then = self._train()
        except _LimitIsNear:
            return self._make_room("the time limit is near")
        return then

    def _allocate(self) -> None:
        """Wait for nodes, and take them."""
        spec, submitted, state = self.spec, self._queued_at or self._wall, self._state
        self._queued_at = 0.0
        if state.restart_count < 0:
            self._wait(self._draw(spec.cluster.queue))
        most, least = spec.job.nodes + spec.job.spares, spec.job.nodes
        excluded = set(state.requeueing.exclude) if state.requeueing is not None else set()
        while True:
            nodes = self._site.take(most, without=excluded | self._cut_off(self._site.free))
            if len(nodes) >= least:
                break
            self._site.free |= dict.fromkeys(nodes)
            if excluded:
                excluded = set()  # too few others remain
            else:
                self._wait(600.0)  # for repairs
        slots, spares = assign(
            tuple(nodes), least, self._state.shunned(self._wall, anew=True), self._state.world.slots
        )
        self._record(
            ev.AllocationTaken(
                t=self._wall,
                restart_count=self._state.restart_count + 1,
                nodes=tuple(nodes),
                slots=slots,
                spares=spares,
                submitted=submitted,
                queued_s=self._wall - submitted,
                time_limit_s=seconds(spec.job.time_limit) if spec.job.time_limit else None,
                gpus=len(nodes) * spec.job.gpus_per_node,
            )
        )
        if spec.job.time_limit is not None:
            self._leaves_at = self._now + max(0.0, seconds(spec.job.time_limit) - WARNED_S)
        self._memory, self._gone, self._moved = None, set(), set()

    # -- training --------------------------------------------------------------------------------------

    def _launch(self) -> _Next:
        """Launch the next generation, until its first step or the next fault."""
        spec, world = self.spec, self._world
        dead = tuple(node for node in world.slots if node in self._site.down)
        ref, seconds_of_restore, tiers = self._restore_point()
        launched = ev.GenerationLaunched(
            t=self._wall,
            generation=world.next_generation,
            slots=world.slots,
            master=world.slots[0],
            restore=ref,
            tiers=tiers,
            release=self._state.release,
        )
        self._first_at, self._counted = math.inf, ref.step if ref is not None else -1
        self._begun_with = self._counted + 1
        self._strikes.clear()  # what struck while ranks were stopped
        self._record(launched)
        if self._given_starts and self._given_starts[0].t <= self._trained_s + _SOON_S:
            self._strike(self._given_starts.popleft())
        if dead:
            self._hit(
                SimulatedFault(t=self._now, source=FaultSource(kind=FaultOf.NODE, rate="0 / day")), dead
            )
            return _Next.TRAIN
        if cut := self._cut_off(world.slots):
            source = FaultSource(kind=FaultOf.SWITCH, rate="0 / day")
            self._strikes.append(Strike(t=self._now, source=source, nodes=tuple(cut)))
            return _Next.TRAIN
        start_s = self._draw(spec.phases.start)
        start_s += seconds(spec.phases.start_per_1000_nodes) * len(world.slots) / 1000
        if self._wait_for_strike(start_s + seconds_of_restore + self._step_s):
            return _Next.TRAIN
        while self._storage_back > self._now + _SOON_S:
            if self._wait_for_strike(self._storage_back - self._now):
                return _Next.TRAIN
        self._first_at, self._pace_s = self._now, self._step_s + self._stall_s
        self._first_step = self._counted = self._begun_with
        generation = self._world.generation
        self._record(ev.FirstStep(t=self._wall, generation=generation, step=self._first_step, reported=True))
        if not self._world.pace.p50_s:
            pace = PaceHistory(steps=1, p50_s=self._pace_s)
            self._record(ev.PaceLearned(t=self._wall, generation=generation, pace=pace))
        self._gone.clear()
        self._moved.clear()
        self._plan_repeats()
        self._trains_since = self._now
        self._plan_given()
        self._let_evicted_go()
        return _Next.TRAIN

    def _cut_off(self, nodes: Iterable[str]) -> set[str]:
        """Return those of ``nodes`` that a switch cuts off."""
        self._damage.away = {rack: until for rack, until in self._damage.away.items() if until > self._now}
        return (
            {node for node in nodes if self._site.rack(node) in self._damage.away}
            if self._damage.away
            else set()
        )

    def _wait_for_strike(self, s: float) -> bool:
        """Let time pass until it is over, or something strikes the job; return whether something has."""
        until = min(self._now + s, self._horizon, self._leaves_at)
        while not self._strikes and self._timeline.step(until):
            pass
        self._look_at_the_clock()
        return bool(self._strikes)

    def _step_at(self, now: float) -> int:
        """Return the newest step that is done."""
        if now < self._first_at:
            return self._counted
        return self._first_step + int((now - self._first_at + _CLOCK_S) / self._pace_s)

    def _count_steps(self, now: float) -> None:
        """Write down how far training is."""
        step = self._step_at(now)
        if step > self._counted and self._first_at < math.inf:
            made_at = BEGUN + self._first_at + (step - self._first_step) * self._pace_s
            t = min(self._wall, max(self._journals[-1][-1].t, made_at))  # both are rounded
            generation, made = self._world.generation, step - self._begun_with
            spent = {name: made * s for name, s in self._spent_s.items()}
            self._record(ev.ProgressMade(t=t, generation=generation, step=step, reported=True, spent=spent))
            self._counted = step

    def _train(self) -> _Next:
        """Train until something ends the generation, which may have happened during its launch."""
        incident = self._world.incident
        if incident is not None and not self._strikes:
            missing = max(0, incident.step + 1 - self._first_step)  # the first new step is over
            due = self._first_at + missing * self._pace_s
            if self._wait_for_strike(max(0.0, due - self._now)):
                return self._recover()
            self._count_steps(self._now)
            self._record(
                ev.IncidentClosed(
                    t=self._wall,
                    incident=incident.number,
                    generation=self._world.generation,
                    step=self._counted,
                    recover_s=self._wall - incident.begun,
                )
            )
        while not self._strikes:
            due, act = self._next_of_run()
            if not self._wait_for_strike(max(0.0, due - self._now)) and act is not None:
                return act()
        return self._recover()

    def _next_of_run(self) -> tuple[float, Callable[[], _Next] | None]:
        """Return what comes next if nothing strikes, and when."""
        spec, choices = self.spec, list[tuple[float, Callable[[], _Next] | None]]()
        if spec.steps:
            choices.append(
                (self._first_at + (spec.steps - 1 - self._first_step) * self._pace_s, self._finish)
            )
        candidate = self._state.candidate
        if candidate is not None and candidate.since:
            updates, made = spec.policy.updates, self._step_at(self._now) - candidate.first_step + 1
            left_s = (updates.good_steps - made) * self._pace_s
            at_least_s = (LEAST_STEPS - made) * self._pace_s
            good_at = max(candidate.since - BEGUN + updates.good_s, self._now + at_least_s)
            choices.append((min(good_at, self._now + left_s), self._prove))
        choices += [
            (self._next_update, self._update),
            (self._next_restart, self._restart_by_hand),
            (self._due(self._updates), self._update),
            (self._due(self._preemptions), partial(self._make_room, "Slurm preempts the job")),
            (self._due(self._losses), self._lose_run),
        ]
        if suspected(self._state) and self._rules.replenish_sources:
            self._leave_suspects()
            choices.append((self._now + SUSPECTS_S, None))
        if missing_standbys(self._state) and self._rules.replenish_sources:
            choices.append((self._now, None) if self._replenish() else (self._now + 60.0, None))
        return min([*choices, (self._horizon, None)], key=lambda choice: choice[0])

    def _prove(self) -> _Next:
        """Find the newest release good."""
        self._count_steps(self._now)
        good, step = self._state.release, self._counted
        self._record(ev.ReleaseProven(t=self._wall, release=good, reason="it has made its steps", step=step))
        return _Next.TRAIN

    def _finish(self) -> _Next:
        self._count_steps(self._now)
        self._is_done, self._leaves_at = True, math.inf
        self._pause()
        self._end_generation("done", ())
        self._save()
        self._record(ev.RunEnded(t=self._wall, code=0, reason="training is done"))
        raise TimeIsOver

    # -- standbys --------------------------------------------------------------------------------------

    def _leave_suspects(self) -> None:
        """Give back standbys from which ranks were moved, if the fault has not gone with them."""
        for node, why in left_behind(self._state, self._rules, self._wall).items():
            self._count_eviction(node)
            self._record(ev.NodeEvicted(t=self._wall, node=node, reason=why, incident=0, unproven=True))
            self._record(ev.NodeGivenBack(t=self._wall, node=node, how="by shrinking the job"))
            self._return(node)

    def _replenish(self) -> bool:
        """Ask for a node in place of a standby, if that is due; return whether one has come."""
        attempt = next_attempt(self._state, self._wall)
        if not attempt:
            return False
        missing = missing_standbys(self._state)
        self._record(
            ev.ReplenishBegun(t=self._wall, missing=missing, attempt=attempt, reason="standbys are missing")
        )
        return bool(self._borrow(self._rules.replenish_sources, missing))

    def _borrow(self, sources: Iterable[CompanionPool], wanted: int) -> list[str]:
        """Have companions lend up to ``wanted`` nodes."""
        lent: list[str] = []
        for source in sources:
            reserved = bool(source.reservation)
            pool = self._site.reserved if reserved else self._site.free
            without = self._cut_off(pool).union(self._state.shunned(self._wall))
            nodes = self._site.take(wanted - len(lent), reserved=reserved, without=without)
            for node in nodes:
                self._companions += 1
                job = 900_000 + self._companions
                self._record(ev.CompanionSubmitted(t=self._wall, job_id=job, source=source))
                self._record(ev.CompanionStarted(t=self._wall, job_id=job, node=node))
                self._companion_of[node] = job
            lent += nodes
        return lent

    def _return(self, node: str) -> None:
        """Give ``node`` back: to the reservation, if a companion has lent it."""
        self._at_fault.discard(node)
        job = self._companion_of.pop(node, None)
        if job is not None:
            self._record(ev.CompanionEnded(t=self._wall, job_id=job, reason="its node is not used any more"))
        self._site.give_back(node)

    # -- checkpoints -----------------------------------------------------------------------------------

    def _restore_point(self) -> tuple[CheckpointId | None, float, dict[str, int]]:
        """Return from where the next generation goes on, how long that takes, and from which tiers."""
        spec, slots = self.spec.checkpoints, len(self._world.slots)
        stored = self._stored
        if self._memory is not None and self._is_whole() and (stored is None or self._memory >= stored):
            moved = len(self._gone | self._moved)
            seconds_ = spec.node_gb / (spec.peer_gb_s if moved else spec.memory_gb_s)
            tiers = {Tier.MEMORY.value: slots - moved} | ({Tier.PEER.value: moved} if moved else {})
            return self._memory, seconds_, tiers
        self._memory = None
        if stored is None:
            return None, 0.0, {}
        return stored, slots * spec.node_gb / spec.storage_gb_s, {Tier.STORAGE.value: slots}

    def _is_whole(self) -> bool:
        """Return whether each part is in the memory of its node, or of its peer half the job away."""
        slots = len(self._world.slots)
        if not self._gone:
            return True
        if slots < 2 or not self.spec.policy.checkpoint.peers:
            return False
        return not any((slot + slots // 2) % slots in self._gone for slot in self._gone)

    def _take_stock(self, step: int, lost: Iterable[str]) -> None:
        """Note what memory and storage have of the generation that ends after ``step``."""
        world, policy, spec = self._world, self.spec.policy.checkpoint, self.spec.checkpoints
        slots = {node: slot for slot, node in enumerate(world.slots)}
        self._gone |= {slots[node] for node in lost if node in slots}
        kept = step - (step + 1) % spec.stride if policy.memory else -1
        if self._counted - step > spec.stride:
            self._memory = None  # memory has the newest two steps only
        elif kept >= self._begun_with:
            self._memory = CheckpointId(step=kept, generation=world.generation)
        behind = math.ceil(self._draw(spec.write) / self._pace_s)
        newest = (step - behind) // self._every * self._every
        if newest >= self._begun_with and (self._stored is None or newest > self._stored.step):
            self._store(CheckpointId(step=newest, generation=world.generation), self._draw(spec.write))

    @property
    def _stored(self) -> CheckpointId | None:
        return max(self._written, default=None)

    def _store(self, ref: CheckpointId, took_s: float) -> None:
        self._written.append(ref)
        self._record(
            ev.StorageWritten(t=self._wall, generation=ref.generation, step=ref.step, seconds=took_s)
        )

    # -- recovery --------------------------------------------------------------------------------------

    def _recover(self) -> _Next:
        """Deal with what has struck: detect, stop, decide, carry out."""
        strike = self._strikes.pop(0)
        if strike.source.kind is FaultOf.SLOW and self._first_at < math.inf:
            self._count_steps(self._now)
            self._first_at, self._first_step = self._now, self._counted
            self._pace_s = self._step_s * strike.source.factor + self._stall_s
        began, good = self._now, self._step_at(self._now)
        goes_on = strike.source.kind in (*_WRONG_NUMBERS, FaultOf.SLOW)
        detect_s = self._draw(strike.source.detect)
        if strike.source.kind is FaultOf.SWITCH:
            away_s = self._damage.away[self._site.rack(strike.nodes[0])] - self._now
            detect_s = max(detect_s, min(away_s, self.spec.policy.timings.unreachable_s))
        self._struck += 1
        if not goes_on:
            self._count_steps(self._now)
            self._pause()
        if strike.source.kind is FaultOf.STORAGE and (away_s := self._storage_back - self._now) <= detect_s:
            self._wait(max(0.0, away_s))
            self._first_at, self._first_step = self._now, self._counted
            self._trains_since = self._now
            self._plan_given()
            return _Next.TRAIN
        self._wait(detect_s)
        if goes_on:
            self._count_steps(self._now)
        fault = fault_seen(strike, self._world, self.spec.job, good_step=good, chance=self._chance)
        if fault.symptom is Symptom.SLOW and self._first_at < math.inf and self._is_let_go_on(fault):
            return _Next.TRAIN
        others = [one for one in self._strikes if one.source.kind is FaultOf.NODE]
        if others:  # seen together
            self._strikes = [one for one in self._strikes if one not in others]
            lost = tuple(dict.fromkeys((*fault.lost, *(node for one in others for node in one.nodes))))
            fault = structs.replace(fault, lost=lost, alive=tuple(n for n in fault.alive if n not in lost))
        self._strikes.clear()
        self._open(fault, self._now - began)
        self._stop(fault, good if strike.source.kind in _WRONG_NUMBERS else None)
        self._wait(self._draw(self.spec.phases.decide))
        return self._answer(structs.replace(fault, generation=self._world.generation))

    def _is_let_go_on(self, slow: Fault) -> bool:
        """Return whether training stays slow, since stopping it would gain nothing."""
        sampled = structs.replace(slow, times=self.spec.policy.detect.slow_samples)
        found = slow.localisation
        return found is not None and bool(reason_to_go_on(sampled, found, self._rules, self._state))

    def _pause(self) -> None:
        """No step is made any more."""
        self._stop_training()
        self._first_at, self._first_step = math.inf, max(self._first_step, self._counted)

    def _open(self, fault: Fault, detect_s: float) -> None:
        incident, symptom = self._world.incident, fault.symptom or Symptom.WORKER_EXIT
        if incident is not None:
            added = ev.SymptomAdded(
                t=self._wall, incident=incident.number, symptom=symptom, detail=fault.detail
            )
            self._record(added)
            return
        self._record(
            ev.IncidentOpened(
                t=self._wall,
                incident=self._state.incidents + 1,
                generation=self._world.generation,
                symptom=symptom,
                detail=fault.detail,
                detect_s=detect_s,
                best_step=self._world.best_step,
            )
        )

    def _stop(self, fault: Fault, good_step: int | None) -> None:
        world = self._world
        self._record(
            ev.StopStarted(
                t=self._wall, generation=world.generation, reason=fault.detail, symptom=fault.symptom
            )
        )
        self._wait(self._draw(self.spec.phases.stop))
        self._end_generation(fault.detail, self._site.down.intersection(world.slots), good_step)

    def _end_generation(self, reason: str, lost: Iterable[str], good_step: int | None = None) -> None:
        world = self._world
        step = self._counted if good_step is None else min(good_step, self._counted)
        self._take_stock(step, lost)
        here = [ref for ref in (self._memory, self._stored) if ref is not None]
        sealed = max((ref.step for ref in here if ref.generation == world.generation), default=-1)
        self._record(
            ev.GenerationEnded(
                t=self._wall,
                generation=world.generation,
                reason=reason,
                sealed_step=sealed,
                good_step=good_step,
            )
        )
        self._first_at = math.inf
        self._stop_training()

    def _answer(self, fault: Fault) -> _Next:
        """Ask the policy, and do what it says, until it has decided for good."""
        while True:
            candidate = self._state.candidate
            decided = decide(self._state, fault, self._wall, self._rules)
            self._record(decided)
            then: _Next | None = None
            for action in decided.actions:
                match action:
                    case inc.Evict(node=node):
                        self._evict(node, decided)
                    case inc.RestartAgents():
                        self._wait(self._draw(self.spec.phases.agents))
                    case inc.Restart():
                        then = _Next.TRAIN
                    case inc.Requeue(exclude=exclude, reason=reason):
                        return self._requeue(exclude, reason, failure=True)
                    case inc.GiveUp(code=code, reason=reason):
                        return self._give_up(code, reason)
                    case inc.RollBack(release=release):
                        self._roll_back(release, candidate)
                    case inc.Diagnose() | inc.Replay() | inc.QuickTest():
                        fault = self._test(action, fault, decided.incident)
                    case inc.Borrow():
                        fault = self._ask_for_nodes(action, fault)
                    case inc.Replace(node=node):
                        lost = self._gone if node in self._state.evicted else self._moved
                        lost |= {s for s, one in enumerate(self._launched_slots) if one == node}
                    case inc.Swap(first=first, second=second):
                        moved = {first, second}
                        self._moved |= {s for s, one in enumerate(self._launched_slots) if one in moved}
            if then is not None:
                asked = any(isinstance(action, inc.RestartAgents) for action in decided.actions)
                if not asked and set(fault.ended).intersection(self._world.slots):
                    self._wait(self._draw(self.spec.phases.agents))  # the engine starts them by itself
                return self._launch()

    @property
    def _launched_slots(self) -> tuple[str, ...]:
        return self._world.trained_on

    def _evict(self, node: str, decided: ev.Decided) -> None:
        assert decided.verdict is not None
        self._count_eviction(node)
        self._record(
            ev.NodeEvicted(
                t=self._wall,
                node=node,
                reason=decided.verdict.reason,
                incident=decided.incident,
                unproven=decided.verdict.unproven,
            )
        )

    def _count_eviction(self, node: str) -> None:
        if node in self._site.broken or node in self._site.down or node in self._at_fault:
            self._right += 1
        else:
            self._wrong += 1

    def _roll_back(self, release: str, candidate: Candidate | None) -> None:
        """Go back: what the release has made does not count any more."""
        way_back = candidate.checkpoint if candidate is not None else None
        first = candidate.generation if candidate is not None else 0
        self._written = [one for one in self._written if one.generation < first]
        self._memory = None if way_back in self._written else way_back
        brought = self._releases.get(release)
        if brought is not None:
            self._damage.bugs.pop(brought.number, None)
        self._damage.change_code()

    def _ask_for_nodes(self, action: inc.Borrow, fault: Fault) -> Fault:
        lent = self._borrow(action.sources, action.nodes)
        enough = len(lent) >= action.nodes
        self._wait(self._draw(self.spec.cluster.lend) if enough else self.spec.policy.companions.wait_s)
        refusals = () if enough else tuple(f"{source}: no node is free" for source in action.sources)
        not_lent = (*(fault.not_lent or ()), *refusals)
        return structs.replace(fault, not_lent=not_lent, asked=(*fault.asked, *action.sources))

    def _test(self, action: inc.Diagnose | inc.Replay | inc.QuickTest, fault: Fault, incident: int) -> Fault:
        """Test nodes, or replay, and return the fault with what that has shown."""
        tests = self.spec.diagnostics
        alive = [node for node in self._world.slots if node not in self._site.down]
        if isinstance(action, inc.QuickTest):
            took_s = self._draw(tests.quick)
            self._wait(took_s)
            failed = self._failed(action.nodes, tests.recall)
            passed = tuple(node for node in action.nodes if node not in failed)
            said = dict.fromkeys(failed, "gemm: wrong result")
            event = ev.QuickTested(t=self._wall, incident=incident, passed=passed, failed=said, took_s=took_s)
            self._record(event)
            return structs.replace(fault, cleared=passed)
        is_replay = isinstance(action, inc.Replay)
        took_s = self._draw(tests.replay if is_replay else tests.takes)
        self._wait(took_s)
        failed = self._failed(alive, tests.replay_recall if is_replay else tests.recall)
        results = [
            TestResult(test="gemm", node=node, outcome=Outcome.FAIL, text="wrong result") for node in failed
        ]
        results = results or [TestResult(test="gemm", node=node, outcome=Outcome.PASS) for node in alive[:1]]
        reason = f"{', '.join(failed)} failed" if failed else f"all {len(alive)} nodes passed"
        found = Diagnosis(results=tuple(results), suspects=tuple(failed), reason=reason)
        self._record(
            ev.NodesTested(
                t=self._wall,
                incident=incident,
                results=found.results,
                suspects=found.suspects,
                reason=reason,
                took_s=took_s,
            )
        )
        return structs.replace(fault, **{"replayed" if is_replay else "diagnosis": found})

    def _failed(self, nodes: Iterable[str], recall: float) -> list[str]:
        """Return which of ``nodes`` fail a test that finds this share of the broken ones."""
        return [node for node in nodes if self._damage.finds(node, recall)]

    # -- ends of runs ----------------------------------------------------------------------------------

    def _save(self) -> None:
        """Bring the newest checkpoint from memory to storage before the nodes go, if there is time."""
        took_s = self._draw(self.spec.checkpoints.write) + max(0.0, self._storage_back - self._now)
        most_s = self.spec.policy.timings.checkpoint_s
        newest = self._memory
        if newest is None or not self._is_whole() or (self._stored is not None and newest <= self._stored):
            return
        self._record(
            ev.SavingStarted(t=self._wall, generation=newest.generation, step=newest.step, most_s=most_s)
        )
        self._wait(min(took_s, most_s))
        if took_s <= most_s:
            self._store(newest, took_s)

    def _leave(self) -> None:
        """Give all nodes back."""
        state = self._state
        for job in list(state.companions):
            self._record(ev.CompanionEnded(t=self._wall, job_id=job, reason="the job has ended"))
        nodes = dict.fromkeys((*state.held, *state.world.slots, *state.spares, *self._companion_of))
        for node in nodes:
            if not self._site.has(node):
                self._companion_of.pop(node, None)
                self._site.give_back(node)

    def _requeue(self, exclude: tuple[str, ...], reason: str, *, failure: bool) -> _Next:
        self._leaves_at = math.inf
        self._save()
        self._record(ev.RequeueStarted(t=self._wall, exclude=exclude, reason=reason, failure=failure))
        self._leave()
        self._record(ev.RunEnded(t=self._wall, code=0, reason=reason, final=False, requeued=True))
        self._wait(self._draw(self.spec.cluster.requeue))
        return _Next.REQUEUE

    def _give_up(self, code: int, reason: str) -> _Next:
        self._leaves_at = math.inf
        self._save()
        self._leave()
        self._record(ev.RunEnded(t=self._wall, code=code, reason=reason, final=code != ExitCode.CONFIG))
        return _Next.OVER

    def _pass(self, trained_s: deque[float]) -> None:
        """Drop what is due by now."""
        while trained_s and trained_s[0] <= self._trained_s + _SOON_S:
            trained_s.popleft()

    def _due(self, trained_s: deque[float]) -> float:
        """Return when the job will have trained as long as the first of these says."""
        return self._now + trained_s[0] - self._trained_s if trained_s else math.inf

    def _lose_run(self) -> _Next:
        """Have the run die with its controller: no one stops or saves anything."""
        self._pass(self._losses)
        self._count_steps(self._now)
        self._take_stock(self._counted, ())
        self._pause()
        self._leave()
        self._queued_at = self._wall  # of which Slurm tells the next run
        self._wait(self._draw(self.spec.cluster.requeue))
        return _Next.REQUEUE

    def _make_room(self, why: str) -> _Next:
        """Leave the nodes to others, and be requeued."""
        self._leaves_at = math.inf
        self._pass(self._preemptions)
        if self._world.running:
            self._count_steps(self._now)
            self._pause()
            self._wait(self._draw(self.spec.phases.stop))
            self._end_generation(why, ())
        action = at_the_end(self._state, why, self._wall, self._rules, warned=True)
        if isinstance(action, inc.GiveUp):
            return self._give_up(action.code, action.reason)
        return self._requeue(action.exclude, action.reason, failure=False)

    def _restart_by_hand(self) -> _Next:
        self._plan_owner()
        self._count_steps(self._now)
        self._pause()
        self._record(ev.StopOrdered(t=self._wall, reason="scancel", code=ExitCode.TERMINATED))
        self._wait(self._draw(self.spec.phases.stop))
        self._end_generation("the owner cancelled the job", ())
        return self._give_up(ExitCode.TERMINATED, "the owner cancelled the job")

    def _update(self) -> _Next:
        """Have the owner bring another release, which may be bad."""
        self._plan_owner()
        self._pass(self._updates)
        number, name = self._state.updates + 1, f"{len(self._releases):012x}"
        if (brings := self._damage.brought_by(len(self._releases))) is not None:
            self._damage.bugs[brings.number] = brings
        self._count_steps(self._now)
        self._take_release(name, brings)
        before, world = self._state.release, self._world
        self._record(
            ev.UpdateRequested(
                t=self._wall,
                update=number,
                release=name,
                when=When.NOW,
                by=Requester(user="owner", uid=1000, host="login"),
                from_step=self._counted,
            )
        )
        self._record(ev.UpdateTried(t=self._wall, update=number, ok=True, took_s=0.0))
        self._pause()
        self._record(
            ev.StopStarted(
                t=self._wall, generation=world.generation, reason=f"update {number}", update=number
            )
        )
        self._wait(self._draw(self.spec.phases.update))
        self._end_generation(f"update {number}", ())
        way_back = max((one for one in (self._memory, self._stored) if one is not None), default=None)
        self._record(
            ev.UpdateApplied(
                t=self._wall,
                update=number,
                release=name,
                before=before,
                step=self._counted,
                checkpoint=way_back,
            )
        )
        if way_back is not None:
            keep = partial(self._keep_way_back, way_back, len(self._journals))
            self._timeline.after(self._draw(self.spec.checkpoints.write), keep)
        return self._launch()

    def _keep_way_back(self, ref: CheckpointId, job: int) -> None:
        """The checkpoint at which a release took over is on storage now, if it is still in memory."""
        candidate, is_here = self._state.candidate, job == len(self._journals) and self._state.ended is None
        if is_here and candidate is not None and candidate.checkpoint == ref and ref not in self._written:
            self._store(ref, 0.0)


def extra_s(spec: Spec) -> dict[str, float]:
    """Return the seconds of each step besides training, by the phase in which they pass."""
    found = {CHECKPOINT: _checkpoints(spec)[1], EVALUATION: seconds(spec.job.between)}
    return {name: s for name, s in found.items() if s}


def _checkpoints(spec: Spec) -> tuple[int, float]:
    """Return every how many steps a checkpoint goes to storage, and what checkpoints add to each step."""
    policy, step_s = spec.policy.checkpoint, seconds(spec.job.step)
    every = policy.every_steps or max(1, round(policy.every_s / step_s))
    if policy.memory:
        return every, seconds(spec.checkpoints.blocks) / spec.checkpoints.stride
    return every, parse(spec.checkpoints.write).mean_s / every
