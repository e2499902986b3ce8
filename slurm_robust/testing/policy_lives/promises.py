"""What every life promises, whatever its spec: bounds, innocents, places, time, what is restored. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from slurm_robust.config.job import Limits
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import FaultKind
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy.rules import DAY_S, HOUR_S
from slurm_robust.simulator.figures import account_of
from slurm_robust.simulator.life import BEGUN, PolicyLife, SimulatedLife
from slurm_robust.simulator.spec import Spec
from slurm_robust.simulator.spread import seconds

MOST_DECISIONS = 6
"""Decisions on one fault: the first one, after tests, a replay, a quick test, and two sources of nodes."""

LONGEST_S = 3 * 86400.0
"""No recovery of these specs takes longer, however long it is until a fault is detected."""

CODES = (ExitCode.DO_NOT_REQUEUE, ExitCode.TERMINATED, ExitCode.CONFIG)
"""With which a job ends before its training is done."""

Promise = Callable[[Spec, SimulatedLife], Iterator[str]]


def broken_promises(spec: Spec, seed: int) -> list[str]:
    """Play the life of ``seed``, and return what it does not keep, with the name of the promise first."""
    try:
        life = PolicyLife(spec, seed).play()
        return [f"{promise.__name__}: {text}" for promise in PROMISES for text in promise(spec, life)]
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]


def times_rise(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """Each journal is in the order of time, and the ledger accounts for all of it."""
    for journal in life.journals:
        for before, after in pairwise(journal):
            if after.t < before.t:
                yield f"{after} comes before {before}"
    books, summary = account_of(life)
    if sum(summary.classes.values()) != books.wall_ms:
        yield f"{summary.classes} are not {books.wall_ms} ms"


def bounds_hold(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """No answer exceeds the bounds of its signature, of an hour and of the job, and no fault has many."""
    limits = spec.policy.limits
    for journal in life.journals:
        state, on_fault = JobState(), 0
        for event in journal:
            if isinstance(event, ev.Decided):
                on_fault += 1
                if on_fault > MOST_DECISIONS:
                    yield f"decision {on_fault} on one fault: {event.reason}"
                yield from _exceeded(event, state, limits)
            elif isinstance(event, ev.GenerationEnded):
                on_fault = 0
            state = apply(event, state)


def _exceeded(event: ev.Decided, state: JobState, limits: Limits) -> Iterator[str]:
    verdict, world = event.verdict, state.world
    goes_on = any(isinstance(action, inc.Restart | inc.Requeue) for action in event.actions)
    is_release = verdict is not None and verdict.signature.kind is FaultKind.RELEASE
    if not goes_on or verdict is None or is_release:
        return
    same = [one for one in world.without_progress if one.signature == verdict.signature]
    if len(same) >= max(verdict.allowed, 0):
        yield f"answer {len(same) + 1} to '{verdict.signature}' without a new step, of {verdict.allowed}"
    for most, within_s in ((limits.per_hour, HOUR_S), (limits.per_day, DAY_S)):
        recent = [one for one in world.attempts if event.t - one.t < within_s]
        if len(recent) >= most:
            yield f"answer {len(recent) + 1} within {within_s:g} s, of {most}"
    if limits.total is not None and len(world.attempts) >= limits.total:
        yield f"answer {len(world.attempts) + 1} of the job, of {limits.total}"


def it_ends_or_trains(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """A job ends with a code that the documentation has, or goes on until nobody watches it any more."""
    for number, journal in enumerate(life.journals):
        is_last = number == len(life.journals) - 1
        ends = [event for event in journal if isinstance(event, ev.RunEnded)]
        for end in ends:
            done = is_last and life.is_done and end is ends[-1]
            if end.requeued == end.final and end.code != ExitCode.CONFIG:
                yield f"it is both final and requeued, or neither: {end}"
            if not end.requeued and end.code not in (0,) * done + CODES:
                yield f"exit code {end.code}: {end.reason}"
        if not is_last and (not ends or ends[-1] is not journal[-1]):
            yield f"job {number} has no end, and there is another"
    last, is_over = life.journals[-1][-1], life.end >= BEGUN + seconds(spec.time) - 1e-3
    if not is_over and not life.is_done and len(life.journals) <= spec.owner.stops_after:
        yield f"it is over after {life.end - BEGUN:.0f} s: {last}"
    if is_over and not isinstance(last, ev.RunEnded | ev.RunStarted | ev.Continued | ev.ReleaseTaken):
        silent_s = life.end - last.t
        if silent_s > LONGEST_S:
            yield f"nothing happens for {silent_s:.0f} s after {last}"


def innocents_stay(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """Evicted is who something spoke against, or is suspected and said to be, or failed a wrong test."""
    for journal in life.journals:
        rung = 0
        for event in journal:
            if isinstance(event, ev.Decided):
                rung = event.verdict.rung if event.verdict is not None else 0
            if not isinstance(event, ev.NodeEvicted) or event.unproven or event.node in life.named:
                continue
            if rung in (5, 8) and spec.diagnostics.false_positives:
                continue
            yield f"{event.node}: {event.reason}"


def each_has_one_place(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """No node has two slots or gets lost, and none trains that the job has evicted, if there are others."""
    if life.astray:
        yield f"nobody has {life.astray}"
    for journal in life.journals:
        state, taken_again = JobState(), set[str]()
        for event in journal:
            if isinstance(event, ev.GenerationLaunched):
                here = [*event.slots, *state.spares]
                if len(set(here)) < len(here):
                    yield f"a node has two places: {here}"
                if len(event.slots) != spec.job.nodes:
                    yield f"{len(event.slots)} nodes train"
                evicted = set(event.slots) & set(state.evicted)
                if evicted - taken_again:
                    yield f"{sorted(evicted)} were evicted, and train in generation {event.generation}"
            elif isinstance(event, ev.AllocationTaken):
                taken_again = set(event.slots).intersection(state.shunned(event.t, anew=True))
                if taken_again and event.spares:
                    yield f"{sorted(taken_again)} were evicted, and {event.spares} stand by"
            state = apply(event, state)


class _Kept:
    """What may be restored, by the events alone."""

    def __init__(self) -> None:
        self.written: list[CheckpointId] = []
        self.memory: CheckpointId | None = None
        self.trained_on: tuple[str, ...] = ()
        self.since = 0.0

    def void(self, generation: int, step: int) -> None:
        """Forget what a release made that is taken back."""
        self.written = [one for one in self.written if one.generation < generation and one.step <= step]
        self.memory = None

    @property
    def newest(self) -> int:
        return max((one.step for one in self.written), default=-1)


def nothing_is_lost(spec: Spec, life: SimulatedLife) -> Iterator[str]:
    """Each generation goes on from the newest step that memory or storage has, and from none that is void."""
    kept = _Kept()
    for journal in life.journals:
        state = JobState()
        for event in journal:
            match event:
                case ev.StorageWritten():
                    kept.written.append(CheckpointId(step=event.step, generation=event.generation))
                case ev.GenerationEnded():
                    is_here = event.sealed_step >= 0
                    kept.memory = (
                        CheckpointId(step=event.sealed_step, generation=event.generation) if is_here else None
                    )
                    kept.trained_on = state.world.trained_on
                case ev.AllocationTaken():
                    kept.memory = None
                case ev.Decided():
                    for action in event.actions:
                        if isinstance(action, inc.RollBack):
                            first = state.candidate.generation if state.candidate is not None else 0
                            kept.void(first, action.step)
                case ev.GenerationLaunched():
                    died = {node for t, node in life.died if kept.since <= t <= event.t}
                    yield from _went_back(spec, event, kept, state, died)
                    kept.since = event.t
            state = apply(event, state)


def _went_back(
    spec: Spec, event: ev.GenerationLaunched, kept: _Kept, state: JobState, died: Collection[str]
) -> Iterator[str]:
    least, here = kept.newest, set(event.slots).difference(died)
    left = sum(node not in here for node in kept.trained_on)
    if kept.memory is not None and left <= (spec.policy.checkpoint.peers and len(event.slots) > 1):
        least = max(least, kept.memory.step)
    if event.restore_step < least:
        yield f"generation {event.generation} restores step {event.restore_step}, and {least} was there"
    restore = event.restore
    if restore is None:
        return
    if restore.generation >= event.generation:
        yield f"generation {event.generation} restores {restore}"
    if restore.step > state.world.good_steps.get(restore.generation, restore.step):
        yield f"generation {event.generation} restores {restore}, which is void"


PROMISES: tuple[Promise, ...] = (
    times_rise,
    bounds_hold,
    it_ends_or_trains,
    innocents_stay,
    each_has_one_place,
    nothing_is_lost,
)
