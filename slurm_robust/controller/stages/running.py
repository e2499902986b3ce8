"""From the launch orders until something ends the generation."""

from __future__ import annotations

from slurm_robust.controller import restoring
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.stages.standby import watch_spares
from slurm_robust.controller.stages.watch import all_done, current_agents, find_trouble, leave
from slurm_robust.controller.telling import Course
from slurm_robust.controller.tending import Tending
from slurm_robust.controller.transitions import (
    ToCheckpointing,
    ToEnding,
    ToLaunching,
    ToLocalising,
    ToRunning,
    ToStopping,
    Transition,
    Trouble,
    Why,
)
from slurm_robust.model import events as ev
from slurm_robust.model.incident import AllRanksDone, Finish, Symptom
from slurm_robust.model.progress import slowest
from slurm_robust.policy import decide
from slurm_robust.policy.lateness import Growth, patience_s
from slurm_robust.policy.restore import RestorePlan, tiers_in_words
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Beat, Launch, Phase

RESEND_S = 2.0
# A node has at least this time to start its workers, however early the others did.
LEAST_S = 120.0
# GPUs that are free within this time are not worth a line.
FREEING_S = 3.0


class Launching:
    """Orders are out; waits until every rank of the new generation is alive."""

    def __init__(self, begin: ToLaunching) -> None:
        self._agents: dict[str, str] = {}
        self._since = self._sent = 0.0
        self._orders: dict[str, Launch] = {}
        self._told = False
        self._started = Growth()

    def enter(self, core: Core, now: Now) -> None:
        """Choose the rendezvous and the checkpoint, and send the orders."""
        restoring.seal_pending(core, now)
        plan = restoring.choose(core, now)
        state = core.state
        first = core.fleet.beat(state.slots[0])
        assert first is not None  # Gathering saw it
        core.record(
            ev.GenerationLaunched(
                t=now.wall,
                generation=state.generation + 1,
                slots=state.slots,
                master=f"{first.address}:{first.rendezvous_port}",
                restore=plan.ref if plan else None,
                tiers=plan.tiers if plan else {},
                layout=restoring.layout_now(core).identity(),
            )
        )
        if plan is not None:
            words = f"resumes from step {plan.ref.step}, from {tiers_in_words(plan.tiers)}"
            core.emit(Say(text=f"generation {core.state.generation} {words}"))
        elif state.generation:
            text = "begins anew from step 0: no checkpoint is in reach"
            core.note(f"generation {core.state.generation} {text}", "", now)
            core.emit(Say(text=f"generation {core.state.generation} {text}"))
        self._write_orders(core, plan, first)
        self._agents = current_agents(core)
        self._since = now.mono
        self._send(core, now)

    def _write_orders(self, core: Core, plan: RestorePlan | None, first: Beat) -> None:
        state, placement = core.state, core.state.placement
        peers = restoring.peers_of(core)
        for slot, node in enumerate(placement.slots):
            self._orders[node] = Launch(
                epoch=state.epoch,
                generation=state.generation,
                ranks=placement.ranks_of(node),
                world_size=placement.world_size,
                slot=slot,
                slots=len(placement.slots),
                master_addr=first.address,
                master_port=first.rendezvous_port,
                restore=state.restored,
                restart_count=state.generation - 1,
                layout=state.layouts[state.generation],
                sources=plan.sources[node] if plan else (),
                peers=peers.get(node, ()),
                stride=state.stride,
                announce_step=state.incident.step + 1 if state.incident else 0,
            )

    def step(self, core: Core, now: Now) -> Transition | None:
        """Running when all are alive; trouble as in Running; too late is trouble as well."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        slots, generation = core.state.slots, core.state.generation
        trouble = find_trouble(core, self._agents, self._since, now)
        if trouble is not None:
            return leave(core, self._agents, Why(trouble=trouble), now)
        if core.fleet.all_in(slots, generation, (Phase.RUNNING, Phase.ENDED)):
            return ToRunning(agents=self._agents, launched=self._since)
        waited = now.mono - self._since
        started = sum(core.fleet.all_in([n], generation, (Phase.RUNNING, Phase.ENDED)) for n in slots)
        if waited > patience_s(core.config.timings.launch_s, LEAST_S, self._started.see(started, now.mono)):
            late = [n for n in slots if (b := core.fleet.beat(n)) is None or b.generation < generation]
            detail = f"{','.join(late) or 'some ranks'} did not start workers within {waited:.0f} s"
            late_trouble = Trouble(symptom=Symptom.LAUNCH_FAILED, detail=detail, detect_s=waited)
            return leave(core, self._agents, Why(trouble=late_trouble), now)
        if now.mono - self._sent > RESEND_S:
            self._send(core, now)
        if not self._told and waited > FREEING_S:
            self._tell_freeing(core)
        return None

    def _tell_freeing(self, core: Core) -> None:
        """Of whose GPUs launching waits."""
        generation = core.state.generation
        waiting = [n for n in core.state.slots if core.fleet.all_in([n], generation, (Phase.FREEING,))]
        if waiting:
            self._told = True
            core.emit(
                Say(text=f"generation {generation}: waiting for the GPUs of {fold(waiting)} to be free")
            )

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        for node, order in self._orders.items():
            beat = core.fleet.beat(node)
            if beat is None or beat.generation < order.generation:
                core.send(node, order)


class Running:
    """All ranks are alive."""

    def __init__(self, begin: ToRunning) -> None:
        self._agents = begin.agents
        self._launched = begin.launched
        self._since = 0.0
        self._first_step_seen = False
        self._tending: Tending | None = None
        self._course: Course | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Remember since when silence counts."""
        self._since = now.mono
        self._first_step_seen = core.state.steps_here >= 0
        self._tending = Tending(now)
        self._course = Course(self._launched, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Watch progress and trouble; end when all ranks are done."""
        self._watch_steps(core, now)
        if self._course is not None:
            self._course.step(core, now)
        if core.leaving:
            return ToStopping(reason=core.leaving)
        if all_done(core, now):
            core.watch_progress(now, force=True)
            return _finished(core, now)
        trouble = find_trouble(core, self._agents, self._since, now)
        if trouble is not None:
            return leave(core, self._agents, Why(trouble=trouble), now)
        if core.ending:
            # Before the first step there is nothing to checkpoint, and little time left.
            return ToCheckpointing(agents=self._agents) if core.trains else ToStopping(reason=core.ending)
        trouble = core.vitals(now).look(core, now)
        if trouble is not None:
            return self._on_vitals(core, trouble, now)
        watch_spares(core, now)
        return None

    def _watch_steps(self, core: Core, now: Now) -> None:
        state = core.state
        records = core.fleet.progress(state.slots, state.generation, now.mono)
        if not core.is_progress(records):
            return
        last = slowest(records)
        reported = all(p.reported for p in records)
        if not self._first_step_seen:
            self._first_step_seen = True
            timings = _timings(core)
            if self._course is not None:
                self._course.first_step(core, last, now)
            core.record(
                ev.FirstStep(
                    t=now.wall - last.age_s,
                    generation=state.generation,
                    step=last.step,
                    reported=reported,
                    timings=timings,
                )
            )
        incident = state.incident
        # Without step reports nobody knows which step is new; the first of the new generation counts.
        if incident is not None and (not reported or last.step > incident.step):
            core.watch_progress(now, force=True)
            core.close_incident(last.step, last.age_s, now)
        core.watch_progress(now)
        if self._tending is not None:
            self._tending.step(core, records, last, now)

    def _on_vitals(self, core: Core, trouble: Trouble, now: Now) -> Transition:
        if trouble.symptom is Symptom.HANG and not trouble.hint:
            core.watch_progress(now, force=True)
            core.open_incident(trouble.symptom, trouble.detail, trouble.detect_s, now)
        if trouble.symptom in (Symptom.HANG, Symptom.SLOW):
            return ToLocalising(agents=self._agents, trouble=trouble)
        return leave(core, self._agents, Why(trouble=trouble), now)


def _timings(core: Core) -> dict[str, float]:
    """Slowest of each phase of the last stop and launch over all nodes, seconds."""
    worst: dict[str, float] = {}
    for node in core.state.slots:
        beat = core.fleet.beat(node)
        for name, seconds in (beat.timings if beat else {}).items():
            worst[name] = max(seconds, worst.get(name, 0.0))
    return worst


def _finished(core: Core, now: Now) -> Transition:
    done = AllRanksDone(generation=core.state.generation)
    decision = decide(core.state, done, now.wall, core.rules)
    code = next(a.code for a in decision.actions if isinstance(a, Finish))
    core.record(ev.GenerationEnded(t=now.wall, generation=core.state.generation, reason=decision.reason))
    return ToEnding(code=code, reason=decision.reason)
