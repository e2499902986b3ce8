"""Is a killed worker stuck, or only slow to die? Pure.

At its end the driver gives back page by page what a worker had registered for its GPU: 243 GB took 25.9 s on
an H100 (reported in sgl-project/sglang#32829; device memory alone takes less than a second). SIGKILL cannot
hurry that, and nothing is wrong with the node.
"""

from __future__ import annotations

STILL_S = 30.0
"""A killed worker at which nothing has moved for so long is stuck."""


def is_stuck(killed_s: float, still_s: float | None, most_s: float) -> bool:
    """Whether to wait no longer for a worker that got SIGKILL ``killed_s`` seconds ago.

    ``still_s``: seconds since it last got further; None where that cannot be seen. ``most_s``: however much
    it moves.
    """
    return killed_s > most_s or (still_s is not None and still_s > STILL_S)
