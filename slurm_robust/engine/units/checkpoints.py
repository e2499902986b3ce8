"""The checkpoints of the job: from where the next generation begins, and what is lost with which nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import RECONNECT_S, Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import NoAnswer
from slurm_robust.engine.units.copies import HeldCopies
from slurm_robust.engine.units.new_parts import NewParts
from slurm_robust.engine.units.passed_over import PassedOver
from slurm_robust.engine.units.storage import StorageListing
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Peer, Tier
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.layout import Placement
from slurm_robust.model.record import Record
from slurm_robust.policy import restore
from slurm_robust.policy.beginning import Beginning, beginning
from slurm_robust.policy.continuing import steps_text
from slurm_robust.policy.missing_parts import MissingParts, missing_parts
from slurm_robust.policy.resharding import Way
from slurm_robust.policy.restore import RestorePlan, ToStore
from slurm_robust.util.text import count


class RestorePoint(Record):
    """From where the next generation begins, and why from there."""

    plan: RestorePlan | None
    """What it restores, None to begin at step 0."""
    layout: str
    """Identity of its parallel layout."""
    peers: dict[str, tuple[Peer, ...]] = {}
    """Where the copies of its ranks go, for each node."""
    goes_first: Way | None = None
    """A newer checkpoint of memory can be restored only from storage, so it has to go there first: another
    number of ranks took it, or some of its parts must be made anew.
    """
    cut_from: str = ""
    """Identity of the layout that took the checkpoint if it is another one, else ""."""
    beginning: Beginning | None = None
    """Whether it may begin at step 0, if nothing can be restored."""
    given_away: str = ""
    """What people are told of a newer checkpoint of which nodes still hold parts."""
    cut: str = ""
    """What people are told if ranks have come or gone since the checkpoint was taken."""
    passed_over: tuple[str, ...] = ()
    """One line for each newer checkpoint that only a ban rules out, newest first."""

    @property
    def step(self) -> int:
        """The step from which training goes on, -1 for the beginning."""
        return self.plan.ref.step if self.plan is not None else -1


class WithoutNodes(Record):
    """What becomes of this generation's steps without some of its nodes."""

    missing: MissingParts | None
    """A newer step that needs parts of these nodes."""
    instead: str
    """How training goes on without them: ``training goes on from step 10 from storage``, say."""


