"""Whether a network has fallen silent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from slurm_robust.model.record import Record

CHATTER_BYTES_PER_S = 1e5
"""What heartbeats, monitoring and the fabric's own management may send while no training does."""

WINDOW_S = 600.0
"""The paper's: no traffic within ten minutes."""


class Traffic(Record):
    """Counters of a node's ports at ``at`` (seconds): ``nbytes``, received and sent, by port."""

    at: float
    nbytes: Mapping[str, int]


def is_silent(
    samples: Sequence[Traffic],
    *,
    window_s: float = WINDOW_S,
    chatter_bytes_per_s: float = CHATTER_BYTES_PER_S,
) -> bool | None:
    """Whether all ports together carried next to nothing within the last ``window_s`` seconds.

    ``samples`` in the order of their times. None, unknown: they do not reach back so far, a port came or
    went, or a counter was set back meanwhile.
    """
    if not samples:
        return None
    last = samples[-1]
    before = sum(sample.at <= last.at - window_s for sample in samples)
    covered = samples[max(0, before - 1) :]
    if not before or not last.nbytes or not all(_goes_on(*pair) for pair in pairwise(covered)):
        return None
    carried = sum(last.nbytes.values()) - sum(covered[0].nbytes.values())
    return carried <= chatter_bytes_per_s * (last.at - covered[0].at)


def _goes_on(sample: Traffic, later: Traffic) -> bool:
    ports = sample.nbytes.keys()
    return ports == later.nbytes.keys() and all(later.nbytes[p] >= sample.nbytes[p] for p in ports)
