"""How long snapshots of a rank take, so that as many are taken as do not hold training up."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

# The middle of so many counts: one alone may have met a garbage collection, or another process.
_SAMPLES = 3
# One that is whole this many times earlier than the next one begins makes none wait for it.
_LEEWAY = 1.25


class Typical(NamedTuple):
    """The middle values of the last snapshots, in seconds."""

    step_s: float  # what training computes in a step, without what snapshots block
    whole_s: float  # from the beginning of a snapshot until it is whole
    blocked_s: float  # for which one blocks training, however far apart they are


@dataclass
class Timing:
    """One snapshot, in seconds by one clock. The thread that takes it fills in the rest."""

    step: int
    asked: float  # when it was asked for
    began: float  # when the one before was whole, so that this one could begin
    started: float = 0.0  # when the GPU had computed so far, 0 without one
    copied: float = 0.0  # when it had copied what the next update changes
    whole: float = 0.0
    is_typical: bool = True  # nothing but the snapshot itself took time: no memory had to be reserved


class TimingHistory:
    """The last few snapshots of a rank."""

    def __init__(self) -> None:
        self._samples: deque[Typical] = deque(maxlen=_SAMPLES)

    def see(self, last: Timing, now: float, step: int, blocked_s: float) -> None:
        """Take in a snapshot that is whole: that of ``step`` was asked for at ``now``.

        ``blocked_s``: for which the ``last`` one has blocked training in all.
        """
        if not last.is_typical or step <= last.step:
            return
        apart_s, waited_s = now - last.asked, last.began - last.asked
        took_s, own_s = last.whole - (last.started or last.began), max(0.0, blocked_s - waited_s)
        # A host that runs ahead of its GPU waits for the snapshot before; the GPU has enough to do meanwhile.
        was_late = _LEEWAY * took_s > apart_s
        step_s = max(0.0, apart_s - (blocked_s if was_late else own_s)) / (step - last.step)
        # The host does not see that the GPU's update waits for a copy that takes longer than the step.
        stalled_s = max(0.0, last.copied - last.started - step_s)
        self._samples.append(Typical(step_s, took_s, own_s + stalled_s))

    def forget(self) -> None:
        """Forget all: snapshots are taken of other steps from now on."""
        self._samples.clear()

    @property
    def typical(self) -> Typical | None:
        """None before the second."""
        if len(self._samples) < 2:
            return None
        return Typical(*map(statistics.median_low, zip(*self._samples, strict=True)))
