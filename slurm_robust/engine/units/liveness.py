"""Follows beacons, has kernels probed, and declares a node dead when nothing on it answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import NoAnswer, ProbeKernels
from slurm_robust.engine.units.fleet import AgentView
from slurm_robust.model.probes import Answers, ProbeTarget
from slurm_robust.model.standby import StandbyStage
from slurm_robust.policy.liveness import (
    PROVE_EVERY_S,
    PROVEN_S,
    Probing,
    beacon_interval,
    choose_observers,
    describe,
    overdue_s,
    probing_s,
    verdict_s,
)
from slurm_robust.policy.silence import STALLED_S, TOGETHER, judge
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import AgentQuestion, NodesProbed, ProbeNodes

MAX_PROBED = 64
"""How many kernels of living nodes are probed at a time."""

MAX_SUSPECTS = 8
"""More nodes do not die in the same second by themselves."""

LATE_S = 30.0
"""Seconds beyond the time of the probes: their answer is lost then."""

PROVING_S = 1.0
"""How long nodes that live are probed."""

_AGAIN_S = 1.0
# A kernel that was probed so often in vain while its agent spoke is one whose answers do not come through.
_VAIN = 2
# From the first heartbeat of an agent until it is said that no beacon of it has come.
_NO_BEACON_S = 30.0


@dataclass(frozen=True)
class Proof:
    """That the kernel of a node answers probes."""

    at: float
    """Monotonic time."""
    place: ProbeTarget
    seconds: float
    """Until the answer."""
    kinds: str
    """How the probes went, for people."""


class Liveness:
    """Declares a node dead a moment after it loses power; does nothing while beacons arrive."""

    def __init__(self, context: Context) -> None:
        self._context = context
        agents = len(context.world.slots) + len(context.state.spares)
        self._interval_s = beacon_interval(context.config.timings.verdict_s, agents)
        self._ages: Mapping[str, float] = {}
        self._is_news = False
        self._senders: set[str] = set()  # agents of which a beacon has ever come
        self._probings: dict[str, Probing] = {}  # by suspect
        self._proved: dict[str, Proof] = {}
        # What agents have told of their places, and what it means: it is asked for each node in each turn.
        self._places: dict[str, tuple[tuple[str, str, int], ProbeTarget]] = {}
        self._proving: tuple[str, ...] = ()  # probes of these are under way
        self._tried: dict[str, float] = {}  # when a node was last probed for that
        self._are_kinds_said = False
        self._vain: dict[str, int] = {}
        self._without: dict[str, float] = {}  # nodes whose agents speak but send no beacons, and since when
        self._is_without_said = False

    # -- inputs ------------------------------------------------------------------------------------

    def on_beacons(self, ages: Mapping[str, float]) -> None:
        """Take in the seconds since the newest beacon of each agent (by its id) that has sent any."""
        self._ages = ages
        self._senders.update(ages)
        self._is_news = True

    def _on_answers(self, number: int, answers: Answers | NoAnswer, now: Now) -> None:
        """Take in the answers of kernels; probes that could not be made say nothing about the nodes."""
        if isinstance(answers, NoAnswer):
            return
        self._drop_forgotten()
        for node, probing in list(self._probings.items()):
            if probing.number == number:
                self._probings[node] = structs.replace(probing, over=node in answers.asked)
                if node in answers.nodes:
                    self._lives(node, "its kernel answers", now)

    def _on_observed(self, found: NodesProbed, now: Now) -> None:
        """Take in what an agent that probed other nodes has seen."""
        self._drop_forgotten()
        for node, probing in list(self._probings.items()):
            control = probing.controls.get(found.node)
            if probing.number != found.number or control is None:
                continue
            if node in found.answering:
                self._lives(node, f"its kernel answers {found.node}", now)
            elif node in found.asked and control in found.answering and found.node not in probing.unanswered:
                unanswered = (*probing.unanswered, found.node)
                self._probings[node] = structs.replace(probing, unanswered=unanswered)

    def _drop_forgotten(self) -> None:
        """Stop probing nodes whose agent is known to have ended: an answer says nothing about it."""
        views = self._context.fleet.views
        self._probings = {node: probing for node, probing in self._probings.items() if node in views}

    # -- what follows --------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether :meth:`step` is due: it judges no node before the beacons that have come are read."""
        return self._is_news and self._interval_s > 0

    def hears(self, node: str) -> bool:
        """Return whether beacons of the agent of ``node`` come, by what has been read of them."""
        view = self._context.fleet.views.get(node)
        return view is not None and self._ages.get(view.heartbeat.agent, math.inf) < overdue_s(
            self._interval_s
        )

    def step(self, now: Now, explained: Collection[str]) -> None:
        """Probe and judge; ``explained``: nodes whose agents are known to have ended."""
        self._is_news = False
        self._prove(now)
        self._follow_missing(now)
        state, fleet = self._context.state, self._context.fleet
        nodes = [
            node
            for node in (*state.world.slots, *state.spares)
            if node not in explained and node in fleet.views
        ]
        for node in fleet.deaths(nodes):
            if self._silence(fleet.views[node], now) < overdue_s(self._interval_s):
                fleet.declare_alive(node)
        silent_s = {
            node: self._silence(fleet.views[node], now) for node in nodes if fleet.views[node].dead is None
        }
        suspects = [
            node
            for node, seconds in silent_s.items()
            if fleet.views[node].heartbeat.agent in self._ages
            and overdue_s(self._interval_s) < seconds <= STALLED_S
            and self.is_proved(node, now)
        ]
        self._probings = {node: self._probings[node] for node in suspects if node in self._probings}
        if not suspects or len(suspects) > MAX_SUSPECTS:
            return
        heard = [node for node, seconds in silent_s.items() if seconds < overdue_s(self._interval_s)]
        for node in suspects:
            old = self._probings.get(node)
            if old is None or now.mono - old.began > old.for_s + _AGAIN_S:
                self._probe(node, heard, now)
        self._judge(silent_s, now)

    def _silence(self, view: AgentView, now: Now) -> float:
        """Return the seconds without a beacon or a heartbeat.

        Heartbeats of an agent without beacons may be apart.
        """
        heard_s = now.mono - view.heard
        agent = view.heartbeat.agent
        if agent in self._ages:
            return min(self._ages[agent], heard_s)
        usual_s = 0.0 if agent in self._senders else TOGETHER * self._context.config.timings.heartbeat_s
        return max(0.0, heard_s - usual_s)

    def _probe(self, node: str, heard: Collection[str], now: Now) -> None:
        """Have the kernel of ``node`` probed from here and by observers, chosen from ``heard``."""
        context, place = self._context, self._place(node)
        assert place is not None  # it is proved
        number = context.number_question()
        for_s = probing_s(self._interval_s, self._proved[node].seconds)
        probe = ProbeKernels(places={node: place}, for_s=for_s)
        context.ask(probe, now, partial(self._on_answers, number), within_s=for_s + LATE_S)
        reached = [other for other in heard if self._place(other) is not None]
        controls = choose_observers(node, reached, context.state.own_node, context.switches)
        questions: dict[str, AgentQuestion[NodesProbed]] = {}
        for observer, control in list(controls.items()):
            beside = self._place(control)
            if beside is None:
                del controls[observer]
                continue
            places = {node: place, control: beside}
            questions[observer] = ProbeNodes(
                epoch=context.state.epoch, number=number, places=places, for_s=for_s
            )
        context.ask_agents(questions, now, self._on_observed)
        self._probings[node] = Probing(number=number, began=now.mono, for_s=for_s, controls=controls)

    def _judge(self, silent_s: Mapping[str, float], now: Now) -> None:
        context, overdue = self._context, overdue_s(self._interval_s)
        found = judge(
            silent_s,
            context.state.own_node,
            dead_s=self._verdict_s(),
            apart_s=overdue,
            switches=context.switches,
            slurm_answers=None,
        )
        if found is None or found.cause or len(found.nodes) > 1 or context.state.own_node in found.nodes:
            return  # nodes that die in the same moment do so for a common cause, which may pass
        (node,) = found.nodes
        probing = self._probings.get(node)
        if probing is None or not probing.is_unanimous or not self._can_replace(node, silent_s):
            return
        text = describe(node, silent_s[node], self._interval_s, probing, self._proved[node].kinds)
        context.fleet.declare_dead(node, text, now.mono - silent_s[node])
        context.note(text, node, now)
        del self._probings[node]

    def _can_replace(self, node: str, silent_s: Mapping[str, float]) -> bool:
        """Return whether there are standbys for all that die now; else a return is sooner than a requeue."""
        state, fleet = self._context.state, self._context.fleet
        if node not in state.world.slots:
            return True
        dying = {node, *fleet.deaths(state.world.slots)}
        heard = [n for n in state.spares if n in silent_s and silent_s[n] < overdue_s(self._interval_s)]
        return len(dying) <= len(heard)

    def _verdict_s(self) -> float:
        """Return the seconds without a beacon after which a node may be called dead now."""
        state, asked_s = self._context.state, self._context.config.timings.verdict_s
        ready = {node for node, found in state.standbys.items() if found.stage is StandbyStage.REHEARSED}
        has_rehearsed = not ready.isdisjoint(set(state.spares) - state.aside.keys())
        gpu_nodes = len(state.world.slots) if state.gpus else 0
        return verdict_s(asked_s, self._interval_s, gpu_nodes, has_rehearsed=has_rehearsed)

    def _lives(self, node: str, why: str, now: Now) -> None:
        probing, state = self._probings[node], self._context.state
        if not probing.answered:
            self._probings[node] = structs.replace(probing, answered=True)
            silent_s = self._silence(self._context.fleet.views[node], now)
            text = f"no beacon of the agent of {node} comes, but {why}: the node is not dead"
            is_over = state.ended is not None or state.requeueing is not None  # agents are told to end
            if silent_s > self._verdict_s() and not is_over:
                self._context.note(text, node, now)

    # -- which probes come through -------------------------------------------------------------------

    def _place(self, node: str) -> ProbeTarget | None:
        view = self._context.fleet.views.get(node)
        if view is None or not view.heartbeat.address:
            return None
        heartbeat, known = view.heartbeat, self._places.get(node)
        told = heartbeat.address, heartbeat.data_address, heartbeat.probe_port
        if known is not None and known[0] == told:
            return known[1]
        addresses = dict.fromkeys(filter(None, told[:2]))
        place = ProbeTarget(addresses=tuple(addresses), port=heartbeat.probe_port)
        self._places[node] = told, place
        return place

    def is_proved(self, node: str, now: Now) -> bool:
        """Return whether the kernel of ``node`` has answered a probe lately: its silence says something."""
        proof = self._proved.get(node)
        return proof is not None and proof.place == self._place(node) and now.mono - proof.at < PROVEN_S

    def _prove(self, now: Now) -> None:
        """Probe nodes that live, so that it is known which answers a dead one would withhold."""
        if self._proving:
            return
        state = self._context.state
        due = {
            node: place
            for node in (*state.world.slots, *state.spares)
            if self._is_due(node, now) and (place := self._place(node)) is not None
        }
        if not due:
            return
        oldest = sorted(due, key=lambda node: self._tried.get(node, -math.inf))
        self._proving = tuple(oldest[:MAX_PROBED])
        self._tried.update(dict.fromkeys(self._proving, now.mono))
        places = {node: due[node] for node in self._proving}
        probe = ProbeKernels(places=places, for_s=PROVING_S, each_kind=True)
        then = partial(self._on_proving, self._proving)
        self._context.ask(probe, now, then, within_s=PROVING_S + LATE_S)

    def _is_due(self, node: str, now: Now) -> bool:
        proof = self._proved.get(node)
        if node not in self._tried or (proof is not None and proof.place != self._place(node)):
            return True
        again_s = _AGAIN_S if 0 < self._vain.get(node, 0) < _VAIN else PROVE_EVERY_S
        return now.mono - self._tried[node] > again_s

    def _on_proving(self, nodes: tuple[str, ...], answers: Answers | NoAnswer, now: Now) -> None:
        if nodes is not self._proving:
            return  # they were given up, and others may be under way
        self._proving = ()
        if isinstance(answers, NoAnswer):
            return
        for node in nodes:
            if node in answers.nodes:
                seconds = min(kind[node] for kind in (answers.tcp, answers.icmp) if node in kind)
                kinds = [
                    name for name, kind in (("TCP", answers.tcp), ("ICMP", answers.icmp)) if node in kind
                ]
                if (place := self._place(node)) is not None:
                    self._proved[node] = Proof(now.mono, place, seconds, " and ".join(kinds))
                self._vain.pop(node, None)
            else:
                self._vain[node] = self._vain.get(node, 0) + 1
        self._say_kinds(now)

    def _say_kinds(self, now: Now) -> None:
        """Say once by which probes dead nodes are known, and of which nodes they are not."""
        state = self._context.state
        nodes = [node for node in (*state.world.slots, *state.spares) if self._place(node) is not None]
        if self._are_kinds_said or any(n not in self._proved and self._vain.get(n, 0) < _VAIN for n in nodes):
            return
        self._are_kinds_said = True
        by_kind: dict[str, list[str]] = {}
        for node in nodes:
            by_kind.setdefault(self._proved[node].kinds if node in self._proved else "", []).append(node)
        dead_s = self._context.config.timings.node_dead_s
        for kinds, found in by_kind.items():
            text = f"the kernels of {fold(found)} answer probes by {kinds}"
            if not kinds:
                text = (
                    f"no probe of the kernel of {fold(found)} is answered (are TCP and ICMP dropped?): a "
                    f"dead node there is noticed after {dead_s:g} s (timings.node_dead_s)"
                )
                self._context.emit(Say(text=text))
            self._context.note(text, "", now)

    def _follow_missing(self, now: Now) -> None:
        """Say once that beacons do not come through."""
        context, views = self._context, self._context.fleet.views
        without = [
            n for n in context.world.slots if n in views and views[n].heartbeat.agent not in self._senders
        ]
        self._without = {node: self._without.get(node, now.mono) for node in without}
        # All are named together: agents join one after the other.
        is_early = any(now.mono - since <= _NO_BEACON_S for since in self._without.values())
        if not self._without or is_early or self._is_without_said:
            return
        self._is_without_said = True
        text = (
            f"no beacon of {fold(self._without)} has come (is UDP to the controller's port dropped?): a dead "
            f"node there is noticed after {context.config.timings.node_dead_s:g} s (timings.node_dead_s)"
        )
        context.note(text, "", now)
        context.emit(Say(text=text))
