"""What the numbers of one generation say: steps, loss, gradient norm, and the inspection of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_robust.analysis.progress.metrics import MetricWatch
from slurm_robust.analysis.progress.pace import PaceWatch, is_news
from slurm_robust.analysis.progress.traffic import fallen_silent
from slurm_robust.controller.effects import Now
from slurm_robust.controller.transitions import Trouble
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.policy import alerts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slurm_robust.controller.core import Core
    from slurm_robust.model.pace import PaceHistory
    from slurm_robust.model.progress import Progress

EVERY_S = 0.25
# A look at so many records takes tens of milliseconds; of more there is one look a second.
MANY_RECORDS = 10_000
LEARN_EVERY_S = 60.0

_PACE = {"hang": Symptom.HANG, "slow": Symptom.SLOW}
_METRICS = {"non_finite": Symptom.NON_FINITE, "spike": Symptom.SPIKE}


class Vitals:
    """Follows one generation; :meth:`look` names what is wrong with it, each thing once."""

    def __init__(self, core: Core, now: Now, past: PaceHistory, excused_s: float = 0.0) -> None:
        """``excused_s``: for so long no hang is told, since the network has just healed."""
        self._excused_until = now.mono + excused_s
        self.generation = core.state.generation
        self._pace = PaceWatch(core.config.detect, past, core.state.restored_step)
        self._metrics = MetricWatch(core.config.detect, core.state.best_step)
        self._looked = now.mono - EVERY_S
        self._learned = now.mono
        self._told: set[str] = set()
        self._told_silent = False

    @property
    def history(self) -> PaceHistory:
        """How fast training is, by what was seen so far."""
        return self._pace.history

    def look(self, core: Core, now: Now) -> Trouble | None:
        """The first thing that is wrong, None while nothing new is."""
        many = core.state.placement.world_size / MANY_RECORDS
        if now.mono - self._looked < max(EVERY_S, min(many, 1.0)):
            return None
        self._looked = now.mono
        return self._inspection(core, now) or self._numbers(core, now)

    def learn(self, core: Core, now: Now, *, force: bool = False) -> None:
        """Write down what was learnt of the training's pace, so that the next generation knows it."""
        due = now.mono - self._learned > LEARN_EVERY_S and is_news(core.state.pace, self._pace.history)
        if due or (force and self._pace.history != core.state.pace):
            self._learned = now.mono
            core.record(ev.PaceLearned(t=now.wall, generation=self.generation, pace=self._pace.history))

    def cause_found(self, core: Core, now: Now) -> None:
        """A hang was one, since its processes did nothing at all: the bound that showed it is right."""
        core.record(ev.PaceLearned(t=now.wall, generation=self.generation, pace=self._pace.undoubted))

    def judgement(self, core: Core) -> alerts.Judgement:
        """What the alerts of all nodes together mean now."""
        heartbeats = {node: core.fleet.heartbeat(node) for node in (*core.state.slots, *core.state.spares)}
        seen = {
            node: heartbeat.alerts
            for node, heartbeat in heartbeats.items()
            if heartbeat is not None and heartbeat.alerts
        }
        return alerts.judge(seen, core.switches, core.config.detect, nodes=len(heartbeats))

    def unfit_spares(self, core: Core) -> dict[str, str]:
        """Spares that their alerts name, with the reason: a slot would be left for them in vain."""
        heartbeats = (core.fleet.heartbeat(node) for node in core.state.spares)
        if not any(heartbeat is not None and heartbeat.alerts for heartbeat in heartbeats):
            return {}
        found = self.judgement(core)
        named = {**found.network, **found.evict}
        return {node: named[node] for node in core.state.spares if node in named}

    def _inspection(self, core: Core, now: Now) -> Trouble | None:
        found = self.judgement(core)
        for text in found.waits:
            core.note(text, "", now)
        for named, symptom in ((found.evict, Symptom.NODE_FAULT), (found.network, Symptom.NETWORK)):
            mine = {node: why for node, why in named.items() if node in core.state.slots}
            fresh = [node for node in mine if node not in self._told]
            if fresh:
                self._told.update(mine)
                detail = "; ".join(f"{node}: {why}" for node, why in mine.items())
                age_s = min(_age(core, node, now) for node in fresh)
                return Trouble(symptom=symptom, detail=detail, detect_s=age_s, named=mine)
        return None

    def _numbers(self, core: Core, now: Now) -> Trouble | None:
        state = core.state
        # Who has ended stands still for good, which is no hang.
        ended = {e.exit.rank for e in core.fleet.exits(state.slots, state.generation, now.mono)}
        records = [
            record
            for record in core.fleet.progress(state.slots, state.generation, now.mono)
            if record.rank not in ended
        ]
        self._pace.see(records, now.mono)
        self._metrics.see(records)
        for text in self._metrics.healed():
            core.note(text, "", now)
        self.learn(core, now)
        wrong = self._metrics.verdict()
        if wrong is not None:
            good_step = wrong.good_step if wrong.kind == "non_finite" else None
            return Trouble(
                symptom=_METRICS[wrong.kind], detail=wrong.words, detect_s=wrong.age_s, good_step=good_step
            )
        if now.mono < self._excused_until:
            return None
        views = (core.fleet.views.get(node) for node in state.slots)
        heard = min((view.heard for view in views if view is not None), default=now.mono)
        if now.mono - heard > core.config.timings.node_dead_s:
            return None  # what its ranks do is not known, and its silence is judged elsewhere
        late = self._pace.verdict(now.mono)
        if late is None:
            return self._silence(core, records)
        self.learn(core, now, force=True)
        return Trouble(symptom=_PACE[late.kind], detail=late.words, detect_s=late.since_s, times=late.times)

    def _silence(self, core: Core, records: Sequence[Progress]) -> Trouble | None:
        heartbeats = [core.fleet.heartbeat(node) for node in core.state.slots]
        traffic = [
            heartbeat.traffic if heartbeat is not None and heartbeat.generation == self.generation else None
            for heartbeat in heartbeats
        ]
        past = self._pace.history
        pause_s = max(past.pause_s, past.longest_s, past.first_step_s)
        found = fallen_silent(traffic, records, core.config.detect, longest_pause_s=pause_s)
        was_told, self._told_silent = self._told_silent, found is not None
        if found is None or was_told:
            return None
        return Trouble(symptom=Symptom.HANG, detail=found.words, detect_s=found.since_s, hint=True)


def _age(core: Core, node: str, now: Now) -> float:
    """Seconds since the newest alert of a node began."""
    view = core.fleet.views[node]
    return min(alert.age_s for alert in view.heartbeat.alerts) + max(0.0, now.mono - view.told)
