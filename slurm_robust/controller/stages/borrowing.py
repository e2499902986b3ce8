"""Training is stopped, no standby is left, and companions are to lend nodes."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.transitions import ToBorrowing, ToDeciding, ToStopping, Transition
from slurm_robust.policy.patience import borrowing_s
from slurm_robust.util.text import count


class Borrowing:
    """Waits for the nodes, bounded; then the policy is asked again with what has come."""

    def __init__(self, begin: ToBorrowing) -> None:
        self._fault, self._action = begin.fault, begin.action
        self._since = self._limit_s = 0.0

    def enter(self, core: Core, now: Now) -> None:
        """Ask for them."""
        self._since = now.mono
        config = core.config
        self._limit_s = borrowing_s(
            len(self._action.sources), config.companions.wait_s, config.slurm.timeout_s, self._action.nodes
        )
        suspects = (*self._fault.lost, *self._fault.named)
        exclude = dict.fromkeys((*core.state.evicted, *suspects))
        core.companions.borrow(self._action.sources, self._action.nodes, exclude, some=self._action.some)
        nodes = count(self._action.nodes, "node")
        core.emit(Say(text=f"waiting for {nodes} from outside the allocation, {self._limit_s:.0f} s at most"))

    def step(self, core: Core, now: Now) -> Transition | None:
        """Start agents on the nodes that have come, and decide again."""
        if core.leaving or core.ending:
            core.companions.give_up()
            if core.leaving:
                return ToStopping(reason=core.leaving)
            return self._decide("the end of this run is near")
        answer = core.companions.answer
        if answer is None:
            if now.mono - self._since < self._limit_s:
                return None
            core.companions.give_up()
            return self._decide(f"no answer within {self._limit_s:.0f} s")
        core.starts.begin(tuple(answer.nodes.values()), now)
        return self._decide(*(f"{source}: {why}" for source, why in answer.refusals))

    def _decide(self, *reasons: str) -> Transition:
        fault = self._fault
        return ToDeciding(
            fault=structs.replace(
                fault,
                not_lent=(*(fault.not_lent or ()), *reasons),
                asked=(*fault.asked, *self._action.sources),
            )
        )
