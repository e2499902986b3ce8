"""What ``srobust top`` shows of a job: the controller's live status, else the journal alone."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from slurm_robust.evidence.incident_text import IncidentRow, incident_rows
from slurm_robust.evidence.live_status import IncidentFollower, of_state
from slurm_robust.ledger.summary import Summary, summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import Events, fold
from slurm_robust.model.live_status import (
    LATE_S,
    OLD_S,
    LiveNode,
    LiveStatus,
    LiveTier,
    NodeState,
    NotALiveStatus,
    counts,
    read,
)
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState, apply
from slurm_robust.report.job_view import command_of
from slurm_robust.report.situation import WORKING, JobSituation, JobSize, Seen, cut_text, judge, phases_text
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.trainings.phase import exit_code, phase_of
from slurm_robust.trainings.slurmview import SlurmView, view_of, waits_for
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.files import read_tail
from slurm_robust.util.ours import open_plain
from slurm_robust.util.text import first_sentence, one_line

CHUNK = 4 << 20
"""Bytes of a journal that one look reads at most, so that none takes long."""

MAX_LINE = 64 << 20
"""Longest line of a journal; no event is as long."""

MAX_INCIDENTS = 100
"""The newest; ``srobust incidents`` has all."""

LEDGER_S, SLURM_S, PENDING_S = 30.0, 30.0, 5.0
"""Between two computations of ETTR, and two questions to Slurm, if the moment does not tell; the last one of
a pending job that is looked at alone, for which people wait.
"""

MAX_POINTS = 400
"""Of a curve."""

TAIL_LINES = 40

SHARE = 50.0
"""The ledger is computed for no more than this part of the time."""

_MOVES = (ev.IncidentOpened, ev.SymptomAdded, ev.Decided, ev.IncidentClosed, ev.GenerationEnded, ev.RunEnded)


class LiveView(Record):
    """All that the screen shows of one job, and ``--json`` prints."""

    folder: str
    live: bool
    """``moment`` is the controller's own; else it was made from the journal."""
    source: str
    """"" if it is live, else why not."""
    age_s: float
    """Since the controller wrote its live status, or anything into the journal."""
    state: str
    """``training``, ``recovering``, …, as ``srobust status`` says it."""
    reason: str
    slurm: str
    """Slurm's own state of the job; "" if it is live, or has ended."""
    moment: LiveStatus
    incidents: tuple[IncidentRow, ...]
    trouble: str = ""
    """Why the journal is not read, or not read to its end."""
    waiting: PendingJob | None = None
    """What a pending job waits for."""
    silent_s: float | None = None
    """For how long its controller has been silent, if that is longer than it should be."""
    situation: JobSituation = JobSituation()
    """What is wrong, what is done about it, and what a person can do."""
    began: JobSize | None = None
    """How many ranks and standbys there were at the beginning; None if the journal does not say."""
    losses: tuple[float, ...] = ()
    """The newest :data:`MAX_POINTS` that the journal has."""
    step_times: tuple[float, ...] = ()
    """Seconds per step, likewise."""
    tail: tuple[str, ...] = ()
    """The last lines of rank 0."""


