"""Spares that cannot be counted on are dropped before one of them is put into a slot."""

from __future__ import annotations

from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.model.incident import SpareLost
from slurm_robust.policy import decide


def drop_unfit_spares(core: Core, now: Now) -> None:
    """Drop those that the inspection of their node names."""
    for node, why in core.vitals(now).unfit_spares(core).items():
        drop_spare(core, node, f"is not fit: {why}", now)


def drop_spare(core: Core, node: str, why: str, now: Now) -> None:
    """Count on ``node`` no more; ``why`` follows its name."""
    decision = decide(core.state, SpareLost(node=node, reason=why), now.wall, core.rules)
    core.evict(node, decision.reason, now)
    core.emit(Say(text=f"{decision.reason}: it is no longer counted on"))
