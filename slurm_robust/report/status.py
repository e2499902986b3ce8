"""``srobust status JOB``: the state of a job on one screen."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from msgspec import structs
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from slurm_robust.evidence.incident_text import IncidentRow, incident_row
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.evidence.live_status import release_of, update_of
from slurm_robust.evidence.updates import release_text, waiting_text
from slurm_robust.ledger.classes import EFFECTIVE, TimeClass
from slurm_robust.ledger.summary import Summary, summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.companion import Companion
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.live_status import (
    LATE_S,
    OLD_S,
    LiveRelease,
    LiveStatus,
    LiveUpdate,
    NotALiveStatus,
    aged,
    counts,
    read,
)
from slurm_robust.model.notice import NOTIFIED
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.standby import STAGES, StandbyStage
from slurm_robust.model.state import JobState
from slurm_robust.model.training import PREFIX
from slurm_robust.model.updates import UpdateRow
from slurm_robust.policy.interval import IntervalAdvice, advise
from slurm_robust.policy.leaving import NODE_FAIL
from slurm_robust.report.chapters import place_text
from slurm_robust.report.incident_table import INCIDENT_STYLES
from slurm_robust.report.job_view import JobView, LaunchView
from slurm_robust.report.situation import (
    WORKING,
    JobSituation,
    JobSize,
    Seen,
    Tone,
    copies_text,
    cut_text,
    judge,
    nodes_text,
    none_left_text,
    phases_text,
    state_text,
    step_text,
    tone_of,
)
from slurm_robust.report.startup import GenerationStart, start_of
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import Bar, Paste, Screen, ScreenTable, facts_grid, show
from slurm_robust.trainings.find import ReadJournal, find, load, place_of
from slurm_robust.trainings.phase import CANCELLED, REQUEUED, exit_code
from slurm_robust.trainings.slurmview import (
    SlurmView,
    completing_advice,
    left_node,
    make_slurm,
    run_before,
    view_of,
    waits_for,
)
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.ours import read_ours
from slurm_robust.util.text import clock, count, date_and_time, duration, first_sentence, one_line

MAX_INCIDENTS = 3
"""Incidents on the screen, the newest, if there is room; ``--json`` and ``srobust incidents`` have all."""

MARGIN = 2
"""Lines of a terminal that the screen leaves free: for the prompt, or for the title of ``--watch``."""

MAX_LOST = 4
"""Classes of lost time on the screen, the greatest first; ``--json`` has all."""

WATCH_SHARE = 4.0
"""``--watch`` rests at least this many times as long as it has worked: a journal of months takes seconds."""

SLURM_EVERY_S = 15.0
"""Between two questions of ``--watch`` to Slurm, which has others to answer."""


NOTHING_SAVED = (
    "none: the script saves nothing that srobust knows, so a fault begins anew, or where the script resumes "
    "by itself"
)
"""The copies of a script that uses nothing of slurm_robust."""


class StandbyRow(Record):
    """A standby on its way into the world."""

    stage: str
    """One of the stages of [standbys](standbys.md), in their order."""

    reason: str = ""
    """Why the quick test or the rehearsal failed, gave no answer, or was not possible."""

    took_s: float = 0.0
    """Seconds that the quick test or the rehearsal took, if it is over."""

    test: str = ""
    """``pass``, ``fail`` or ``unknown``, "" as long as the quick test is not over."""

    imports: bool = False
    """Its zygote was told to import what the job was seen to import."""

    def describe(self) -> str:
        """Return ``rehearsed in 12 s, asleep, with the job's imports``."""
        with_imports = ", with the job's imports" if self.imports else ""
        if self.stage == StandbyStage.REHEARSED.value:
            told = "" if self.test in ("", "pass") else "; taken last: its quick test did not pass"
            return f"rehearsed in {self.took_s:.0f} s, asleep{with_imports}{told}"
        if self.stage in _TAKEN_LAST:
            return f"{self.stage}, taken last: {self.reason}"
        return self.stage + with_imports + (f", not rehearsed: {self.reason}" if self.reason else "")


