"""The trial of an update before it is applied: imports on all nodes, then the first steps on one of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.release import ReleaseState, UpdateEnd, When
from slurm_robust.model.standby import Rehearsal, RehearsalState, StandbyStage
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, one_line
from slurm_robust.wire.messages import Heartbeat, Phase, Rehearse, TryRelease

RESEND_S = 5.0

STEPLESS_S = 60.0
"""If ranks have run for this long and the job has never made a step, it makes none that can be counted."""

WAITS_S = 30.0
"""A trial that waits longer for the first step of training says so."""

_MAX_CHARS = 300


@dataclass
class _Steps:
    """A rehearsal that runs the first steps of a release on one node."""

    node: str
    agent: str
    number: int
    release: str
    beside: bool
    sent: float
    limit_s: float
    checkpoint: CheckpointId | None = None
    """What the release has to fit."""
    discard_optimizer: bool = False


@dataclass
class _Trial:
    """The trial that is under way."""

    update: int
    began: float
    number: int
    sent: dict[str, float] = field(default_factory=dict)
    """When the order to try went last to each agent."""
    imported: bool = False
    """All nodes have answered, or are not waited for."""
    untried: list[str] = field(default_factory=list)
    waits: float | None = None
    """Since when it waits for the first step of training."""
    is_waiting_said: bool = False
    steps: _Steps | None = None
    failed: Rehearsal | None = None
    """The rehearsal of the new release; whether it says anything, one of the release that runs shows."""
    failed_on: str = ""


class Trials:
    """Tries the update that waits, while training gets on. A recovery never waits for it."""

    def __init__(self, context: Context, checkpoints: Checkpoints) -> None:
        self._context, self._checkpoints = context, checkpoints
        self._trial: _Trial | None = None
        self._ranks = context.world.generation, context.started  # since when they are seen to run
        self.doing = ""
        """What the trial is at, for people; "" without one."""

    def uses(self, node: str) -> bool:
        """Return whether the trial runs its steps on this standby."""
        steps = self._trial.steps if self._trial is not None else None
        return steps is not None and steps.node == node

    def step(self, now: Now) -> None:
        """Go on with the trial of what waits. Called at each turn."""
        context, state = self._context, self._context.state
        update, generation = state.update, context.world.generation
        if self._ranks[0] != generation or not context.world.running:
            self._ranks = generation, now.mono
        self.doing = ""
        if update is not None and state.tried is not None and not state.tried.ok:
            self._end_refused(update, state.tried.text, now)  # an earlier controller could not
        elif update is None or state.tried is not None or context.leaving or context.ending:
            self._trial = None
        else:
            self._try(update, now)

    def _try(self, update: ev.UpdateRequested, now: Now) -> None:
        context = self._context
        if not self._is_to_be_tried(update):
            untried = () if context.config.updates.trial else ("anything: updates.trial is off",)
            self._pass(update, 0.0, untried, now)
            return
        world = context.world
        if not world.running or world.stopping is not None or world.incident is not None:
            self._trial = None  # begun anew after the recovery
            self.doing = "waits until training goes on"
            return
        if self._trial is None or self._trial.update != update.update:
            self._trial = _Trial(update.update, now.mono, context.number_question())
        trial, most_s = self._trial, context.config.updates.trial_s
        left_s = most_s - (now.mono - trial.began)
        if not trial.imported:
            self._follow_imports(trial, update, left_s, now)
        if self._trial is trial and trial.imported:
            self._follow_steps(trial, update, left_s, now)

    def _is_to_be_tried(self, update: ev.UpdateRequested) -> bool:
        """Return whether it is unknown how the release runs."""
        state = self._context.state
        was_good = state.releases.get(update.release) is ReleaseState.GOOD
        return self._context.config.updates.trial and not was_good and update.release != state.release

    def _is_silent(self, node: str, now: Now) -> bool:
        context = self._context
        dead_s = context.config.timings.node_dead_s
        return context.fleet.is_silent(node, dead_s, now.mono, context.started)

    def _follow_imports(self, trial: _Trial, update: ev.UpdateRequested, left_s: float, now: Now) -> None:
        """Have each node unpack the release and import what it needs."""
        context, waits, silent, done = self._context, False, [], 0
        nodes = (*context.world.slots, *context.state.spares)
        for node in nodes:
            heartbeat = context.fleet.heartbeat(node)
            tried = heartbeat.tried if heartbeat is not None else None
            if tried is not None and tried.number == trial.number:
                if not tried.ok:
                    self._refuse(update, node, tried.text, tried.traceback, trial, now)
                    return
                done += 1
            elif left_s <= 0 or node in context.state.aside or self._is_silent(node, now):
                silent.append(node)
            elif heartbeat is None:
                waits = True  # this controller is a new one
            elif not context.knows(node, TryRelease):
                silent.append(node)
            else:
                waits = True
                if now.mono - trial.sent.get(heartbeat.agent, -RESEND_S) >= RESEND_S:
                    trial.sent[heartbeat.agent] = now.mono
                    order = TryRelease(
                        epoch=context.state.epoch,
                        number=trial.number,
                        release=update.release,
                        limit_s=left_s,
                    )
                    context.send(node, order)
        self.doing = f"imports: done on {done} of {count(len(nodes), 'node')}"
        if not waits:
            trial.imported = True
            trial.untried += [f"its imports on {fold(silent)}: no answer"] if silent else []

    def _follow_steps(self, trial: _Trial, update: ev.UpdateRequested, left_s: float, now: Now) -> None:
        """Have one node make the first steps, as one rank of a pretended world."""
        context, steps = self._context, trial.steps
        if steps is not None:
            whose = "" if trial.failed is None else " of the release that runs, to compare"
            self.doing = f"first steps{whose} on {steps.node}"
        heartbeat = context.fleet.heartbeat(steps.node) if steps is not None else None
        if left_s <= 0:
            self._end_steps(trial, update, "the trial had no time left (updates.trial_s)", now)
        elif steps is None:
            self._begin_steps(trial, update, left_s, now)
        elif heartbeat is None or heartbeat.agent != steps.agent or self._is_silent(steps.node, now):
            trial.steps = None  # another node, or another agent there
        elif (seen := heartbeat.rehearsal) is not None and seen.number == steps.number:
            if seen.state is not RehearsalState.RUNNING:
                self._conclude(trial, update, steps, seen, now)
        elif not steps.beside and steps.node not in context.state.spares:
            trial.steps = None
        elif now.mono - steps.sent >= RESEND_S:
            steps.sent = now.mono
            self._send_steps(steps)

    def _begin_steps(self, trial: _Trial, update: ev.UpdateRequested, left_s: float, now: Now) -> None:
        context, state = self._context, self._context.state
        release = update.release if trial.failed is None else state.release
        standbys = {
            node: heartbeat
            for node, heartbeat in context.fleet.heartbeats(state.spares).items()
            if node not in state.aside and not self._is_silent(node, now)
        }
        node = next((n for n, heartbeat in standbys.items() if self._is_free(n, heartbeat)), "")
        beside = not standbys
        if beside and state.gpus:
            why = "no standby is there for them, and ranks use the GPUs of the other nodes"
            self._end_steps(trial, update, why, now)
            return
        if beside:
            slots = [slot for slot in state.world.slots if not self._is_silent(slot, now)]
            node = state.own_node if state.own_node in slots else next(iter(slots), "")
        if not context.trains:
            self._await_training(trial, update, now)
            return
        trial.waits = None
        heartbeat = context.fleet.heartbeat(node)
        if heartbeat is None:
            self.doing = f"waits until {fold(standbys)} can make its first steps"
            return  # bounded by the time of the trial
        last = heartbeat.rehearsal.number if heartbeat.rehearsal is not None else 0
        number = max(context.number_question(), last + 1)
        trial.steps = steps = _Steps(
            node=node,
            agent=heartbeat.agent,
            number=number,
            release=release,
            beside=beside,
            sent=now.mono,
            limit_s=min(left_s, context.config.standby.rehearse_s),
        )
        if trial.failed is None:
            steps.checkpoint = self._checkpoints.to_fit(update.from_step)
            steps.discard_optimizer = update.discard_optimizer
        self._send_steps(steps)

    def _await_training(self, trial: _Trial, update: ev.UpdateRequested, now: Now) -> None:
        """Wait for the first step of training, unless no generation of the job has ever made one.

        Rehearsals end after steps, so without steps that can be counted none would end.
        """
        world = self._context.world
        self.doing = "waits for the first step of training"
        if not world.has_stepped and now.mono - self._ranks[1] > STEPLESS_S:
            self._end_steps(trial, update, "the script makes no steps that can be counted", now)
            return
        trial.waits = now.mono if trial.waits is None else trial.waits
        if now.mono - trial.waits > WAITS_S and not trial.is_waiting_said:
            trial.is_waiting_said = True
            text = f"the trial of update {update.update} waits for the first step"
            self._context.emit(Say(text=f"{text} of generation {world.generation}"))

    def _is_free(self, node: str, heartbeat: Heartbeat) -> bool:
        known, rehearsal = self._context.state.standbys.get(node), heartbeat.rehearsal
        is_tested = known is not None and known.stage is StandbyStage.TESTING
        rehearses = rehearsal is not None and rehearsal.state is RehearsalState.RUNNING
        is_idle = heartbeat.ready and heartbeat.phase in (Phase.IDLE, Phase.ENDED)
        return is_idle and not is_tested and not rehearses and self._context.knows(node, Rehearse)

    def _send_steps(self, steps: _Steps) -> None:
        state, config = self._context.state, self._context.config.standby
        self._context.send(
            steps.node,
            Rehearse(
                epoch=state.epoch,
                number=steps.number,
                slots=len(state.world.slots),
                steps=config.rehearse_steps,
                limit_s=steps.limit_s,
                writes=config.rehearse_writes,
                release=steps.release,
                beside=steps.beside,
                checkpoint=steps.checkpoint,
                discard_optimizer=steps.discard_optimizer,
            ),
        )

    def _conclude(
        self, trial: _Trial, update: ev.UpdateRequested, steps: _Steps, seen: Rehearsal, now: Now
    ) -> None:
        """Take in how a rehearsal went. A failure counts only if the release that runs can be rehearsed.

        What is forbidden to rehearsals says nothing: the release that runs may have done it before it was.
        """
        has_passed, is_known = seen.state is RehearsalState.PASSED, self._runs_in_rehearsals()
        # Without steps that can be counted no rehearsal ends before its time, and that is no failure.
        was_late = seen.took_s >= round(steps.limit_s, 1)
        if trial.failed is not None:
            if has_passed:
                self._refuse_steps(trial, update, now)
            else:
                why = f"they fail in a rehearsal ({trial.failed.reason}), as does the release that runs"
                self._end_steps(trial, update, why, now)
        elif has_passed:
            self._pass(update, now.mono - trial.began, tuple(trial.untried), now)
        elif seen.state is RehearsalState.FAILED and not was_late and not seen.confined:
            trial.failed, trial.failed_on, trial.steps = seen, steps.node, None
            if is_known:
                self._refuse_steps(trial, update, now)
        else:
            why = seen.reason or f"the rehearsal on {steps.node} was ended"
            self._end_steps(trial, update, why, now)

    def _runs_in_rehearsals(self) -> bool:
        """Return whether the release that runs has passed a rehearsal of a standby."""
        state = self._context.state
        known = (state.standbys.get(node) for node in state.spares)
        return any(standby is not None and standby.stage is StandbyStage.REHEARSED for standby in known)

    def _end_steps(self, trial: _Trial, update: ev.UpdateRequested, why: str, now: Now) -> None:
        untried = (*trial.untried, f"its first steps: {why}")
        self._pass(update, now.mono - trial.began, untried, now)

    def _refuse_steps(self, trial: _Trial, update: ev.UpdateRequested, now: Now) -> None:
        failed = trial.failed
        assert failed is not None
        text = f"its first steps fail: {failed.reason}"
        self._refuse(update, trial.failed_on, text, failed.traceback, trial, now)

    def _pass(self, update: ev.UpdateRequested, took_s: float, untried: tuple[str, ...], now: Now) -> None:
        self._trial = None
        self._context.record(
            ev.UpdateTried(
                t=now.wall, update=update.update, ok=True, took_s=round(took_s, 3), untried=untried
            )
        )
        lacks = f"; not tried: {'; '.join(untried)}" if untried else ""
        at = "is applied" if update.when is When.NOW else "waits for the next recovery"
        self._context.emit(Say(text=f"update {update.update} {at}{lacks}"))

    def _refuse(
        self,
        update: ev.UpdateRequested,
        node: str,
        text: str,
        traceback: str,
        trial: _Trial,
        now: Now,
    ) -> None:
        self._trial = None
        text = one_line(text, _MAX_CHARS)
        self._context.record(
            ev.UpdateTried(
                t=now.wall,
                update=update.update,
                ok=False,
                took_s=round(now.mono - trial.began, 3),
                node=node,
                text=text,
                traceback=traceback,
                untried=tuple(trial.untried),
            )
        )
        self._end_refused(update, text, now)
        said = (
            f"update {update.update} is refused: release {update.release} fails its trial on {node}: {text}"
        )
        self._context.emit(Say(text=said))

    def _end_refused(self, update: ev.UpdateRequested, reason: str, now: Now) -> None:
        self._context.record(
            ev.UpdateEnded(t=now.wall, update=update.update, how=UpdateEnd.REFUSED, reason=reason)
        )
