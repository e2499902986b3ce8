"""Where does training hang, or what makes it slow? Asked of the stacks of all ranks while they stand."""

from __future__ import annotations

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.analysis.stacks.moving import Look, awaited, is_busy, is_idle, is_moving
from slurm_robust.controller import restoring
from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, SaveStacks, Say
from slurm_robust.controller.stages.watch import all_done, find_trouble, leave
from slurm_robust.controller.transitions import ToLocalising, ToRunning, ToStopping, Transition, Why
from slurm_robust.model.incident import Symptom
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.policy.evidence import worth_tests
from slurm_robust.policy.stacks import moved_with_ranks, place
from slurm_robust.util.text import count, named_ranks

# A rank that only takes long moves on within seconds; evicting its node would be for nothing.
HANG_ROUNDS = 4
HANG_EVERY_S = 2.0

# Of so few ranks in question the next look also shows the calls in libraries: without them a wait for the GPU
# inside a call in C looks like a computation. It stops each for some tenths of a second.
MOST_NATIVE = 8

# A rank that computes while the others wait may evaluate: it is looked at so often, until detect.phase_s.
PATIENCE_EVERY_S = 10.0

# ByteRobust, 6.2: a decline is judged by five looks ten seconds apart.
SLOW_ROUNDS = 5
SLOW_EVERY_S = 10.0


