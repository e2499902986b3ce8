"""One world of a job: the ranks that train together, and what only they share."""

from __future__ import annotations

from functools import cached_property, singledispatch

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Blame, Signature, StackLocation, Symptom, finds_out_more, is_final
from slurm_robust.model.layout import Placement
from slurm_robust.model.progress import PaceHistory
from slurm_robust.model.record import Record

MAX_PLACES = 32
"""Places of hangs, slowdowns and crashes that are remembered."""

MAX_DRILLS = 8
"""Drills of one generation that are remembered, the newest."""

REPEAT_S = 2.0
"""Less than this is no progress: the end of training is not known more precisely."""


class Attempt(Record):
    """One answer to a fault, and how far training was."""

    signature: Signature
    t: float
    """When, by the wall clock."""
    step: int
    """Newest step completed by all ranks in any generation."""
    work: int = -1
    """Steps that the failed generation made, if the script reports none; else -1."""
    blame: Blame = Blame.NOBODY


class OpenIncident(Record):
    """The incident that is open now."""

    number: int
    symptom: Symptom
    step: int
    """Newest completed step when it began."""
    generation: int
    begun: float = 0.0
    """When training stopped being productive as seen from outside, by the wall clock."""
    last_sign_in: int = -1
    """The generation in which its newest sign was seen."""
    decided: float | None = None
    """When it was first decided what to do, by the wall clock; None as long as it was not."""
    drill: int = 0
    """The drill that caused it by the newest decision, 0 for none."""


class World(Record, dict=True):
    """One set of ranks that train together: their nodes, how far they are, what they saved.

    A job has one, :data:`~slurm_robust.model.events.TRAIN`. What all worlds of a job share (nodes,
    standbys, evictions, the time of the run) is :class:`JobState`'s.
    """

    nproc_per_node: int = 1
    first_unused_generation: int = 0
    """Lower numbers may be taken: the earlier controller may have launched some that this one never saw."""
    slots: tuple[str, ...] = ()
    generation: int = 0
    trained_on: tuple[str, ...] = ()
    """Its slots when it was launched."""
    running: bool = False
    """The generation was launched and has not ended."""
    stopping: ev.StopStarted | None = None
    """Its workers are being ended."""
    best_step: int = -1
    """Newest step completed by all ranks in any generation, by the script's numbers; -1 before the first."""
    steps_here: int = -1
    """Newest step that all ranks of this generation completed, -1 before the first; without step reports, how
    many optimizer steps they made.
    """
    reports: bool = False
    """The script reports its steps."""
    has_stepped: bool = False
    """Some generation has made a step."""
    attempts: tuple[Attempt, ...] = ()
    places: tuple[StackLocation, ...] = ()
    """Places of the faults of earlier generations, by their stacks or by the rank that crashed."""
    incident: OpenIncident | None = None
    drills: tuple[ev.DrillPlanted, ...] = ()
    """Drills of this generation that may explain a fault."""
    sealed: dict[int, int] = {}
    """For each ended generation the step of the newest checkpoint that counts."""
    unsealed: tuple[int, ...] = ()
    """Ended generations for which that is not known yet."""
    good_steps: dict[int, int] = {}
    """For each generation that ended with NaN or infinity, its newest step that may be restored."""
    shared: tuple[int, ...] = ()
    """Generations with a part that is equal on all ranks."""
    layouts: dict[int, str] = {}
    """Identity of each generation's parallel layout."""
    banned: dict[CheckpointId, str] = {}
    """Checkpoints that are passed over in this job, with the reason."""
    restored: CheckpointId | None = None
    """The checkpoint that the generation began with, None for a fresh start."""
    restored_tiers: dict[str, int] = {}
    stride: int = 1
    """Snapshots of steps that are multiples of it go to peers."""
    local_stride: int = 1
    """Only of steps that are multiples of it are snapshots taken."""
    rising: bool = False
    """Whether the local stride may not have risen to where it has to be yet."""
    held_steps: tuple[int, ...] = ()
    """Steps of this generation after which its ranks were asked to wait for an update."""
    stored: ev.StorageWritten | None = None
    """The newest that went from memory to storage, in this job."""
    newest_on_storage: CheckpointId | None = None
    """The newest known to be complete on storage, of any job of the training."""
    saving: ev.SavingStarted | None = None
    """What goes there before the job leaves its nodes, as long as it is under way."""
    pace: PaceHistory = PaceHistory()

    @property
    def next_generation(self) -> int:
        """Number of the generation to launch; no other controller has used it."""
        return max(self.generation + 1, self.first_unused_generation)

    @cached_property
    def placement(self) -> Placement:
        """Nodes in their slots."""
        return Placement(slots=self.slots, nproc_per_node=self.nproc_per_node)

    @property
    def work(self) -> int:
        """Steps of this generation if only they can be counted, else -1."""
        return -1 if self.reports else self.steps_here

    @property
    def without_progress(self) -> tuple[Attempt, ...]:
        """Attempts since which training has made no new progress.

        A script that does not report its steps is taken to begin anew in each generation: if it ends after
        the same work as before, it has done the same again.
        """
        slack = self.slack
        if self.reports:
            return tuple(a for a in self.attempts if self.best_step - a.step <= slack)
        if self.steps_here <= slack:
            return self.attempts
        return tuple(a for a in self.attempts if abs(self.steps_here - a.work) <= slack)

    @property
    def restored_step(self) -> int:
        """The step of ``restored``, -1 for a fresh start."""
        return self.restored.step if self.restored is not None else -1

    @property
    def slack(self) -> int:
        """This many steps are no progress: those of :data:`REPEAT_S`, at least one."""
        return max(1, int(REPEAT_S / self.pace.p50_s)) if self.pace.p50_s > 0 else 1

    def until(self, step: int) -> World:
        """Return the world in which nothing counts that was done or saved after ``step``."""
        stored = self.newest_on_storage
        ended = {*self.unsealed, *((self.generation,) if self.running else ())}
        good = {g: min(step, self.good_steps.get(g, step)) for g in ended}
        return msgspec.structs.replace(
            self,
            best_step=min(self.best_step, step),
            sealed={g: min(step, sealed) for g, sealed in self.sealed.items()},
            good_steps={**self.good_steps, **good},
            newest_on_storage=stored if stored is not None and stored.step <= step else None,
        )

    def without_from(self, generation: int, step: int, pace: PaceHistory) -> World:
        """Return the world in which nothing counts that this generation and later ones have done.

        ``step`` and ``pace``: how far and how fast training was before them.
        """
        incident, before = self.incident, self.until(step)
        if incident is not None:
            incident = msgspec.structs.replace(incident, step=min(incident.step, step))
        void = dict.fromkeys(range(generation, self.generation + 1), -1)
        return msgspec.structs.replace(
            before,
            sealed={g: sealed for g, sealed in before.sealed.items() if g < generation},
            unsealed=tuple(g for g in self.unsealed if g < generation),
            good_steps={**before.good_steps, **void},
            incident=incident,
            pace=pace,
        )


