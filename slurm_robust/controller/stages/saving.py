"""Before the job ends for good without being done: what only memory holds goes to storage."""

from __future__ import annotations

from collections import defaultdict

from slurm_robust.controller import restoring
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.transitions import ToEnding, ToSaving, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED
from slurm_robust.policy.restore import RestorePlan
from slurm_robust.wire.messages import Save

RESEND_S = 2.0


class Saving:
    """Has the nodes write the newest checkpoint that can be restored, bounded by ``timings.checkpoint_s``."""

    def __init__(self, begin: ToSaving) -> None:
        self._begin = begin
        self._since = self._sent = 0.0
        self._orders: dict[str, Save] = {}
        self._plan: RestorePlan | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Find what is to be written, and by whom."""
        self._since = now.mono
        plan = restoring.choose(core, now) if core.config.checkpoint.memory else None
        if plan is None or "storage" in plan.tiers or plan.ref in (core.listing.complete or ()):
            return
        self._plan = plan
        layout = restoring.layout_now(core).identity()
        for node, ranks in _writers(core, plan).items():
            self._orders[node] = Save(
                epoch=core.state.epoch,
                token=restoring.token(plan.ref),
                ranks=tuple(ranks),
                world_size=core.state.placement.world_size,
                layout=layout,
            )
        self._send(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """End when all have written, or when there is no more time."""
        end = ToEnding(code=self._begin.code, reason=self._begin.reason)
        if self._plan is None or not self._orders:
            return end
        token = restoring.token(self._plan.ref)
        late = [n for n in self._orders if (b := core.fleet.beat(n)) is None or b.saved != token]
        waited = now.mono - self._since
        if not late:
            ref = self._plan.ref
            core.record(
                ev.StorageWritten(t=now.wall, generation=ref.generation, step=ref.step, seconds=waited)
            )
            core.emit(Say(text=f"{token} was only in memory; it is on storage now ({waited:.1f} s)"))
            return end
        if core.leaving or waited > core.config.timings.checkpoint_s:
            core.note(f"{token} was only in memory and is lost: {','.join(late)} did not write it", "", now)
            return end
        if now.mono - self._sent > RESEND_S:
            self._send(core, now)
        return None

    def _send(self, core: Core, now: Now) -> None:
        self._sent = now.mono
        for node, order in self._orders.items():
            core.send(node, order)


def _writers(core: Core, plan: RestorePlan) -> dict[str, list[int]]:
    """Which node writes the parts of which ranks: the one that holds the copy."""
    beats = [beat for node in core.fleet.views if (beat := core.fleet.beat(node)) is not None]
    by_address = {(beat.address, beat.data_port): beat.node for beat in beats}
    found: dict[str, list[int]] = defaultdict(list)
    for node, sources in plan.sources.items():
        for source in sources:
            if source.rank != SHARED:
                holder = by_address.get((source.address, source.port)) if source.address else node
                found[holder or node].append(source.rank)
    return found
