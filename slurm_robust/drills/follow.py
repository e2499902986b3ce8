"""What the journal says of one drill, and whether that is what was promised. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from slurm_robust.evidence.incident_text import actions_text
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Action, Evict, Requeue, finds_out_more
from slurm_robust.model.progress import began_after
from slurm_robust.model.record import Record

LATE_S = 2.0
"""More than a promise that a fault is seen may take: the journal tells of it with the next heartbeat."""


class DrillProgress(Record):
    """One drill so far. Times are seconds since it was planted; None: not yet."""

    planted: ev.DrillPlanted
    incident: int = 0
    symptom: str = ""
    detected_s: float | None = None
    decided: ev.Decided | None = None
    """The newest decision on the incident."""
    found_out: tuple[Action, ...] = ()
    """What its first decision does to find out more."""
    blamed: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    newest: int = -1
    """The newest step before the restart."""
    restored: int | None = None
    """The step of the checkpoint with which ranks began again, -1 for none."""
    lost: int | None = None
    """Steps that are done again; None also if the script does not report its steps."""
    went_on_s: float | None = None
    """Until the first new step."""
    step: int = -1
    """That step."""
    controller: int = 0
    """The epoch of a controller that was started since."""
    progress_s: float = 0.0
    """The newest step that the journal tells of."""
    over: ev.DrillOver | None = None
    requeued: bool = False
    ended: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        promise = self.planted.promise
        refused = self.over is not None and not self.over.ok
        if refused or self.ended or self.went_on_s is not None:
            return True
        if promise is None:
            return self.over is not None
        if promise.observe and self.decided is not None:
            return True
        if promise.symptom is not None:
            return self.over is not None and not self.incident
        stayed_s = promise.detect_s if self.over is None else 0.0
        return not self.incident and self.progress_s > stayed_s


def progress_of(
    events: Iterable[ev.AnyEvent], drill: int, known: DrillProgress | None = None
) -> DrillProgress | None:
    """Return what is known of a drill after ``events`` that follow what was ``known``; None: nothing."""
    for event in events:
        if known is not None:
            known = _after(known, event)
        elif isinstance(event, ev.DrillPlanted) and event.drill == drill:
            known = DrillProgress(planted=event, newest=event.step)
    return known


def _after(known: DrillProgress, event: ev.AnyEvent) -> DrillProgress:
    since = event.t - known.planted.t
    match event:
        case ev.DrillOver(drill=drill) if drill == known.planted.drill:
            return replace(known, over=event)
        case ev.IncidentOpened() if not known.incident:
            return replace(
                known, incident=event.incident, symptom=event.symptom.value, detected_s=max(0.0, since)
            )
        case ev.Decided() if event.incident == known.incident:
            return _decided(known, event)
        case ev.FirstStep() | ev.ProgressMade():
            if event.reported:
                known = _stepped(known, event.generation, event.step)
            return replace(known, progress_s=max(known.progress_s, since))
        case ev.GenerationLaunched() if known.incident and known.restored is None:
            return replace(known, restored=event.restore_step)
        case ev.IncidentClosed() if event.incident == known.incident:
            return replace(known, went_on_s=max(0.0, since), step=event.step)
        case ev.ControllerStarted():
            return replace(known, controller=event.epoch)
        case ev.RequeueStarted():
            return replace(known, requeued=True)
        case ev.RunEnded(final=True):
            return replace(known, ended=event.reason)
    return known


def _stepped(known: DrillProgress, generation: int, step: int) -> DrillProgress:
    """Take in a step that the script reports."""
    if generation == known.planted.generation:
        return replace(known, newest=max(known.newest, step))
    if known.restored is None or known.lost is not None:
        return known
    return replace(known, lost=max(0, known.newest - began_after(known.restored, step, known.newest)))


def _decided(known: DrillProgress, event: ev.Decided) -> DrillProgress:
    if known.decided is None and finds_out_more(event.actions):
        known = replace(known, found_out=event.actions)
    evicted = tuple(action.node for action in event.actions if isinstance(action, Evict))
    blamed = event.verdict.suspects if event.verdict is not None else ()
    return replace(known, decided=event, evicted=(*known.evicted, *evicted), blamed=(*known.blamed, *blamed))


def broken_promises(known: DrillProgress) -> Iterator[str]:
    """Yield what is not as it was promised."""
    planted, promise = known.planted, known.planted.promise
    if known.over is not None and not known.over.ok:
        yield f"it was not carried out: {known.over.reason}"
        return
    if promise is None:
        return
    if promise.symptom is None:
        if known.incident:
            yield f"incident {known.incident} was opened, though training was to go on"
        return
    if known.detected_s is None:
        yield "no fault was seen"
        return
    if known.detected_s > promise.detect_s + LATE_S:
        yield f"it was seen after {known.detected_s:.1f} s, not within {promise.detect_s:.0f} s"
    if known.decided is None:
        yield "nothing was decided"
        return
    if known.decided.drill != planted.drill:
        yield f"incident {known.incident} is a real fault, not this drill: {known.decided.reason}"
        return
    done = known.found_out or known.decided.actions
    if _kinds(done) != _kinds(promise.actions):
        wanted = actions_text(replace(known.decided, actions=promise.actions))
        yield f"promised was: {wanted}; done was: {actions_text(replace(known.decided, actions=done))}"
    requeues = any(isinstance(action, Requeue) for action in promise.actions)
    if known.went_on_s is None and not promise.observe and not (requeues and known.requeued):
        yield known.ended or "training has not gone on"


def _kinds(actions: Iterable[Action]) -> list[str]:
    return [str(action.__struct_config__.tag) + getattr(action, "node", "") for action in actions]
