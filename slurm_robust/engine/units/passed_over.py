"""What this job passes over: checkpoints from which no generation may begin again."""

from __future__ import annotations

from typing import Protocol

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.incident import Fault, NodeExit, Verdict
from slurm_robust.policy import restore, rollback
from slurm_robust.policy.restore import RestorePlan


class Choose(Protocol):
    """Chooses what is restored, without ``also_banned``."""

    def __call__(self, now: Now, *, also_banned: CheckpointId | None = None) -> RestorePlan | None:
        """Return the plan, None if nothing is left."""


class PassedOver:
    """Judges the checkpoint with which a generation began by how that ended."""

    def __init__(self, context: Context, choose: Choose) -> None:
        self._context, self._choose = context, choose

    def judge_restored(self, exits: tuple[NodeExit, ...], now: Now, good_step: int | None) -> None:
        """Ban the checkpoint that the generation began with, if its exits or numbers speak against it.

        Wrong numbers of a release that can be rolled back speak against that release.
        """
        if rollback.way_back(self._context.state, self._context.rules) is not None:
            good_step = None
        self._ban(restore.against(self._context.state, [e.exit for e in exits], good_step=good_step), now)

    def judge_failure(self, fault: Fault, verdict: Verdict | None, now: Now) -> None:
        """Ban the checkpoint from which the generation began if ``fault`` speaks against it."""
        if verdict is not None and restore.spoils(fault, verdict, self._context.state):
            self._ban("training failed with it twice before a new step was done", now)

    def _ban(self, reason: str, now: Now) -> None:
        """Ban a checkpoint unless it is the last that is left."""
        state = self._context.state
        restored = state.world.restored
        if not reason or restored is None or restored in state.world.banned:
            return
        if self._choose(now, also_banned=restored) is not None:
            self._context.record(ev.CheckpointBanned(t=now.wall, checkpoint=restored, reason=reason))
            self._context.emit(Say(text=f"checkpoint {restored} is passed over in this job: {reason}"))

    def texts(self, chosen: CheckpointId | None) -> tuple[str, ...]:
        """Return what is newer than ``chosen`` and counts but for a ban, a line for each, newest first."""
        state = self._context.state
        found = sorted((ref for ref in state.world.banned if chosen is None or ref > chosen), reverse=True)
        return tuple(
            f"step {ref.step} of generation {ref.generation} is passed over in this job: "
            f"{state.world.banned[ref]}; to take it again, submit a new job with: {self._again(ref)}"
            for ref in found
        )

    def _again(self, ref: CheckpointId) -> str:
        state = self._context.state
        whence = f"--training {state.training}" if state.training else f"--from {state.job_id}"
        return f"srobust run {whence} --step {ref.step}"
