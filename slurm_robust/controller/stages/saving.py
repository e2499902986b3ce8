"""Before the job leaves its nodes: what only memory holds goes to storage."""

from __future__ import annotations

from collections import defaultdict

from msgspec import structs

from slurm_robust.controller.context import ORDERED_S, RECONNECT_S
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.over import begun_by
from slurm_robust.controller.transitions import ToEnding, ToRequeueing, ToSaving, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED
from slurm_robust.policy.checkpoints import LAST_STORE_S
from slurm_robust.policy.leaving import Loss, store_s
from slurm_robust.policy.restore import RestorePlan
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.messages import Save

RESEND_S = 2.0


class Saving:
    """Has the nodes write the newest checkpoint that can be restored, bounded by ``timings.checkpoint_s``.

    Where the run is ended from outside, the bound is the time that Slurm leaves. Where an agent has ended,
    its node's memory may hold parts of it: another agent is started there first.
    """

    def __init__(self, begin: ToSaving) -> None:
        self._then = begin.then
        self._since = self._sent = 0.0
        self._agentless: tuple[str, ...] = ()
        self._is_chosen = False
        self._is_later = False  # an earlier controller has begun with it, whose agents are to find this one
        self._orders: dict[str, Save] = {}
        self._plan: RestorePlan | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Find the nodes that can report copies, but have no agent now."""
        self._since = now.mono
        self._is_later = now.mono == core.started
        begun, known = begun_by(self._then, now.wall, saves=True), core.state.end_started
        if known is None or (known.code, known.reason) != (begun.code, begun.reason):
            core.record(begun)
        slots = [node for node in core.state.slots if core.fleet.heartbeat(node) is None]
        if core.config.checkpoint.memory and core.checkpoints.need_memory():
            self._agentless = tuple(core.starts.ended(slots))

    def _choose(self, core: Core, now: Now) -> None:
        """Find what is to be written, and by whom."""
        self._since, self._is_chosen = now.mono, True
        if not core.config.checkpoint.memory:
            return
        core.checkpoints.seal_pending(now, awaited=_may_report(core, now))
        self._plan = plan = core.checkpoints.only_in_memory(now)
        if plan is None:
            return
        layout = core.checkpoints.layout().identity()
        for node, ranks in _writers(core, plan).items():
            self._orders[node] = Save(
                epoch=core.state.epoch,
                checkpoint=plan.ref,
                ranks=tuple(ranks),
                world_size=core.state.placement.world_size,
                layout=layout,
            )
        ref, most_s = plan.ref, self._most_s(core, now)
        core.record(
            ev.SavingStarted(t=now.wall, generation=ref.generation, step=ref.step, most_s=round(most_s, 1))
        )
        core.emit(Say(text=f"{ref} is only in memory: it goes to storage first (within {most_s:.0f} s)"))
        self._send(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Go on when all have written, when no node is left that could, or when there is no more time."""
        if core.leaving and core.departure.at_once:
            say_cut_short(core, now.mono - self._since, now)
            return self._after(core)
        if not self._is_chosen:
            if self._awaits_agents(core, now):
                return None
            self._choose(core, now)
        if self._plan is None:
            return self._after(core)
        saved = self._plan.ref
        late = [n for n in self._orders if (b := core.fleet.heartbeat(n)) is None or b.saved != saved]
        waited = now.mono - self._since
        if not late:
            core.record(
                ev.StorageWritten(t=now.wall, generation=saved.generation, step=saved.step, seconds=waited)
            )
            core.emit(Say(text=f"{saved} was only in memory; it is on storage now ({waited:.1f} s)"))
            return self._after(core)
        is_over = waited >= self._most_s(core, now) or self._is_lost(core, late, now)
        if is_over or self._refused(core, late):
            self._say_lost(core, late, waited, now)
            return self._after(core)
        if now.mono - self._sent > RESEND_S:
            self._send(core, now)
        return None

    def _most_s(self, core: Core, now: Now) -> float:
        """How long storage is waited for since the choice."""
        limit_s, left_s = core.config.timings.checkpoint_s, core.departure.left_s(now)
        waited_s = now.mono - self._since
        if core.leaving and left_s is not None:
            return min(limit_s, waited_s + left_s)
        if core.ending:
            left_s = None if left_s is None else left_s + waited_s
            return store_s(left_s, LAST_STORE_S, limit_s)
        return limit_s

    def _awaits_agents(self, core: Core, now: Now) -> bool:
        """Whether an agent may yet come to a node whose agent ended; starts one."""
        if self._is_later and self._may_find_us(core, now):
            return True
        missing = [node for node in self._agentless if core.fleet.heartbeat(node) is None]
        waited_s = now.mono - self._since
        if not missing or core.leaving or core.ending or waited_s > core.config.timings.agent_start_s:
            return False
        found = core.starts.check(missing, now)
        return any(node not in found.down | found.silent | found.refused for node in missing)

    def _may_find_us(self, core: Core, now: Now) -> bool:
        ended = core.starts.ended(core.state.slots)
        away = [n for n in core.state.slots if core.fleet.heartbeat(n) is None and n not in ended]
        limit_s = ORDERED_S if core.leaving else RECONNECT_S
        return core.config.checkpoint.memory and bool(away) and now.mono - self._since <= limit_s

    def _after(self, core: Core) -> Transition:
        """A controller that is ordered to end asks for no requeue: that would contradict the order."""
        if core.leaving and isinstance(self._then, ToRequeueing):
            return ToEnding(code=core.leaving_code, reason=core.leaving, final=False)
        return self._then

    def _is_lost(self, core: Core, late: list[str], now: Now) -> bool:
        """Whether one that did not write has died: without its parts the checkpoint is incomplete."""
        limit = core.config.timings.node_dead_s
        return any(core.fleet.silence(node, now.mono, self._since) > limit for node in late)

    def _refused(self, core: Core, late: list[str]) -> dict[str, str]:
        """Nodes that have said why they cannot write."""
        assert self._plan is not None
        name, heartbeats = str(self._plan.ref), core.fleet.heartbeats(late)
        return {node: b.unsaved for node, b in heartbeats.items() if b.unsaved.startswith(name)}

    def _say_lost(self, core: Core, late: list[str], waited_s: float, now: Now) -> None:
        assert self._plan is not None
        ref, refused = self._plan.ref, self._refused(core, late)
        why = "; ".join(f"{node}: {text}" for node, text in refused.items())
        silent = [node for node in late if node not in refused]
        if silent:
            why = f"{fold(silent)} did not write it to storage" + (f"; {why}" if why else "")
        loss = Loss(newest=ref.step, stored=core.checkpoints.newest_stored(), why=why, waited_s=waited_s)
        kill_wait_s = core.departure.kill_wait_s if core.leaving else None
        told = loss.describe(kill_wait_s, again=isinstance(self._then, ToRequeueing))
        text = f"{ref} was only in memory: {told}"
        if isinstance(self._then, ToRequeueing) and not self._is_lost(core, late, now):
            # All parts live on: the next run is to get the nodes that have them.
            self._then = structs.replace(self._then, holders=tuple(self._orders))
        core.note(text, "", now)
        core.emit(Say(text=text))

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        for node, order in self._orders.items():
            core.send(node, order)


