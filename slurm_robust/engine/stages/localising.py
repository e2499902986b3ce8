"""At which rank training hangs, or what makes it slow: the stacks of all ranks show it while they stand."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import SaveStacks
from slurm_robust.engine.stages.watch import all_done, find_fault, leave
from slurm_robust.engine.transitions import ToLocalising, ToRunning, ToStopping, Transition
from slurm_robust.engine.units.stackbook import StackRound
from slurm_robust.model.incident import Symptom
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.policy.sampling import Sampling, reason_to_go_on
from slurm_robust.util.text import count


class Localising:
    """Samples the stacks until :mod:`slurm_robust.policy.sampling` knows where the fault is.

    If the fault heals meanwhile, nothing is done about it.
    """

    def __init__(self, begin: ToLocalising) -> None:
        self._agents = begin.agents
        self._fault = begin.fault
        self._sampling: Sampling | None = None
        self._silent: set[tuple[str, ...]] = set()
        self._since = 0.0
        self._waits_until: float | None = None
        self._steps_before = -1

    def enter(self, core: Core, now: Now) -> None:
        """Ask for the first sample."""
        self._steps_before = _slowest_step(core, now)
        since = now.mono - self._fault.detect_s
        self._sampling = Sampling(self._fault, since, core.config.detect.phase_s)
        self._ask(core, self._sampling, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Collect, conclude, and leave with what is known; or go on training if it goes on."""
        assert self._sampling is not None
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        if all_done(core, now):
            return ToRunning(agents=self._agents)
        fault = find_fault(core, self._agents, self._since, now)
        if fault is not None:
            return leave(core, self._agents, fault, now)
        if self._fault.symptom is Symptom.HANG and _slowest_step(core, now) > self._steps_before:
            core.note("training resumed; the suspected hang was a false alarm", "", now)
            return ToRunning(agents=self._agents)
        if self._sampling.patience:
            fault = core.monitor.check(now)
            if fault is not None and fault.named:
                return leave(core, self._agents, fault, now)
        if self._waits_until is not None:
            if now.mono >= self._waits_until:
                self._ask(core, self._sampling, now)
            return None
        taken = core.stacks.taken(now)
        return None if taken is None else self._conclude(core, self._sampling, taken, now)

    def _ask(self, core: Core, sampling: Sampling, now: Now) -> None:
        self._since, self._waits_until = now.mono, None
        core.stacks.ask(now, sampling.native)

    def _conclude(self, core: Core, sampling: Sampling, taken: StackRound, now: Now) -> Transition | None:
        stacks, missing = taken.stacks, taken.missing
        if missing and missing not in self._silent:
            self._silent.add(missing)
            core.evidence_missing("stacks", missing, f"no answer within {taken.limit_s:g} s", now)
        silent = [rank for node in missing for rank in core.world.placement.ranks_of(node)]
        was_patient = bool(sampling.patience)
        found = sampling.add(stacks, silent, core.layout, begun=self._since, now=now.mono)
        if sampling.patience and not was_patient:
            core.note(sampling.patience, "", now)
            core.emit(Say(text=sampling.patience))
        if isinstance(found, float):
            self._waits_until = found
            return None
        return self._leave(core, sampling, found, stacks, now)

    def _leave(
        self, core: Core, sampling: Sampling, found: Localisation, stacks: tuple[RankStacks, ...], now: Now
    ) -> Transition:
        if why := reason_to_go_on(self._fault, found, core.rules, core.state):
            core.note(why, "", now)
            return ToRunning(agents=self._agents)
        if sampling.is_confirmed(found):
            core.monitor.confirm_hang(now)
        following = leave(core, self._agents, structs.replace(self._fault, localisation=found), now)
        assert core.world.incident is not None  # it is open now
        number = core.world.incident.number
        core.ask(SaveStacks(number=number, stacks=stacks, localisation=found), now)
        core.emit(Say(text=f"incident {number}: stacks of {count(len(stacks), 'rank')}: {found.reason}"))
        return following


def _slowest_step(core: Core, now: Now) -> int:
    return min((record.step for record in core.progress(now)), default=-1)
