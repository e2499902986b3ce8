"""Many nodes are silent together, perhaps since this node is cut off: wait, and act on none of them."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.stages.watch import standbys_heard, unexplained_silence
from slurm_robust.engine.transitions import (
    ToDeciding,
    ToRunning,
    ToStopping,
    ToUnreachable,
    Transition,
)
from slurm_robust.engine.units.companions import NodeRequest
from slurm_robust.policy.cliques import keeps_to_cliques
from slurm_robust.policy.silence import enough_waited, is_settled
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import clock, count

ASK_EVERY_S = 5.0
PATIENT_S = 2.0
"""A shorter wait is not worth a line."""


class Unreachable:
    """Waits for the nodes to be heard again, bounded by ``timings.unreachable_s``.

    Training may well go on meanwhile: it needs no controller. The job goes on without the nodes before the
    bound if standbys are heard, or if Slurm itself has given the nodes up. If standbys are missing for that,
    the reservation is asked for them, and they end if the nodes come back.
    """

    def __init__(self, begin: ToUnreachable) -> None:
        self._begin = begin
        self._since = 0.0
        self._asked_at = 0.0
        self._silent: tuple[str, ...] = ()
        self._shrunk_at: float | None = None
        self._requests: list[NodeRequest] = []  # for standbys
        self._asked = 0  # how many standbys the reservation was asked for
        self._is_patience_said = False
        self._is_missing_said = False

    def enter(self, core: Core, now: Now) -> None:
        """Ask Slurm, the second witness."""
        self._since = now.mono
        self._ask(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Go on training when the nodes are back; go on without them when waiting is over."""
        if core.leaving or core.ending:  # no time is left to wait: what follows must not lead here again
            return ToStopping(reason=core.leaving or core.ending or "", waited=True)
        # Nodes that this controller has never heard, after a takeover, were silent when the stage began.
        found = unexplained_silence(core, self._since - 2 * core.config.timings.node_dead_s, now)
        silent = tuple(n for n in found.nodes if n in core.world.slots) if found is not None else ()
        if len(silent) < len(self._silent):
            self._shrunk_at = now.mono
        self._silent = silent
        if found is None or not silent:
            ended = core.starts.ends(core.world.slots, now).steps
            why = f"the step of the agents on {fold(ended)} ended" if ended else "all nodes are heard again"
            return self._go_on(core, why, now)
        if not found.cause:
            if self._is_settled(core, now):
                return self._go_on(core, f"only {fold(silent)} does not respond", now)
        elif why := self._is_over(core, silent, now):
            return self._go_without(core, why, now)
        else:
            self._fetch_standbys(core, silent, now)
        if silent and not self._is_missing_said and now.mono - self._since > PATIENT_S:
            self._say_missing(core, silent, now)
        if now.mono - self._asked_at > ASK_EVERY_S:
            self._ask(core, now)
        return None

    def _say_missing(self, core: Core, silent: tuple[str, ...], now: Now) -> None:
        """Say what only these nodes have, how long the wait for them is, and what follows."""
        self._is_missing_said = True
        lost = core.checkpoints.without(silent, now)
        missing = lost.missing
        until = clock(now.wall + self._since + core.config.timings.unreachable_s - now.mono)
        what = missing.describe() if missing is not None else f"{fold(silent)} does not answer"
        if missing is None and len(silent) > 1:
            what = f"{fold(silent)} do not answer"
        them = "them" if len(missing.nodes if missing is not None else silent) > 1 else "it"
        text = f"{what}: waiting for {them} until {until}, else {lost.instead}"
        core.note(text, "", now)
        core.emit(Say(text=text))

    def _fetch_standbys(self, core: Core, silent: tuple[str, ...], now: Now) -> None:
        """Ask the reservation for the standbys that are missing to go on without ``silent``.

        Do not ask if no other node is heard: then this node itself may be cut off.
        """
        reserved = tuple(source for source in core.rules.sources if source.reservation)
        if core.config.mode != "act" or core.companions.fetching is not None or not reserved:
            return
        standbys = standbys_heard(core, now)
        missing = len(silent) - len(standbys)
        is_alone = not standbys and {*core.world.slots} - {*silent} <= {core.state.own_node}
        if is_alone or missing <= self._asked:
            return
        more = missing - self._asked
        near = silent[-more:] if keeps_to_cliques(core.state, core.rules) else ()
        self._requests.append(core.companions.fetch(reserved, more, silent, now, some=False, near=near))
        self._asked = missing

    def _go_on(self, core: Core, why: str, now: Now) -> Transition:
        """Go on as if nothing had happened: a node that is still silent is judged by itself."""
        core.note(why, "", now)
        core.emit(Say(text=why))
        if not self._silent:
            for request in self._requests:
                request.take_back("the nodes that were silent are heard again", now)
        fault = self._begin.fault
        if not self._begin.ended:
            core.monitor.excuse(now.mono - self._since, now)
            return ToRunning(agents=self._begin.agents)
        step_ended = core.starts.ends((*fault.lost, *core.state.spares), now).steps
        ended = core.starts.ends(fault.lost, now).agents
        away = {*self._silent, *step_ended, *ended}
        fault = structs.replace(
            fault,
            lost=tuple(node for node in fault.lost if node in away),
            alive=tuple(node for node in core.world.slots if node not in away),
            unreachable="",
            step_ended=step_ended,
            ended=ended,
        )
        return ToDeciding(fault=fault)

    def _go_without(self, core: Core, why: str, now: Now) -> Transition:
        core.emit(Say(text=why))
        if self._begin.ended:
            return ToDeciding(fault=self._begin.fault)
        return ToStopping(reason=why, fault=self._begin.fault, waited=True)

    def _ask(self, core: Core, now: Now) -> None:
        self._asked_at = now.mono
        core.witnesses.ask_slurm(core.world.slots, now)

    def _is_settled(self, core: Core, now: Now) -> bool:
        since_s = None if self._shrunk_at is None else now.mono - self._shrunk_at
        return is_settled(since_s, core.config.timings.node_dead_s)

    def _is_over(self, core: Core, silent: tuple[str, ...], now: Now) -> str:
        """Return why the wait for the nodes is over, "" while it is not."""
        # While some come back, others may, too.
        standbys = len(standbys_heard(core, now)) if self._is_settled(core, now) else 0
        steps = core.checkpoints.repeated(silent, now) if standbys >= len(silent) else 0
        pace = core.monitor.pace
        repeated_s = steps * (pace.p50_s or pace.p99_s)
        if repeated_s > PATIENT_S and not self._is_patience_said:
            self._is_patience_said = True
            text = (
                f"there are standbys enough, but only {fold(silent)} have the newest copies: waiting for "
                f"{repeated_s:.0f} s, as long as it would take to repeat {count(steps, 'step')}"
            )
            core.note(text, "", now)
            core.emit(Say(text=text))
        return enough_waited(
            silent,
            now.mono - self._since,
            core.config.timings.unreachable_s,
            standbys=standbys,
            given_up=core.witnesses.gave_up(silent),
            repeated_s=repeated_s,
        )
