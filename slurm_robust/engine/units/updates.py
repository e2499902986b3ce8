"""Updates of the job's code: what its owner asks for, the trial before it is applied, and when it is due."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from slurm_robust.analysis.progress.bounds import span
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import NoAnswer, ReadRelease
from slurm_robust.engine.units.checkpoints import Checkpoints
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.progress import Progress
from slurm_robust.model.release import NAME_LETTERS, Release, ReleaseState, UpdateEnd, When
from slurm_robust.model.standby import Rehearsal, RehearsalState, StandbyStage
from slurm_robust.policy.rollback import WARM_UP_STEPS, is_proven, slower, way_back
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, one_line
from slurm_robust.wire.messages import Heartbeat, Phase, Rehearse, TryRelease, UpdateJob, UpdateReply

RESEND_S = 5.0
MAX_ANSWERS = 64
"""So many requests are remembered by their tokens: who asks again gets the same answer."""

_NAME = re.compile(rf"[0-9a-f]{{{NAME_LETTERS}}}")
_MAX_CHARS = 300


def to_asker(token: str) -> str:
    """Return the name by which messages reach who has asked with ``token``."""
    return f"update {token}"


@dataclass
class _Steps:
    """A rehearsal that runs the first steps of a release on one node."""

    node: str
    agent: str
    number: int
    release: str
    beside: bool
    sent: float
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
    steps: _Steps | None = None
    failed: Rehearsal | None = None
    """The rehearsal of the new release; whether it says anything, one of the release that runs shows."""
    failed_on: str = ""


@dataclass
class _Measured:
    """How long the steps of one generation of a candidate take."""

    generation: int
    first: int
    """The step that it completed first."""
    newest: tuple[int, float]
    """The newest step, and when it was completed."""
    times: list[float] = field(default_factory=list)
    steps: int = 0
    """How many were measured."""

    def see(self, step: int, at: float) -> None:
        """Take in that ``step`` was completed ``at`` that time."""
        before, since = self.newest
        if step <= before:
            return
        self.newest = step, at
        if before >= self.first + WARM_UP_STEPS:
            self.times.append((at - since) / (step - before))
            self.steps += step - before


class Updates:
    """One update waits at a time. It is tried while training gets on, and a recovery never waits for that."""

    def __init__(self, context: Context, checkpoints: Checkpoints, is_stopping: Callable[[], bool]) -> None:
        """``is_stopping``: whether ranks are being stopped for an update."""
        self._context, self._checkpoints, self._is_stopping = context, checkpoints, is_stopping
        self._trial: _Trial | None = None
        self._answers: dict[str, UpdateReply] = {}
        self._measured: _Measured | None = None
        self._asking: set[str] = set()  # tokens of requests that wait for what storage says

    # -- what its owner asks for -------------------------------------------------------------------

    def request(self, wish: UpdateJob, now: Now) -> None:
        """Accept or refuse an update. The answer is sent when storage has said what it needs to know."""
        if wish.token in self._asking:
            return
        if (known := self._known(wish)) is not None:
            self._context.send(to_asker(wish.token), known)
        elif (refused := self._refusal(wish)) is not None:
            self._reply(wish, refused)
        elif self._withdraws(wish):
            self._withdraw(wish, now)
        else:
            self._asking.add(wish.token)
            self._context.ask(ReadRelease(name=wish.release), now, partial(self._on_read, wish))

    def _known(self, wish: UpdateJob) -> UpdateReply | None:
        """Return the answer to the same request, also if an earlier controller gave it."""
        state = self._context.state
        if wish.token and wish.token == state.update_token:
            return self._answers.get(wish.token) or UpdateReply(
                ok=True, text=f"update {state.updates} was accepted before", update=state.updates
            )
        return self._answers.get(wish.token) if wish.token else None

    def _refusal(self, wish: UpdateJob) -> UpdateReply | None:
        """Return why no update can be accepted now, or this one never; None if nothing speaks against it."""
        context, state = self._context, self._context.state
        older = [node for node in self._nodes() if not context.knows(node, TryRelease)]
        text = fix = ""
        if context.config.mode == "observe":
            text, fix = "observe mode changes nothing of the training", "submit the job with 'mode: act'"
        elif reason := context.leaving or context.ending or _end_of(context):
            text, fix = f"this run of the job ends: {reason}", "ask again when the job runs again"
        elif not state.release:
            text = "this job runs its code in its place, without a release"
            fix = "submit it again with 'code: {releases: true}'; its log says why there is none"
        elif older:
            text = f"the agents on {fold(older)} are of an older version and know no releases"
            fix = "requeue the job (scontrol requeue), so that new agents start"
        elif state.applying or self._is_stopping():
            number = state.applying or (state.update.update if state.update is not None else 0)
            text = f"update {number} is being applied now"
            fix = "ask again when it is over: srobust releases JOB shows it"
        elif not _NAME.fullmatch(wish.release):
            text, fix = "this is no name of a release", "srobust releases JOB lists them"
        elif self._changes_nothing(wish) and state.update is None:
            text = f"release {wish.release} runs already, and nothing waits"
            fix = "change the code, the arguments or the environment first"
        return UpdateReply(ok=False, text=text, fix=fix) if text else None

    def _changes_nothing(self, wish: UpdateJob) -> bool:
        return (
            wish.release == self._context.state.release and wish.from_step < 0 and not wish.discard_optimizer
        )

    def _withdraws(self, wish: UpdateJob) -> bool:
        return self._changes_nothing(wish) and self._context.state.update is not None

    def _withdraw(self, wish: UpdateJob, now: Now) -> None:
        update = self._context.state.update
        assert update is not None
        text = (
            f"update {update.update} to release {update.release} is withdrawn: release {wish.release} goes on"
        )
        reason = f"{wish.by.user} withdrew it"
        self._context.record(
            ev.UpdateEnded(t=now.wall, update=update.update, how=UpdateEnd.WITHDRAWN, reason=reason)
        )
        self._context.emit(Say(text=text))
        self._reply(wish, UpdateReply(ok=True, text=text, update=update.update))

    def _on_read(self, wish: UpdateJob, answer: Release | NoAnswer, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            text = f"release {wish.release} cannot be read: {answer.reason}"
            self._reply(wish, UpdateReply(ok=False, text=text, fix=answer.fix or "ask again"))
        elif wish.from_step >= 0:
            self._checkpoints.find(wish.from_step, now, partial(self._on_step_found, wish, answer))
        else:
            self._accept(wish, answer, now)

    def _on_step_found(self, wish: UpdateJob, release: Release, found: CheckpointId | str, now: Now) -> None:
        if isinstance(found, str):
            self._reply(wish, UpdateReply(ok=False, text=found, fix="srobust checkpoint ls JOB"))
        else:
            self._accept(wish, release, now)

    def _accept(self, wish: UpdateJob, release: Release, now: Now) -> None:
        if wish.token not in self._asking:
            return  # it was answered, since storage did not answer in time
        if (refused := self._refusal(wish)) is not None:
            self._reply(wish, refused)
            return
        context, state = self._context, self._context.state
        number = state.updates + 1
        if release.name not in state.taken:
            context.record(ev.ReleaseTaken(t=now.wall, release=release, by=wish.by))
        if state.update is not None:
            reason = f"update {number} takes its place"
            context.record(
                ev.UpdateEnded(
                    t=now.wall, update=state.update.update, how=UpdateEnd.SUPERSEDED, reason=reason
                )
            )
        deadline_s = context.config.updates.deadline_s if wish.deadline_s is None else wish.deadline_s
        context.record(
            ev.UpdateRequested(
                t=now.wall,
                update=number,
                release=release.name,
                when=wish.when,
                by=wish.by,
                deadline=now.wall + deadline_s if wish.when is When.LAZY else None,
                message=wish.message,
                changes=wish.changes,
                rollback=wish.rollback,
                from_step=wish.from_step,
                discard_optimizer=wish.discard_optimizer,
                token=wish.token,
            )
        )
        self._trial = None
        at = "at the next step" if wish.when is When.NOW else "with the next recovery"
        text = (
            f"update {number} to release {release.name} is accepted; if its trial passes, it is applied {at}"
        )
        once = state.releases.get(release.name) is ReleaseState.BAD
        text += "; it was rolled back before, and is not rolled back again" if once else ""
        context.emit(Say(text=f"{text} ({wish.by.user}{f': {wish.message}' if wish.message else ''})"))
        self._reply(wish, UpdateReply(ok=True, text=text, update=number))

    def _reply(self, wish: UpdateJob, reply: UpdateReply) -> None:
        self._asking.discard(wish.token)
        self._answers[wish.token] = reply
        for token in list(self._answers)[:-MAX_ANSWERS]:
            del self._answers[token]
        self._context.send(to_asker(wish.token), reply)

    # -- when it is applied ------------------------------------------------------------------------

    @property
    def ready(self) -> ev.UpdateRequested | None:
        """The update that the next launch takes along: it has been tried."""
        state = self._context.state
        return state.update if state.tried is not None and state.tried.ok else None

    def due(self, now: Now) -> ev.UpdateRequested | None:
        """Return the update for which ranks are to be stopped now."""
        update, context = self.ready, self._context
        if update is None or context.leaving or context.ending:
            return None
        is_late = update.deadline is not None and now.wall >= update.deadline
        return update if update.when is When.NOW or is_late else None

    def judge(self, last: Progress, now: Now) -> None:
        """Find the candidate good if training shows it; ``last``: the slowest rank's progress."""
        context, candidate, step = self._context, self._context.state.candidate, last.step
        if candidate is None:
            self._measured = None
            return
        at, generation = now.mono - last.age_s, context.world.generation
        if self._measured is None or self._measured.generation != generation:
            self._measured = _Measured(generation, step, (step, at))
        self._measured.see(step, at)
        if context.world.incident is not None:
            return
        made = step - candidate.first_step + 1
        if candidate.since and is_proven(made, now.wall - candidate.since, context.config.updates):
            reason = f"it has made {count(made, 'step')}"
            context.record(
                ev.ReleaseJudged(t=now.wall, release=candidate.release, good=True, reason=reason, step=step)
            )
            if candidate.update:
                context.emit(Say(text=f"release {candidate.release} is good: {reason}"))

    def slow(self) -> Fault | None:
        """Return the fault of a candidate that is slower than the release before, on the same nodes."""
        context, measured = self._context, self._measured
        candidate = way_back(context.state, context.rules)
        if candidate is None or measured is None or measured.generation != context.world.generation:
            return None
        factor = context.config.updates.slow_factor
        times = slower(measured.times, measured.steps, candidate, context.config.updates)
        if not times or set(candidate.nodes) != set(context.world.slots):
            return None
        before_s = candidate.pace.p50_s
        detail = (
            f"steps take {span(times * before_s)}, {times:.2g} times the {span(before_s)} of the release "
            f"before (updates.slow_factor: {factor:g})"
        )
        return Fault(symptom=Symptom.SLOW, detail=detail)

    # -- the trial ---------------------------------------------------------------------------------

    def uses(self, node: str) -> bool:
        """Return whether the trial runs its steps on this standby."""
        steps = self._trial.steps if self._trial is not None else None
        return steps is not None and steps.node == node

    def step(self, now: Now) -> None:
        """Go on with the trial of what waits. Called at each turn."""
        context, state = self._context, self._context.state
        update = state.update
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

    def _nodes(self) -> dict[str, Heartbeat]:
        """Return what the nodes that hold ranks or stand by have told last, as far as they answer."""
        state = self._context.state
        return self._context.fleet.heartbeats((*state.world.slots, *state.spares))

    def _is_silent(self, node: str, now: Now) -> bool:
        context = self._context
        dead_s = context.config.timings.node_dead_s
        return context.fleet.is_silent(node, dead_s, now.mono, context.started)

    def _follow_imports(self, trial: _Trial, update: ev.UpdateRequested, left_s: float, now: Now) -> None:
        """Have each node unpack the release and import what it needs."""
        context, waits, silent = self._context, False, []
        for node in (*context.world.slots, *context.state.spares):
            heartbeat = context.fleet.heartbeat(node)
            tried = heartbeat.tried if heartbeat is not None else None
            if tried is not None and tried.number == trial.number:
                if not tried.ok:
                    self._refuse(update, node, tried.text, tried.traceback, trial, now)
                    return
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
        if not waits:
            trial.imported = True
            trial.untried += [f"its imports on {fold(silent)}: no answer"] if silent else []

    def _follow_steps(self, trial: _Trial, update: ev.UpdateRequested, left_s: float, now: Now) -> None:
        """Have one node make the first steps, as one rank of a pretended world."""
        context, steps = self._context, trial.steps
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
            self._send_steps(steps, left_s)

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
        heartbeat = context.fleet.heartbeat(node)
        if heartbeat is None or not context.trains:
            return  # a standby is busy, or training has yet to begin: bounded by the time of the trial
        last = heartbeat.rehearsal.number if heartbeat.rehearsal is not None else 0
        number = max(context.number_question(), last + 1)
        trial.steps = steps = _Steps(node, heartbeat.agent, number, release, beside, now.mono)
        if trial.failed is None:
            steps.checkpoint = self._checkpoints.to_fit(update.from_step)
            steps.discard_optimizer = update.discard_optimizer
        self._send_steps(steps, left_s)

    def _is_free(self, node: str, heartbeat: Heartbeat) -> bool:
        known, rehearsal = self._context.state.standbys.get(node), heartbeat.rehearsal
        is_tested = known is not None and known.stage is StandbyStage.TESTING
        rehearses = rehearsal is not None and rehearsal.state is RehearsalState.RUNNING
        is_idle = heartbeat.ready and heartbeat.phase in (Phase.IDLE, Phase.ENDED)
        return is_idle and not is_tested and not rehearses and self._context.knows(node, Rehearse)

    def _send_steps(self, steps: _Steps, left_s: float) -> None:
        state, config = self._context.state, self._context.config.standby
        self._context.send(
            steps.node,
            Rehearse(
                epoch=state.epoch,
                number=steps.number,
                slots=len(state.world.slots),
                steps=config.rehearse_steps,
                limit_s=min(left_s, config.rehearse_s),
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
        """Take in how a rehearsal went. A failure counts only if the release that runs can be rehearsed."""
        has_passed, is_known = seen.state is RehearsalState.PASSED, self._runs_in_rehearsals()
        if trial.failed is not None:
            if has_passed:
                self._refuse_steps(trial, update, now)
            else:
                why = f"they fail in a rehearsal ({trial.failed.reason}), as does the release that runs"
                self._end_steps(trial, update, why, now)
        elif has_passed:
            self._pass(update, now.mono - trial.began, tuple(trial.untried), now)
        elif seen.state is RehearsalState.FAILED:
            trial.failed, trial.failed_on, trial.steps = seen, steps.node, None
            if is_known:
                self._refuse_steps(trial, update, now)
        else:
            why = seen.reason or f"the rehearsal on {steps.node} was ended"
            self._end_steps(trial, update, why, now)

    def _runs_in_rehearsals(self) -> bool:
        """Return whether the release that runs has passed a rehearsal of a standby."""
        known = self._context.state.standbys.values()
        return any(standby.stage is StandbyStage.REHEARSED for standby in known)

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


def _end_of(context: Context) -> str:
    """Say why the run ends by what the journal holds, "" if it does not."""
    state = context.state
    over = state.ended or state.end_started or state.requeueing
    return over.reason if over is not None else ""
