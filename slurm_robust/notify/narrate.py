"""What the events of a journal mean for people. Pure: the same events make the same notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from slurm_robust.evidence import drills, updates
from slurm_robust.evidence.incident_text import actions_text
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Evict, GiveUp, Requeue, finds_out_more
from slurm_robust.model.notice import Notice, NoticeKind, Severity
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.updates import UpdateBook, UpdateResult, UpdateRow
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import count, duration, one_line

_BY_ORDER = (ExitCode.TERMINATED, ExitCode.INTERRUPTED)
"""Ends that Slurm or the owner wanted."""

_OF_UPDATES = (
    ev.UpdateRequested,
    ev.UpdateTried,
    ev.UpdateApplied,
    ev.UpdateEnded,
    ev.ReleaseProven,
    ev.Decided,
)
_SEVERITIES = {
    UpdateResult.REFUSED: Severity.WARNING,
    UpdateResult.ROLLED_BACK: Severity.WARNING,
}


class Narrator:
    """Reads the events of one job in the order of the file, and tells what people want to know of them."""

    def __init__(self, name: str = "JOB") -> None:
        """Take ``name``, that of the job as our commands take it."""
        self._name = name
        self._state = JobState()
        self._wanted = 0  # standbys
        self._had = 0
        self._changes = 0  # of their number
        self._opened: ev.IncidentOpened | None = None  # the newest
        self._decisions: Counter[int] = Counter()
        self._gave_up = False  # it was told in this run
        self._updates = UpdateBook()

    def tell(self, event: ev.AnyEvent) -> tuple[Notice, ...]:
        """Return the notices of the next event."""
        told = (*self._tell(event), *self._update(event))
        self._state = apply(event, self._state)
        return (*told, *self._standbys(event))

    @property
    def has_ended(self) -> bool:
        """The journal has the end of the newest run, or its requeue."""
        return self._state.ended is not None or self._state.requeueing is not None

    def restate(self, before: Iterable[ev.AnyEvent]) -> None:
        """Go on from the events ``before``: others do not count, since another controller took over."""
        self._state, self._updates = JobState(), UpdateBook()
        for event in before:
            self._state = apply(event, self._state)
            self._updates.read(event)
            if isinstance(event, ev.IncidentOpened):
                self._opened = event

    def _tell(self, event: ev.AnyEvent) -> Iterator[Notice]:
        match event:
            case ev.RunStarted():
                self._wanted = event.spares
            case ev.DrillPlanted():
                text = drills.cause(event)
                yield self._notice(event, f"drill/{event.drill}", NoticeKind.DRILL, text, Severity.INFO)
            case ev.IncidentOpened():
                self._opened = event
                planted = self._state.world.drills
                beside = f"; {drills.cause(planted[-1])} was planted before" if planted else ""
                yield self._notice(
                    event,
                    f"incident/{event.incident}",
                    NoticeKind.INCIDENT,
                    f"incident {event.incident}: {event.symptom.value}: {event.detail}{beside}",
                    Severity.INFO if planted else Severity.WARNING,
                    incident=event.incident,
                )
            case ev.Decided():
                number = event.incident
                self._decisions[number] += 1
                gives_up = any(isinstance(action, GiveUp) for action in event.actions)
                verdict = event.verdict
                named = [action.node for action in event.actions if isinstance(action, Evict)]
                named += [node for a in event.actions if isinstance(a, Requeue) for node in a.exclude]
                known = next((one for one in self._state.world.drills if one.drill == event.drill), None)
                cause = f"{drills.title(known)}: " if known is not None else ""
                calm = finds_out_more(event.actions) or known is not None
                severity = Severity.INFO if calm else Severity.WARNING
                if gives_up and event.carried_out:
                    self._gave_up = True
                    severity = Severity.CRITICAL
                yield self._notice(
                    event,
                    f"decision/{number}/{self._decisions[number]}",
                    NoticeKind.GIVE_UP if gives_up else NoticeKind.INCIDENT,
                    f"incident {number}: {cause}{event.reason}",
                    severity,
                    nodes=verdict.suspects if verdict is not None and verdict.suspects else tuple(named),
                    action=actions_text(event),
                    incident=number,
                )
            case ev.IncidentClosed():
                recovered = self._recovered(event)
                yield self._notice(
                    event,
                    f"recovery/{event.incident}/{event.generation}",
                    NoticeKind.RECOVERY,
                    f"incident {event.incident} is over, {recovered}: step {event.step} is the first new one",
                    Severity.INFO,
                    short=recovered,
                    incident=event.incident,
                )
            case ev.ControllerStarted() if event.taken_from:
                yield self._notice(
                    event,
                    f"takeover/{event.epoch}",
                    NoticeKind.TAKEOVER,
                    f"takeover: the controller runs on {event.node or event.host} now: {event.reason}",
                    nodes=(event.taken_from,),
                )
            case ev.AllocationTaken(restart_count=run):
                self._wanted = max(self._wanted, len(event.spares))
                self._gave_up = False
                if run > 0:
                    text = f"run {run} begins on {count(len(event.slots), 'node')}"
                    yield self._notice(
                        event, f"run/{run}", NoticeKind.REQUEUE, text, Severity.INFO, nodes=event.nodes
                    )
            case ev.RequeueStarted(exclude=exclude):
                yield self._notice(
                    event,
                    f"requeue/{self._state.restart_count}",
                    NoticeKind.REQUEUE,
                    f"requeue: {event.reason}",
                    Severity.WARNING if event.failure else Severity.INFO,
                    nodes=exclude,
                    action=f"requeue without {fold_nodes(exclude)}" if exclude else "requeue",
                    command=f"squeue -j {self._state.job_id}",
                )
            case ev.RunEnded(code=code):
                is_news = code == ExitCode.DO_NOT_REQUEUE and not self._gave_up
                wanted = code == 0 or code in _BY_ORDER or not event.final
                yield self._notice(
                    event,
                    f"end/{self._state.restart_count}/{event.epoch}",
                    NoticeKind.GIVE_UP if is_news else NoticeKind.END,
                    f"the run is over, exit code {code}: {event.reason}",
                    Severity.INFO if wanted else Severity.CRITICAL,
                )

    def _recovered(self, event: ev.IncidentClosed) -> str:
        """Return ``recovered in 2.5 s (rank 0: SIGKILL on n2)``, counted from the fault."""
        opened = self._opened
        if opened is None or opened.incident != event.incident:
            return "recovered"
        took_s = max(0.0, event.t - opened.t) + opened.detect_s
        return f"recovered in {duration(took_s)} ({opened.detail})"

    def _update(self, event: ev.AnyEvent) -> Iterator[Notice]:
        """Yield a notice if an update gets further."""
        before = {row.number: row for row in self._updates.rows} if isinstance(event, _OF_UPDATES) else {}
        self._updates.read(event)
        for row in self._updates.rows if isinstance(event, _OF_UPDATES) else ():
            known = before.get(row.number)
            if known is None:
                severity = Severity.INFO
                text = f"{updates.subject(row)} is requested by {updates.who(row.by)}"
                text += f", {updates.how(row)}"
                text += f": {row.message}" if row.message else ""
                text += f" ({changed})" if (changed := updates.changes(row)) else ""
            elif row.result is not known.result:
                text, severity = _became(row), _SEVERITIES.get(row.result, Severity.INFO)
            else:
                continue
            command = f"srobust diff {self._name} {row.back_to or row.before} {row.release}"
            yield self._notice(
                event,
                f"update/{row.number}/{row.release}/{row.result.value if known is not None else 'requested'}",
                NoticeKind.UPDATE,
                text,
                severity,
                command=command
                if row.result is UpdateResult.ROLLED_BACK
                else f"srobust releases {self._name}",
            )

    def _standbys(self, event: ev.AnyEvent) -> Iterator[Notice]:
        """Yield a notice if their number has changed and is, or was, less than the job asked for."""
        state = self._state
        left = tuple(node for node in state.spares if node not in state.aside)
        before, self._had = self._had, len(left)
        if self._wanted == 0 or state.requeueing is not None or state.ended is not None:
            return
        if isinstance(event, ev.AllocationTaken):
            before = self._wanted
        if len(left) == before or min(before, len(left)) >= self._wanted:
            return
        self._changes += 1
        key = f"standby/{state.restart_count}/{self._changes}"
        of = f"of {self._wanted} that the job asked for"
        if len(left) >= self._wanted:
            text = f"{count(self._wanted, 'standby')} can be used again, as many as the job asked for"
            yield self._notice(event, key, NoticeKind.STANDBY, text, Severity.INFO, nodes=left)
        elif left:
            are = "standby is" if len(left) == 1 else "standbys are"
            yield self._notice(event, key, NoticeKind.STANDBY, f"{len(left)} {are} left {of}", nodes=left)
        else:
            lost = f": a node that fails now {state.lost_node}" if state.lost_node else ""
            text = f"no standby is left {of}{lost}"
            yield self._notice(event, key, NoticeKind.STANDBY, text)

    def _notice(
        self,
        event: ev.AnyEvent,
        key: str,
        kind: NoticeKind,
        text: str,
        severity: Severity = Severity.WARNING,
        *,
        short: str = "",
        nodes: tuple[str, ...] = (),
        action: str = "",
        command: str = "",
        incident: int = 0,
    ) -> Notice:
        more = f"srobust incident {self._name} {incident}" if incident else f"srobust status {self._name}"
        return Notice(
            key=key,
            t=event.t,
            kind=kind,
            severity=severity,
            text=one_line(text),
            short=one_line(short),
            nodes=tuple(one_line(node) for node in nodes),
            action=one_line(action),
            command=one_line(command or more, None),
            incident=incident,
        )


def _became(row: UpdateRow) -> str:
    after = f" after step {row.step}" if row.step >= 0 else ""
    match row.result:
        case UpdateResult.CANDIDATE:
            taken = f", with the recovery of incident {row.recovery}" if row.recovery else ""
            return f"{updates.subject(row)} is applied{after}{taken}"
        case UpdateResult.GOOD if row.judged == row.applied:
            return f"{updates.subject(row)} is applied{after}: {row.why}"
    return f"{updates.subject(row)} is {updates.result(row)}"


def supervisor_ended(name: str, run: int, code: int, t: float) -> Notice:
    """Return the notice of a run whose supervisor ended without an end in the journal."""
    return Notice(
        key=f"supervisor/{run}",
        t=t,
        kind=NoticeKind.END,
        severity=Severity.INFO if code in (0, ExitCode.REQUEUED, *_BY_ORDER) else Severity.CRITICAL,
        text=f"srobust run ended with exit code {code}, and the journal does not say why: see the job's log",
        command=f"srobust status {name}",
    )
