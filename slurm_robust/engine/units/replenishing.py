"""Standbys that were used or went bad are replaced by companions, while training goes on."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.companions import Companions, NodeRequest
from slurm_robust.model import events as ev
from slurm_robust.policy.cliques import short_of_standbys
from slurm_robust.policy.patience import borrowing_s
from slurm_robust.policy.replenish import missing_standbys, next_attempt
from slurm_robust.util.text import count


class Replenishing:
    """One request at a time. All that counts is in the journal, so a takeover asks for nothing twice."""

    def __init__(self, context: Context, companions: Companions) -> None:
        self._context = context
        self._companions = companions
        self._request: NodeRequest | None = None  # its newest
        self._until = 0.0

    def step(self, now: Now) -> None:
        """Ask for what is missing when that is due, while training gets on."""
        context, companions = self._context, self._companions
        if not context.gets_on or context.config.mode != "act":
            return
        if (fetching := companions.fetching) is not None:
            if fetching is self._request and now.mono > self._until:
                fetching.give_up()
                context.note("Slurm gave no answer to a request for standbys", "", now)
            return
        sources = self._context.rules.replenish_sources
        if not sources or context.leaving or context.ending:
            return
        if not (attempt := next_attempt(context.state, now.wall)):
            return
        state, missing = context.state, missing_standbys(context.state)
        left = state.wanted_spares - missing
        reason = f"{left} of {count(state.wanted_spares, 'standby')} left"
        context.record(ev.ReplenishBegun(t=now.wall, missing=missing, attempt=attempt, reason=reason))
        if attempt == 1:
            whence = ", then ".join(map(str, sources))
            context.emit(Say(text=f"{reason}: asking for {count(missing, 'node')} from {whence}"))
        config = context.config
        self._until = now.mono + borrowing_s(
            len(sources), config.companions.wait_s, config.slurm.timeout_s, missing
        )
        near = short_of_standbys(state, context.rules, missing)
        self._request = companions.fetch(sources, missing, (), now, near=near)
