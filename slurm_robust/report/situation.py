"""What the person on call needs first: what is wrong, what is done about it, what they could do. Pure.

``srobust status`` and ``srobust top`` show the same, and take the texts of the training itself from here. The
words for a job's state are here, too, for them and for the first line of a report.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import Enum

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.live_status import LiveStatus, LiveTier, NodeState, newest_whole
from slurm_robust.model.record import Record
from slurm_robust.policy.leaving import cancelled
from slurm_robust.policy.takeover import UNANSWERED_S
from slurm_robust.trainings.jobs import ChapterState
from slurm_robust.trainings.phase import CANCELLED, ENDED, PREEMPTED, REQUEUED, REQUEUEING, SAVING
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import clock, count, duration, first_sentence

LATE_FACTOR = 3.0
"""A step that takes this many times as long as usual is late."""

STILL_S, STILL_FACTOR = 60.0, 5.0
"""It is wrong if the newest whole checkpoint stays the same for this time, and for this many times what a
snapshot takes."""

LATE_S = 5.0
"""No step is late before: heartbeats and the live status are seconds old themselves."""

STAGES = {
    "gathering": "waits for the agents of its nodes",
    "launching": "starts the ranks",
    "localising": "takes stacks of all ranks",
    "observing": "watches: nodes do not answer, and training goes on",
    "reconnecting": "waits for the agents of its nodes",
    "unreachable": "waits for nodes that fell silent together",
    "checkpointing": "waits for a checkpoint on storage",
    "updating": "stops the ranks at one step, for an update",
    "stopping": "stops the ranks",
    "deciding": "decides what to do",
    "testing": "tests nodes",
    "borrowing": "waits for a node from outside the allocation",
    "requeueing": "hands the job back to Slurm's queue",
    "saving": "writes the newest step to storage",
    "storing": "writes a checkpoint of another number of ranks to storage",
    "ending": "ends the run",
}
"""Stages of the controller, as what it does; it trains in the one that is not here."""

WORKING = ("training", "recovering", "starting")
"""Phases in which the job holds nodes for its ranks."""


class Tone(str, Enum):
    """How much something needs a person."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    PLAIN = "plain"
    """It says nothing of that."""


_TONES = {
    "training": Tone.GOOD,
    "finished": Tone.GOOD,
    "stopped": Tone.BAD,
    CANCELLED: Tone.PLAIN,
    ENDED: Tone.PLAIN,
    ChapterState.GONE.value: Tone.PLAIN,
}


def tone_of(phase: str) -> Tone:
    """Return how much a job in this phase needs a person: a little, if it neither trains nor has ended."""
    return _TONES.get(phase, Tone.WARNING)


def state_text(phase: str, code: int | None = None, reason: str = "") -> str:
    """Return ``training``, ``starting: for update 2``, ``cancelled (Ctrl-C), exit code 130``.

    ``code``: the exit code of a run that has ended.
    """
    text = cancelled(code or 0) if phase == CANCELLED else phase
    text += f": {reason}" if reason and phase != CANCELLED else ""
    return text + (f", exit code {code}" if code is not None and phase != REQUEUED else "")


def not_saved(order: str) -> str:
    """Return what the end of a cancelled job says could not be saved: it follows the order."""
    return order.partition("; ")[2]


def queue_text(waits: PendingJob, now: float) -> str:
    """Return ``waits in Slurm's queue for 8 min for 4 nodes: 2 nodes free (n[1,3]), n2 dead``."""
    return f"waits in Slurm's queue {waits.describe(now)}"


def cut_text(line: int, t: float) -> str:
    """Return where a journal breaks off whose newest whole event is of time ``t``."""
    return f"the journal breaks off in line {line} at {clock(t)}; later events are missing"


class NextMove(Record):
    """What a person can do."""

    text: str
    """What the command does, and what it costs; or what has to happen."""
    command: str = ""
    """Ready to be pasted; "" if there is none."""


