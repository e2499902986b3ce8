"""What people read of a drill. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from slurm_robust.drills.faults import FaultText
from slurm_robust.drills.follow import DrillProgress, broken_promises
from slurm_robust.evidence import drills
from slurm_robust.evidence.incident_text import actions_text
from slurm_robust.model import incident as inc
from slurm_robust.model.drill import DrillFault, DrillPromise
from slurm_robust.model.events import Decided
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, one_line


def listing(faults: Sequence[FaultText]) -> str:
    """Return all faults, two lines each."""
    width = max(len(one.fault.value) for one in faults)
    lines = [
        line
        for one in faults
        for line in (f"{one.fault.value:<{width}}  {one.does}", f"{'':<{width}}  -> {one.recovery}")
    ]
    return "\n".join(lines)


def costs(fault: DrillFault, promise: DrillPromise) -> str:
    """Return what a drill costs beyond a restart in place; "" if nothing."""
    if promise.observe and promise.symptom is not None:
        return f"{fault.value}: srobust only observes this job (mode: observe), so nothing ends the fault."
    return f"{fault.value} {'; '.join(parts)}." if (parts := list(_costs(promise))) else ""


def _costs(promise: DrillPromise) -> Iterator[str]:
    standbys = f"{count(promise.standbys, 'standby')} left"
    for action in promise.actions:
        match action:
            case inc.Evict(node=node):
                yield f"evicts {node}"
            case inc.Replace(node=node, standby=standby):
                yield f"{standby} takes the slot of {node}: {standbys}"
            case inc.Swap(first=first, second=second):
                yield f"lets {first} and {second} exchange their slots"
            case inc.Requeue():
                yield f"{standbys}: this job will be requeued"
            case inc.Borrow():
                yield f"{standbys}: another node is asked for; without one this job will be requeued"
            case inc.QuickTest():
                yield "has nodes tested for up to a minute"
            case inc.Diagnose():
                yield "has all nodes tested, for up to some minutes"
            case inc.GiveUp(code=code):
                yield f"ends the job with exit code {code}"


def promised(promise: DrillPromise) -> str:
    """Return what is to come, in one line."""
    if promise.symptom is None:
        return f"promised: training goes on; nothing is taken for a fault ({promise.detect_s:.0f} s)"
    done = "only observed" if promise.observe else _actions(promise)
    return f"promised: {promise.symptom.value}, seen within {promise.detect_s:.0f} s; {done}"


def _actions(promise: DrillPromise) -> str:
    return actions_text(Decided(t=0.0, incident=0, actions=promise.actions, reason=""))


def line(known: DrillProgress) -> str:
    """Return how far it is, for the line of progress."""
    text = drills.title(known.planted)
    if known.requeued:
        return f"{text}: the job is queued again"
    if known.decided is not None:
        return f"{text}: {actions_text(known.decided)}"
    if known.incident:
        return f"{text}: seen as incident {known.incident}"
    return f"{text}: planted"


def interrupted(drill: int, promise: DrillPromise | None, known: DrillProgress | None, job: str) -> str:
    """Return what becomes of a planted drill that nobody waits for, and the command that shows it."""
    what = "the job recovers by itself"
    if promise is not None and promise.symptom is None:
        what = "training goes on"
    elif promise is not None and promise.observe:
        what = "nothing ends its fault, since srobust only observes this job (mode: observe)"
    for action in promise.actions if promise is not None and not promise.observe else ():
        if isinstance(action, inc.Requeue):
            what = "the job is requeued, and goes on then"
        elif isinstance(action, inc.GiveUp):
            what = f"it ends the job with exit code {action.code}"
    shows = f"srobust incident {job} {known.incident}" if known is not None and known.incident else ""
    return (
        f"drill {drill} goes on without this command: {what}; '{shows or f'srobust status {job}'}' shows it"
    )


def outcome(known: DrillProgress, job: str) -> list[tuple[str, str]]:
    """Return what came of it, by name."""
    promise, found = known.planted.promise, list[tuple[str, str]]()
    if known.detected_s is not None and promise is not None:
        limit = f" (promised {promise.detect_s:.0f} s)" if promise.symptom is not None else ""
        seen = f"after {known.detected_s:.1f} s{limit}: incident {known.incident}, {known.symptom}"
        found.append(("seen", seen))
    if known.decided is not None:
        named = f"{fold(known.blamed)}, in this job only" if known.blamed else "nobody"
        if known.decided.verdict is not None and known.decided.verdict.blame is inc.Blame.CODE:
            named = "the code"
        asked = [replace(known.decided, actions=known.found_out)] if known.found_out else []
        done = "; then ".join(actions_text(one) for one in (*asked, known.decided))
        found += [("blamed", named), ("done", one_line(done))]
    if known.controller:
        found.append(("controller", f"number {known.controller} was started"))
    if known.lost is not None:
        found.append(("repeated", count(known.lost, "step")))
    if known.went_on_s is not None:
        found.append(("goes on", f"after {known.went_on_s:.1f} s: step {known.step} is the first new one"))
    elif known.requeued:
        found.append(("goes on", f"when Slurm starts it again: srobust status {job}"))
    broken = [one_line(text) for text in broken_promises(known)]
    found.append(("promise", "kept" if not broken else f"not kept: {'; '.join(broken)}"))
    return found