@singledispatch
def follow(event: ev.WorldEvent, world: World) -> World:
    """Return ``world`` after ``event``, one of its own. Events that only inform leave it as it is."""
    return world


@follow.register
def _(event: ev.Continued, world: World) -> World:
    return msgspec.structs.replace(
        world,
        newest_on_storage=event.stored,
        generation=event.generation,
        best_step=event.best_step,
        reports=event.reports,
        has_stepped=event.best_step >= 0,
        sealed=event.sealed,
        unsealed=event.unsealed,
        good_steps=event.good_steps,
        shared=event.shared,
        layouts=event.layouts,
        banned={},  # what an earlier job passed over may be taken again
    )


@follow.register
def _(event: ev.GenerationLaunched, world: World) -> World:
    return msgspec.structs.replace(
        world,
        generation=event.generation,
        slots=event.slots,
        trained_on=event.slots,
        running=True,
        stopping=None,
        saving=None,
        drills=(),
        held_steps=(),
        steps_here=-1,
        restored=event.restore,
        restored_tiers=event.tiers,
        layouts={**world.layouts, event.generation: event.layout} if event.layout else world.layouts,
    )


@follow.register(ev.FirstStep)
@follow.register(ev.ProgressMade)
def _(event: ev.FirstStep | ev.ProgressMade, world: World) -> World:
    return _advance(world, event.step, event.reported)


def _advance(world: World, step: int, reported: bool) -> World:
    incident = world.incident
    if incident is not None and incident.generation == world.generation and reported:
        # Heartbeats lag by up to a heartbeat: how far training really was is known a moment later.
        incident = msgspec.structs.replace(incident, step=max(incident.step, step))
    return msgspec.structs.replace(
        world,
        best_step=max(world.best_step, step) if reported else world.best_step,
        reports=reported,
        steps_here=max(world.steps_here, step),
        has_stepped=world.has_stepped or step >= 0,
        incident=incident,
    )


@follow.register
def _(event: ev.IncidentOpened, world: World) -> World:
    incident = OpenIncident(
        number=event.incident,
        symptom=event.symptom,
        step=event.best_step,
        generation=event.generation,
        begun=event.t - event.detect_s,
    )
    return msgspec.structs.replace(world, incident=incident)


@follow.register
def _(event: ev.SymptomAdded, world: World) -> World:
    if world.incident is None:
        return world
    signed = msgspec.structs.replace(world.incident, last_sign_in=world.generation)
    return msgspec.structs.replace(world, incident=signed)


