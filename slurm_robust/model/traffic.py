"""What the links of a node between nodes have carried while its workers run."""

from __future__ import annotations

from slurm_robust.model.record import Record


class Traffic(Record):
    """Since the workers of the generation began. In seconds, of the node's own clock.

    ``silent_s``: the links have carried next to nothing for so long; ``pause_s``: the longest such time
    before, which ended by itself; ``talked_s``: from the first traffic to the newest.
    """

    silent_s: float
    pause_s: float = 0.0
    talked_s: float = 0.0
