"""Before the job leaves its nodes: what only memory holds goes to storage."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import ORDERED_S, RECONNECT_S
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.over import begun_by
from slurm_robust.engine.transitions import ToEnding, ToRequeueing, ToSaving, Transition
from slurm_robust.engine.units.rescue import Rescue, last_rescue
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.policy.checkpoints import LAST_STORE_S
from slurm_robust.policy.leaving import SEE_TO_NODES, UnsavedSteps, store_s, unkept
from slurm_robust.util.hostlist import fold


class Saving:
    """A rescue of the newest checkpoint that can be restored, bounded by ``timings.checkpoint_s``.

    If the run is ended from outside, the bound is the time that Slurm leaves. If an agent has ended, its
    node's memory may still hold parts: another agent is started there first. Each end of a run that loses
    steps leads through here, which names the steps.
    """

    def __init__(self, begin: ToSaving) -> None:
        self._then = begin.then
        self._since = 0.0
        self._agentless: tuple[str, ...] = ()
        self._is_chosen = False
        self._is_later = False  # an earlier controller has begun with it; its agents must find this one
        self._rescue: Rescue | None = None
        self._told: CheckpointId | None = None  # what is on its way, by the journal

    def enter(self, core: Core, now: Now) -> None:
        """Find the nodes that can report copies, but have no agent now."""
        self._since = now.mono
        self._is_later = now.mono == core.started
        begun, known = begun_by(self._then, now.wall, saves=True), core.state.end_started
        if known is None or (known.code, known.reason) != (begun.code, begun.reason):
            core.record(begun)
        slots = [node for node in core.world.slots if core.fleet.heartbeat(node) is None]
        if core.config.checkpoint.memory and core.checkpoints.need_memory():
            self._agentless = tuple(core.starts.ends(slots, now).agents)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Go on when it is on storage, when no node is left that can write, or when time is over."""
        if core.leaving and core.departure.at_once:
            self._say_unsaved(core, "a second order to end came", now)
            return self._after(core)
        if not self._is_chosen:
            if self._awaits_agents(core, now):
                return None
            self._since, self._is_chosen = now.mono, True
            self._rescue = last_rescue(core, core.checkpoints, now)
        rescue = self._rescue
        if rescue is None:
            self._say_none(core, now)
            return self._after(core)
        self._tell(core, rescue, now)
        rescue.step(now)
        self._tell(core, rescue, now)
        waited_s = rescue.waited_s(now)
        if rescue.stored is not None:
            text = f"{rescue.stored} was only in memory; it is on storage now ({waited_s:.1f} s)"
            core.emit(Say(text=text))
            if rescue.is_complete:
                self._say_unkept(core, now)
        elif not rescue.is_over and waited_s < self._most_s(core, now):
            return None
        if not rescue.is_complete:
            self._say_lost(core, rescue, now)
        return self._after(core)

    def _tell(self, core: Core, rescue: Rescue, now: Now) -> None:
        """Write down what goes to storage, when that is something else than before."""
        what = rescue.what
        if what is None or what.ref == self._told:
            return
        ref, most_s = what.ref, self._most_s(core, now)
        if self._told is None:
            core.emit(Say(text=f"{ref} is only in memory: it goes to storage first (within {most_s:.0f} s)"))
        self._told = ref
        core.record(
            ev.SavingStarted(t=now.wall, generation=ref.generation, step=ref.step, most_s=round(most_s, 1))
        )

    def _most_s(self, core: Core, now: Now) -> float:
        """Return how long storage is waited for since the choice."""
        limit_s, left_s = core.config.timings.checkpoint_s, core.departure.left_s(now)
        waited_s = now.mono - self._since
        if core.leaving and left_s is not None:
            return max(0.0, min(limit_s, waited_s + left_s))
        if core.ending:
            left_s = None if left_s is None else left_s + waited_s
            return store_s(left_s, LAST_STORE_S, limit_s)
        return limit_s

    def _awaits_agents(self, core: Core, now: Now) -> bool:
        """Return whether an agent may yet come to a node whose agent ended; starts one."""
        if self._is_later and self._may_find_us(core, now):
            return True
        missing = [node for node in self._agentless if core.fleet.heartbeat(node) is None]
        waited_s = now.mono - self._since
        if not missing or core.leaving or core.ending or waited_s > core.config.timings.agent_start_s:
            return False
        over = core.starts.check(missing, now).over
        return any(node not in over for node in missing)

    def _may_find_us(self, core: Core, now: Now) -> bool:
        ended = core.starts.ends(core.world.slots, now).agents
        away = [n for n in core.world.slots if core.fleet.heartbeat(n) is None and n not in ended]
        limit_s = ORDERED_S if core.leaving else RECONNECT_S
        return core.config.checkpoint.memory and bool(away) and now.mono - self._since <= limit_s

    def _after(self, core: Core) -> Transition:
        """Return what follows: a controller that is ordered to end asks for no requeue, against the order."""
        if core.leaving and isinstance(self._then, ToRequeueing):
            return ToEnding(code=core.leaving_code, reason=core.leaving, final=False)
        return self._then

    def _say_lost(self, core: Core, rescue: Rescue, now: Now) -> None:
        newest = rescue.newest
        assert newest is not None
        stored, is_again = core.storage.newest_step, isinstance(self._then, ToRequeueing)
        loss = UnsavedSteps(
            newest=newest.step if is_again else max(newest.step, core.world.best_step),
            stored=stored,
            why=rescue.why(),
            waited_s=rescue.waited_s(now),
            for_time=not rescue.is_over,
        )
        kill_wait_s = core.departure.kill_wait_s if core.leaving else None
        text = f"{newest} was only in memory: {loss.describe(kill_wait_s, again=is_again)}"
        if isinstance(self._then, ToRequeueing):
            # If all parts live on, the next run should get the nodes that have them.
            self._then = structs.replace(self._then, holders=rescue.holders(now))
        core.note(text, "", now)
        core.emit(Say(text=text))

    def _say_unsaved(self, core: Core, why: str, now: Now, *, fix: str = "") -> None:
        """Name the steps that were done and that no node writes to storage any more."""
        newest, stored = self._newest_wanted(core, now), core.storage.newest_step
        if newest <= stored:
            return
        waited_s = now.mono - self._since
        loss = UnsavedSteps(newest=newest, stored=stored, why=why, waited_s=waited_s, for_time=False, fix=fix)
        text = f"nothing more is saved: {loss.describe(None, again=False)}"
        core.note(text, "", now)
        core.emit(Say(text=text))

    def _say_unkept(self, core: Core, now: Now) -> None:
        """Name the steps that were done after the newest that the nodes had kept, which is on storage."""
        newest, stored = self._newest_wanted(core, now), core.storage.newest_step
        if newest > stored:
            text = unkept(newest, stored, core.world.local_stride)
            core.note(text, "", now)
            core.emit(Say(text=text))

    def _newest_wanted(self, core: Core, now: Now) -> int:
        """Return the newest step that was done, -1 if no later run needs it, or says itself what it repeats.

        A job that is done needs none, and after a requeue the next run says it.
        """
        then = self._after(core)
        if not core.config.checkpoint.memory or not isinstance(then, ToEnding) or then.code == 0:
            return -1
        if core.world.running:
            core.steps.write(now, force=True)
        return core.world.best_step

    def _say_none(self, core: Core, now: Now) -> None:
        """Say why there is nothing to save that storage does not have, if steps are lost by it."""
        slots, dead_s = core.world.slots, core.config.timings.node_dead_s
        ended = core.starts.ends(slots, now).silent
        away = [n for n in slots if n in ended or core.fleet.is_silent(n, dead_s, now.mono, core.started)]
        if away:
            does = "does" if len(away) == 1 else "do"
            why = f"{fold(away)} {does} not answer, or the agents there have ended"
            self._say_unsaved(core, why, now, fix=SEE_TO_NODES)
        elif core.world.best_step - core.storage.newest_step < 2 * core.world.local_stride > 2:
            self._say_unkept(core, now)
        else:
            why, fix = "no node that answers has all that belongs to a newer step", ""
            if without := core.unkept:
                why = f"{fold(without)} had no room in memory for snapshots ({next(iter(without.values()))})"
                fix = "make room there (ls -lS /dev/shm)"
            self._say_unsaved(core, why, now, fix=fix)