_TAKEN_LAST = tuple(
    stage.value
    for stage in (StandbyStage.TEST_FAILED, StandbyStage.TEST_UNANSWERED, StandbyStage.REHEARSAL_FAILED)
)


class Status(Record):
    """The state of a job: all that ``--json`` prints."""

    job_id: int
    command: tuple[str, ...]
    """What its ranks run, or ran last: that of their release."""
    phase: str
    """``training``, ``recovering``, …; ``reason`` says why."""

    reason: str
    exit_code: int | None
    slurm: str
    """Slurm's own state of the job, "" if it does not know the job."""

    advice: str
    """What the job waits for in Slurm, and what ends the wait; "" for nothing."""

    run: int
    generation: int
    step: int
    """Newest step, -1 before the first."""

    loss: float | None
    reports: bool
    """Whether the script numbers its steps; else optimizer steps of the generation are counted."""
    slots: tuple[str, ...]
    spares: tuple[str, ...]
    lost_node: str
    """What the loss of a node does when no standby is left (``costs a requeue``); "" if unknown."""
    aside: dict[str, str]
    """Standbys that do not answer, with the reason."""

    companions: dict[int, Companion]
    """By job id."""
    standbys: dict[str, StandbyRow]
    """How far each standby is on its way into the world, also after it has got a slot; the last come last."""

    drained: dict[str, str]
    """Nodes in slots that others have drained, with who did it and why."""

    evicted: dict[str, str]
    """Nodes that were given up, with the reason."""

    incidents: tuple[IncidentRow, ...]
    ledger: Summary
    """What its time went into."""

    restored: str
    """Checkpoint with which the newest generation began, "" for a fresh start."""

    stored: ev.StorageWritten | None
    """The newest checkpoint that went from memory to storage."""

    interval: IntervalAdvice | None
    """How often a checkpoint should go there, if known."""

    notes: tuple[str, ...]
    controller_silent_s: float | None = None
    """For how long the controller has written nothing, if that is longer than it should be. By the clock
    of this machine, so clocks that differ show here, too."""
    waiting: PendingJob | None = None
    """What a pending job waits for."""
    silent: dict[str, str] = {}
    """Channels of notifications that are given up for a while, with the reason."""
    training: str = ""
    """The name of the training of which the job is a chapter, "" for none."""
    chapter: int = 0
    """Which of its jobs this is, from 1; 0 if that is not known."""
    newest_job: str | None = None
    """The newest of its jobs, "" if it is this one; None if that is not known."""
    moved_aside: tuple[str, ...] = ()
    """Folders of other trainings of this name."""
    local_stride: int = 1
    """Snapshots in memory are taken of steps that are multiples of it."""
    snapshots: SnapshotTimes | None = None
    """What snapshots took when that was last changed, None if it never was."""
    rising: bool = False
    """The local stride may not have risen to where it has to be yet."""
    release: LiveRelease | None = None
    """The one that the newest generation runs, None for a job without releases."""
    update: LiveUpdate | None = None
    """The update that waits to be applied."""
    updates: tuple[UpdateRow, ...] = ()
    """All that were requested."""
    start: GenerationStart | None = None
    """What the start of the newest generation waited for; on the screen with ``--phases``."""
    live: LiveStatus | None = None
    """What the controller sees now, without its nodes; None if it says nothing. ``step`` and ``loss``
    are its.
    """
    phases: str = ""
    """Announced phases that ranks are in."""
    now: JobSize = JobSize(ranks=0, standbys=0)
    """How many ranks and standbys there are."""
    began: JobSize = JobSize(ranks=0, standbys=0)
    """How many there were at the beginning."""
    left: str = ""
    """The node from which the controller was taken over, as long as its boot ends this run."""
    situation: JobSituation = JobSituation()
    """What is wrong, what is done about it, and what a person can do."""
    is_fault: bool = True
    """A requeue, if there is one, is because of a fault; False for a time limit or a preemption."""


