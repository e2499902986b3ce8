"""New parts for ranks whose own are lost, if ``checkpoint.if_parts_are_missing: reseed`` asks for them.

A node that has the shared part and a part of another rank writes all of them to storage, the missing ones
with new random generators. From then on it is a checkpoint like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.copies import HeldCopies
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.layout import Placement
from slurm_robust.policy import restore
from slurm_robust.policy.missing_parts import MissingParts, are_worth_making, missing_parts
from slurm_robust.policy.resharding import Way, way
from slurm_robust.policy.restore import RestorePlan, ToStore
from slurm_robust.util.text import named_ranks


class NewParts:
    """New parts of the newest generation, once it has ended."""

    def __init__(
        self,
        context: Context,
        copies: HeldCopies,
        choose: Callable[[Now], RestorePlan | None],
    ) -> None:
        """``choose``: what is restored without new parts."""
        self._context, self._copies, self._choose = context, copies, choose

    @property
    def _wanted(self) -> bool:
        config = self._context.config.checkpoint
        return config.memory and config.if_parts_are_missing == "reseed"

    def find(
        self, now: Now, without: Collection[str] = (), refused: Collection[tuple[str, CheckpointId]] = ()
    ) -> ToStore | None:
        """Return the checkpoint to go on from with new parts, and who writes it.

        None if an older one is better. ``without``: nodes that write nothing; ``refused``: nodes that cannot
        write that one.
        """
        state = self._context.state
        generation = state.world.generation
        old = state.world.layouts.get(generation)
        if not self._wanted or state.world.running or generation not in state.world.shared or not old:
            return None
        if way(old, self._context.layout) is not Way.SAME:
            return None
        plan = self._choose(now)
        reach = [holder for holder in self._copies.reach(now) if holder.node not in without]
        heard = {holder.node for holder in reach}
        missing = missing_parts(
            generation,
            reach,
            Placement(slots=state.world.trained_on, nproc_per_node=state.world.nproc_per_node),
            shared=True,
            after=plan.ref.step if plan is not None else -1,
            newest=state.world.good_steps.get(generation),
            gone=[node for node in state.world.trained_on if node not in heard],
        )
        if (
            missing is None
            or not missing.anew
            or missing.ref in (*state.world.banned, *(r for _, r in refused))
        ):
            return None
        whole = plan.ref.step if plan is not None and not restore.from_shared_tier(plan.tiers) else -1
        if not are_worth_making(missing, whole, state.world.pace.p50_s):
            return None
        world, anew = state.world.placement.world_size, missing.anew
        writers = restore.writers(missing.ref, reach, world, shared=True, anew=anew)
        if writers is None:
            return None
        return ToStore(ref=missing.ref, writers=writers, world_size=world, layout=old, anew=anew)

    def on_stored(self, stored: ToStore, now: Now) -> None:
        """Seal the checkpoint: the new parts, and so all of it, are on storage."""
        ref, ranks = stored.ref, named_ranks(stored.anew)
        self._context.record(
            ev.GenerationSealed(
                t=now.wall, generation=ref.generation, sealed_step=ref.step, shared=True, stored=True
            )
        )
        they, parts = ("goes", "its part is") if len(stored.anew) == 1 else ("go", "their parts are")
        text = (
            f"{ranks} {they} on from step {ref.step} with new random generators, since {parts} lost "
            "(checkpoint.if_parts_are_missing: reseed): from there on this is not bitwise the training that "
            "nothing disturbs"
        )
        self._context.note(text, "", now)
        self._context.emit(Say(text=text))

    def instead(self, missing: MissingParts | None, older: str) -> str:
        """Say at which step training goes on if the ``missing`` parts do not come back.

        ``older``: the step at which it goes on without new parts, as a text.
        """
        text = f"training goes on from {older}"
        if missing is None or not missing.anew:
            return text
        if self._wanted:
            return f"{named_ranks(missing.ranks)} may get new random generators, and if not, {text}"
        return f"{text}{self.hint(missing)}"

    def hint(self, missing: MissingParts) -> str:
        """Return the setting that would have new parts made, "" if none can be made or if it is set."""
        if self._wanted or not missing.anew:
            return ""
        return f" (checkpoint.if_parts_are_missing: reseed may take step {missing.ref.step})"
