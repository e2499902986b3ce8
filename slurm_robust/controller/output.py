"""What the controller says in the job's own output, each line with the time and our name."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections import deque

from slurm_robust.controller.context import Context
from slurm_robust.controller.effects import Now, Say
from slurm_robust.controller.preflight import Plan
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.progress import Progress, slowest
from slurm_robust.model.state import JobState
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, message

PATIENCE_S = 0.2
_MOST_LINES = 10_000


def say(text: str) -> None:
    """Print ``text``; lines after the first stay lines, indented. Waits 0.2 s at most for who takes it.

    The job's output may lie on storage that hangs or is full, which must not end the job's supervision: what
    was to be said stands in the journal.
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    _output.print(f"srobust: {stamp} {message(text)}\n")


def settle(timeout_s: float) -> None:
    """Wait until all that was said is out, at most ``timeout_s``: the process is about to end."""
    _output.settle(timeout_s)


class _Output:
    """The standard output, written in order by a thread of its own, which may hang."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque(maxlen=_MOST_LINES)
        self._pid = 0  # of the process that has the thread

    def print(self, text: str) -> None:
        """Have ``text`` written in one piece."""
        with self._changed:
            is_behind = bool(self._waiting)
            self._waiting.append(text.encode(errors="replace"))
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._serve, name="srobust-output", daemon=True).start()
            self._changed.notify_all()
        if not is_behind:
            self.settle(PATIENCE_S)

    def settle(self, timeout_s: float) -> None:
        """Wait until all is written, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting[0]
            try:
                # Not by sys.stdout: its lock would be held while this hangs, and Python would not end.
                os.write(1, text)
            except OSError:
                pass
            with self._changed:
                if self._waiting and self._waiting[0] is text:  # else there were too many lines
                    self._waiting.popleft()
                self._changed.notify_all()


_output = _Output()


def introduction(plan: Plan, directory: JobDirectory, state: JobState) -> tuple[str, str]:
    """What a controller says first: what runs and where, and where the output of the training is."""
    task = f" ({plan.array_task})" if plan.array_task else ""
    command = shlex.join(plan.command)
    command = f"-m {command}" if plan.kind is CommandKind.MODULE else command
    where = f"{count(state.placement.world_size, 'rank')} on {fold(state.slots)}"
    spares = f", standby {fold(state.spares)}" if state.spares else ""
    mode = "; observe mode: nothing is done about faults" if plan.config.mode == "observe" else ""
    generation = state.generation if state.running else state.generation + 1
    output = directory.worker_log(generation, 0, "out")
    # By its id a job is found only where it is in the usual place.
    usual = directory.path.name == str(plan.job_id) and plan.config.job_dir is None
    name = str(plan.job_id) if usual else shlex.quote(str(directory.path))
    return (
        f"controller {state.epoch} of job {plan.job_id}{task}: {command}; {where}{spares}; "
        f"folder {directory.path}{mode}",
        f"output of the training: {output}; to follow it: srobust logs {name} -f",
    )


ROLL_CALL_S = 10.0
"""Agents that start within this time are not worth a line."""

PROGRESS_S = 600.0


class RollCall:
    """Says which agents are waited for, ever more rarely."""

    def __init__(self, now: Now) -> None:
        self._since = now.mono
        self._next_s = ROLL_CALL_S

    def step(self, context: Context, now: Now) -> None:
        """Say it when it is due."""
        waited = now.mono - self._since
        if waited < self._next_s:
            return
        self._next_s = 2 * waited
        nodes = (*context.state.slots, *context.state.spares)
        heartbeats = context.fleet.heartbeats(nodes)
        away = [node for node in nodes if node not in heartbeats]
        importing = [node for node, heartbeat in heartbeats.items() if not heartbeat.ready]
        who = "agent has" if len(nodes) == 1 else "agents have"
        joined = f"{len(nodes) - len(away):,} of {len(nodes):,} {who} joined after {waited:.0f} s"
        missing = f"; not yet: {fold(away)}" if away else ""
        imported = f"{len(nodes) - len(away) - len(importing):,} of {len(nodes):,} nodes have imported torch"
        busy = f"; {imported}; importing: {fold(importing)}" if importing else ""
        context.emit(Say(text=joined + missing + busy))


class Course:
    """Says the first step of a generation and then, every ten minutes, how far training is."""

    def __init__(self, launched: float | None, now: Now) -> None:
        """``launched``: monotonic time of the launch, None where another controller launched it."""
        self._launched = launched
        self._said_at = now.mono
        self._said_step: int | None = None

    def first_step(self, context: Context, last: Progress, now: Now) -> None:
        """``last``, of all ranks, has completed its first step; its age is as of ``now``."""
        what = f"first step (step {last.step})" if last.reported else "first optimizer step"
        after = ""
        if self._launched is not None:
            after = f", {max(0.0, now.mono - last.age_s - self._launched):.1f} s after the launch"
        context.emit(Say(text=f"generation {context.state.generation}: {what} is done{after}{_loss(last)}"))
        self._said_at, self._said_step = now.mono, last.step

    def step(self, context: Context, now: Now) -> None:
        """Say how far training is when it is due."""
        quiet_s = now.mono - self._said_at
        if quiet_s < PROGRESS_S:
            return
        self._said_at = now.mono
        records = context.progress(now)
        if not context.is_progress(records):
            context.emit(Say(text=f"generation {context.state.generation}: no step is done yet", ettr=True))
            return
        last = slowest(records)
        done, before = last.step, self._said_step
        self._said_step = done
        if before is not None and done <= before:
            text = f"no new step for {quiet_s:.0f} s; step {done} is done"
        else:
            pace = f", {quiet_s / (done - before):.3g} s a step" if before is not None else ""
            text = f"step {done} is done{_loss(last)}{pace}"
        context.emit(Say(text=text, ettr=True))


def _loss(record: Progress) -> str:
    return f", loss {record.loss:.4g}" if record.loss is not None else ""