def status_at(job: JobView, now: float, slurm: str = "", advice: str = "") -> Status:
    """Return the status by a journal at wall-clock time ``now``; ``slurm``, ``advice``: what Slurm says."""
    state, (phase, reason) = job.state, job.activity
    last = next((e for e in reversed(job.events) if isinstance(e, ev.ProgressMade | ev.FirstStep)), None)
    newest = job.launches[max(job.launches)] if job.launches else None
    strides = (e for e in reversed(job.events) if isinstance(e, ev.StrideChanged))
    is_left = job.is_over or state.ended is not None or phase == REQUEUED  # the nodes are others' now
    status = Status(
        job_id=state.job_id,
        command=job.command,
        phase=phase,
        reason=reason,
        exit_code=exit_code(state, phase),
        slurm=slurm,
        advice=advice,
        run=max(0, state.restart_count),
        generation=state.world.generation,
        step=last.step if last else -1,
        loss=last.loss if last else None,
        reports=last.reported if last else True,
        slots=state.world.slots,
        spares=state.spares,
        lost_node=one_line(state.lost_node),
        aside={} if is_left else {n: why.reason for n, why in state.aside.items() if n in state.spares},
        companions=dict(state.companions),
        standbys={} if is_left else _standbys(state),
        drained={} if is_left else {n: why for n, why in state.drained.items() if n in state.world.slots},
        evicted=dict(state.evicted),
        incidents=tuple(map(incident_row, job.incidents)),
        ledger=summary_of(job.events, now),
        restored=_restored(newest) if newest else "",
        stored=state.world.stored,
        interval=advise(job.events, now),
        notes=tuple(
            f"{e.node}: {e.text}" if e.node else e.text for e in job.events if isinstance(e, ev.Noted)
        ),
        local_stride=state.world.local_stride,
        rising=state.world.rising,
        snapshots=next((e.snapshots for e in strides if e.snapshots is not None), None),
        training=state.training,
        chapter=state.continued.chapter if state.continued is not None else int(bool(state.training)),
        now=JobSize(ranks=state.world.placement.world_size, standbys=len(state.spares)),
        began=_began(job),
        release=release_of(state),
        update=None if is_left and phase != REQUEUED else update_of(state, now),
        updates=job.updates,
        start=start_of(job) if newest else None,
        is_fault=state.requeueing is None or state.requeueing.failure,
    )
    return judged(status, now)


def judged(status: Status, now: float, cut: str = "") -> Status:
    """Return ``status`` with its situation at wall-clock time ``now``; ``cut``: the end of a cut journal."""
    seen = Seen(
        job_id=status.job_id,
        phase=status.phase,
        reason=status.reason,
        code=status.exit_code,
        live=status.live,
        phases=status.phases,
        incidents=status.incidents,
        waiting=status.waiting,
        slurm_advice=status.advice,
        evicted=status.evicted,
        silent_s=status.controller_silent_s,
        cut=cut,
        saves=status.stored is not None,
        training=bool(status.training),
        command=status.command,
        left=status.left,
        is_fault=status.is_fault,
    )
    return structs.replace(status, situation=judge(seen, now))


def _restored(newest: LaunchView) -> str:
    """Return the checkpoint with which a generation began; if it has made no step, it may have refused it."""
    if not newest.restored or newest.last is not None:
        return newest.restored
    return f"{newest.restored}, {'but' if newest.ended else 'and'} no step was made from it"


def _began(job: JobView) -> JobSize:
    """Return how many ranks and standbys the job began with."""
    if (started := job.started) is None:
        return JobSize(ranks=job.state.world.placement.world_size, standbys=len(job.state.spares))
    return JobSize(ranks=started.slots * started.nproc_per_node, standbys=started.spares)


