"""The open incident: its symptoms, its end, and how long it takes."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import SaveEvidence
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Fault, finds_out_more
from slurm_robust.model.world import OpenIncident

DETECTING, REPEATING = "detecting", "repeating"
"""What an incident's time goes into beside stages: until it is seen, and between first step and new step."""


class _Clock:
    """Times of one incident by the monotonic clock; lost with the controller."""

    def __init__(self, number: int, detected: float, detect_s: float) -> None:
        self.number = number
        self.detected = detected
        self.decided: float | None = None
        self._stages = {DETECTING: detect_s}
        self._stage, self._since = DETECTING, detected

    def enter(self, stage: str, now: float) -> None:
        """Begin ``stage`` at ``now``; what was done until then is over."""
        self._stages[self._stage] = self._stages.get(self._stage, 0.0) + max(0.0, now - self._since)
        self._stage, self._since = stage, now

    def pass_over(self, seconds: float) -> None:
        """Count ``seconds`` in which the core's clock stood still: people waited all the same."""
        self.detected -= seconds
        self._since -= seconds
        if self.decided is not None:
            self.decided -= seconds

    def stages(self, end: float) -> dict[str, float]:
        """Return what the time went into until ``end``, in the order in which it first did."""
        self.enter("", end)
        return {stage: round(seconds, 3) for stage, seconds in self._stages.items() if seconds >= 0.0005}


class Incidents:
    """Opens, times and closes incidents; across controllers it has only wall clocks to go by."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock: _Clock | None = None

    def unwatched_s(self, now: Now) -> float:
        """Return the seconds since the earlier controller was heard, if its host is silent since; else 0.

        No controller could detect the fault before this one came.
        """
        state, fleet = self._context.state, self._context.fleet
        is_open = state.taken_from in state.world.slots and fleet.heartbeat(state.taken_from) is None
        return max(0.0, now.wall - state.silent_since) if is_open and state.silent_since else 0.0

    def open(self, fault: Fault, now: Now) -> None:
        """Open an incident: training is not productive. If one is open, add the fault as a symptom."""
        context, state = self._context, self._context.state
        assert fault.symptom is not None  # it was detected
        symptom, detail = fault.symptom, fault.detail
        detect_s = max(0.0, fault.detect_s, self.unwatched_s(now))
        if state.world.incident is not None:
            number = state.world.incident.number
            context.record(
                ev.SymptomAdded(t=now.wall, incident=number, symptom=symptom, detail=detail, why=fault.why)
            )
        else:
            number = state.incidents + 1
            self._clock = _Clock(number, now.mono, detect_s)
            context.record(
                ev.IncidentOpened(
                    t=now.wall,
                    incident=number,
                    generation=state.world.generation,
                    symptom=symptom,
                    detail=detail,
                    detect_s=detect_s,
                    best_step=state.world.best_step,
                    why=fault.why,
                )
            )
        why = f"; {fault.why}" if fault.why else ""
        context.emit(Say(text=f"incident {number}: {detail}{why} (detected after {detect_s:.2f} s)"))

    def decide(self, decided: ev.Decided, now: Now) -> None:
        """Write down what is decided to do; the first decision that finds out nothing more is timed."""
        # 0 if none is open, or if another controller detected it.
        localise_s = now.mono - self._clock.detected if self._clock is not None else 0.0
        self._context.record(structs.replace(decided, localise_s=localise_s))
        drill = f"drill {decided.drill}: " if decided.drill else ""
        self._context.emit(Say(text=f"incident {decided.incident}: {drill}{decided.reason}"))
        if self._clock is not None and self._clock.decided is None and not finds_out_more(decided.actions):
            self._clock.decided = now.mono

    def stage(self, stage: str, now: Now) -> None:
        """Note that the job comes to ``stage``."""
        if self._clock is not None:
            self._clock.enter(stage, now.mono)

    def pass_over(self, seconds: float) -> None:
        """See :meth:`_Clock.pass_over`."""
        if self._clock is not None:
            self._clock.pass_over(seconds)

    def close(self, step: int, age_s: float, now: Now) -> None:
        """Close the incident: the first new step was completed ``age_s`` seconds ago."""
        context, incident = self._context, self._context.world.incident
        assert incident is not None
        by_itself = incident.decided is None
        clock = self._clock if self._clock is not None and self._clock.number == incident.number else None
        if clock is not None:
            # It may have been completed before the first sign, and heard of after a silence.
            age_s = min(age_s, max(0.0, now.mono - clock.detected))
        recover_s = self._recovery_s(incident, age_s, now)
        stages = clock.stages(now.mono - age_s) if clock is not None else {}
        self._clock = None
        context.record(
            ev.IncidentClosed(
                t=now.wall - age_s,
                incident=incident.number,
                generation=context.world.generation,
                step=step,
                recover_s=recover_s,
                stages=stages,
            )
        )
        context.ask(SaveEvidence(number=incident.number), now)
        took = f" (recovery took {recover_s:.2f} s)" if recover_s is not None else ""
        how = "; training went on by itself" if by_itself else took
        over = f"over, step {step} is done{how}"
        if not context.world.reports:
            over = f"over, the script makes steps again{how}; those that it repeats are not known"
        context.emit(Say(text=f"incident {incident.number}: {over}"))

    def _recovery_s(self, incident: OpenIncident, age_s: float, now: Now) -> float | None:
        """Return the seconds from the decision to a step completed ``age_s`` ago; None if unknown."""
        clock = self._clock
        if clock is not None and clock.number == incident.number and clock.decided is not None:
            return max(0.0, now.mono - age_s - clock.decided)
        if incident.decided is None:
            return None
        recover_s = now.wall - age_s - incident.decided
        known = "by wall clocks, since another controller decided" if recover_s > 0 else "unknown"
        self._context.note(f"incident {incident.number}: recover_s is {known}", "", now)
        return recover_s if recover_s > 0 else None