def say_cut_short(core: Core, waited_s: float, now: Now) -> None:
    """Name the steps that are lost because a second order to end leaves no time to save them."""
    if core.state.running:
        core.watch_progress(now, force=True)
    newest, stored = core.state.best_step, core.checkpoints.newest_stored()
    if not core.config.checkpoint.memory or not core.checkpoints.need_memory() or newest <= stored:
        return
    loss = Loss(newest=newest, stored=stored, why="a second order to end came", waited_s=waited_s)
    text = f"nothing more is saved: {loss.describe(core.departure.kill_wait_s, again=False)}"
    core.note(text, "", now)
    core.emit(Say(text=text))


def _may_report(core: Core, now: Now) -> bool:
    """Whether a node that does not answer may come back to the job, with what its memory holds."""
    state, fleet, dead_s = core.state, core.fleet, core.config.timings.node_dead_s
    kept = (node for node in (*state.slots, *state.spares) if node not in state.evicted)
    return any(
        fleet.heartbeat(node) is None or fleet.is_silent(node, dead_s, now.mono, now.mono) for node in kept
    )


def _writers(core: Core, plan: RestorePlan) -> dict[str, list[int]]:
    """Which node writes the parts of which ranks: the one that holds the copy.

    The shared part is written with rank 0's, so by a node that holds both.
    """
    heartbeats = [view.heartbeat for view in core.fleet.views.values()]
    by_address = {(b.data_address or b.address, b.data_port): b.node for b in heartbeats}
    found: dict[str, list[int]] = defaultdict(list)
    for node, sources in plan.sources.items():
        for source in sources:
            if source.rank != SHARED:
                holder = by_address.get((source.address, source.port)) if source.address else node
                holder = holder or node
                if source.rank == 0:
                    holder = core.checkpoints.holder_of_both(plan.ref, holder)
                found[holder].append(source.rank)
    return found
