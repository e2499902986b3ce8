"""Whether the network between a job's nodes has fallen silent. Pure; docs/detection.md explains the rule."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.progress import Progress, Traffic

CHATTER_BYTES_PER_S = 1e5
"""What heartbeats, monitoring and the fabric's own management may send while no training does."""

PAUSE_FACTOR = 3.0
"""A silence that ended by itself may come again, and last this many times as long."""


class TrafficMeter:
    """Follows the bytes that a node's links have carried while one generation runs.

    Times are monotonic seconds of one clock, given by the caller.
    """

    def __init__(self) -> None:
        self._read: tuple[float, int] | None = None  # when, and how many bytes there were
        self._first: float | None = None
        self._newest = 0.0
        self._pause_s = 0.0

    def see(self, nbytes: int, now: float) -> None:
        """See that all links together have received and sent ``nbytes`` since they count.

        Fewer than before: a counter was set back or a port has gone. What was carried meanwhile is unknown,
        so silence begins anew.
        """
        before, self._read = self._read, (now, nbytes)
        if before is None:
            return
        carried, allowed = nbytes - before[1], CHATTER_BYTES_PER_S * (now - before[0])
        if carried > allowed and self._first is None:
            self._first = self._newest = now
        elif self._first is not None and not 0 <= carried <= allowed:
            self._pause_s = max(self._pause_s, before[0] - self._newest)
            self._newest = now

    @property
    def traffic(self) -> Traffic | None:
        """As of the newest reading; None while the links have carried nothing to speak of."""
        if self._first is None or self._read is None:
            return None
        return Traffic(
            silent_s=self._read[0] - self._newest,
            pause_s=self._pause_s,
            talked_s=self._newest - self._first,
        )


def fallen_silent(
    traffic: Sequence[Traffic | None],
    records: Sequence[Progress],
    config: DetectConfig,
    *,
    longest_pause_s: float = 0.0,
) -> Fault | None:
    """Return a hang, if a job that used the network between its nodes does so no more, and nothing else.

    ``traffic`` of each node that trains; a node without such links, or whose links never carried anything,
    says nothing, and then the rule has no say. Nor has it if the links carried something for a short while
    only, say what was restored. ``records`` of all ranks that are alive: a step or a phase is a sign of life.
    ``longest_pause_s``: the longest time without a step that is known to have ended by itself.
    """
    known = [one for one in traffic if one is not None]
    if not config.hang or len(known) < 2 or len(known) < len(traffic):
        return None
    since_s = min(one.silent_s for one in known)
    pause_s = max(longest_pause_s, *(one.pause_s for one in known))
    allowed_s = max(config.silence_s, config.hang_floor_s, PAUSE_FACTOR * pause_s)
    if since_s < allowed_s or min(one.talked_s for one in known) < config.silence_s:
        return None
    if any(record.phase or min(record.age_s, record.phase_s) < since_s for record in records):
        return None
    text = f"the links of all {len(known)} nodes have carried next to nothing for {span(since_s)}"
    return Fault(
        symptom=Symptom.HANG,
        detail=text,
        why=f"the limit is {span(allowed_s)}",
        detect_s=since_s,
        low_confidence=True,
    )