def _standbys(state: JobState) -> dict[str, StandbyRow]:
    """Return spares and nodes that were some in this run, by how far they are."""
    rows = {
        f"companion {job_id}": StandbyRow(stage=StandbyStage.PROVISIONING.value)
        for job_id, companion in state.companions.items()
        if not companion.node  # it will lend one
    }
    for node in state.spares:
        known, test = state.standbys.get(node), state.standby_tests.get(node)
        rows[node] = StandbyRow(stage=StandbyStage.STARTING.value)
        if known is not None:
            rows[node] = StandbyRow(
                stage=known.stage.value,
                reason=known.reason,
                took_s=known.took_s,
                test=test.outcome.value if test is not None else "",
                imports=state.learned is not None and known.loaded >= state.learned.number,
            )
    is_up = state.world.running and state.world.steps_here >= 0
    stage = StandbyStage.IN_WORLD if is_up else StandbyStage.WOKEN
    rows |= {node: StandbyRow(stage=stage.value) for node in state.world.slots if node in state.standbys}
    order = [stage.value for stage in STAGES]
    return dict(sorted(rows.items(), key=lambda row: order.index(row[1].stage)))


def main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print the status of a job by id or folder. Raises ``NoSuchJob``, ``JournalDamaged``."""
    show(status_of(name, job_dir, make_slurm()), render, json=json)
    return 0


def watch(
    name: str,
    every_s: float,
    *,
    job_dir: str | None,
    slurm: SlurmClient | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Show the status again every ``every_s`` seconds, until the job has ended or Ctrl-C.

    In place if the cursor can be moved, else one below the other. ``pause`` waits for that many seconds.
    Raises ``NoSuchJob``, ``JournalDamaged``.
    """
    slurm, screen = slurm or make_slurm(), Screen()
    directory = find(name, job_dir, slurm)
    in_place = screen.is_terminal and not screen.is_dumb_terminal
    live = Live(
        console=screen,
        auto_refresh=False,
        vertical_overflow="crop",
        redirect_stdout=False,
        redirect_stderr=False,
    )
    asked, view, advice = -math.inf, SlurmView(), ""
    with live if in_place else nullcontext():
        while True:
            begun = time.monotonic()
            journal = load(directory, quiet=True)
            if begun - asked >= SLURM_EVERY_S:
                asked, (view, advice) = begun, _ask(journal.events, slurm)
            status = _status(journal, view, advice, directory)
            title = f"{date_and_time(time.time())}, every {every_s:g} s"
            shown = Group(Text(title, style="dim"), render(status), "")
            if in_place:
                live.update(shown, refresh=True)
            else:
                screen.print(shown)
                screen.file.flush()
            if status.exit_code is not None or view.is_over:
                return 0
            pause(max(every_s, WATCH_SHARE * (time.monotonic() - begun)))


def status_of(name: str, job_dir: str | None, slurm: SlurmClient) -> Status:
    """Return the status of a job, with Slurm's own view of it. Raises ``NoSuchJob``, ``JournalDamaged``."""
    directory = find(name, job_dir, slurm)
    journal = load(directory)
    with Bar("asking Slurm") as bar:
        view, advice = _ask(journal.events, slurm)
        bar.say("adding up the ledger")
        return _status(journal, view, advice, directory)


def _ask(events: Sequence[ev.AnyEvent], slurm: SlurmClient) -> tuple[SlurmView, str]:
    """Return the job as Slurm knows it, and what it waits for."""
    view = view_of(events, slurm)
    job = view.job
    if job is None:
        return view, ""
    state = fold(events)
    waits = waits_for(slurm, job, state)
    view = structs.replace(
        view,
        waiting=waits,
        before=run_before(slurm, job, state),
        left=left_node(slurm, job, state),
    )
    return view, waits.advice if waits is not None else completing_advice(slurm, job)


