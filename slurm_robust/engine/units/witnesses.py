"""Witnesses beside an agent's silence, asked before it counts: its node's kernel, the other ranks, Slurm."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import partial

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import AskAboutNodes, NoAnswer, ProbePorts
from slurm_robust.model.exits import Witness
from slurm_robust.model.probes import PortsProbed
from slurm_robust.policy.silence import FRESH_S, MAX_WITNESSED, STALLED_S, TOGETHER, Silence, judge
from slurm_robust.util.hostlist import fold

LOOK_EVERY_S = 0.25
EVERY_S = 1.5
GONE = "no process listens at its port any more, while its node answers"
ASK_EVERY_S = 5.0
UNHEARD_S = 3.0
"""Agents that live have mostly found a new controller by then."""


class Witnesses:
    """Follows the nodes whose agents have missed heartbeats, until these count as silent or speak again."""

    def __init__(self, context: Context, on_refused: Callable[[tuple[str, ...], Now], None]) -> None:
        """``on_refused``: told of nodes at whose agent's port nothing listens any more."""
        self._context, self._on_refused = context, on_refused
        self._hears: list[Callable[[tuple[Witness, ...] | None], None]] = []
        self._looked = self._knocked = self._asked = -math.inf
        self._noted: set[str] = set()
        self._slurm_at = -math.inf
        self._slurm_answers = False
        self._given_up: frozenset[str] = frozenset()
        self._number = self._answered = (
            0  # of the newest question to Slurm, and of the newest that has an answer
        )
        self._words: dict[str, str] = {}  # of Slurm, on each of them
        self._taken: dict[str, float] = {}  # when a process was last seen to listen at the port of an agent

    def step(self, now: Now) -> None:
        """Ask the witnesses when it is due."""
        context = self._context
        dead_s, views = context.config.timings.node_dead_s, context.fleet.views
        if now.mono - self._looked < LOOK_EVERY_S or now.mono - self._knocked < EVERY_S:
            return
        self._looked = now.mono
        silent = {
            node: views[node].heard
            for node in (*context.world.slots, *context.state.spares)
            if node in views and dead_s / 2 < now.mono - views[node].heard <= STALLED_S
        }
        self._noted &= silent.keys()
        unheard = self._unheard(now)
        if not (silent or unheard) or len(silent) + len(unheard) > MAX_WITNESSED:
            return
        self._knocked = now.mono
        for node, heard in silent.items():
            step_at = self._step_after(node, silent, heard + dead_s / 2)
            if step_at is not None:
                self._sign(node, step_at, "its ranks go on", now)
        heartbeats = {node: views[node].heartbeat for node in silent}
        places = {node: (b.address, b.data_port) for node, b in heartbeats.items()} | unheard
        places = {node: (address, port) for node, (address, port) in places.items() if address and port}
        if places:
            context.ask(ProbePorts(places=places), now, self._on_ports)
        stalled = tuple(node for node, heard in silent.items() if now.mono - heard > dead_s)
        if stalled and now.mono - self._asked > ASK_EVERY_S:
            self._asked = now.mono
            self.ask_slurm(stalled, now)

    def _unheard(self, now: Now) -> dict[str, tuple[str, int]]:
        """Return the addresses of agents of an earlier controller that this one has never heard, by node."""
        context = self._context
        if now.mono - context.started < UNHEARD_S:
            return {}
        joined, views = context.state.joined, context.fleet.views
        wanted = (*context.world.slots, *context.state.spares)
        agents = (joined[node] for node in wanted if node in joined and node not in views)
        return {agent.node: (agent.address, agent.port) for agent in agents}

    def tell(self, hears: Callable[[tuple[Witness, ...] | None], None]) -> None:
        """Have ``hears`` told what Slurm says of nodes, too; None: it does not answer."""
        self._hears.append(hears)

    def ask_slurm(self, nodes: tuple[str, ...], now: Now) -> None:
        """Ask Slurm how ``nodes`` are."""
        self._number += 1
        self._context.ask(AskAboutNodes(nodes=nodes), now, partial(self._on_slurm, self._number, nodes))

    def _on_ports(self, found: PortsProbed | NoAnswer, now: Now) -> None:
        """Take in what kernels have answered for their agents."""
        if isinstance(found, NoAnswer):
            return
        for node in sorted(found.taken):
            self._taken[node] = now.mono
            self._sign(node, now.mono, "its node answers", now)
        self._on_refused(self._gone(found, now), now)

    def _gone(self, found: PortsProbed, now: Now) -> tuple[str, ...]:
        """Return the nodes whose agent has ended, as their kernel shows.

        After a takeover no srun may report that. If several refuse a connection together, it may be the
        network that does so.
        """
        views, dead_s = self._context.fleet.views, self._context.config.timings.node_dead_s
        silent = [n for n in found.refused if n not in views or now.mono - views[n].heard > dead_s / 2]
        return tuple(silent) if len(found.refused) == 1 else ()

    def _on_slurm(
        self, number: int, nodes: tuple[str, ...], answer: tuple[Witness, ...] | NoAnswer, now: Now
    ) -> None:
        """Take in Slurm's answer; if slurmctld does not answer, that says nothing about the nodes."""
        found = None if isinstance(answer, NoAnswer) else answer
        if isinstance(answer, NoAnswer):
            self._context.note(f"Slurm does not say how {fold(nodes)} are: {answer.reason}", "", now)
        if number >= self._answered:  # an answer to an older question says nothing of now
            self._answered = number
            self._slurm_at, self._slurm_answers = now.mono, found is not None
            self._words = {node: word for node, word in self._words.items() if node not in nodes}
            self._words |= {witness.node: witness.message for witness in found or () if witness.gone}
            self._given_up = frozenset(self._words)
        for hears in self._hears:
            hears(found)

    def finds_agent(self, node: str, now: Now) -> bool:
        """Return whether an agent listens on ``node``, by the newest question, though it may not be heard."""
        return now.mono - self._taken.get(node, -math.inf) <= 2 * EVERY_S

    def gave_up(self, nodes: Iterable[str]) -> bool:
        """Return whether Slurm, by its newest answer, has given up all of ``nodes``."""
        return set(nodes) <= self._given_up

    def silence(self, now: Now, since: float, explained: Collection[str] = ()) -> Silence | None:
        """Return silent nodes, and their common cause; ``since``: from when silence counts of nodes never
        heard.

        Silence of ``explained`` nodes is known to be another's and is not judged.
        """
        timings, state, fleet = self._context.config.timings, self._context.state, self._context.fleet
        silent_s = {
            node: fleet.silence(node, now.mono, since) for node in state.world.slots if node not in explained
        }
        apart_s = TOGETHER * timings.heartbeat_s
        # A standby that fell silent before the others did so for another reason.
        longest_s = max((timings.node_dead_s, *silent_s.values())) + apart_s
        heard = [node for node in state.spares if node in fleet.views and node not in explained]
        standbys = {node: fleet.silence(node, now.mono, since) for node in heard}
        dead = fleet.deaths(silent_s.keys() | standbys.keys())
        for node in dead:
            silent_s.pop(node, None)
            standbys.pop(node, None)
        found = judge(
            silent_s | {node: silence for node, silence in standbys.items() if silence < longest_s},
            state.own_node,
            dead_s=timings.node_dead_s,
            apart_s=apart_s,
            switches=self._context.switches,
            slurm_answers=self._slurm_answers if now.mono - self._slurm_at < FRESH_S else None,
        )
        if found is not None and found.cause and self.gave_up(found.nodes):
            # Not the network: Slurm knows what became of them, a reboot for instance.
            words = "; ".join(dict.fromkeys(self._words[node] for node in found.nodes))
            found = Silence(nodes=found.nodes, cause=f"Slurm has given up {fold(found.nodes)}: {words}")
        if not dead:
            return found
        # Each of the dead speaks for itself, unless what the others have in common may be their cause, too.
        others, cause = (found.nodes, found.cause) if found is not None else ((), "")
        return Silence(nodes=tuple(sorted({*dead, *others})), cause=cause)

    def _sign(self, node: str, at: float, why: str, now: Now) -> None:
        context = self._context
        view = context.fleet.views.get(node)
        if node in self._given_up or view is None:
            return
        context.fleet.give_sign(node, at)
        silent_s = now.mono - view.heard
        if node not in self._noted and silent_s > context.config.timings.node_dead_s:
            self._noted.add(node)
            text = f"the agent of {node} is silent, but {why}: waiting for it, up to {STALLED_S:.0f} s"
            context.note(text, node, now)
            context.emit(Say(text=text))

    def _step_after(self, node: str, silent: Iterable[str], since: float) -> float | None:
        """Return when all ranks of heard nodes had completed a step that needed ``node``.

        None if that was not later than ``since``: the step under way when a node died may still end.
        """
        state, views = self._context.state, self._context.fleet.views
        newest = max((p.step for p in views[node].heartbeat.progress), default=None)
        if newest is None or views[node].heartbeat.generation != state.world.generation:
            return None
        at, count = math.inf, 0
        for other in state.world.slots:
            if (
                other in silent
                or other not in views
                or views[other].heartbeat.generation != state.world.generation
            ):
                continue
            for record in views[other].heartbeat.progress:
                count += 1
                if record.step < newest + 2:
                    return None
                at = min(at, views[other].received - record.age_s)
        return at if count and at > since else None