class JobSituation(Record):
    """What is wrong, what is done about it, and what a person can do."""

    wrong: tuple[str, ...] = ()
    """The most important first."""
    grave: bool = False
    """Training does not go on, as opposed to what may come to that."""
    doing: str = ""
    advice: NextMove | None = None


class Seen(Record):
    """What it is judged by: the job as its journal, its controller and Slurm show it."""

    job_id: int
    phase: str
    reason: str
    code: int | None = None
    live: LiveStatus | None = None
    """What the controller sees now; None if it says nothing."""
    phases: str = ""
    """Announced phases that ranks are in."""
    incidents: Sequence[IncidentRow] = ()
    waiting: PendingJob | None = None
    slurm_advice: str = ""
    """What the job waits for in Slurm while a run of it ends."""
    evicted: dict[str, str] = {}
    silent_s: float | None = None
    """For how long its controller has been silent, if that is longer than it should be."""
    cut: str = ""
    """Where its journal breaks off."""
    saves: bool = False
    """It has a checkpoint on storage, from which another job can go on."""
    training: bool = False
    """It is a chapter of a training with a name."""
    command: tuple[str, ...] = ()
    """What its ranks run, as ``srobust run`` takes it."""
    left: str = ""
    """The node from which the controller was taken over, as long as Slurm has not given it up."""
    is_fault: bool = True
    """A requeue is because of a fault, as opposed to a time limit or a preemption."""


def judge(seen: Seen, now: float) -> JobSituation:
    """Return the situation at wall-clock time ``now``."""
    if seen.cut:
        return JobSituation(wrong=(seen.cut,), grave=True)
    if seen.waiting is not None:
        return _pending(seen, seen.waiting, now)
    if seen.phase in (REQUEUEING, REQUEUED, PREEMPTED):
        return _requeued(seen)
    if seen.phase == SAVING:
        return JobSituation(doing=seen.reason)
    if seen.phase not in WORKING:
        has_ended = seen.code is not None or seen.phase in ("stopped", CANCELLED)
        return _ended(seen) if has_ended else JobSituation()
    if seen.silent_s is not None:
        text = (
            f"the controller has been silent for {duration(seen.silent_s)}; until it goes on, or another one "
            "takes over, no fault is answered"
        )
        return JobSituation(wrong=(text,), grave=seen.live is None, advice=_WAIT_FOR_CONTROLLER)
    return _live(seen, seen.live) if seen.live is not None else _by_journal(seen)


_WAIT_FOR_CONTROLLER = NextMove(
    text=f"wait {duration(UNANSWERED_S)} for the next controller and do not scancel: "
    "training goes on without one"
)


def _requeued(seen: Seen) -> JobSituation:
    """Judge a run that has handed the job back: only a fault, or who took its nodes, is wrong."""
    if seen.phase == PREEMPTED:  # whether Slurm queues it again is the cluster's setting
        return JobSituation(wrong=(first_sentence(seen.reason),), grave=True, doing=seen.slurm_advice)
    doing = seen.slurm_advice or "Slurm ends this run and puts the job back into its queue"
    if seen.phase == REQUEUEING:
        doing = "asks Slurm to put the job back into its queue"
    advice = NextMove(text="wait: it starts again by itself and goes on from its newest checkpoint")
    if not seen.is_fault:
        return JobSituation(doing=doing, advice=advice)
    return JobSituation(wrong=(first_sentence(seen.reason),), grave=True, doing=doing, advice=advice)


