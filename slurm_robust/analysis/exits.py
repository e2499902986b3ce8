"""Which of several failed workers failed first by cause, by :mod:`slurm_robust.analysis.logs.ranks`."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.analysis.logs.ranks import blames_peer, elect
from slurm_robust.model.incident import NodeExit

__all__ = ["blames_peer", "root_exit"]


def root_exit(exits: Iterable[NodeExit]) -> NodeExit | None:
    """The failed exit that explains the others; None when no worker failed."""
    return elect(exits)
