"""How often the stacks of all ranks are sampled for a hang or a slowdown, and what follows. Pure.

A hang is sampled until two samples in a row agree, or the ranks that the others wait for turn out to compute.
A slowdown never stands still, so its samples vote.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.analysis.stacks.activity import is_native
from slurm_robust.analysis.stacks.ranks import views
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame, Localisation, ProcessKind, RankStacks
from slurm_robust.model.state import JobState
from slurm_robust.policy.ladder import moved_with_ranks, place, worth_tests
from slurm_robust.policy.rules import Rules
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import named_ranks

# A rank that only takes long moves on within seconds; evicting its node would be for nothing.
HANG_SAMPLES = 4
HANG_EVERY_S = 2.0

# Of so few ranks in question the next sample also shows the calls in libraries: without them a wait for the
# GPU inside a call in C looks like a computation. It stops each for some tenths of a second.
MAX_NATIVE = 8

# A rank that computes while the others wait may evaluate: it is sampled so often, until detect.phase_s.
PATIENCE_EVERY_S = 10.0

# ByteRobust, 6.2: a slowdown is judged by five samples ten seconds apart.
SLOW_SAMPLES = 5
SLOW_EVERY_S = 10.0


class Sampling:
    """The samples taken for one fault. Times are monotonic seconds."""

    def __init__(self, fault: Fault, since: float, phase_s: float) -> None:
        """``since``: when the fault began; ``phase_s``: how long ranks may compute while others wait."""
        self._fault = fault
        self._since = since
        self._phase_s = phase_s
        self._is_hang = fault.symptom is Symptom.HANG
        self._found: list[Localisation] = []
        self._samples: list[SampleRound] = []
        self._in_question: set[int] = set()
        self._patience = ""
        self._moved: tuple[tuple[int, ...], float] = ((), since)  # ranks that got on, and until when at most

    @property
    def native(self) -> tuple[int, ...]:
        """Ranks whose next sample is also to show the calls in libraries."""
        return tuple(sorted(self._in_question))

    @property
    def patience(self) -> str:
        """What is being waited for; "" while nothing but a hang would explain the samples."""
        return self._patience

    def add(
        self,
        stacks: Sequence[RankStacks],
        silent: Sequence[int],
        layout: ParallelLayout,
        *,
        begun: float,
        now: float,
    ) -> Localisation | float:
        """Take in the sample that began at ``begun``; return the place of the fault, or when to sample next.

        ``silent``: ranks of which no stacks came.
        """
        found = localise(stacks, layout, silent, moving=not self._is_hang)
        self._found.append(found)
        if not self._is_hang:
            is_last = len(self._found) >= SLOW_SAMPLES
            return vote(self._found, layout) if is_last else begun + SLOW_EVERY_S
        sample = SampleRound(at=begun, stacks={stack.rank: stack for stack in stacks})
        self._samples = [*self._samples, sample][-HANG_SAMPLES:]
        computing = awaited(sample, layout)
        ranks = found.ranks or computing
        for few in (ranks, found.outliers):
            if len(self._in_question | set(few)) <= MAX_NATIVE:
                self._in_question.update(few)
        # A rank that waits makes no progress, even if it uses a processor: waits for a GPU spin.
        is_own = set(ranks) <= set(computing)
        if not found.halted and is_own and (later := self._may_go_on(ranks, now)) is not None:
            return later
        moved, until = self._moved
        late = until + self._fault.detect_s
        if self._patience and found.ranks != moved and now < late:  # they are through: this may be a step
            return min(now + PATIENCE_EVERY_S, max(now + HANG_EVERY_S, late))
        if len(self._found) > 1 and self._found[-2].ranks == found.ranks:
            return found
        if len(self._found) < HANG_SAMPLES:
            return now + HANG_EVERY_S
        reason = f"{HANG_SAMPLES} samples of the stacks named different ranks, the last: {found.reason}"
        return Localisation(reason=reason, healthy=found.healthy)

    def _may_go_on(self, ranks: Sequence[int], now: float) -> float | None:
        """Return when to sample those again for whom the others wait, while they get on with something."""
        samples = self._samples
        if len(samples) < 2 or not is_busy(samples, ranks) or now - self._since > self._phase_s:
            return None
        if not is_moving(samples, ranks):
            # The same place twice may be chance, as long as there were few samples.
            return now + HANG_EVERY_S if len(samples) < HANG_SAMPLES else None
        self._moved = tuple(ranks), now + PATIENCE_EVERY_S
        if not self._patience:
            self._patience = (
                f"{self._fault.detail}; {named_ranks(ranks)} computes on, maybe in an evaluation that is "
                f"not announced: waiting up to {span(self._phase_s)} (detect.phase_s). "
                "'with slurm_robust.phase(\"evaluation\"):' in the script announces it"
            )
        return now + PATIENCE_EVERY_S

    def is_confirmed(self, found: Localisation) -> bool:
        """Return whether it was a hang without doubt: the ranks that were found did nothing at all."""
        if not self._is_hang or not found.ranks:
            return False
        return found.halted or is_idle(self._samples, found.ranks)


def reason_to_go_on(fault: Fault, found: Localisation, rules: Rules, state: JobState) -> str:
    """Say why training that hangs, or is slow, as ``found`` is not stopped; "" to stop it.

    What is only slow may still train: without a straggler nothing is gained by stopping it, unless it is
    tested for. A slowdown that has moved with the rank to another node is the code's own pace.
    """
    is_slow = fault.symptom is Symptom.SLOW
    if is_slow and found.ranks and (moved := moved_with_ranks(place(Symptom.SLOW, found, state), state)):
        where = fold(moved.nodes)
        return f"{fault.detail}; {found.reason}; it was the same on {where}: it is the code, and goes on"
    if found.ranks or not (is_slow or fault.low_confidence):
        return ""
    if is_slow and worth_tests(fault.times, rules, state):
        return ""
    again = f" (sampled {fault.times} times)" if fault.times > 1 else ""
    return f"{fault.detail}; {found.reason}{again}"


# -- do ranks get on? --------------------------------------------------------------------------------
# Training that makes no step may only evaluate. Then the ranks for which the others wait use processor time,
# and are found at another place in each round; one that is stuck does neither.

BUSY_SHARE = 0.1
"""A rank that uses this share of one processor, or more, is busy: machines are crowded."""

BUSY_S = PATIENCE_EVERY_S
"""Seconds over which that share is measured, or all rounds while they span less. A step may end with a wait,
so a rank that was idle between the last two rounds, which are two seconds apart, need not hang.
"""

IDLE_SHARE = 0.03
"""A rank that uses less does nothing at all; threads that watch (of NCCL, of the agent) need about 0.01."""


class SampleRound(Record):
    """The stacks of all ranks at one moment."""

    at: float
    """Monotonic seconds of the controller."""
    stacks: dict[int, RankStacks]
    """By rank."""


def awaited(round_: SampleRound, layout: ParallelLayout) -> tuple[int, ...]:
    """Return the ranks that do not wait for others, so that the others wait for them."""
    found = views(round_.stacks.values(), layout)
    return tuple(rank for rank, view in sorted(found.items()) if not view.activity.waits)


def is_busy(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Return whether each of these ranks has used processor time of late."""
    newest = rounds[-1]
    since = next((r for r in reversed(rounds) if newest.at - r.at >= BUSY_S), rounds[0])
    shares = [_shares((since, newest), rank) for rank in ranks]
    return bool(shares) and all(found and min(found) >= BUSY_SHARE for found in shares)