class Checkpoints:
    """Chooses by :mod:`slurm_robust.policy.restore` among what nodes hold and what storage lists."""

    def __init__(self, context: Context, storage: StorageListing, copies: HeldCopies) -> None:
        self._context, self.storage, self.copies = context, storage, copies
        self._gave_up = -1  # the generation after which nothing can be put on storage before the next one
        self.new_parts = NewParts(context, copies, self.choose)
        self.passed_over = PassedOver(context, self.choose)

    # -- what is restored --------------------------------------------------------------------------

    def restore_point(self, now: Now, *, until: int = -1) -> RestorePoint | None:
        """Seal what can be sealed, and return from where the next generation begins now.

        None while that is open: storage has not said what it has, and memory alone has nothing to restore.
        ``until``: no later step counts, unless it is -1. If nothing is left up to it, the newest is returned,
        as ever: then the step is a later one, and an update that asked for it cannot be applied.
        """
        self.copies.seal_pending(now)
        world = self._context.world
        is_new = not (world.sealed or world.unsealed)
        if until >= 0 and self.storage.listed is None:
            return None
        if not (is_new or self.storage.listed is not None or self._memory_suffices(now)):
            return None
        if until >= 0 and (chosen := self.choose(now, until=until)) is not None:
            return self._chosen_point(chosen)
        plan = self.choose(now)
        return RestorePoint(
            plan=plan,
            layout=self._context.layout.identity(),
            peers=self.copies.peers(),
            goes_first=self._goes_first(plan, now),
            cut_from=self._cut_from(plan),
            beginning=None if plan is not None else self._beginning(now),
            given_away=self._given_away(plan, now),
            cut=self._cut(plan),
            passed_over=self.passed_over.texts(plan.ref if plan is not None else None),
        )

    def _chosen_point(self, plan: RestorePlan) -> RestorePoint:
        """Return the same for a step that a person has chosen: what is newer does not count."""
        return RestorePoint(
            plan=plan,
            layout=self._context.layout.identity(),
            peers=self.copies.peers(),
            cut_from=self._cut_from(plan),
            cut=self._cut(plan),
        )

    def find(self, step: int, now: Now, then: Callable[[CheckpointId | str, Now], None]) -> None:
        """Look on storage for the checkpoint that a person means by ``step``, the newest up to it.

        ``then`` gets it, or a line that says why there is none. Memory does not count: it keeps the newest.
        """

        def on_found(counting: list[CheckpointId] | NoAnswer, now: Now) -> None:
            if isinstance(counting, NoAnswer):
                then(f"storage does not list its checkpoints: {counting.reason}", now)
                return
            found = restore.chosen(counting, step)
            there = f"no checkpoint of step {step} or before is on storage: there are {steps_text(counting)}"
            then(there if found is None else found, now)

        self.storage.find(now, on_found)

    def to_fit(self, until: int = -1) -> CheckpointId | None:
        """Return the checkpoint that the code of an update has to fit, None if storage is known to have none.

        ``until``: no later step counts, unless it is -1.
        """
        counting = self.storage.counting
        return restore.chosen(counting, until) if until >= 0 else next(iter(counting), None)

    def choose(
        self, now: Now, *, also_banned: CheckpointId | None = None, until: int = -1
    ) -> RestorePlan | None:
        """Return what the next generation would be restored from now.

        While storage gives no answer, what was sealed is taken to be there. A banned checkpoint is taken
        after all when nothing else is left, unless ``also_banned`` asks what would be left without that one.
        ``until``: no later step counts, unless it is -1.
        """
        state = self._context.state
        stored = self.storage.listed
        if stored is None:
            stored = {
                CheckpointId(step=step, generation=generation): Tier.STORAGE
                for generation, step in state.world.sealed.items()
            }
        stored = {
            ref: tier for ref, tier in stored.items() if self.copies.way(ref.generation) is not Way.REFUSE
        }
        banned = {*state.world.banned, *((also_banned,) if also_banned is not None else ())}
        reach = self.copies.reach(now)
        sealed = state.world.sealed if until < 0 else restore.until(state.world.sealed, until)
        for refused in (banned, set[CheckpointId]()):
            plan = restore.choose(
                sealed,
                reach,
                stored,
                state.world.placement,
                shared=state.world.shared,
                banned=refused,
            )
            if plan is not None or also_banned is not None:
                return plan
        return None

    def _memory_suffices(self, now: Now) -> bool:
        """Return whether something can be restored without storage."""
        state = self._context.state
        plan = restore.choose(
            state.world.sealed, self.copies.reach(now), {}, state.world.placement, shared=state.world.shared
        )
        return plan is not None

    def _cut_from(self, plan: RestorePlan | None) -> str:
        if plan is None or self.copies.way(plan.ref.generation) is Way.SAME:
            return ""
        return self._context.world.layouts[plan.ref.generation]

    def _cut(self, plan: RestorePlan | None) -> str:
        """Say that ranks have come or gone since the checkpoint was taken, "" if they have not."""
        if plan is None:
            return ""
        before, now = self.copies.world_of(plan.ref.generation), self._context.world.placement.world_size
        if before == now:
            return ""
        return (
            f"{count(before, 'rank')} took it and {now} go on: what all ranks share and what is sharded is "
            "restored bit by bit; random number generators are new ones"
        )

    def _beginning(self, now: Now) -> Beginning:
        """Judge whether the next generation may begin at step 0."""
        state = self._context.state
        place = self._context.config.checkpoint.directory or ""
        stored = state.world.newest_on_storage
        if stored is not None and stored.step > state.world.good_steps.get(stored.generation, stored.step):
            stored = None  # it holds numbers that are not finite
        return beginning(
            state.world.sealed,
            stored,
            self.storage.listed or (),
            state.world.layouts,
            self._context.layout,
            job_id=state.job_id,
            place=place,
            in_memory=self.copies.of_other_ranks(now),
        )

    def _goes_first(self, plan: RestorePlan | None, now: Now) -> Way | None:
        if self.storage.listed is None or self._gave_up == self._context.world.generation:
            return None
        if self.new_parts.find(now) is not None:
            return Way.SAME
        found = self.to_store(now, Way.RESHARD, after=plan.ref.step if plan is not None else -1)
        return Way.RESHARD if found is not None else None

    def _given_away(self, plan: RestorePlan | None, now: Now) -> str:
        """Say what nodes still hold of a newer checkpoint than ``plan``, "" if they hold nothing."""
        missing = self._newer_in_part(plan, now)
        if missing is None:
            return ""
        older = restore.format_source(plan.ref.step, plan.tiers) if plan is not None else "the beginning"
        return f"{missing.describe()}: training goes on from {older}{self.new_parts.hint(missing)}"

    def _newer_in_part(self, plan: RestorePlan | None, now: Now) -> MissingParts | None:
        """Return what the last generation ended with, or else began with, if nodes still hold parts of it.

        None if it is no newer than ``plan``. It was whole then: nodes were lost since.
        """
        state = self._context.state
        last = state.world.sealed.get(state.world.generation)
        refs = [CheckpointId(step=last, generation=state.world.generation)] if last is not None else []
        refs += [state.world.restored] if state.world.restored is not None else []
        reach = self.copies.reach(now)
        heard = {holder.node for holder in reach}
        for ref in refs:
            if state.world.running or ref in state.world.banned or (plan is not None and ref <= plan.ref):
                continue
            is_last = ref.generation == state.world.generation
            if any(self.copies.way(g) is not Way.SAME for g in (ref.generation, state.world.generation)):
                continue  # its ranks are others
            found = missing_parts(
                ref.generation,
                reach,
                Placement(slots=state.world.trained_on, nproc_per_node=state.world.nproc_per_node),
                shared=ref.generation in state.world.shared,
                after=ref.step - 1,
                newest=ref.step,
                # Only of the last generation is it known on which nodes its ranks ran.
                gone=[node for node in state.world.trained_on if node not in heard or not is_last],
            )
            if found is not None:
                return found if is_last else structs.replace(found, nodes=())
        return None

    # -- what goes to storage ----------------------------------------------------------------------

    def to_store(
        self,
        now: Now,
        way: Way,
        *,
        after: int,
        without: Collection[str] = (),
        refused: Collection[tuple[str, CheckpointId]] = (),
        only: CheckpointId | None = None,
    ) -> ToStore | None:
        """Return the newest checkpoint later than step ``after`` that only nodes have and can write whole.

        ``way``: to the next generation; ``without``: nodes that write nothing; ``refused``: nodes that cannot
        write that one; ``only``: no other counts. A banned one is taken when there is no other at all.
        """
        made = self.new_parts.find(now, without, refused) if way is Way.SAME and only is None else None
        if made is not None and made.ref.step > after:
            return made
        state, found = self._context.state, []
        for generation, sealed in state.world.sealed.items():
            if self.copies.way(generation) is way:
                reach = [h for h in self.copies.reach(now, of=generation) if h.node not in without]
                found += [(ref, reach) for ref in restore.held_steps(generation, reach, sealed)]
        for ref, reach in sorted(found, key=lambda f: (f[0] not in state.world.banned, f[0]), reverse=True):
            if ref.step <= after or self.storage.has(ref) or (ref in state.world.banned and after >= 0):
                continue
            if only not in (None, ref):
                continue
            fit = [holder for holder in reach if (holder.node, ref) not in refused]
            world = self.copies.world_of(ref.generation)
            writers = restore.writers(ref, fit, world, shared=ref.generation in state.world.shared)
            if writers is not None:
                layout = state.world.layouts.get(ref.generation) or self._context.layout.identity()
                return ToStore(ref=ref, writers=writers, world_size=world, layout=layout)
        return None

    def give_up(self) -> None:
        """Put nothing on storage before the next generation: the newest did not get there."""
        self._gave_up = self._context.world.generation

    def only_in_memory(self, now: Now) -> RestorePlan | None:
        """Return what the next generation would be restored from, if storage does not have it; else None."""
        plan = self.choose(now)
        if plan is None or restore.from_shared_tier(plan.tiers) or self.storage.has(plan.ref):
            return None
        return plan

    def unstored_step(self, now: Now) -> int:
        """Return the newest step of this generation that is whole in memory alone, -1 for none."""
        world = self._context.world
        step, _ = self.copies.seal(world.generation, (), now, None)
        stored = world.stored
        if stored is not None and (stored.generation, stored.step) >= (world.generation, step):
            return -1
        return step

    def need_memory(self) -> bool:
        """Return whether the nodes' copies may hold what counts and storage does not have."""
        state = self._context.state
        if state.world.running or state.world.unsealed:
            return True
        newest = max(state.world.sealed, default=None)
        return newest is not None and not self.storage.has(
            CheckpointId(step=state.world.sealed[newest], generation=newest)
        )

    def can_spare(self, node: str, now: Now) -> bool:
        """Return whether a complete checkpoint of this generation has replaced the copies on ``node``."""
        state, heartbeat = self._context.state, self._context.fleet.heartbeat(node)
        if heartbeat is None:  # of a new controller the agent may not know yet
            return now.mono - self._context.started > RECONNECT_S
        if not heartbeat.copies:
            return True
        return self.copies.newest_without(state.evicted, now) >= 0

    # -- without some nodes ------------------------------------------------------------------------

    def without(self, gone: Collection[str], now: Now, newest: int | None = None) -> WithoutNodes:
        """Return what this generation loses with ``gone``; ``newest``: no later step counts."""
        world, missing = self._context.world, self.copies.missing(gone, now, newest)
        step = self.copies.newest_without(gone, now, newest) if world.running else -1
        return WithoutNodes(missing=missing, instead=self.new_parts.instead(missing, self._left(step, now)))

    def repeated(self, gone: Collection[str], now: Now) -> int:
        """Return how many steps of this generation training repeats without ``gone``."""
        world = self._context.world
        if not (self._context.config.checkpoint.memory and world.running and world.reports):
            return 0
        step = self.copies.newest_without(gone, now)
        return max(0, world.steps_here - max(step, world.restored_step))

    def _left(self, step: int, now: Now) -> str:
        """Say from where training goes on if it is ``step`` of this generation; -1: an earlier one."""
        world = self._context.world
        if world.stored is not None and world.stored.generation == world.generation:
            step = max(step, world.stored.step)
        if step >= 0:
            on_storage = self.storage.has(CheckpointId(step=step, generation=world.generation))
            return f"step {step} from {Tier.STORAGE.value if on_storage else 'memory'}"
        plan = self.choose(now)
        return restore.format_source(plan.ref.step, plan.tiers) if plan is not None else "the beginning"

    # -- the end of a generation -------------------------------------------------------------------

    def finish(self, reason: str, now: Now) -> None:
        """Write down that all ranks ended by themselves; what they left in memory counts."""
        generation = self._context.world.generation
        step, shared = self.copies.seal(generation, (), now, None)
        self._context.record(
            ev.GenerationEnded(
                t=now.wall, generation=generation, reason=reason, sealed_step=step, shared=shared
            )
        )

    def end(
        self,
        reason: str,
        exits: tuple[NodeExit, ...],
        root: int,
        now: Now,
        *,
        silent: tuple[str, ...],
        may_return: bool,
        good_step: int | None,
    ) -> None:
        """Write down that the generation was ended, sealed by what is whole now.

        ``root``: the rank whose exit explains the others, -1 if none does. ``silent``: nodes whose workers
        may live on, so that nothing there is believed; ``may_return``: what their memory has may still be
        reported. ``good_step``: as in :class:`~slurm_robust.model.events.GenerationEnded`.
        """
        context, generation = self._context, self._context.world.generation
        if good_step is not None and good_step <= context.world.restored_step:
            good_step = -1
        step, shared = self.copies.seal(generation, silent, now, good_step)
        lost = self.without(silent, now, good_step) if silent else None
        if lost is not None and (missing := lost.missing) is not None:
            does = "does" if len(missing.nodes) == 1 else "do"
            text = f"{missing.describe()}, which {does} not answer: without them {lost.instead}"
            context.note(text, "", now)
            context.emit(Say(text=text))
        is_missing = lost is not None and lost.missing is not None
        context.record(
            ev.GenerationEnded(
                t=now.wall,
                generation=generation,
                reason=reason,
                exits=tuple(e for e in exits if e.exit.failed),
                sealed_step=step,
                # Nodes that are silent may come back with the parts that are missing.
                pending=self.storage.listed is None or may_return or is_missing,
                shared=shared,
                good_step=good_step,
                stored=self.storage.has(CheckpointId(step=step, generation=generation)),
                root=root,
                reached_step=context.reached(now) if good_step is None else good_step,
            )
        )
        self.passed_over.judge_restored(exits, now, good_step)