class Localising:
    """Looks until two looks in a row at a hang agree, five times at a decline.

    What heals meanwhile is let be.
    """

    def __init__(self, begin: ToLocalising) -> None:
        self._agents = begin.agents
        self._trouble = begin.trouble
        self._is_hang = begin.trouble.symptom is Symptom.HANG
        self._rounds: list[Localisation] = []
        self._looks: list[Look] = []
        self._begun = 0.0
        self._is_patient = False
        self._silent: set[tuple[str, ...]] = set()
        self._since = 0.0
        self._waits_until: float | None = None
        self._steps_before = -1
        self._in_question: set[int] = set()

    def enter(self, core: Core, now: Now) -> None:
        """Ask for the first round."""
        self._steps_before = _slowest_step(core, now)
        self._begun = now.mono - self._trouble.detect_s
        self._ask(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Collect, conclude, and leave with what is known; or go on training if it goes on."""
        if core.leaving or core.ending:
            return ToStopping(reason=core.leaving or core.ending or "")
        if all_done(core, now):
            return ToRunning(agents=self._agents)
        trouble = find_trouble(core, self._agents, self._since, now)
        if trouble is not None:
            return leave(core, self._agents, Why(trouble=trouble), now)
        if self._is_hang and _slowest_step(core, now) > self._steps_before:
            core.note("training goes on by itself: what looked like a hang was none", "", now)
            return ToRunning(agents=self._agents)
        if self._is_patient:
            trouble = core.vitals(now).look(core, now)
            if trouble is not None and trouble.named:
                return leave(core, self._agents, Why(trouble=trouble), now)
        if self._waits_until is not None:
            if now.mono >= self._waits_until:
                self._ask(core, now)
            return None
        return self._conclude(core, now) if core.stacks.over(now.mono) else None

    def _ask(self, core: Core, now: Now) -> None:
        self._since, self._waits_until = now.mono, None
        core.ask_for_stacks(now, tuple(sorted(self._in_question)))

    def _conclude(self, core: Core, now: Now) -> Transition | None:
        layout, stacks = restoring.layout_now(core), core.stacks.all()
        placement, missing = core.state.placement, tuple(core.stacks.missing())
        if missing and missing not in self._silent:
            self._silent.add(missing)
            core.lacks("stacks", missing, f"no answer within {core.stacks.limit_s:g} s", now)
        silent = [rank for node in missing for rank in placement.ranks_of(node)]
        found = localise(stacks, layout, silent, moving=not self._is_hang)
        self._rounds.append(found)
        if self._is_hang:
            look = Look(at=self._since, stacks={stack.rank: stack for stack in stacks})
            self._looks = [*self._looks, look][-HANG_ROUNDS:]
            computing = awaited(self._looks[-1], layout)
            ranks = found.ranks or computing
            if len(self._in_question | set(ranks)) <= MOST_NATIVE:
                self._in_question.update(ranks)
            # Who waits gets on with nothing, even if it uses a processor: waits for a GPU spin.
            is_own = set(ranks) <= set(computing)
            if not found.halted and is_own and self._may_go_on(core, ranks, now):
                return None
            if self._agree():
                return self._leave(core, found, stacks, now)
            if len(self._rounds) < HANG_ROUNDS:
                self._waits_until = now.mono + HANG_EVERY_S
                return None
            reason = f"{HANG_ROUNDS} looks at the stacks named different ranks, the last: {found.reason}"
            return self._leave(core, Localisation(reason=reason, healthy=found.healthy), stacks, now)
        if len(self._rounds) < SLOW_ROUNDS:
            self._waits_until = self._since + SLOW_EVERY_S
            return None
        return self._leave(core, vote(self._rounds, layout), stacks, now)

    def _may_go_on(self, core: Core, ranks: tuple[int, ...], now: Now) -> bool:
        """Whether those for whom the others wait get on with something, so that another look is due later."""
        limit_s = core.config.detect.phase_s
        if len(self._looks) < 2 or not is_busy(self._looks, ranks) or now.mono - self._begun > limit_s:
            return False
        if not is_moving(self._looks, ranks):
            # The same place twice may be chance, as long as there were few looks.
            if len(self._looks) < HANG_ROUNDS:
                self._waits_until = now.mono + HANG_EVERY_S
            return len(self._looks) < HANG_ROUNDS
        if not self._is_patient:
            self._is_patient = True
            text = (
                f"{self._trouble.detail}; {named_ranks(ranks)} computes on, maybe in an evaluation that is "
                f"not announced: waiting up to {span(limit_s)} (detect.phase_s). "
                "'with slurm_robust.phase(\"evaluation\"):' in the script announces it"
            )
            core.note(text, "", now)
            core.emit(Say(text=text))
        self._waits_until = now.mono + PATIENCE_EVERY_S
        return True

    def _is_the_codes_own_pace(self, core: Core, found: Localisation, now: Now) -> bool:
        """Whether a decline has moved with the rank to another node: then no node makes it faster."""
        if self._is_hang or not found.ranks:
            return False
        moved = moved_with_ranks(place(self._trouble.symptom, found, core.state), core.state)
        if moved is None:
            return False
        where = ",".join(moved.nodes)
        text = (
            f"{self._trouble.detail}; {found.reason}; it was the same on {where}: it is the code, and goes on"
        )
        core.note(text, "", now)
        return True

    def _is_to_be_tested(self, core: Core) -> bool:
        is_slow = self._trouble.symptom is Symptom.SLOW
        return is_slow and worth_tests(self._trouble.times, core.rules, core.state)

    def _agree(self) -> bool:
        return len(self._rounds) > 1 and self._rounds[-2].ranks == self._rounds[-1].ranks

    def _leave(self, core: Core, found: Localisation, stacks: tuple[RankStacks, ...], now: Now) -> Transition:
        is_slow_only = self._trouble.hint or not self._is_hang
        if self._is_the_codes_own_pace(core, found, now):
            return ToRunning(agents=self._agents)
        if not found.ranks and is_slow_only and not self._is_to_be_tested(core):
            # It may still be training, if slowly: without a culprit nothing is gained by stopping it.
            again = f" (look {self._trouble.times})" if self._trouble.times > 1 else ""
            core.note(f"{self._trouble.detail}; {found.reason}{again}", "", now)
            return ToRunning(agents=self._agents)
        if self._is_hang and found.ranks and (found.halted or is_idle(self._looks, found.ranks)):
            core.vitals(now).cause_found(core, now)
        why = Why(trouble=self._trouble, localisation=found)
        following = leave(core, self._agents, why, now)
        assert core.state.incident is not None
        number = core.state.incident.number
        core.emit(SaveStacks(number=number, stacks=stacks, localisation=found))
        core.emit(Say(text=f"incident {number}: stacks of {count(len(stacks), 'rank')}: {found.reason}"))
        return following


def _slowest_step(core: Core, now: Now) -> int:
    records = core.fleet.progress(core.state.slots, core.state.generation, now.mono)
    return min((record.step for record in records), default=-1)
