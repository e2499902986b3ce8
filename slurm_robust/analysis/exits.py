"""Which of several failed workers failed first by cause, by :mod:`slurm_robust.analysis.logs.ranks`."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.analysis.logs.ranks import blames_peer, elect
from slurm_robust.analysis.logs.rule import RuleSet
from slurm_robust.model.incident import NodeExit

__all__ = ["blames_peer", "root_exit"]


def root_exit(exits: Iterable[NodeExit], rules: RuleSet | None = None) -> NodeExit | None:
    """The failed exit that explains the others, by ``rules`` or those of this package; None without one."""
    return elect(exits, rules)
