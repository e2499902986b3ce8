"""Before another number of ranks begins: what only memory has of the ranks before goes to storage.

From there it is restored, cut up anew: the parts in memory fit the ranks that took them alone.
"""

from __future__ import annotations

from slurm_robust.controller.checkpoints import ToStore
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.transitions import ToGathering, ToStopping, ToStoring, Transition
from slurm_robust.model import events as ev
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count
from slurm_robust.wire.messages import Save

RESEND_S = 2.0


class Storing:
    """Has the nodes write one checkpoint, within ``timings.checkpoint_s``. Gathering comes next."""

    def __init__(self, begin: ToStoring) -> None:
        self._since = self._sent = 0.0
        self._what: ToStore | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Order it."""
        self._since = now.mono
        self._what = core.checkpoints.of_other_ranks(now)
        if self._what is not None:
            ranks = count(self._what.world_size, "rank")
            text = f"{self._what.ref}, of {ranks}, is only in memory: it goes to storage first"
            core.emit(Say(text=text))
            self._send(core, self._what, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Gather again when it is on storage, or cannot get there."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        what = self._what
        if what is None:
            return ToGathering()
        ref, waited_s = what.ref, now.mono - self._since
        late = [n for n in what.writers if (b := core.fleet.heartbeat(n)) is None or b.saved != ref]
        if not late:
            core.record(
                ev.StorageWritten(t=now.wall, generation=ref.generation, step=ref.step, seconds=waited_s)
            )
            core.emit(Say(text=f"{ref} is on storage now ({waited_s:.1f} s)"))
            core.checkpoints.ask_storage(now)
            return ToGathering()
        heartbeats = core.fleet.heartbeats(late)
        refused = [f"{n}: {b.unsaved}" for n, b in heartbeats.items() if b.unsaved.startswith(str(ref))]
        if refused:
            core.checkpoints.give_up(ref)  # the step before may do
            text = f"{ref} could not be put on storage: {'; '.join(refused)}"
            core.note(text, "", now)
            core.emit(Say(text=text))
            return ToGathering()
        if waited_s > core.config.timings.checkpoint_s or self._is_lost(core, late, now):
            core.checkpoints.give_up()
            text = f"{ref} could not be put on storage: {fold(late)} did not write within {waited_s:.0f} s"
            core.note(text, "", now)
            core.emit(Say(text=text))
            return ToGathering()
        if now.mono - self._sent > RESEND_S:
            self._send(core, what, now)
        return None

    def _is_lost(self, core: Core, late: list[str], now: Now) -> bool:
        limit_s = core.config.timings.node_dead_s
        return any(core.fleet.silence(node, now.mono, self._since) > limit_s for node in late)

    def _send(self, core: Core, what: ToStore, now: Now) -> None:
        self._sent = now.mono
        for node, ranks in what.writers.items():
            order = Save(
                epoch=core.state.epoch,
                checkpoint=what.ref,
                ranks=ranks,
                world_size=what.world_size,
                layout=what.layout,
            )
            core.send(node, order)
