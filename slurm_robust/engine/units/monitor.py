"""Follows what each generation reports: steps, loss, gradient norm, and the inspection of its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.analysis.progress.metrics import MetricWatch
from slurm_robust.analysis.progress.pace import PaceWatch, is_news
from slurm_robust.analysis.progress.traffic import fallen_silent
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.progress import PaceHistory, Progress
from slurm_robust.policy import alerts
from slurm_robust.policy.silence import HeldUp
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import named_ranks

EVERY_S = 0.25
# Judging this many records takes tens of milliseconds; more are judged once a second.
MANY_RECORDS = 10_000
LEARN_EVERY_S = 60.0


class Monitor:
    """Names what is wrong with the current generation, each thing once; begins anew with the next one."""

    def __init__(self, context: Context, now: Now) -> None:
        self._context = context
        self._begin(now, context.world.pace)

    def _begin(self, now: Now, past: PaceHistory) -> None:
        state, detect = self._context.state, self._context.config.detect
        self._held_up = HeldUp()
        self._generation = state.world.generation
        self._pace = PaceWatch(detect, past, state.world.restored_step)
        self._metrics = MetricWatch(detect, state.world.best_step)
        self._checked = now.mono - EVERY_S
        self._learned = now.mono
        self._reported: set[str] = set()
        self._reported_silent = False

    @property
    def pace(self) -> PaceHistory:
        """What is known of the pace of training, this generation's steps included."""
        return self._pace.history

    def hang_s(self, now: Now) -> float:
        """Return how long no step may come at present before that is a hang; infinite if it never is one."""
        self._follow(now)
        return self._pace.bound(now.mono)[0]

    def _follow(self, now: Now) -> None:
        if self._generation != self._context.world.generation:
            self._begin(now, self._context.world.pace)

    def check(self, now: Now) -> Fault | None:
        """Return the first thing that is wrong, None while nothing new is."""
        self._follow(now)
        many = self._context.world.placement.world_size / MANY_RECORDS
        if now.mono - self._checked < max(EVERY_S, min(many, 1.0)):
            return None
        self._checked = now.mono
        return self._inspection(now) or self._numbers(now)

    def excuse(self, seconds: float, now: Now, *, stood_still: bool = False) -> None:
        """Give training time to get going: a cut network, silent storage or Slurm held it up for so long.

        ``stood_still``: the clock of ``now`` did.
        """
        self._follow(now)
        self._held_up.add(seconds, now.mono, passed_s=0.0 if stood_still else seconds)
        self._pace.hold_up(now.mono)

    def remember(self, now: Now) -> None:
        """Write down what is known of the pace of training by now."""
        self._follow(now)
        self._learn(now, force=True)

    def confirm_hang(self, now: Now) -> None:
        """Confirm a hang, since its processes did nothing at all: the bound that showed it is right."""
        self._follow(now)
        pace = self._pace.undoubted
        self._context.record(ev.PaceLearned(t=now.wall, generation=self._generation, pace=pace))

    def unfit_spares(self) -> dict[str, str]:
        """Return the spares that their alerts name, with the reason: ranks would move to them in vain."""
        spares, fleet = self._context.state.spares, self._context.fleet
        if not any(heartbeat.alerts for heartbeat in fleet.heartbeats(spares).values()):
            return {}
        faults, _ = self._judge_alerts()
        named = {node: why for fault in faults for node, why in fault.named.items()}
        return {node: named[node] for node in spares if node in named}

    def _judge_alerts(self) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
        """See :func:`slurm_robust.policy.alerts.judge`."""
        context = self._context
        nodes = (*context.world.slots, *context.state.spares)
        seen = {node: b.alerts for node, b in context.fleet.heartbeats(nodes).items() if b.alerts}
        return alerts.judge(seen, context.rules, nodes=len(nodes))

    def _inspection(self, now: Now) -> Fault | None:
        faults, waits = self._judge_alerts()
        for text in waits:
            self._context.note(text, "", now)
        for fault in faults:
            mine = {node: why for node, why in fault.named.items() if node in self._context.world.slots}
            fresh = [node for node in mine if node not in self._reported]
            if fresh:
                self._reported.update(mine)
                detail = "; ".join(f"{node}: {why}" for node, why in mine.items())
                age_s = min(self._alert_age_s(node, now) for node in fresh)
                return structs.replace(fault, detail=detail, detect_s=age_s, named=mine)
        return None

    def _alert_age_s(self, node: str, now: Now) -> float:
        """Return the seconds since the newest alert of a node began, 0 if its agent is not known any more."""
        view = self._context.fleet.views.get(node)
        if view is None or not view.heartbeat.alerts:
            return 0.0
        return min(alert.age_s for alert in view.heartbeat.alerts) + max(0.0, now.mono - view.received)

    def _numbers(self, now: Now) -> Fault | None:
        context, state = self._context, self._context.state
        # A rank that has ended makes no more steps, which is no hang.
        ended = {e.exit.rank for e in context.exits(now)}
        records = [record for record in context.progress(now) if record.rank not in ended]
        self._pace.see(records, now.mono)
        self._metrics.see(records)
        for text in self._metrics.healed():
            context.note(text, "", now)
        self._learn(now)
        wrong = self._metrics.verdict()
        if wrong is not None:
            good_step = wrong.good_step if wrong.symptom is Symptom.NON_FINITE else None
            return Fault(
                symptom=wrong.symptom,
                detail=wrong.text,
                detect_s=wrong.age_s,
                ranks=wrong.ranks,
                good_step=good_step,
            )
        self._held_up.see(self._pace.moved_at)
        if self._held_up.is_excused(now.mono):
            return None
        views = (context.fleet.views.get(node) for node in state.world.slots)
        heard = min((view.heard for view in views if view is not None), default=now.mono)
        if now.mono - heard > context.config.timings.node_dead_s:
            return None  # what its ranks do is not known, and its silence is judged elsewhere
        late = self._pace.verdict(now.mono, self._held_up.since_moved_s)
        if late is None:
            return None if self._held_up.excuses_links(now.mono) else self._silence(records)
        self._learn(now, force=True)
        who = ""
        if late.ranks:
            nodes = fold(dict.fromkeys(map(state.world.placement.node_of, late.ranks)))
            who = f": {named_ranks(late.ranks)} on {nodes} {'is' if len(late.ranks) == 1 else 'are'} behind"
        return Fault(
            symptom=late.symptom,
            detail=late.text + who,
            why=f"the limit is {span(late.bound_s)} ({late.why})",
            detect_s=late.since_s,
            times=late.times,
        )

    def _learn(self, now: Now, *, force: bool = False) -> None:
        """Write down what was learnt of the pace of training, so that the next generation knows it."""
        known, pace = self._context.world.pace, self._pace.history
        due = now.mono - self._learned > LEARN_EVERY_S and is_news(known, pace)
        if due or (force and pace != known):
            self._learned = now.mono
            self._context.record(ev.PaceLearned(t=now.wall, generation=self._generation, pace=pace))

    def _silence(self, records: Sequence[Progress]) -> Fault | None:
        context = self._context
        heartbeats = [context.fleet.heartbeat(node) for node in context.world.slots]
        traffic = [
            heartbeat.traffic if heartbeat is not None and heartbeat.generation == self._generation else None
            for heartbeat in heartbeats
        ]
        past = self._pace.history
        pause_s = max(past.pause_s, past.longest_s, past.first_step_s)
        found = fallen_silent(traffic, records, context.config.detect, longest_pause_s=pause_s)
        was_reported, self._reported_silent = self._reported_silent, found is not None
        return None if was_reported else found