def _status(journal: ReadJournal, view: SlurmView, advice: str, directory: JobDirectory) -> Status:
    """Return the status now, or as of the last event of a job that Slurm does not have or that has ended.

    With a note on each channel of notifications that is given up.
    """
    wall, events = time.time(), journal.events
    job = JobView(events=events, is_over=view.is_over, slurm=view.state)
    newest_t = max((e.t for e in events), default=wall)
    status = status_at(job, wall if view.goes_on else newest_t, view.describe(), advice)
    changes: dict[str, Any] = {"waiting": view.waiting, "silent": silent_channels(directory, wall)}
    cut = ""
    if status.phase == CANCELLED and view.job is not None and view.job.is_pending:
        changes["phase"] = REQUEUED
        changes["reason"] = f"by Slurm or its owner; the run before was {status.reason}"
    elif status.phase == REQUEUED and view.before == "NODE_FAIL" and view.before not in status.reason:
        changes["reason"] = f"{NODE_FAIL}: {status.reason}"
    elif view.goes_on and status.phase in WORKING:
        changes |= _now(directory, job.state, wall)
        changes["left"] = view.left
    elif journal.breaks_off and status.exit_code is None:
        cut = cut_text(journal.breaks_off, newest_t)
        changes |= {"phase": "unknown", "reason": cut}
    given_up = changes["silent"].items()
    notes = (f"channel {name} of notifications is given up for a while: {why}" for name, why in given_up)
    if status.training:
        place = place_of(directory, status.training, job.state.run_id)
        changes |= {"training": place.training, "newest_job": place.newest, "moved_aside": place.moved_aside}
    return judged(structs.replace(status, notes=(*status.notes, *notes), **changes), wall, cut)


def _now(directory: JobDirectory, state: JobState, wall: float) -> dict[str, Any]:
    """Return what the newest controller sees now, or for how long it has been silent."""
    try:
        found = read(directory.live_status)
    except (OSError, NotALiveStatus):
        return {}
    if counts(found, state.run_id, state.epoch, ended=state.ended is not None):
        return {}
    old_s = wall - found.t
    changes: dict[str, Any] = {"controller_silent_s": old_s} if old_s > LATE_S else {}
    if old_s > OLD_S:
        return changes
    live = aged(found, max(0.0, old_s))
    changes |= {"live": structs.replace(live, nodes=()), "phases": phases_text(live)}
    if live.step >= 0:
        changes |= {"step": live.step, "loss": live.loss}
    if live.update is not None:
        changes["update"] = live.update  # which says what its trial is at
    return changes


def silent_channels(directory: JobDirectory, now: float) -> dict[str, str]:
    """Return channels that are given up at ``now``, with the reason; none if that cannot be read."""
    try:
        return NOTIFIED.decode(read_ours(directory.notified)).given_up(now)
    except (OSError, *UNREADABLE):
        return {}