def _pending(seen: Seen, waits: PendingJob, now: float) -> JobSituation:
    wrong = [queue_text(waits, now)]
    if seen.reason and seen.is_fault:
        wrong.append(first_sentence(seen.reason))
    if not waits.command:
        return JobSituation(wrong=tuple(wrong), grave=True, advice=_told(waits.why))
    text, least = waits.why, count(waits.least, "node")
    blamed = [
        f"{node} was given up: {first_sentence(seen.evicted[node], node)}"
        for node in waits.uses
        if node in seen.evicted
    ]
    costs = [*blamed, *(["if it fails again, that costs one more recovery"] if waits.uses else [])]
    if waits.most > waits.least and len(waits.places.free) + len(waits.uses) <= waits.least:
        costs.append("it then runs without a standby")
    text = "; ".join((text, *costs))
    doing = f"Slurm starts it by itself once {least} are free that are not left out"
    if waits.reason == "BeginTime":
        doing = "Slurm starts it by itself once its begin time is over"
    elif waits.reason == "BadConstraints":
        doing = ""  # Slurm has set its priority to 0
    return JobSituation(
        wrong=tuple(wrong), grave=True, doing=doing, advice=NextMove(text=text, command=waits.command)
    )


def _told(why: str) -> NextMove | None:
    """Return advice whose command, if it has one, ends its text."""
    text, _, command = why.rpartition(": ")
    is_command = command.startswith(("scontrol ", "scancel ", "sacctmgr "))
    return NextMove(text=text, command=command) if is_command else NextMove(text=why) if why else None


def _ended(seen: Seen) -> JobSituation:
    if seen.code == 0:
        return JobSituation()
    if seen.phase == CANCELLED:
        how, command = _goes_on(seen)
        text = f"to go on from its newest checkpoint, submit it again with {how}"
        lost = not_saved(seen.reason)
        advice = NextMove(text=text, command=command) if seen.saves or seen.training else None
        return JobSituation(wrong=(lost,) if lost else (), grave=True, advice=advice)
    text = first_sentence(seen.reason, most=300)
    newest = seen.incidents[-1] if seen.incidents else None
    if newest is None or seen.code in (ExitCode.CHECKPOINTS, ExitCode.CONFIG):
        return JobSituation(wrong=(text,), grave=True)
    again = ": ".join(filter(None, _goes_on(seen)))
    report = NextMove(
        text="read why; once that is mended, submit it again"
        + (f": it goes on with {again}" if seen.saves or seen.training else ""),
        command=f"srobust incident {seen.job_id} {newest.number}",
    )
    return JobSituation(wrong=(text,), grave=True, advice=report)


MAX_AGAIN = 400
"""Characters of a command that a screen shows whole: five lines of 80 columns."""


def _goes_on(seen: Seen) -> tuple[str, str]:
    """Return what a job that is submitted again goes on from this one with, and the command.

    Without a command where the screen has no room for all its arguments: with fewer it is another training.
    """
    command = f"sbatch train.sbatch --from {seen.job_id} {shlex.join(seen.command)}"
    is_shown = bool(seen.command) and len(command) <= MAX_AGAIN and command.isprintable()
    how = "--from before the script"
    if not is_shown:
        how = f"--from {seen.job_id} before the script and its arguments"
    return f"the same --training, or with {how}" if seen.training else how, command if is_shown else ""


def _by_journal(seen: Seen) -> JobSituation:
    if seen.phase != "recovering" or not seen.incidents:
        return JobSituation()
    row = seen.incidents[-1]
    wrong = f"incident {row.number}: {row.symptom}: {row.signs[0]}"
    return JobSituation(
        wrong=(wrong,),
        grave=True,
        doing=row.done or "nothing is decided yet",
        advice=_report(seen.job_id, row.number),
    )


def _report(job_id: int, number: int) -> NextMove:
    return NextMove(
        text="wait; this shows the evidence and the decision so far",
        command=f"srobust incident {job_id} {number}",
    )


