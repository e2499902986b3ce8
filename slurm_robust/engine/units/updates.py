"""Updates of the job's code: what its owner asks for, when it is due, and whether it was good."""

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
from slurm_robust.model.standby import RehearsalState, StandbyStage
from slurm_robust.policy.rollback import WARM_UP_STEPS, is_proven, slower, way_back
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count
from slurm_robust.wire.messages import Heartbeat, TryRelease, UpdateJob, UpdateReply

MAX_ANSWERS = 64
"""Requests whose answers are remembered by token, so that one that is repeated gets the same answer."""

_NAME = re.compile(rf"[0-9a-f]{{{NAME_LETTERS}}}")


def to_asker(token: str) -> str:
    """Return the name by which messages reach who has asked with ``token``."""
    return f"update {token}"


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
    """How many were measured,"""
    seconds: float = 0.0
    """and how long they took."""
    disturbed: bool = True
    """Something of ours ran on nodes of this job since the newest step, or may have."""

    def see(self, step: int, at: float, *, disturbed: bool) -> None:
        """Take in that ``step`` was completed ``at`` that time; ``disturbed``: something of ours runs now."""
        before, since = self.newest
        self.disturbed |= disturbed
        if step <= before:
            return
        self.newest = step, at
        if not self.disturbed and before >= self.first + WARM_UP_STEPS:
            self.times.append((at - since) / (step - before))
            self.steps += step - before
            self.seconds += at - since
        self.disturbed = disturbed


class Updates:
    """One update waits at a time. It is tried while training gets on, and a recovery never waits for that."""

    def __init__(self, context: Context, checkpoints: Checkpoints, is_stopping: Callable[[], bool]) -> None:
        """``is_stopping``: whether ranks are being stopped for an update."""
        self._context, self._checkpoints, self._is_stopping = context, checkpoints, is_stopping
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
        elif wish.withdraw:
            self._withdraw(wish, now)
        else:
            self._asking.add(wish.token)
            self._context.ask(ReadRelease(name=wish.release), now, partial(self._on_read, wish))

    def has(self, wish: UpdateJob) -> bool:
        """Return whether the same request was taken before, so that it is answered or will be."""
        return wish.token in self._asking or self._known(wish) is not None

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
        text, fix, listed = "", "", f"srobust releases {state.job_id}"
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
            fix = f"ask again when it is over: {listed} shows it"
        elif not _NAME.fullmatch(wish.release):
            text, fix = "this is no name of a release", f"{listed} lists them"
        elif wish.running not in ("", state.release):
            text = f"release {wish.running} does not run any more: {state.release} does"
            fix = f"look at {listed}, and give the command again"
        elif wish.updates not in (-1, state.updates):
            text = f"update {state.updates} has been asked for meanwhile"
            fix = f"look at {listed}, and give the command again"
        elif wish.withdraw and state.update is None:
            text, fix = "no update waits", f"{listed} shows what became of the last one"
        elif not wish.withdraw and self._changes_nothing(wish):
            text = f"release {wish.release} runs already"
            fix = "change the code, the arguments or the environment first"
        return UpdateReply(ok=False, text=text, fix=fix) if text else None

    def _nodes(self) -> dict[str, Heartbeat]:
        """Return what the nodes that hold ranks or stand by have told last, as far as they answer."""
        state = self._context.state
        return self._context.fleet.heartbeats((*state.world.slots, *state.spares))

    def _changes_nothing(self, wish: UpdateJob) -> bool:
        return (
            wish.release == self._context.state.release and wish.from_step < 0 and not wish.discard_optimizer
        )

    def _withdraw(self, wish: UpdateJob, now: Now) -> None:
        update = self._context.state.update
        assert update is not None
        text = f"update {update.update} to release {update.release} is withdrawn: {wish.release} goes on"
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
            fix = f"srobust checkpoint ls {self._context.state.job_id}"
            self._reply(wish, UpdateReply(ok=False, text=found, fix=fix))
        else:
            self._accept(wish, release, now, found.step)

    def _accept(self, wish: UpdateJob, release: Release, now: Now, from_step: int = -1) -> None:
        """Accept the update; ``from_step``: what the step that its owner named means now."""
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
        at = "at the next step" if wish.when is When.NOW else "with the next recovery"
        text = (
            f"update {number} to release {release.name} is accepted; if its trial passes, it is applied {at}"
        )
        if from_step >= 0:
            text += f", and goes on from step {from_step}"
        if from_step < wish.from_step:
            text += f", the newest checkpoint on storage up to step {wish.from_step}"
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
        self._measured.see(step, at, disturbed=self._disturbs())
        if context.world.incident is not None:
            return
        made = step - candidate.first_step + 1
        if candidate.since and is_proven(made, now.wall - candidate.since, context.config.updates):
            reason = f"it has made {count(made, 'step')}"
            context.record(ev.ReleaseProven(t=now.wall, release=candidate.release, reason=reason, step=step))
            if candidate.update:
                context.emit(Say(text=f"release {candidate.release} is good: {reason}"))

    def judge_stepless(self, ran_s: float, now: Now) -> None:
        """Find the candidate good that has run for ``ran_s``, in a job that has never made a step."""
        context, candidate = self._context, self._context.state.candidate
        if candidate is None or context.world.has_stepped or context.world.incident is not None:
            return
        if ran_s >= context.config.updates.good_s:
            reason = f"it has run for {span(ran_s)}; its steps cannot be counted"
            context.record(ev.ReleaseProven(t=now.wall, release=candidate.release, reason=reason))
            if candidate.update:
                context.emit(Say(text=f"release {candidate.release} is good: {reason}"))

    def slow(self) -> Fault | None:
        """Return the fault of a candidate that is slower than the release before, on the same nodes."""
        context, measured = self._context, self._measured
        candidate = way_back(context.state, context.rules)
        if candidate is None or measured is None or measured.generation != context.world.generation:
            return None
        factor = context.config.updates.slow_factor
        times = slower(measured.times, measured.steps, measured.seconds, candidate, context.config.updates)
        if not times or set(candidate.nodes) != set(context.world.slots):
            return None
        before_s = candidate.pace.p50_s
        detail = (
            f"steps take {span(times * before_s)}, {times:.2g} times the {span(before_s)} of the release "
            f"before (updates.slow_factor: {factor:g})"
        )
        return Fault(symptom=Symptom.SLOW, detail=detail)

    def _disturbs(self) -> bool:
        """Return whether a trial, a rehearsal or a quick test runs, which may share what ranks need."""
        state = self._context.state
        stages = (known.stage for node in state.spares if (known := state.standbys.get(node)) is not None)
        if (state.update is not None and state.tried is None) or StandbyStage.TESTING in stages:
            return True
        rehearsals = (heartbeat.rehearsal for heartbeat in self._nodes().values())
        return any(one is not None and one.state is RehearsalState.RUNNING for one in rehearsals)


def _end_of(context: Context) -> str:
    """Say why the run ends by what the journal holds, "" if it does not."""
    state = context.state
    over = state.ended or state.end_started or state.requeueing
    return over.reason if over is not None else ""
