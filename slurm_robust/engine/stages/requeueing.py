"""Giving the allocation back: the controller asks for the requeue until Slurm answers."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import BeginRequeue, NoAnswer, RequeueStatus, SlurmAnswer
from slurm_robust.engine.stages.ending import end_agents
from slurm_robust.engine.stages.watch import silent_nodes
from slurm_robust.engine.transitions import ToEnding, ToRequeueing, ToSaving, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.patience import GIVE_UP_S, LOST_S, PAUSE_S, next_pause_s, requeue_patience_s
from slurm_robust.util.hostlist import fold

SAY_EVERY_S = 600.0


class Requeueing:
    """The job is given back to Slurm; this process ends when Slurm ends the batch script."""

    def __init__(self, begin: ToRequeueing) -> None:
        self._begin = begin
        self._since = 0.0
        self._answer: SlurmAnswer | None = None  # the newest, until the next step
        self._again: float | None = None  # when to ask again
        self._pause = PAUSE_S
        self._said = -SAY_EVERY_S  # when it was last said that Slurm does not answer
        self._taken = self._done = self._ordered_to_end = False  # ordered by Slurm or the owner
        self._changed = 0.0  # when the last of these did

    def enter(self, core: Core, now: Now) -> None:
        """Write it down first: the next run of the job reads it there."""
        begin = self._begin
        self._since = self._changed = now.mono
        core.record(
            ev.RequeueStarted(
                t=now.wall,
                exclude=begin.exclude,
                reason=begin.reason,
                failure=begin.failure,
                holders=begin.holders,
            )
        )
        without = f" without {fold(begin.exclude)}" if begin.exclude else ""
        core.emit(Say(text=f"requeue of job {core.state.job_id}{without}: {begin.reason}"))
        if not core.checkpoints.need_memory():
            # Now: Slurm's own TERM comes to the agents before any later word of ours, and leaves the copies.
            end_agents(core, keep_copies=False)
        core.companions.end_all("the job is requeued", now)
        self._ask(core, now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Ask until Slurm answers, then wait for its TERM; a refusal or the owner's TERM ends it."""
        answer, self._answer = self._answer, None
        if answer is not None and answer.said is RequeueStatus.REFUSED and not self._taken:
            return self._give_up(f"the job cannot be requeued: {answer.detail}")
        if answer is not None:
            self._hear(core, answer, now)
        if core.leaving and not self._ordered_to_end:
            self._ordered_to_end, self._changed = True, now.mono
        patience = requeue_patience_s(
            taken=self._taken,
            done=self._done,
            ordered_to_end=self._ordered_to_end,
            asked=self._again is None,
        )
        if now.mono - self._changed >= patience:
            return self._leave(core)
        if self._again is not None and now.mono >= self._again:
            self._ask(core, now)
        return None

    def _ask(self, core: Core, now: Now) -> None:
        self._again = None
        # What the owner asks for by name stays asked for, whatever else is.
        holders = tuple(node for node in self._begin.holders if node not in core.state.owners_nodes)
        question = BeginRequeue(
            exclude=core.state.excluded,
            holders=holders,
            pins=core.state.asked_by_name,
            silent=silent_nodes(core, now),
        )
        core.ask(question, now, self._take, within_s=LOST_S)

    def _take(self, answer: SlurmAnswer | NoAnswer, now: Now) -> None:
        if isinstance(answer, NoAnswer):
            answer = SlurmAnswer(said=RequeueStatus.NOTHING, detail=answer.reason)
        self._answer = answer

    def _hear(self, core: Core, answer: SlurmAnswer, now: Now) -> None:
        if answer.said is RequeueStatus.NOTHING:
            self._again = now.mono + self._pause
            self._pause = next_pause_s(self._pause)
            if not self._taken and now.mono - self._said >= SAY_EVERY_S:
                self._said = now.mono
                core.record(ev.StageDone(t=now.wall, what="requeue", ok=False, detail=answer.detail))
                text = f"Slurm has not taken the requeue within {now.mono - self._since:.0f} s"
                core.emit(Say(text=f"{text} ({answer.detail}); asking again until it answers"))
            return
        done = answer.said is not RequeueStatus.TAKEN
        if not self._taken or done > self._done:
            self._taken, self._done, self._changed = True, done, now.mono
        if answer.said is RequeueStatus.DONE and answer.detail:
            core.note(answer.detail, "", now)
            core.emit(Say(text=f"the job is requeued but does not start by itself: {answer.detail}"))

    def _leave(self, core: Core) -> Transition:
        if self._taken:
            return ToEnding(code=ExitCode.REQUEUED, reason=f"requeued: {self._begin.reason}", final=False)
        if self._ordered_to_end:
            return ToEnding(code=core.leaving_code, reason=core.leaving or "", final=False)
        return self._give_up(f"Slurm gave no answer for {GIVE_UP_S / 3600:.0f} hours")

    def _give_up(self, why: str) -> Transition:
        reason = f"{self._begin.reason}, and {why}"
        return ToSaving(then=ToEnding(code=ExitCode.DO_NOT_REQUEUE, reason=reason))