def _live(seen: Seen, live: LiveStatus) -> JobSituation:
    wrong = list(_storage(live))
    halted = live.held and bool(live.trouble) and not _has_live_ranks(live)
    if halted:
        wrong.insert(0, "no rank runs, and none is started until storage takes the journal again")
    if (incident := live.incident) is not None:
        sign = f": {incident.sign}" if incident.sign else ""
        sign += f" ({incident.drill})" if incident.drill else ""
        wrong.insert(
            0, f"incident {incident.number} for {duration(incident.age_s)}: {incident.symptom}{sign}"
        )
        # The journal may have the decision before the controller's file has it.
        row = next((row for row in seen.incidents if row.number == incident.number), None)
        decided = incident.actions or (row.done if row is not None else "") or "nothing is decided yet"
        doing = "; ".join(filter(None, (decided, _stage(seen, live))))
        report = _report(seen.job_id, incident.number)
        return JobSituation(wrong=tuple(wrong), grave=True, doing=doing, advice=report)
    if live.non_finite:
        wrong.append("loss or gradient norm is NaN or infinite")
    if seen.left:
        wrong.append(f"until Slurm gives up {seen.left} (SlurmdTimeout), booting {seen.left} ends this run")
    wrong += _unkept(live)
    advice = _make_room(seen.job_id, [*live.unkept, *live.unkept_peers])
    if late := late_text(live, seen.phases):
        wrong.append(late)
        advice = NextMove(
            text="see where its ranks are; that changes nothing", command=f"srobust stacks {seen.job_id}"
        )
    if halted:
        advice = NextMove(text="free space on the storage of the job's folder", command="df -h")
    return JobSituation(wrong=tuple(wrong), grave=halted, doing=_stage(seen, live), advice=advice)


def _stage(seen: Seen, live: LiveStatus) -> str:
    """Return what the controller does, unless the journal is further: a step has ended the start."""
    return "" if seen.phase == "training" and live.stage in ("gathering", "launching") else stage_text(live)


def _unkept(live: LiveStatus) -> Iterator[str]:
    """Yield what a fault would cost more than steps since the newest snapshot, and why."""
    newest = newest_whole(live.tiers)
    if live.unkept and live.step >= 0:
        why = f"{fold(live.unkept)} has no room in memory for snapshots ({next(iter(live.unkept.values()))})"
        if newest is None:
            yield f"no checkpoint is whole, so a fault repeats all steps: {why}"
        else:
            yield f"{why}: a fault goes back to step {newest.step}, the newest that is whole"
    elif live.unkept_peers:
        why = f"({next(iter(live.unkept_peers.values()))})"
        yield (
            f"{fold(live.unkept_peers)} has no room in memory for copies of other nodes {why}: the loss of "
            "such a node goes back to the newest checkpoint on storage"
        )
    age_s, every_s = live.kept_age_s, live.kept_every_s
    if live.unkept or age_s is None or every_s is None or newest is None or live.step <= newest.step:
        return
    if age_s > max(STILL_S, STILL_FACTOR * every_s):
        yield f"step {newest.step} has been the newest whole checkpoint for {duration(age_s)}"


def _make_room(job_id: int, nodes: Sequence[str]) -> NextMove | None:
    if not nodes:
        return None
    return NextMove(
        text="remove what fills the memory of that node; snapshots come back with the next checkpoint on "
        "storage. This lists the files",
        command=f"srun --jobid {job_id} --overlap -N1 -n1 -w {nodes[0]} ls -lS /dev/shm",
    )


def _has_live_ranks(live: LiveStatus) -> bool:
    return any(node.state in (NodeState.TRAINING, NodeState.STARTING) for node in live.nodes)


def _storage(live: LiveStatus) -> Iterator[str]:
    """Yield what is wrong with the storage of the job's folder."""
    if live.held:
        yield "nothing is decided, since storage does not take the journal"
    if live.trouble:
        yield f"journal: {live.trouble} ({count(live.behind, 'event')} in memory only)"
    if live.missed:
        yield f"moment.json could not be written {count(live.missed, 'time')}"