def render(status: Status) -> RenderableType:
    """Return the whole screen."""
    found = status.situation
    training = stored = snapshots = ""
    if status.training:
        training = place_text(status.training, status.chapter, status.newest_job)
        aside = ", ".join(name.removeprefix(PREFIX) for name in status.moved_aside)
        training += f"; moved aside by --fresh: {aside}" if aside else ""
    copies = copies_text(status.live.tiers) if status.live is not None else ""
    if status.stored is not None and not copies:
        copies = f"step {status.stored.step} on storage, written in {status.stored.seconds:.1f} s"
    counts_only = not (status.live.reports if status.live is not None else status.reports)
    if not copies and counts_only and status.step >= 0 and status.phase in WORKING:
        copies = NOTHING_SAVED
    if status.stored is not None and (often := status.interval) is not None:
        stored = f"one every {often.every_s:.0f} s or less often, with an incident every "
        stored += f"{often.mtbf_s:.0f} s so far"
    is_kept = status.live is None or not status.live.unkept
    if status.local_stride > 1 and status.phase in WORKING and not found.grave and is_kept:
        local, times = status.local_stride, status.snapshots
        multiple = times.taken_of(local) if times is not None else local
        snapshots = f"of steps that are multiples of {multiple} only"
        if times is not None:
            snapshots += f"; {times.repeats(local, rising=status.rising)}"
    # Standbys that are set aside have their own line.
    in_world = (StandbyStage.WOKEN.value, StandbyStage.IN_WORLD.value)
    standbys = (
        (node, row)
        for node, row in status.standbys.items()
        if node not in status.aside and row.stage not in in_world
    )
    lent = (
        f"{one.node} by companion {job_id} ({one.source})"
        if one.node
        else f"companion {job_id} waits for a node from {one.source}"
        for job_id, one in status.companions.items()
    )
    # The reports of the incidents have the whole reasons, which may be outputs of commands.
    evicted = (f"{node} ({first_sentence(why, node)})" for node, why in status.evicted.items())
    given_up = (f"channel {name} of notifications ({why})" for name, why in status.silent.items())
    nodes = nodes_text(status.slots, status.spares, status.now, status.began) if status.slots else ""
    none_left = ""
    if status.phase in WORKING and status.slots and not (status.spares or status.companions):
        trained = [node for node, row in status.standbys.items() if row.stage in in_world]
        where = (
            f" ({fold_nodes(trained)} {'trains' if len(trained) == 1 else 'train'} now)" if trained else ""
        )
        none_left = none_left_text(status.lost_node, where)
    wrong = "bold red" if found.grave else "yellow"
    advice = found.advice
    rows = [
        ("training", training, ""),
        ("job", f"{status.job_id}  {shlex.join(status.command)}", ""),
        ("state", _state(status), TONE_STYLES[tone_of(status.phase)]),
        *(("wrong", text, wrong) for text in found.wrong[:1]),
        *(("", text, wrong) for text in found.wrong[1:]),
        ("doing", found.doing, "cyan"),
        ("next", advice.text if advice is not None else "", ""),
        ("", Paste(advice.command) if advice is not None and advice.command else "", "bold"),
        ("Slurm", status.slurm or "job unknown to Slurm (forgotten, or of another cluster)", ""),
        ("step", _step(status), ""),
        ("restored", status.restored, ""),
        ("copies", copies, ""),
        ("advised", stored, ""),
        ("snapshots", snapshots, ""),
        (
            "release",
            release_text(status.release) if status.release is not None and status.updates else "",
            "",
        ),
        ("update", waiting_text(status.update) if status.update is not None else "", "cyan"),
        ("nodes", f"{nodes}, until the requeue" if status.phase == REQUEUED and nodes else nodes, ""),
        ("standbys", "; ".join(f"{node} {row.describe()}" for node, row in standbys), ""),
        ("", none_left, "yellow"),
        ("no answer", "; ".join(f"standby {node} ({why})" for node, why in status.aside.items()), "yellow"),
        ("lent", "; ".join(lent), ""),
        ("drained", "; ".join(f"{node} (by {why})" for node, why in status.drained.items()), ""),
        ("evicted", "; ".join(evicted), ""),
        ("silent", "; ".join(given_up), "yellow"),
        ("ETTR", ettr_text(status.ledger, MAX_LOST), ""),
    ]
    is_above = bool(status.incidents and found.wrong) and status.incidents[-1].status is IncidentStatus.OPEN
    before = status.incidents[:-1] if is_above else status.incidents
    return _OneScreen(
        [(name, value, style) for name, value, style in rows if value],
        "Incidents before" if is_above else "Incidents",
        partial(newest_incidents, status.job_id, before),
        len(before),
    )


