"""Before ranks begin: what only memory has goes to storage if it can be restored only from there.

What another number of ranks took is resharded; parts in memory fit only the ranks that took them. Parts that
are lost are made anew as they are written.
"""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.transitions import ToGathering, ToStopping, ToStoring, Transition
from slurm_robust.engine.units.rescue import Rescue
from slurm_robust.policy.resharding import Way
from slurm_robust.util.text import count


class Storing:
    """A rescue within ``timings.checkpoint_s``. Gathering comes next."""

    def __init__(self, begin: ToStoring) -> None:
        self._way, self._after = begin.way, begin.after
        self._rescue: Rescue | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Begin it."""
        self._rescue = rescue = Rescue(core, core.checkpoints, now, self._way, after=self._after)
        if (what := rescue.what) is not None:
            ranks = f", of {count(what.world_size, 'rank')}," if self._way is Way.RESHARD else ""
            core.emit(Say(text=f"{what.ref}{ranks} is only in memory: it goes to storage first"))
            rescue.step(now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Gather again when something is on storage, or nothing can get there."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        rescue = self._rescue
        assert rescue is not None
        rescue.step(now)
        waited_s = rescue.waited_s(now)
        if not rescue.is_over and waited_s <= core.config.timings.checkpoint_s:
            return None
        if not rescue.is_complete:
            rescue.give_up()
        if rescue.stored is not None:
            core.emit(Say(text=f"{rescue.stored} is on storage now ({waited_s:.1f} s)"))
        elif rescue.newest is not None:
            text = f"{rescue.newest} could not be put on storage: {rescue.why()} within {waited_s:.0f} s"
            core.note(text, "", now)
            core.emit(Say(text=text))
        return ToGathering()
