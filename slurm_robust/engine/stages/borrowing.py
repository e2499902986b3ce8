"""Training is stopped, no standby is left, and companions must lend nodes."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.transitions import ToBorrowing, ToDeciding, ToStopping, Transition
from slurm_robust.engine.units.companions import NodeRequest
from slurm_robust.policy.patience import borrowing_s
from slurm_robust.util.text import count


class Borrowing:
    """Waits for the nodes, bounded; then the policy is asked again with what has come."""

    def __init__(self, begin: ToBorrowing) -> None:
        self._fault, self._action = begin.fault, begin.action
        self._since = self._limit_s = 0.0
        self._request: NodeRequest | None = None
        self._spares: tuple[str, ...] | None = None  # before nodes came that training had asked for

    def enter(self, core: Core, now: Now) -> None:
        """Ask for them, unless nodes may come any moment, since they were asked for before the fault."""
        config, action = core.config, self._action
        self._since = now.mono
        self._limit_s = borrowing_s(
            len(action.sources), config.companions.wait_s, config.slurm.timeout_s, action.nodes
        )
        if core.companions.fetching is not None:
            self._spares = core.state.spares
        else:
            self._ask(core, now)
        sources = ", then ".join(map(str, action.sources))
        each = " each" if action.sources[1:] else ""
        text = (
            f"waiting for {count(action.nodes, 'node')} from {sources}: {config.companions.wait_s:g} s{each} "
            f"(companions.wait_s), {self._limit_s:.0f} s at most if Slurm answers slowly"
        )
        core.emit(Say(text=text))

    def _ask(self, core: Core, now: Now) -> None:
        suspects = (*self._fault.lost, *self._fault.named)
        self._request = core.companions.borrow(
            self._action.sources,
            self._action.nodes,
            suspects,
            now,
            some=self._action.some,
            near=self._action.near,
        )

    def step(self, core: Core, now: Now) -> Transition | None:
        """Start agents on the nodes that have come, and decide again."""
        request = self._request
        if core.leaving or core.ending:
            if request is not None:
                request.give_up()
            if core.leaving:
                return ToStopping(reason=core.leaving)
            return self._decide("the end of this run is near")
        if self._spares is not None:
            return self._await_fetched(core, self._spares, now)
        assert request is not None  # nothing is awaited that was asked for before
        answer = request.answer
        if answer is None:
            if now.mono - self._since < self._limit_s:
                return None
            request.give_up()
            return self._decide(f"no answer within {self._limit_s:.0f} s")
        core.starts.begin(tuple(answer.nodes.values()), now)
        return self._decide(*(f"{source}: {why}" for source, why in answer.refusals))

    def _await_fetched(self, core: Core, before: tuple[str, ...], now: Now) -> Transition | None:
        """Decide again with the nodes that have come meanwhile; without any, ask."""
        if (fetching := core.companions.fetching) is not None:
            if now.mono - self._since < self._limit_s:
                return None
            fetching.give_up()
        if set(core.state.spares) - set(before):
            return ToDeciding(fault=self._fault)
        self._spares, self._since = None, now.mono
        self._ask(core, now)
        return None

    def _decide(self, *reasons: str) -> Transition:
        fault = self._fault
        return ToDeciding(
            fault=structs.replace(
                fault,
                not_lent=(*(fault.not_lent or ()), *reasons),
                asked=(*fault.asked, *self._action.sources),
            )
        )