def stage_text(live: LiveStatus) -> str:
    """Return ``stops the ranks for 1.2 s, 185 s at most: …``; "" while nothing but training is done."""
    if live.stage not in STAGES:
        return live.ending
    most = f", {duration(live.stage_most_s)} at most" if live.stage_most_s is not None else ""
    why = live.stage_why if live.incident is None or live.stage_why != live.incident.sign else ""
    text = f"{STAGES[live.stage]} for {duration(live.stage_s)}{most}{': ' if why else ''}{why}"
    return f"{text}; {live.ending}" if live.ending and live.ending != live.stage_why else text


# -- the training ------------------------------------------------------------------------------------


def late_text(live: LiveStatus, phases: str = "") -> str:
    """Return ``no step for 13 s (usual 0.31 s); called a hang at 14 s``; "" if none is late."""
    age_s, usual_s = live.step_age_s, live.usual_step_s
    if live.stage != "running" or live.step < 0 or age_s is None or not usual_s or phases:
        return ""
    if age_s < max(LATE_FACTOR * usual_s, LATE_S):
        return ""
    limit = (
        f"; called a hang at {duration(live.hang_s)}" if live.hang_s is not None else "; never called a hang"
    )
    return f"no step for {duration(age_s)} (usual {step_s_text(usual_s)}){limit}"


def phases_text(live: LiveStatus) -> str:
    """Return the phases that ranks have announced and are in."""
    return ", ".join(
        dict.fromkeys(node.phase for node in live.nodes if node.phase and node.state is NodeState.TRAINING)
    )


def step_s_text(seconds: float) -> str:
    """Return ``0.31 s``."""
    return f"{seconds:.2g} s" if seconds < 9.95 else duration(seconds)


def step_text(live: LiveStatus, phases: str = "") -> str:
    """Return ``265, 13 s ago (usual 0.31 s), loss 2.5``, by what the controller sees now."""
    age = duration(live.step_age_s) if live.step_age_s is not None else ""
    if live.step < 0:
        since = f", {age} since the ranks were started" if age and live.ranks else ""
        before = f"; the newest before was {live.best_step}" if live.reports and live.best_step >= 0 else ""
        return f"none of this generation yet{since}{before}"
    text = f"{live.step}" if live.reports else f"{count(live.step + 1, 'optimizer step')} of this generation"
    text += f", {age} ago" if age else ""
    text += f" (usual {step_s_text(live.usual_step_s)})" if live.usual_step_s else ""
    if phases:
        text += f", in {phases}"
    if live.non_finite:
        return f"{text}, loss NaN or infinite"
    return f"{text}, loss {live.loss:.4f}" if live.loss is not None else text


_TIERS = {"memory": "in memory", "peer": "on other nodes", "local": "on local disks", "storage": "on storage"}


def copies_text(tiers: Sequence[LiveTier]) -> str:
    """Return ``step 265 in memory, 264 on other nodes, 250 on storage (4 min ago)``."""
    parts = [
        f"{tier.step} {_TIERS[tier.tier.value]}"
        + (f" ({duration(tier.age_s)} ago)" if tier.age_s is not None else "")
        for tier in tiers
    ]
    return f"step {', '.join(parts)}" if parts else ""


class JobSize(Record):
    """How many ranks and standbys."""

    ranks: int
    standbys: int

    def __str__(self) -> str:
        standbys = count(self.standbys, "standby") if self.standbys else "no standby"
        return f"{count(self.ranks, 'rank')} + {standbys}"


def nodes_text(slots: Sequence[str], spares: Sequence[str], now: JobSize, began: JobSize) -> str:
    """Return ``n[1-4] (4 ranks), standby n5``; with the size at the beginning if it was another one."""
    nodes = f"{fold(slots)} ({count(now.ranks, 'rank')})"
    nodes += f", standby {fold(spares)}" if spares else ", no standby"
    return nodes if now == began else f"{nodes}; began with {began}"


def none_left_text(lost_node: str, where: str = "") -> str:
    """Return ``no standby left (n5 trains now): the next lost node costs a requeue``."""
    return f"no standby left{where}" + (f": the next lost node {lost_node}" if lost_node else "")
