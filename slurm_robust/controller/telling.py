"""What the job's log is told while all is well: who is waited for, the first step, how far training is."""

from __future__ import annotations

from slurm_robust.controller.context import Context
from slurm_robust.controller.effects import Now, Say
from slurm_robust.model.progress import Progress, slowest
from slurm_robust.util.hostlist import fold

# Agents that start within this time are not worth a line.
PATIENCE_S = 10.0
PROGRESS_S = 600.0


class RollCall:
    """Says which agents are waited for, ever more rarely."""

    def __init__(self, now: Now) -> None:
        self._since = now.mono
        self._next_s = PATIENCE_S

    def step(self, context: Context, now: Now) -> None:
        """Say it when it is due."""
        waited = now.mono - self._since
        if waited < self._next_s:
            return
        self._next_s = 2 * waited
        nodes = (*context.state.slots, *context.state.spares)
        heartbeats = {node: context.fleet.heartbeat(node) for node in nodes}
        away = [node for node, heartbeat in heartbeats.items() if heartbeat is None]
        importing = [
            node for node, heartbeat in heartbeats.items() if heartbeat is not None and not heartbeat.ready
        ]
        who = "agent has" if len(nodes) == 1 else "agents have"
        joined = f"{len(nodes) - len(away):,} of {len(nodes):,} {who} joined after {waited:.0f} s"
        missing = f"; not yet: {fold(away)}" if away else ""
        imported = f"{len(nodes) - len(away) - len(importing):,} of {len(nodes):,} nodes have imported torch"
        busy = f"; {imported}; importing: {fold(importing)}" if importing else ""
        context.emit(Say(text=joined + missing + busy))


class Course:
    """Says the first step of a generation and then, every ten minutes, how far training is.

    ``launched``: monotonic time of the launch, None where another controller launched it.
    """

    def __init__(self, launched: float | None, now: Now) -> None:
        self._launched = launched
        self._told_at = now.mono
        self._told: int | None = None

    def first_step(self, context: Context, last: Progress, now: Now) -> None:
        """``last``, of all ranks, has completed its first step; its age is as of ``now``."""
        what = f"first step (step {last.step})" if last.reported else "first optimizer step"
        after = ""
        if self._launched is not None:
            after = f", {max(0.0, now.mono - last.age_s - self._launched):.1f} s after the launch"
        context.emit(Say(text=f"generation {context.state.generation}: {what} is done{after}{_loss(last)}"))
        self._told_at, self._told = now.mono, last.step

    def step(self, context: Context, now: Now) -> None:
        """Say how far training is when it is due."""
        quiet_s = now.mono - self._told_at
        if quiet_s < PROGRESS_S:
            return
        self._told_at = now.mono
        records = context.progress(now)
        if not context.is_progress(records):
            context.emit(Say(text=f"generation {context.state.generation}: no step is done yet", ettr=True))
            return
        last = slowest(records)
        done, before = last.step, self._told
        self._told = done
        if before is not None and done <= before:
            text = f"no new step for {quiet_s:.0f} s; step {done} is done"
        else:
            pace = f", {quiet_s / (done - before):.3g} s a step" if before is not None else ""
            text = f"step {done} is done{_loss(last)}{pace}"
        context.emit(Say(text=text, ettr=True))


def _loss(record: Progress) -> str:
    return f", loss {record.loss:.4g}" if record.loss is not None else ""