@follow.register
def _(event: ev.IncidentClosed, world: World) -> World:
    drill = world.incident.drill if world.incident is not None else 0
    drills = tuple(one for one in world.drills if one.drill != drill)
    return msgspec.structs.replace(world, incident=None, drills=drills)


@follow.register
def _(event: ev.DrillPlanted, world: World) -> World:
    return msgspec.structs.replace(world, drills=(*world.drills, event)[-MAX_DRILLS:])


@follow.register
def _(event: ev.DrillOver, world: World) -> World:
    drills = tuple(one for one in world.drills if one.drill != event.drill)
    return msgspec.structs.replace(world, drills=drills)


@follow.register
def _(event: ev.CheckpointRequested, world: World) -> World:
    return (
        msgspec.structs.replace(world, held_steps=(*world.held_steps, event.step)) if event.update else world
    )


@follow.register
def _(event: ev.StopStarted, world: World) -> World:
    return msgspec.structs.replace(world, stopping=event)


@follow.register
def _(event: ev.GenerationEnded, world: World) -> World:
    world = _seal(world, event)
    good_steps = world.good_steps
    if event.good_step is not None:
        # Non-finite numbers count as no progress, so this is how far training was.
        world = _advance(world, event.good_step, True)
        good_steps = {**good_steps, event.generation: event.good_step}
    unsealed = (*world.unsealed, event.generation) if event.pending else world.unsealed
    if (incident := world.incident) is not None and incident.generation == event.generation:
        # Steps that some ranks had completed are done again, and are no new ones.
        incident = msgspec.structs.replace(incident, step=max(incident.step, event.reached_step))
    return msgspec.structs.replace(
        world, running=False, stopping=None, unsealed=unsealed, good_steps=good_steps, incident=incident
    )


@follow.register
def _(event: ev.GenerationSealed, world: World) -> World:
    unsealed = tuple(g for g in world.unsealed if g != event.generation or event.pending)
    return msgspec.structs.replace(_seal(world, event), unsealed=unsealed)


def _newer(known: CheckpointId | None, found: CheckpointId) -> CheckpointId:
    return found if known is None else max(known, found)


def _seal(world: World, event: ev.GenerationEnded | ev.GenerationSealed) -> World:
    generation, step = event.generation, event.sealed_step
    found = CheckpointId(step=step, generation=generation)
    return msgspec.structs.replace(
        world,
        newest_on_storage=_newer(world.newest_on_storage, found)
        if event.stored and step >= 0
        else world.newest_on_storage,
        sealed={**world.sealed, generation: step} if step >= 0 else world.sealed,
        shared=tuple(sorted({*world.shared, generation})) if event.shared else world.shared,
    )


@follow.register
def _(event: ev.CheckpointBanned, world: World) -> World:
    return msgspec.structs.replace(world, banned={**world.banned, event.checkpoint: event.reason})


@follow.register
def _(event: ev.StrideChanged, world: World) -> World:
    return msgspec.structs.replace(
        world, stride=event.stride, local_stride=event.local_stride, rising=event.rising
    )


@follow.register
def _(event: ev.PaceLearned, world: World) -> World:
    return msgspec.structs.replace(world, pace=event.pace)


@follow.register
def _(event: ev.StorageWritten, world: World) -> World:
    found, known = CheckpointId(step=event.step, generation=event.generation), world.stored
    if known is not None and (known.generation, known.step) > (found.generation, found.step):
        stored = known  # the way back from an update got there later
    else:
        stored = event
    return msgspec.structs.replace(
        world, stored=stored, newest_on_storage=_newer(world.newest_on_storage, found), saving=None
    )


@follow.register
def _(event: ev.SavingStarted, world: World) -> World:
    return msgspec.structs.replace(world, saving=event)


@follow.register
def _(event: ev.Decided, world: World) -> World:
    incident, attempts = world.incident, world.attempts
    if incident is not None:
        incident = msgspec.structs.replace(incident, drill=event.drill)
    if incident is not None and incident.decided is None and not finds_out_more(event.actions):
        incident = msgspec.structs.replace(incident, decided=event.t)
    if event.drill:  # it says nothing of a later fault
        return msgspec.structs.replace(world, incident=incident)
    if not is_final(event.actions):  # another decision follows, which is the attempt
        return msgspec.structs.replace(world, incident=incident)
    if event.verdict is not None:
        attempt = Attempt(
            signature=event.verdict.signature,
            t=event.t,
            step=world.best_step,
            work=world.work,
            blame=event.verdict.blame,
        )
        attempts = (*attempts, attempt)
    places = (*world.places, event.place)[-MAX_PLACES:] if event.place is not None else world.places
    return msgspec.structs.replace(world, incident=incident, attempts=attempts, places=places)