class _OneScreen:
    """The facts, and below them as many incidents as a terminal shows without scrolling.

    Where the facts alone are too many lines, those below what is wrong have one line each.
    """

    def __init__(
        self,
        rows: Sequence[tuple[str, str | Paste, str]],
        title: str,
        newest: Callable[[int], RenderableType],
        incidents: int,
    ) -> None:
        self._rows, self._title, self._newest, self._incidents = rows, title, newest, incidents

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        most = min(MAX_INCIDENTS, self._incidents)
        screens = [self._screen(shown, short=False) for shown in range(most, -1, -1)]
        if not console.is_terminal:
            yield screens[0]
            return
        room = options.max_height - MARGIN
        fitting = (one for one in screens if len(console.render_lines(one, options)) <= room)
        yield next(fitting, None) or self._screen(0, short=True)

    def _screen(self, shown: int, *, short: bool) -> RenderableType:
        facts = facts_grid()
        is_below = False
        for name, value, style in self._rows:
            is_below = is_below or name == "Slurm"
            if isinstance(value, Paste):
                facts.add_row(name, value)
                continue
            text = Text(one_line(value, None), style=style)
            if short and is_below:
                text.no_wrap, text.overflow = True, "ellipsis"
            facts.add_row(name, text)
        if not self._incidents:
            return facts
        title = f"\n{self._title}"
        title += f", the newest {shown} of {self._incidents}" if 0 < shown < self._incidents else ""
        return Group(facts, Text(title, style="bold"), self._newest(shown))


TONE_STYLES = {Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "bold red", Tone.PLAIN: ""}
"""How a screen shows each."""


def _state(status: Status) -> str:
    # What is wrong has the reason.
    reason = "" if status.situation.wrong else status.reason
    return state_text(status.phase, status.exit_code, reason)


def _step(status: Status) -> str:
    launched = (
        f"generation {status.generation}, run {status.run}"
        if status.start is not None
        else "nothing was launched yet"
    )
    if status.live is not None:
        return f"{step_text(status.live, status.phases)}; {launched}"
    if status.step < 0:
        return f"none yet; {launched}"
    text = f"{status.step}" + (f", loss {status.loss:.4f}" if status.loss is not None else "")
    if not status.reports:
        text = f"{count(status.step + 1, 'optimizer step')} or more"
    return f"{text}; {launched}"


def newest_incidents(job_id: int, rows: Sequence[IncidentRow], most: int) -> RenderableType:
    """Return a line or two for each of the newest ``most`` incidents, the newest first, and where all are."""
    every = f"all {len(rows)}: srobust incidents {job_id}"
    if not most:
        return Text(every, style="dim")
    table = ScreenTable(head=False)
    table.add_column(no_wrap=True, justify="right", style="bold")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in reversed(rows[-most:]):
        cost = f", {duration(row.lost_s)} lost" if row.lost_s is not None else ""
        told = row.what + (f": {row.done}" if row.done else "")
        how = Text(f"{row.status.value}{cost}", style=INCIDENT_STYLES[row.status])
        table.add_row(f"  {row.number}", clock(row.t), how, Text(one_line(told)))
    hint = f"srobust incident {job_id} {rows[-1].number}"
    hint += f"; {every}" if most < len(rows) else ""
    return Group(table, Text(f"reports: {hint}", style="dim"))


def ettr_text(found: Summary, most: int = 0) -> str:
    """Return ``69.2% of 103 s since its first start, 40 steps; lost: starting 20 s, detecting 4.4 s``.

    ``most``: classes of lost time, the greatest first.
    """
    text = f"{found.ettr:.1%} of {duration((found.wall_ms - found.started_ms) / 1000)} since its first start"
    text += f", {count(found.steps, 'step')}"
    if found.repeated is None:
        text += ", as if each restart began anew: the script does not number its steps"
    elif found.repeated:
        text += f", {found.repeated} repeated"
    if found.ettr_undrilled is not None:
        text += f"; {found.ettr_undrilled:.1%} without {count(found.drills, 'drill')}"
    lost = {one: ms for one, ms in found.classes.items() if one not in (*EFFECTIVE, TimeClass.QUEUED)}
    greatest = sorted(lost, key=lambda one: lost[one], reverse=True)[:most]
    if greatest:
        text += f"; lost: {', '.join(f'{one.value} {duration(lost[one] / 1000)}' for one in greatest)}"
    return text
