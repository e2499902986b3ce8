"""The agents of a simulated job, all nodes together: what a controller hears of them, and what its orders do.

They speak in records, and only as often as the controller looks: an agent that has something new to say sends
its heartbeat then, all others a pulse.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.model.copies import CheckpointId, Copy, Tier
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.findings import Alert
from slurm_robust.model.probes import ProbeTarget
from slurm_robust.model.progress import UPDATE, Progress
from slurm_robust.model.stacks import RankStacks
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.simulator.gang import Gang
from slurm_robust.simulator.life import extra_s
from slurm_robust.simulator.spec import Spec
from slurm_robust.simulator.spread import parse, seconds
from slurm_robust.testing.sim.timeline import Timeline
from slurm_robust.testing.sim.training import FakeStorage, waiting
from slurm_robust.wire import messages as msg
from slurm_robust.wire.protocol import PROTOCOL

SPAWN_S = 0.2
"""From the launch order until workers run."""

ANSWER_S = 0.3
"""Until agents answer a question."""

REHEARSAL_S = (5.0, 20.0)
PORT, DATA_PORT, PROBE_PORT = 4000, 5000, 6000
LOSS = 2.5
STALE_S = 5.0
"""Steps that nobody waits for are told when those told before are this old."""

KEPT = 2
"""Steps of which memory has snapshots."""


@dataclass
class SimulatedAgent:
    """The agent of one node."""

    node: str
    id: str
    is_ready: bool = False
    phase: msg.Phase = msg.Phase.IDLE
    launch: msg.Launch | None = None
    exits: dict[int, tuple[WorkerExit, float]] = field(default_factory=dict)
    """By rank, each with the time of its end."""
    alerts: tuple[tuple[Alert, float], ...] = ()
    """Each with the time at which it began."""
    flushed: int = -1
    saving: msg.Save | None = None
    saved: msg.Save | None = None
    """The newest orders to save: what is written, and what is."""
    rehearsal: Rehearsal | None = None
    loaded: int = 0
    tried: msg.Tried | None = None
    is_new: bool = True
    """It has something new to say."""
    seq: int = 0
    pulse: msg.Pulse | None = None


@dataclass
class WrongNumbers:
    """What the loss of a generation shows: not a number, from a step on and since a time."""

    step: int
    since: float


class SimulatedAgents:
    """All agents. ``wake``: told when the controller has something to hear."""

    def __init__(
        self, spec: Spec, timeline: Timeline, chance: Random, names: Iterable[str], wake: Callable[[], None]
    ) -> None:
        self._spec, self._timeline, self._chance, self._wake = spec, timeline, chance, wake
        self.nodes: dict[str, SimulatedAgent] = {}
        """The agents that live, by node."""
        self.gang: Gang | None = None
        self.wrong: WrongNumbers | None = None
        self.stands: dict[str, Callable[[int, str], RankStacks]] = {}
        """What the stacks of the ranks on some nodes show; the others wait for them."""
        self.storage = FakeStorage()
        self.busy = 0
        """What goes on that ends with news: checkpoints on their way to storage, rehearsals."""
        self.starting = 0
        """Agents that come yet."""
        self.memory: dict[str, tuple[Copy, ...]] = {}
        """Copies of earlier generations on each node."""
        self.on_launched: Callable[[], float] = lambda: 0.0
        """Asked, when all ranks run, for the seconds until they have restored."""
        self.on_trained: Callable[[float], None] = lambda s: None
        """Told how long each generation has trained."""
        self.is_reached: Callable[[str], bool] = lambda node: True
        """Whether the controller and the agent of a node reach each other."""
        self.answers_from: Callable[[str, str], bool] = lambda node, other: True
        """Whether the kernel of the second node answers the first one."""
        self.fails_rehearsal: Callable[[str], bool] = lambda node: False
        self._number = 0
        self._addresses = {
            name: f"10.{i // 62500}.{i // 250 % 250}.{i % 250 + 1}" for i, name in enumerate(names)
        }
        self._epoch = 0
        self._said, self._said_at = -1, 0.0  # the step that the members have told, and when
        self._shown: tuple[Any, ...] = ()  # of each step record, after the rank
        self._incoming: dict[str, list[int]] = {}  # ranks whose copies go to each node
        self._launched: set[str] = set()
        self._copies: tuple[int, dict[str, tuple[Copy, ...]]] = (-1, {})
        self._spawning: list[SimulatedAgent] = []
        self._stopping: list[SimulatedAgent] = []
        self._flush_step = -1
        self._takes: dict[type[msg.FromController], Callable[[SimulatedAgent, object], None]] = {
            msg.Launch: self._spawn,
            msg.Stop: self._stop,
            msg.Shutdown: self._shut_down,
            msg.Flush: self._flush,
            msg.Save: self._save,
            msg.RequestCheckpoint: self._hold,
            msg.TakeStacks: self._take_stacks,
            msg.ProbeNodes: self._probe,
            msg.Rehearse: self._rehearse,
            msg.Load: self._load,
            msg.TryRelease: self._try,
        }
        self._spent_s = extra_s(spec)
        self._spent: dict[str, float] = {}
        self._silent: dict[str, float] = {}  # agents whose beacons do not come, and since when
        self._saving: list[tuple[SimulatedAgent, msg.Save]] = []
        self._answering: list[msg.AgentAnswer] = []
        self._heard: list[msg.AgentAnswer] = []
        self._spawned_at = 0.0

    @property
    def expected(self) -> bool:
        """Whether they have something new to say soon."""
        return bool(self.starting or self._stopping or self._saving or self._answering or self._spawning)

    @property
    def now(self) -> float:
        """Seconds of the life."""
        return self._timeline.now

    # -- what becomes of them --------------------------------------------------------------------------

    def start(self, node: str) -> None:
        """Start the agent of ``node`` anew; workers of an earlier one are gone."""
        self.end(node)
        self._number += 1
        self.nodes[node] = SimulatedAgent(node, f"agent {self._number} of {node}", is_ready=True)
        self._wake()

    def end(self, node: str) -> None:
        """End the agent of ``node``, and its rank with it."""
        agent = self.nodes.pop(node, None)
        if agent is not None and self._is_member(agent):
            self._end_gang()

    def die(self, node: str) -> None:
        """Let ``node`` lose its power: its memory is gone, too."""
        if (agent := self.nodes.get(node)) is not None:
            self._silent[agent.id] = self.now
        self.end(node)
        self.memory.pop(node, None)
        self._copies = (-1, {})

    def end_all(self) -> None:
        """End all agents, with what their nodes have in memory."""
        for node in list(self.nodes):
            self.end(node)
        self.memory.clear()
        self._silent.clear()
        self.gang = None

    def alert(self, node: str, *alerts: tuple[Alert, float]) -> None:
        """Let the inspection of ``node`` see something."""
        agent = self.nodes.get(node)
        if agent is not None:
            agent.alerts, agent.is_new = (*agent.alerts, *alerts), True
            self._wake()

    def exit(self, node: str, exit: WorkerExit) -> None:
        """Let the rank on ``node`` end."""
        agent = self.nodes.get(node)
        if agent is not None and self._is_member(agent) and agent.phase is msg.Phase.RUNNING:
            agent.exits[exit.rank] = exit, self.now
            agent.phase, agent.is_new = msg.Phase.ENDED, True
            self._end_gang()
            self._wake()

    def finish(self) -> None:
        """Let all ranks end, since training is done."""
        self._end_gang()
        for agent in self._members():
            for rank in agent.launch.ranks if agent.launch is not None else ():
                agent.exits[rank] = WorkerExit(rank=rank, code=0), self.now
            agent.phase, agent.is_new = msg.Phase.ENDED, True
        self._wake()

    def meet_controller(self, epoch: int) -> None:
        """Obey another controller, which knows nothing yet."""
        self._epoch = epoch
        for agent in self.nodes.values():
            agent.is_new = True

    def _is_member(self, agent: SimulatedAgent) -> bool:
        gang = self.gang
        return gang is not None and agent.launch is not None and agent.launch.generation == gang.generation

    def _members(self) -> list[SimulatedAgent]:
        return [agent for agent in self.nodes.values() if self._is_member(agent)]

    def _end_gang(self) -> None:
        """No step is made any more; what memory has of the steps so far stays."""
        gang = self.gang
        if gang is None or gang.is_over:
            return
        if gang.is_restored:
            self.on_trained(self.now - gang.begun)
        gang.end(self.now)
        if gang.has_stepped(self.now):
            self.memory |= self._own_copies(gang)

    # -- what the controller hears ---------------------------------------------------------------------

    def report(self, core: Core, now: Now, *, with_steps: bool, some_cut: bool) -> None:
        """Have ``core`` hear all agents that it reaches.

        ``with_steps``: the step counts, as soon as it is done; else it is told when the one before is old.
        ``some_cut``: the controller does not reach all of them.
        """
        gang = self.gang
        step = gang.newest(self.now) if gang is not None and gang.is_restored else -2
        steps_on = step != self._said and (with_steps or now.mono - self._said_at >= STALE_S)
        if steps_on:
            self._said, self._said_at = step, now.mono
        self._shown = self._show(gang) if gang is not None else ()
        made = max(0, step + 1 - gang.first) if gang is not None else 0
        self._spent = {name: made * s for name, s in self._spent_s.items()}
        feel, hear, mono = core.fleet.feel, core.on_heartbeat, now.mono
        members = self._launched if steps_on else ()
        for agent in list(self.nodes.values()):
            if some_cut and not self.is_reached(agent.node):
                agent.is_new = True
            elif agent.is_new or agent.pulse is None or (agent.node in members and self._is_member(agent)):
                hear(self._beat(agent), now)
            else:
                feel(agent.pulse, mono)  # no agent waits for an answer here
        answers, self._heard = self._heard, []
        for answer in answers:
            core.on_agent_answer(answer, now)

    def beacon_ages(self, *, some_cut: bool) -> dict[str, float]:
        """Return the seconds since the newest beacon of each agent."""
        ages = {agent.id: 0.0 for agent in self.nodes.values()}
        for agent in self.nodes.values() if some_cut else ():
            if self.is_reached(agent.node):
                self._silent.pop(agent.id, None)
            else:
                self._silent.setdefault(agent.id, self.now)
        return ages | {agent: self.now - since for agent, since in self._silent.items()}

    def _beat(self, agent: SimulatedAgent) -> msg.Heartbeat:
        agent.seq += 1
        agent.is_new = False
        agent.pulse = msg.Pulse(node=agent.node, agent=agent.id, seq=agent.seq, base=agent.seq)
        launch, gang = agent.launch, self.gang
        is_member = self._is_member(agent)
        return msg.Heartbeat(
            node=agent.node,
            agent=agent.id,
            seq=agent.seq,
            epoch=self._epoch,
            phase=agent.phase,
            generation=launch.generation if launch is not None else 0,
            address=self._addresses[agent.node],
            rendezvous_port=PORT,
            ready=agent.is_ready,
            progress=tuple(Progress(rank, *self._shown) for rank in launch.ranks)
            if is_member and launch is not None
            else (),
            spent=self._spent if is_member else {},
            exits=tuple(structs.replace(e, age_s=self.now - at) for e, at in agent.exits.values()),
            data_port=DATA_PORT,
            copies=self._held(agent.node, gang),
            lag_s=0.1,
            flushed=agent.flushed,
            alerts=tuple(_aged(alert, self.now - at) for alert, at in agent.alerts),
            probe_port=PROBE_PORT,
            rehearsal=agent.rehearsal,
            loaded=agent.loaded,
            tried=agent.tried,
            protocol=PROTOCOL,
            stride=launch.stride if launch is not None else 0,
            local_stride=launch.local_stride if launch is not None else 0,
            release=launch.release if launch is not None else "",
            saved=agent.saved.checkpoint if agent.saved is not None else None,
            saved_ranks=agent.saved.ranks if agent.saved is not None else (),
            save_begun=agent.saved.begun if agent.saved is not None else 0.0,
        )

    def _show(self, gang: Gang) -> tuple[Any, ...]:
        """Return what the step record of each rank of ``gang`` says now, after its number."""
        now, stepped = self.now, gang.has_stepped(self.now)
        step = gang.newest(now) if stepped else -1
        age_s = now - (gang.completed_at(now) if stepped else self._spawned_at)
        wrong = self.wrong if self.wrong is not None and now >= self.wrong.since else None
        bad = wrong.step if wrong is not None and stepped and wrong.step <= step else -1
        held = gang.holds_at is not None and step >= gang.holds_at
        loss = None if not stepped else math.nan if bad >= 0 else LOSS
        phase, phase_s = (UPDATE, age_s) if held else ("", math.inf)
        return (step, True, age_s, loss, None, step if held else -1, phase, phase_s, bad, gang.is_restored)

    # -- memory ----------------------------------------------------------------------------------------

    def _held(self, node: str, gang: Gang | None) -> tuple[Copy, ...]:
        old = self.memory.get(node, ())
        if gang is None or gang.is_over or not gang.has_stepped(self.now):
            return old
        own = self._own_copies(gang).get(node, ())
        return own if len(own) >= 2 * KEPT or not old else (*old, *own)

    def _own_copies(self, gang: Gang) -> dict[str, tuple[Copy, ...]]:
        """Return what each node has of the newest steps of ``gang``."""
        newest = gang.newest(self.now)
        if self._copies[0] == newest:
            return self._copies[1]
        if not self._spec.policy.checkpoint.memory:
            return {}
        every = self._spec.checkpoints.stride
        last = newest - newest % every
        kept = [step for step in range(last, last - KEPT * every, -every) if step >= gang.first]
        found = {
            agent.node: tuple(
                Copy(rank=rank, generation=gang.generation, step=step, tier=tier)
                for step in kept
                for ranks, tier in (
                    (agent.launch.ranks if agent.launch is not None else (), Tier.MEMORY),
                    (self._incoming.get(agent.node, ()), Tier.PEER),
                )
                for rank in ranks
            )
            for agent in self._members()
        }
        self._copies = newest, found
        return found

    # -- orders ----------------------------------------------------------------------------------------

    def take(self, node: str, message: msg.FromController) -> None:
        """Have the agent of ``node`` take an order."""
        agent, act = self.nodes.get(node), self._takes.get(type(message))
        if agent is not None and act is not None and self.is_reached(node):
            act(agent, message)

    def _spawn(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Launch)
        if agent.launch is not None and agent.launch.generation >= order.generation:
            return
        gang = self.gang
        if gang is None or gang.generation < order.generation:
            self._end_gang()
            pace_s = seconds(self._spec.job.step) + sum(self._spent_s.values())
            gang = self.gang = Gang(order.generation, order.restore, pace_s, self._spec.steps)
            self.wrong, self._incoming, self._copies = None, defaultdict(list), (-1, {})
            self._said, self._flush_step, self._spawned_at = -1, -1, self.now
            self._launched.clear()
            self.stands.clear()
        agent.launch, agent.exits, agent.flushed = order, {}, -1
        agent.phase, agent.is_new = msg.Phase.STARTING, True
        for peer in order.peers:
            self._incoming[peer.node].append(peer.rank)
        if not self._spawning:
            self._timeline.after(SPAWN_S, self._run)
        self._spawning.append(agent)

    def _run(self) -> None:
        """Let the ranks of all that were told run."""
        agents, self._spawning = self._spawning, []
        gang = self.gang
        for agent in agents:
            if self.nodes.get(agent.node) is agent and agent.phase is msg.Phase.STARTING:
                agent.phase, agent.is_new = msg.Phase.RUNNING, True
                self._launched.add(agent.node)
        self._wake()
        launch = agents[0].launch
        if gang is None or launch is None or gang.is_over or len(self._launched) < launch.slots:
            return
        self._timeline.after(self.on_launched(), partial(self._restored, gang))

    def _restored(self, gang: Gang) -> None:
        if gang is self.gang and not gang.is_over:
            gang.start(self.now)
            self._timeline.after(gang.pace_s, self._wake)

    def _stop(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Stop)
        launch = agent.launch
        if launch is None or launch.generation > order.generation:
            return
        if agent.phase in (msg.Phase.STARTING, msg.Phase.RUNNING):
            agent.phase, agent.is_new = msg.Phase.STOPPING, True
            if not self._stopping:
                self._timeline.after(self._draw(self._spec.phases.stop), self._stopped)
            self._stopping.append(agent)

    def _stopped(self) -> None:
        agents, self._stopping = self._stopping, []
        self._end_gang()
        for agent in agents:
            for rank in agent.launch.ranks if agent.launch is not None else ():
                agent.exits.setdefault(rank, (WorkerExit(rank=rank, signal=15), self.now))
            agent.phase, agent.is_new = msg.Phase.ENDED, True
        self._wake()

    def _shut_down(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Shutdown)
        self.end(agent.node)
        if not order.keep_copies:
            self.memory.pop(agent.node, None)
        self._wake()

    def _flush(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Flush)
        gang = self.gang
        if gang is None or order.step <= self._flush_step or order.generation != gang.generation:
            return
        self._flush_step = order.step
        self.busy += 1
        wait_s = max(0.0, gang.done_at(order.step) - self.now)
        if math.isinf(wait_s):
            self.busy -= 1
            return
        self._timeline.after(
            wait_s + self._draw(self._spec.checkpoints.write), partial(self._flushed, gang, order.step)
        )
        self._timeline.after(wait_s, self._wake)

    def _flushed(self, gang: Gang, step: int) -> None:
        self.busy -= 1
        if gang is not self.gang or gang.newest(self.now) < step:
            return
        members = self._members()
        ranks = [rank for agent in members if agent.launch is not None for rank in agent.launch.ranks]
        self.storage.write(CheckpointId(step=step, generation=gang.generation), ranks, len(ranks))
        for agent in members:
            agent.flushed, agent.is_new = step, True
        self._wake()

    def _save(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Save)
        if agent.saving == order:
            return
        agent.saving = order
        if not self._saving:
            self._timeline.after(self._draw(self._spec.checkpoints.write), self._saved)
        self._saving.append((agent, order))

    def _saved(self) -> None:
        """Put on storage what was ordered, as far as nodes still have it."""
        orders, self._saving = self._saving, []
        for agent, order in orders:
            ref = order.checkpoint
            held = {copy.rank for copy in self._held(agent.node, self.gang) if copy.checkpoint == ref}
            if self.nodes.get(agent.node) is not agent or not held.issuperset(order.ranks):
                continue
            self.storage.write(ref, order.ranks, order.world_size)
            agent.saved, agent.is_new = order, True
        self._wake()

    def _hold(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.RequestCheckpoint)
        gang = self.gang
        if gang is None or gang.generation != order.generation or gang.holds_at == order.step:
            return
        gang.holds_at = order.step if order.hold_s else None
        wait_s = gang.done_at(order.step) - self.now
        if wait_s < math.inf:
            self._timeline.after(wait_s, self._wake)

    # -- questions -------------------------------------------------------------------------------------

    def _take_stacks(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.TakeStacks)
        show, launch = self.stands.get(agent.node, waiting), agent.launch
        ranks = launch.ranks if launch is not None and agent.phase is msg.Phase.RUNNING else ()
        self._answer(
            msg.StacksTaken(
                node=agent.node,
                number=order.number,
                generation=order.generation,
                stacks=tuple(show(rank, agent.node) for rank in ranks),
            ),
            ANSWER_S,
        )

    def _probe(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.ProbeNodes)
        node, asked = agent.node, tuple(sorted(order.places))
        answering = tuple(other for other in asked if self.answers_from(node, other))
        self._answer(
            msg.NodesProbed(node=node, number=order.number, answering=answering, asked=asked), order.for_s
        )

    def _answer(self, answer: msg.AgentAnswer, after_s: float) -> None:
        if not self._answering:
            self._timeline.after(after_s, self._tell)
        self._answering.append(answer)

    def _tell(self) -> None:
        answers, self._answering = self._answering, []
        self._heard += [one for one in answers if one.node in self.nodes and self.is_reached(one.node)]
        self._wake()

    def _rehearse(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Rehearse)
        if agent.rehearsal is not None and agent.rehearsal.number >= order.number:
            return

        self.busy += 1

        def over() -> None:
            self.busy -= 1
            passes = not self.fails_rehearsal(agent.node)
            agent.rehearsal = Rehearsal(
                number=order.number,
                state=RehearsalState.PASSED if passes else RehearsalState.FAILED,
                reason="" if passes else "its numbers are wrong",
                took_s=took_s,
                release=order.release,
            )
            agent.is_new = True
            self._wake()

        took_s = self._chance.uniform(*REHEARSAL_S)
        agent.rehearsal = Rehearsal(number=order.number, state=RehearsalState.RUNNING, release=order.release)
        agent.is_new = True
        self._timeline.after(took_s, over)

    def _load(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.Load)
        agent.loaded, agent.is_new = order.number, True
        self._wake()

    def _try(self, agent: SimulatedAgent, order: object) -> None:
        assert isinstance(order, msg.TryRelease)
        agent.tried, agent.is_new = msg.Tried(number=order.number, ok=True), True
        self._wake()

    def _draw(self, text: str) -> float:
        return parse(text).draw(self._chance)

    def place(self, node: str) -> ProbeTarget:
        """Return where the kernel of ``node`` is probed."""
        return ProbeTarget(addresses=(self._addresses[node],), port=PROBE_PORT)


def _aged(alert: Alert, age_s: float) -> Alert:
    return structs.replace(alert, age_s=alert.age_s + age_s)
