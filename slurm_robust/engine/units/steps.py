"""How far training is: steps are followed, written to the journal, and said."""

from __future__ import annotations

from typing import NamedTuple

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.units.incidents import REPEATING, Incidents
from slurm_robust.engine.units.starts import StartPhases
from slurm_robust.engine.units.storage import StorageListing
from slurm_robust.model import events as ev
from slurm_robust.model.progress import Progress, slowest

PROGRESS_EVERY_S, WATCH_EVERY_S = 10.0, 1.0
"""Between two lines of progress in the journal, and between two looks at the steps."""

DENSE = 60
"""Lines of progress of a generation that follow each other by a second, if steps are that short. After these
they come less and less often, until the 600th, after 50 minutes, comes :data:`PROGRESS_EVERY_S` after the
one before: so the curves of a job of minutes have hundreds of points, and those of one after a restart, too.
A day of training is 8,640 lines (1.7 MB), and each generation has at most 300 more than that (60 kB).
"""

PROGRESS_S = 600.0
"""Seconds between two lines that say how far training is."""

_NOT_SAVED = (
    "; its steps are not protected: the script does not save them with Checkpointer, so a restart begins "
    "wherever the script resumes by itself"
)


def apart_s(written: int) -> float:
    """Return how many seconds the next line of progress follows the ones that a generation has."""
    return min(PROGRESS_EVERY_S, max(WATCH_EVERY_S, written / DENSE))


class ProgressLog:
    """Says the first step of a generation and then, every ten minutes, how far training is."""

    def __init__(self, launched: float | None, now: Now) -> None:
        """``launched``: monotonic time of the launch, None if another controller launched it."""
        self._launched = launched
        self._said_at = now.mono
        self._said_step: int | None = None

    def first_step(self, context: Context, last: Progress, now: Now) -> None:
        """Take in that ``last`` of all ranks has completed its first step; its age is as of ``now``."""
        what = f"first step (step {last.step})" if last.reported else "first optimizer step"
        after = ""
        if self._launched is not None:
            after = f", {max(0.0, now.mono - last.age_s - self._launched):.1f} s after the launch"
        generation = context.world.generation
        lacks = _NOT_SAVED if generation == 1 and not last.reported else ""
        context.emit(Say(text=f"generation {generation}: {what} is done{after}{_loss(last)}{lacks}"))
        self._said_at, self._said_step = now.mono, last.step

    def step(self, context: Context, now: Now) -> None:
        """Say how far training is when it is due."""
        quiet_s = now.mono - self._said_at
        if quiet_s < PROGRESS_S:
            return
        self._said_at = now.mono
        records = context.progress(now)
        if not context.is_progress(records):
            context.emit(Say(text=f"generation {context.world.generation}: no step is done yet", ettr=True))
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


class StepsSeen(NamedTuple):
    """The step records of all ranks, which have completed a step."""

    records: list[Progress]
    slowest: Progress


class Steps:
    """Follows the steps of each generation. The first new step ends an incident."""

    def __init__(
        self,
        context: Context,
        storage: StorageListing,
        incidents: Incidents,
        start_phases: StartPhases,
        now: Now,
    ) -> None:
        self._context, self._storage = context, storage
        self._incidents, self._start_phases = incidents, start_phases
        self._written_at = self._watched_at = now.mono
        self._written, self._written_step = 0, -1
        self.begin(None, now)

    def begin(self, launched: float | None, now: Now) -> None:
        """Begin to follow a generation; ``launched``: as in :class:`ProgressLog`."""
        self._launched, self._log = launched, ProgressLog(launched, now)
        self._written, self._written_step = 0, -1

    def follow(self, now: Now) -> StepsSeen | None:
        """Write down what is new; return the steps of all ranks, None before the first."""
        context, world = self._context, self._context.world
        records = context.progress(now)
        seen = StepsSeen(records, slowest(records)) if context.is_progress(records) else None
        if seen is not None:
            last, reported = seen.slowest, all(p.reported for p in records)
            if world.steps_here < 0:
                self._take_first(last, reported, now)
            # Without step reports it is unknown which step is new; the first of the new generation counts.
            if world.incident is not None and (not reported or last.step > world.incident.step):
                self.write(now, force=True)
                self._incidents.close(last.step, last.age_s, now)
            self.write(now)
        self._log.step(context, now)
        return seen

    def _take_first(self, last: Progress, reported: bool, now: Now) -> None:
        context = self._context
        self._log.first_step(context, last, now)
        context.record(
            ev.FirstStep(
                t=now.wall - last.age_s,
                generation=context.world.generation,
                step=last.step,
                reported=reported,
                spent=context.spent(now),
            )
        )
        took_s = None if self._launched is None else max(0.0, now.mono - last.age_s - self._launched)
        self._start_phases.record(now, took_s)
        self._incidents.stage(REPEATING, now)

    def end(self, now: Now) -> None:
        """Write down how far a generation has come that ends."""
        self.write(now, force=True)
        if self._context.world.steps_here < 0:
            self._start_phases.record(now)

    def write(self, now: Now, *, force: bool = False) -> None:
        """Write the newest step completed by all ranks when it is due, and at ``force``."""
        if not force and now.mono - self._watched_at < WATCH_EVERY_S:
            return
        self._watched_at, context = now.mono, self._context
        records = context.progress(now)
        if context.config.detect.non_finite:
            records = [record.good for record in records]
        if not context.is_progress(records):
            return
        self._storage.on_published(min(p.checkpoint for p in records), now)
        last = slowest(records)
        if not force and not self._is_due(last.step, now):
            return
        self._written_at, self._written_step = now.mono, last.step
        self._written += 1
        context.record(
            ev.ProgressMade(
                t=now.wall - last.age_s,
                generation=context.world.generation,
                step=last.step,
                reported=all(p.reported for p in records),
                spent=context.spent(now),
                loss=last.loss,
                grad_norm=last.grad_norm,
            )
        )

    def _is_due(self, step: int, now: Now) -> bool:
        """Return whether the newest step is to be written: often at first, and then every few seconds."""
        quiet_s = now.mono - self._written_at
        return quiet_s >= PROGRESS_EVERY_S or (
            step > self._written_step and quiet_s >= apart_s(self._written)
        )
