"""How far training is, how fast it has been, and what its nodes send each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import structs

from slurm_robust.model.record import Record

# Ages are read a moment before or after the clock that they are compared by.
_SAME_S = 0.01


ANEW = 10
"""A script is at its first steps again if it has come no further than this part of what was done before."""


def began_after(restored: int, first: int, best: int) -> int:
    """Return the step after which a generation of a script that reports its steps began, -1 for none.

    ``restored``: the checkpoint of ours that it began with, -1 for none; ``first``: the first step that was
    seen of it; ``best``: the newest that any generation before had done, -1 for none. Without a checkpoint of
    ours a script may resume by itself: one that does not is at its first steps again.
    """
    if restored >= 0 or best < 0 or ANEW * first <= best:
        return restored
    return first - 1


class Progress(Record, array_like=True, gc=False):
    """Step record of one rank, read from outside the worker."""

    rank: int
    step: int
    """Newest completed step, -1 before the first."""
    reported: bool
    """False when ``step`` only counts optimizer steps of this generation (script without our API)."""
    age_s: float
    """Seconds since that step, or before the first since the launch, by the node's monotonic clock."""
    loss: float | None = None
    grad_norm: float | None = None
    checkpoint: int = -1
    """Newest step whose part this rank has published in this generation."""
    phase: str = ""
    """What the rank does between steps: one of the constants below, or the script's own; "" for nothing."""
    phase_s: float = math.inf
    """Seconds since the phase began or, without one, since the last one ended (infinite: there was none)."""
    bad_step: int = -1
    """The first step of this generation with a non-finite loss, -1: none."""
    restored: bool = False
    """``restore()`` has returned on it in this generation."""

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite, if it is reported. (Single gradients may overflow.)"""
        return self.loss is None or math.isfinite(self.loss)

    @property
    def good(self) -> Progress:
        """The same without the steps from :attr:`bad_step` on, as old as the newest of them."""
        if self.bad_step < 0:
            return self
        return structs.replace(self, step=min(self.step, self.bad_step - 1), loss=None, grad_norm=None)

    def is_aged(self, before: Progress, seconds: float) -> bool:
        """Return whether nothing was done in the ``seconds`` since ``before``."""
        aged = before.aged(seconds)
        ages = zip((self.age_s, self.phase_s), (aged.age_s, aged.phase_s), strict=True)
        if not all(math.isclose(mine, his, abs_tol=_SAME_S) for mine, his in ages):
            return False
        return structs.replace(self, age_s=aged.age_s, phase_s=aged.phase_s) == aged

    def aged(self, seconds: float) -> Progress:
        """Return the same, ``seconds`` later, if nothing was done meanwhile."""
        return structs.replace(self, age_s=self.age_s + seconds, phase_s=self.phase_s + seconds)


class SnapshotTimes(Record):
    """What snapshots in memory take, in seconds; each is the middle one of the last three."""

    stride: int
    """The local stride at which they were measured."""
    apart_s: float
    """How long training computes between two snapshots, the time left out for which they block it."""
    whole_s: float
    """From the beginning of one until it is whole: another one cannot begin before."""
    blocked_s: float
    """For which each blocks training, however far apart they are."""
    every: int = 1
    """Snapshots are taken of no steps but its multiples: ``Checkpointer(…, every=…)``."""

    def describe(self) -> str:
        """Return ``one blocks training for 0.02 s and is whole after 0.3 s, and a step takes 0.1 s``."""
        return (
            f"one blocks training for {self.blocked_s:.2g} s and is whole after {self.whole_s:.2g} s, and a "
            f"step takes {self._step_s:.2g} s"
        )

    def repeats_s(self, stride: int) -> float:
        """Return for how many seconds training computes at most what a fault repeats at a local stride."""
        return self._step_s * self.taken_of(stride)

    def taken_of(self, stride: int) -> int:
        """Return of whose multiples snapshots are taken at a local stride."""
        return math.lcm(self.every, stride)

    def repeats(self, stride: int, *, rising: bool) -> str:
        """Return ``a fault repeats up to 16 steps (1.6 s)``; ``rising``: the stride may still rise."""
        so_far = " so far, and more if this still rises" if rising else ""
        return f"a fault repeats up to {self.taken_of(stride)} steps ({self.repeats_s(stride):.2g} s){so_far}"

    @property
    def _step_s(self) -> float:
        return self.apart_s / self.taken_of(self.stride)

    @classmethod
    def worst(cls, every: Iterable[SnapshotTimes | None]) -> SnapshotTimes | None:
        """Return the worst of each, None if some are not known or were measured at another stride.

        Who waits for a blocked rank seems to compute meanwhile, so of the times apart the shortest is right.
        """
        found = list(every)
        known = [times for times in found if times is not None]
        if not known or len(known) < len(found) or len({times.stride for times in known}) > 1:
            return None
        return cls(
            stride=known[0].stride,
            apart_s=min(times.apart_s for times in known),
            whole_s=max(times.whole_s for times in known),
            blocked_s=max(times.blocked_s for times in known),
            every=max(times.every for times in known),
        )


def slowest(records: Iterable[Progress]) -> Progress:
    """Return the rank that was the last to complete the newest step that all ranks have completed."""
    return min(records, key=lambda p: (p.step, p.age_s))


def most(every: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return for each name the most that any of ``every`` has."""
    found: dict[str, float] = {}
    for values in every:
        for name, value in values.items():
            found[name] = max(value, found.get(name, value))
    return found


RESTORE = "restore"
"""The phase in which a rank reads its checkpoint."""

CHECKPOINT = "checkpoint"
"""The phase in which ``step()``, or a framework, writes to storage."""

RESERVE = "reserves memory for snapshots"
"""The phase in which a thread of a rank reserves memory for its first snapshots; a driver may hold it up."""

EVALUATION = "evaluation"
"""The phase in which a framework validates or evaluates."""

UPDATE = "update"
"""The phase of a rank that begins no other step, since another release is about to take its place."""

FINISHED = "after training"
"""The phase of a script that has closed its ``Checkpointer``, until its end."""

RETURNED = "after the script"
"""The phase of a worker whose script has returned, and its threads too, until the process ends."""


LASTING = frozenset({RESERVE, FINISHED, RETURNED})
"""Phases that say something of a rank, but in which it may complete steps, or no step will come."""


class PaceHistory(Record):
    """What is known of the pace of training, in seconds. 0 and absent: not seen yet, or exceeded since."""

    steps: int = 0
    """Steps that were measured."""
    p50_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    first_step_s: float = 0.0
    """The longest time from a launch to the first step."""
    phases: dict[str, float] = {}
    """The longest of each phase that the script announces."""
    pause_s: float = 0.0
    """The longest time without a step that seemed to be a hang and then ended by itself."""
    hung_after: int = -1
    """The step after which training was last taken for hanging, -1 once it got beyond."""
    doubts: int = 0
    """How often it was taken for hanging between steps since it last went on for hours without that. 0 again
    if the cause of a hang is found: then it was not the script's own doing.
    """


class Traffic(Record):
    """Counted since the workers of the generation began, in seconds of the node's own clock."""

    silent_s: float
    """How long the links have carried next to nothing."""
    pause_s: float = 0.0
    """The longest such time before, which ended by itself."""
    talked_s: float = 0.0
    """Seconds from the first traffic to the newest."""
