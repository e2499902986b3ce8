"""Which silence of the GPUs' driver counts: none that a starting or dying worker causes. No clock.

A driver registers the memory of a worker that starts or restores, and gives back that of one that was killed;
what asks it meanwhile may wait, or be answered with an error, on a node that is sound.
"""

from __future__ import annotations

from msgspec import structs

from slurm_robust.nodes.gpus.judging import CONFIRM_AFTER_S
from slurm_robust.nodes.gpus.presence import LOST
from slurm_robust.nodes.live.observation import Observation, Subject, subject_of

BUSY_S = 120.0
"""Workers that start, restore or are being killed excuse the driver for at most this long at one go."""

PROBE_S = 5.0
"""A probe that reports now may have begun this long ago."""

_DRIVER = (LOST, "")


class Doubts:
    """Doubts of the last observations about the GPUs of one node. Times are monotonic seconds.

    A failure that was a doubt before counts when two undisturbed observations have seen it, the second at
    least :data:`~slurm_robust.nodes.gpus.judging.CONFIRM_AFTER_S` after the first, and none in between the
    opposite. What was no doubt before (a GPU that is lost) counts at once.
    """

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._disturbed = float("-inf")
        # When an observation that counts has seen each first; None: only others have.
        self._first: dict[Subject, float | None] = {}

    def note(self, now: float, *, busy: bool) -> None:
        """Whether a worker of this node starts, restores or is being killed. To be called often."""
        if not busy:
            self._busy_since = None
            return
        self._busy_since = now if self._busy_since is None else self._busy_since
        if now - self._busy_since <= BUSY_S:
            self._disturbed = now

    def sift(self, observation: Observation, now: float) -> Observation:
        """``observation`` with the failures that do not count yet as unknown."""
        failed = [subject_of(found) for found in observation.failed]
        self._forget(observation, failed)
        counts = now - self._disturbed > PROBE_S
        doubts = [subject for subject in observation.unknown if subject[0] == LOST]
        early = {
            subject
            for subject in failed
            if subject in self._first and not self._confirms(subject, now, counts)
        }
        for subject in (*doubts, *early):
            if self._first.get(subject) is None:
                self._first[subject] = now if counts else None
        if not early:
            return observation
        kept = tuple(found for found in observation.failed if subject_of(found) not in early)
        return structs.replace(observation, failed=kept, unknown=(*observation.unknown, *sorted(early)))

    def _confirms(self, subject: Subject, now: float, counts: bool) -> bool:
        first = self._first[subject]
        return counts and first is not None and now - first >= CONFIRM_AFTER_S

    def _forget(self, observation: Observation, failed: list[Subject]) -> None:
        """What has passed is no doubt any more; and a driver that says anything of a GPU is not silent."""
        passed = {subject for subject in observation.well if subject[0] == LOST}
        if any(subject[0] == LOST and subject[1] for subject in (*passed, *failed, *observation.unknown)):
            passed.add(_DRIVER)
        for subject in passed:
            self._first.pop(subject, None)