def is_moving(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Return whether each of these ranks is busy, and was not found at the same place every time."""
    places = [{place for round_ in rounds if (place := _place(round_, rank))} for rank in ranks]
    return is_busy(rounds, ranks) and all(len(found) > 1 for found in places)


def is_idle(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Return whether each of these ranks was seen to use next to no processor time: it computes nothing."""
    shares = [_shares(rounds, rank) for rank in ranks]
    return bool(shares) and all(found and max(found) <= IDLE_SHARE for found in shares)


def _shares(rounds: Sequence[SampleRound], rank: int) -> list[float]:
    """Return used processor time over time, from each round to the next; empty if it is not known of all."""
    seen = [(round_.at, _cpu_s(round_, rank)) for round_ in rounds]
    shares = []
    for (begun, before), (ended, after) in pairwise(seen):
        if before is None or after is None or ended <= begun:
            return []
        shares.append(max(0.0, after - before) / (ended - begun))
    return shares


def _cpu_s(round_: SampleRound, rank: int) -> float | None:
    stack = round_.stacks.get(rank)
    workers = [p for p in stack.processes if p.kind is ProcessKind.WORKER] if stack else []
    return workers[0].cpu_s if workers else None


def _place(round_: SampleRound, rank: int) -> tuple[Frame, ...]:
    """Return the calls of the main thread and its helpers, without libraries: not all rounds have those."""
    stack = round_.stacks.get(rank)
    threads = [t for p in stack.processes for t in p.threads if t.is_main] if stack else []
    return tuple(frame for thread in threads for frame in thread.frames if not is_native(frame.file))