class JournalTail:
    """A journal as it grows. A look reads :data:`CHUNK` at most, and only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._found = Events()
        self._cuts = 0
        self._offset = self._lines = 0
        self._file = (0, 0)
        self._chunk = CHUNK
        self.state = JobState()
        self.trouble = ""
        self.is_behind = False
        """There is more to read now."""
        self.breaks_off = 0
        """The last line, from 1, if it is torn: it is being written, or the file was cut; else 0."""

    @property
    def events(self) -> Sequence[ev.AnyEvent]:
        """The events that were read so far and count."""
        return self._found.events

    def look(self) -> Sequence[ev.AnyEvent]:
        """Read on; the new events. Never raises: :attr:`trouble` says why nothing comes."""
        try:
            data = self._read()
        except OSError as error:
            self.is_behind = False
            self.trouble = f"{self._path} cannot be read: {error.strerror or error}"
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self.is_behind = len(data) >= self._chunk
        if not whole and self.is_behind:
            self._chunk = min(2 * self._chunk, MAX_LINE)
        new = self._take(whole)
        is_torn = len(whole) < len(data) and not (self.is_behind or self.trouble)
        self.breaks_off = self._lines + 1 if is_torn else 0
        return new

    def _read(self) -> bytes:
        with os.fdopen(open_plain(self._path), "rb") as file:
            info = os.fstat(file.fileno())
            if (info.st_dev, info.st_ino) != self._file or info.st_size < self._offset:
                self._begin()
                self._file = info.st_dev, info.st_ino
            self.trouble = ""
            file.seek(self._offset)
            return file.read(self._chunk)

    def _take(self, whole: bytes) -> Sequence[ev.AnyEvent]:
        new: list[ev.AnyEvent] = []
        for line in whole.splitlines(keepends=True):
            try:
                event = ev.decode_event(line)
            except msgspec.DecodeError as error:
                self.trouble = f"{self._path}, byte {self._offset}: {one_line(str(error))}"
                break
            self._offset += len(line)
            self._lines += 1
            if self._found.add(event):
                new.append(event)
                self.state = apply(event, self.state)
        if self._found.cuts != self._cuts:
            self._cuts, self.state = self._found.cuts, fold(self.events)
        return new


class JobFeed:
    """Looks at one job again and again. Every look is bounded, but may hang with the storage."""

    def __init__(
        self,
        directory: JobDirectory,
        slurm: SlurmClient | None = None,
        *,
        alone: bool = False,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take ``slurm``, which is asked for a job whose controller is silent; None: Slurm is not asked.

        ``alone``: no other job is looked at, so this one is looked at in more detail.
        """
        self.directory = directory
        self._slurm = slurm
        self._alone = alone
        self._wall, self._mono = wall, mono
        self._journal = JournalTail(directory.journal)
        self._seen: tuple[int, int] = (-1, -1)  # epoch and number of the newest live status
        self._changed: float | None = None  # when that was new, by the monotonic clock
        self._incidents: tuple[IncidentRow, ...] = ()
        self._incidents_due = False
        self._progress: ev.ProgressMade | ev.FirstStep | None = None
        self._incident = IncidentFollower()
        self._newest_t = 0.0
        self._ledger: Summary | None = None
        self._ledger_due = self._slurm_due = 0.0
        self._view = SlurmView()
        self._began: JobSize | None = None
        self._started: ev.RunStarted | None = None
        self._losses: deque[float] = deque(maxlen=MAX_POINTS)
        self._step_times: deque[float] = deque(maxlen=MAX_POINTS)

    @property
    def is_behind(self) -> bool:
        """Whether another look should follow immediately."""
        return self._journal.is_behind

    @property
    def training(self) -> str:
        """The name of the training of which the job is a chapter, "" for none."""
        return self._journal.state.training

    def look(self) -> LiveView:
        """Return the job as it is now. Never raises."""
        self._follow()
        state = self._journal.state
        moment, source = self._read_live_status(state)
        live = moment is not None and not source
        now, mono = self._wall(), self._mono()
        slurm = SlurmView() if live else self._ask_slurm(mono)
        phase, reason = phase_of(self._journal.events, state, is_over=slurm.is_over, slurm=slurm.state)
        if moment is None or source:
            age_s = max(0.0, now - self._newest_t) if self._newest_t else 0.0
            moment = self._by_journal(state, now, phase, reason)
        else:
            age_s = mono - (self._changed or mono)
        # What the job did when the moment was made; the journal may be two seconds newer.
        if live and moment.incident is not None:
            phase = "recovering"
            reason = f"incident {moment.incident.number}: {moment.incident.symptom}"
        elif live and phase == "recovering":
            phase, reason = ("training" if moment.step >= 0 else "starting"), ""
        cut = ""
        may_be_written = live or (slurm.goes_on and phase in WORKING)
        if self._journal.breaks_off and state.ended is None and not may_be_written:
            cut = cut_text(self._journal.breaks_off, self._newest_t)
            phase, reason = "unknown", cut
        view = LiveView(
            folder=str(self.directory.path),
            live=live,
            source=source,
            age_s=age_s,
            state=phase,
            reason=one_line(reason),
            slurm="" if live or (state.ended is not None and not state.ended.requeued) else self._says(),
            moment=moment,
            incidents=self._incidents,
            trouble=one_line(self._journal.trouble),
            waiting=slurm.waiting,
            silent_s=self._silent_s if live or slurm.goes_on else None,
            began=self._began,
            losses=tuple(self._losses),
            step_times=tuple(self._step_times),
            tail=self._tail(state) if self._alone else (),
        )
        return structs.replace(view, situation=situation_of(view, state, now, cut, self._started))

    def _says(self) -> str:
        return one_line(self._view.describe())

    def _tail(self, state: JobState) -> tuple[str, ...]:
        generation = state.world.generation
        try:
            return read_tail((self.directory.worker_log(generation, 0, "out"),), TAIL_LINES)
        except OSError:
            return ()

    # -- the live status ---------------------------------------------------------------------------

    def _read_live_status(self, state: JobState) -> tuple[LiveStatus | None, str]:
        """Return the controller's moment, and why it is not what counts."""
        self._silent_s = None
        path = self.directory.live_status
        try:
            found = read(path)
        except FileNotFoundError:
            return None, f"there is no {path.name}"
        except OSError as error:
            return None, f"{path.name} cannot be read: {one_line(error.strerror or str(error))}"
        except NotALiveStatus as error:
            return None, f"{path.name} is not understood: {one_line(str(error))}"
        mono = self._mono()
        if self._changed is None:
            # Only one look so far: the clocks of two machines have to do.
            self._changed = mono - max(0.0, self._wall() - found.t)
        elif (found.epoch, found.number) != self._seen:
            self._changed = mono
        self._seen = found.epoch, found.number
        if why := counts(found, state.run_id, state.epoch, ended=state.ended is not None):
            return found, why
        old_s = mono - self._changed
        self._silent_s = old_s if old_s > LATE_S else None
        if old_s > OLD_S:
            return found, f"the controller has written no live status for {old_s:.0f} s"
        return found, ""

    # -- the journal -------------------------------------------------------------------------------

    def _follow(self) -> None:
        for event in self._journal.look():
            self._newest_t = max(self._newest_t, event.t)
            match event:
                case ev.ProgressMade() | ev.FirstStep():
                    self._add_point(event)
                    self._progress = event
                case ev.RunStarted():
                    self._started = event
                    self._began = JobSize(ranks=event.slots * event.nproc_per_node, standbys=event.spares)
                case ev.GenerationLaunched():
                    self._progress = None
            self._incident.read(event)
            self._incidents_due |= isinstance(event, _MOVES)
        if self._incidents_due and not self._journal.is_behind:
            self._incidents_due = False
            self._incidents = incident_rows(self._journal.events)[-MAX_INCIDENTS:]

    def _add_point(self, event: ev.ProgressMade | ev.FirstStep) -> None:
        if event.loss is not None and math.isfinite(event.loss):
            self._losses.append(event.loss)
        last = self._progress
        if last is not None and last.generation == event.generation and event.step > last.step:
            self._step_times.append(max(0.0, event.t - last.t) / (event.step - last.step))

    def _by_journal(self, state: JobState, now: float, phase: str, reason: str) -> LiveStatus:
        is_over = self._view.is_over or (state.ended is not None and not state.ended.requeued)
        if is_over:
            now = self._newest_t  # time passes for it no more
        ledger, last, stored = self._summary(now), self._progress, state.world.stored
        return structs.replace(
            of_state(state, now),
            stage=phase,
            stage_why=one_line(reason),
            step=last.step if last is not None else -1,
            step_age_s=max(0.0, now - last.t) if last is not None and not is_over else None,
            loss=last.loss if last is not None else None,
            grad_norm=last.grad_norm if last is not None else None,
            nodes=tuple(_nodes(state)),
            incident=self._incident.at(state, now),
            tiers=(
                LiveTier(
                    tier=Tier.STORAGE,
                    step=stored.step,
                    generation=stored.generation,
                    age_s=max(0.0, now - stored.t) if not is_over else None,
                ),
            )
            if stored is not None
            else (),
            ettr=ledger.ettr if ledger is not None else None,
            ettr_hour=ledger.ettr_window if ledger is not None else None,
            final=state.ended is not None,
        )

    def _summary(self, now: float) -> Summary | None:
        begun = self._mono()
        if self._journal.is_behind or not self._journal.events or begun < self._ledger_due:
            return self._ledger
        self._ledger = summary_of(self._journal.events, now)
        self._ledger_due = begun + max(LEDGER_S, SHARE * (self._mono() - begun))
        return self._ledger

    def _ask_slurm(self, mono: float) -> SlurmView:
        if self._slurm is not None and mono >= self._slurm_due and not self._journal.is_behind:
            view = view_of(self._journal.events, self._slurm)
            if view.job is not None and self._alone:
                view = structs.replace(view, waiting=waits_for(self._slurm, view.job, self._journal.state))
            self._view = view
            is_watched = self._alone and view.waiting is not None
            self._slurm_due = self._mono() + (PENDING_S if is_watched else SLURM_S)
        return self._view


