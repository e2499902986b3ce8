"""What the process of a hook and its child have in common: the stages of a start, and their limits.

The child says of itself what it is doing, since it may hang in it. Light to import: the process that waits
for the child imports this too.
"""

from __future__ import annotations

import os

HOOKS = ("prolog", "epilog", "periodic")
RECORDS = ("prolog_slurmctld", "epilog_slurmctld")
WATCH = "watch"

NO_LIMIT_S = 86400.0
"""A child bounds itself: it says how long each stage may take."""

START_S = 20.0
"""How long Python may take to import what a hook needs: from slow storage, on a node that is busy. What
follows when it takes longer ends before the scripts' own limits, of 30 s and more."""

CONFIGURATION_S = 4.0
"""How long reading the configuration may take, which may lie on a file system that hangs."""

REPORT_S = 3.0
"""How long it may take to report a hook that failed, maybe because nothing can be imported."""

SLOW_SHARE = 0.25
"""Share of a hook's budget: a start that takes longer is sent."""

# What the child says of itself: first that it imports, then that it reads, then, with the paths of its
# configuration, whether its failure lets jobs start.
IMPORTING, READING, IF_OPEN, IF_CLOSED = b"", b"r", b"o", b"c"


def slow_import(took: str) -> str:
    """Return what to do about modules that took long to import."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return (
        f"importing Python modules took {took}: the node is overloaded, or the file system of {folder} is "
        "slow (install slurm_robust on a local disk)"
    )