def situation_of(
    view: LiveView, state: JobState, now: float, cut: str = "", started: ev.RunStarted | None = None
) -> JobSituation:
    """Return the situation of what is shown, at wall-clock time ``now``; ``cut``: where its journal ends."""
    seen = Seen(
        job_id=view.moment.job_id,
        phase=view.state,
        reason=view.reason,
        code=exit_code(state, view.state),
        live=view.moment if view.live else None,
        phases=phases_text(view.moment),
        incidents=view.incidents,
        waiting=view.waiting,
        evicted=state.evicted,
        silent_s=view.silent_s,
        cut=cut,
        saves=state.world.stored is not None,
        training=bool(state.training),
        command=command_of(started, state),
    )
    return judge(seen, now)


def _nodes(state: JobState) -> list[LiveNode]:
    """Return what the journal knows of nodes: where they are, not how they are."""
    if state.ended is not None or state.requeueing is not None:
        working = NodeState.ENDED
    elif state.world.running:
        working = NodeState.TRAINING if state.world.steps_here >= 0 else NodeState.STARTING
    else:
        working = NodeState.IDLE
    found = [LiveNode(node=node, state=working, slot=slot) for slot, node in enumerate(state.world.slots)]
    for node in state.spares:
        aside, known = state.aside.get(node), state.standbys.get(node)
        how = aside.reason if aside is not None else known.stage.value if known is not None else ""
        standing = NodeState.ASIDE if aside is not None else NodeState.STANDBY
        found.append(LiveNode(node=node, state=standing, why=one_line(how)))
    gone = (node for node in state.evicted if node not in state.world.slots and node not in state.spares)
    found += [
        LiveNode(node=node, state=NodeState.EVICTED, why=first_sentence(state.evicted[node], node))
        for node in gone
    ]
    return found
