"""The text of an incident: the facts in a few lines, the timeline, the deciding lines, the tests. Pure."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from slurm_robust.analysis.logs import blames_peer
from slurm_robust.evidence import drills, updates
from slurm_robust.evidence.incidents import IncidentReport, IncidentStatus, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.progress import began_after
from slurm_robust.model.record import Record
from slurm_robust.policy import restore
from slurm_robust.policy.quick_test import format_quick
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import clean_log, count, date_and_time, first_sentence, one_line

MAX_LINES = 20
"""Last lines of the first failed worker that are shown."""

MAX_ALIKE = 8
"""Entries of one kind that are shown in a row: a thousand nodes may say the same."""

MAX_WHAT = 120
"""Characters of what was seen, in short."""

_PLAIN = frozenset(
    each.value for each in (inc.Symptom.WORKER_EXIT, inc.Symptom.USER_EXCEPTION, inc.Symptom.NODE_LOST)
)
# What is seen of these says by itself what it is.
_ASIDE = re.compile(r" \([^()]*\)")

_STANDING = ("inspection: kernel log not read", "inspection: default limits are used", "the kernels of ")
"""Beginnings of notes that say how things stand in each run, and nothing of what went wrong."""

_NOT_DEAD = "no beacon of the agent of "
"""The beginning of a note that a job's own requeue causes when it ends its agents."""

UNKNOWN = 0.5
"""Nothing speaks against a node or the code, and nothing for them, if a verdict is no surer than this."""

RUNGS = {  # of the recovery ladder, by the evidence that each decides from
    1: "what was observed",
    2: "network alerts",
    3: "the exception or exit of a rank",
    4: "stacks",
    5: "tests",
    6: "the end of the workers alone",
    7: "the change of its release",
    8: "a replay of the training",
}


class TimelineEntry(Record):
    """One line of the timeline."""

    t: float
    after_s: float
    """Seconds since the first sign, by the controller's wall clock."""
    what: str
    text: str


class IncidentRow(Record):
    """One incident as a row of a table. Durations in seconds; None: not yet known."""

    number: int
    t: float
    status: IncidentStatus
    symptom: str
    signs: tuple[str, ...]
    """What was seen, in order."""
    blamed: str
    """What is to blame; of a drill, who planted it."""
    suspects: tuple[str, ...]
    done: str
    outcome: str
    detect_s: float
    localise_s: float | None
    recover_s: float | None
    steps_repeated: int | None
    """None if the script does not number its steps."""
    job: str = ""
    """The job that it belongs to, among those of several jobs, else ""."""
    of_job: int = 0
    """Its number there."""
    why: str = ""
    """Why the first of them is a fault (a limit, and where it comes from); "" if it says all."""

    what: str = ""
    """What was seen first, in short."""
    lost_s: float | None = None
    """Seconds from the fault to the first new step; None before that step."""

    @property
    def name(self) -> str:
        """The name by which a person asks for it: ``3``, or ``4711/3`` among those of several jobs."""
        return one_line(f"{self.job}/{self.of_job}") if self.job else str(self.number)


class ResultRow(Record):
    """Equal results of one test."""

    test: str
    nodes: str
    """As a hostlist."""
    outcome: Outcome
    text: str
    value: str
    limit: str
    took_s: float


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(set(names)) > 1 else ''} {fold(names)}"


# -- the incident in a few lines -------------------------------------------------------------------


def incident_rows(
    events: Sequence[ev.AnyEvent],
    *,
    is_over: bool = False,
    later: Iterable[Sequence[ev.AnyEvent]] = (),
) -> tuple[IncidentRow, ...]:
    """Return a row for each incident of a journal, in order; as :func:`incident_reports`."""
    return tuple(map(incident_row, incident_reports(events, is_over=is_over, later=later)))


def incident_row(report: IncidentReport) -> IncidentRow:
    """Return the row of one incident."""
    return IncidentRow(
        number=report.number,
        t=report.t,
        status=report.status,
        symptom=report.symptom,
        signs=report.signs,
        why=report.why,
        what=what(report),
        lost_s=_lost_s(report),
        blamed=blamed(report),
        suspects=report.suspects,
        done=done(report),
        outcome=outcome(report),
        detect_s=report.detect_s,
        localise_s=report.localise_s,
        recover_s=report.recover_s,
        steps_repeated=report.steps_repeated,
    )


def _lost_s(report: IncidentReport) -> float | None:
    if report.recover_s is None:
        return None
    return report.detect_s + (report.localise_s or 0.0) + report.recover_s


def facts(report: IncidentReport) -> list[tuple[str, str]]:
    """Return the main facts, by name."""
    verdict = report.verdict if not report.testing else None
    sure = f" ({_evidence(verdict)})" if verdict is not None else ""
    if verdict is not None and verdict.blame is inc.Blame.NOBODY and verdict.confidence <= UNKNOWN:
        sure = f": the cause is not known ({_witness(verdict)})"
    others = "; ".join(verdict.reason for verdict in report.others)
    return [
        ("seen", one_line(f"{report.symptom}: {report.signs[0]}")),
        *([("why", one_line(report.why))] if report.why else []),
        ("cause", drills.cause(report.drill)) if report.drill else ("blamed", blamed(report) + sure),
        *([("release", updates.candidate_text(report.update, report.t))] if report.update else []),
        *([("other faults", one_line(others))] if others else []),
        ("done", done(report) or "nothing yet"),
        ("outcome", outcome(report)),
        ("times", times(report)),
        *([("next", fix)] if (fix := _way_out(report)) else []),
    ]


def what(report: IncidentReport) -> str:
    """Return what was seen first, in short: ``rank 2: SIGKILL on n3``, ``hang: no step for 26 s``."""
    seen = first_sentence(_ASIDE.sub("", report.signs[0]), most=MAX_WHAT).removesuffix(" …")
    more = f"; {len(report.signs) - 1} more" if report.signs[1:] else ""
    drill = f"{drills.title(report.drill)}: " if report.drill is not None else ""
    symptom = "" if report.symptom in _PLAIN else f"{report.symptom}: "
    return one_line(f"{drill}{symptom}{seen}{more}")


def _way_out(report: IncidentReport) -> str:
    """Return how to find and mend what a release has changed; "" if it is not to blame."""
    row = report.update
    if row is None or report.drill or report.blame is not inc.Blame.CODE:
        return ""
    text = updates.way_out(report.job_id, row)
    goes_on = report.status is not IncidentStatus.ENDED
    return f"{text}; 'srobust update {report.job_id}' tries the mended code" if goes_on else text


def blamed(report: IncidentReport) -> str:
    """Return what is to blame, in short."""
    verdict = report.verdict
    if report.drill is not None:
        return drills.title(report.drill)
    if report.testing and report.status is IncidentStatus.OPEN:
        return "not known yet"
    match report.blame:
        case inc.Blame.NODE if verdict is not None:
            return _nodes(verdict.suspects)
        case inc.Blame.CODE if verdict is not None:
            return one_line(f"the code ({verdict.signature})")
        case inc.Blame.NOBODY:
            return "nobody"
    return "-"


def _evidence(verdict: inc.Verdict) -> str:
    return f"{_witness(verdict)}, {verdict.confidence:.0%} sure"


def _witness(verdict: inc.Verdict) -> str:
    # The nodes that are unreachable were seen to be; there need be no alert.
    rung = 1 if verdict.signature.kind is inc.FaultKind.UNREACHABLE else verdict.rung
    return f"by {RUNGS.get(rung, 'unknown')}"


def done(report: IncidentReport) -> str:
    """Return all actions that were decided, in order."""
    return "; then ".join(actions_text(e) for e in report.events if isinstance(e, ev.Decided))


def outcome(report: IncidentReport) -> str:
    """Return how it ended, or its present state."""
    last = report.events[-1]
    if isinstance(last, ev.IncidentClosed):
        lost_s = _lost_s(report)
        since = f"{lost_s:.1f} s after the fault" if lost_s is not None else ""
        since = since or f"{last.t - report.t:.1f} s after the first sign"
        if report.steps_repeated is None:
            return f"the script makes steps again, {since}; it does not number them"
        return f"training continues: step {last.step} was completed {since}"
    if isinstance(last, ev.RunEnded):
        return one_line(f"the job ended with exit code {last.code}: {last.reason}")
    if report.status is IncidentStatus.ENDED:
        return "Slurm ended the job before training went on"
    if not report.carried_out:
        return "only observed: no action was taken"
    return "open: " + _how_far(report)


def _how_far(report: IncidentReport) -> str:
    if report.testing:
        return "nodes are held for tests"
    for event in reversed(report.events):
        match event:
            case ev.FirstStep():
                return f"generation {event.generation} runs, but has made no new step yet"
            case ev.GenerationLaunched():
                return f"generation {event.generation} was launched and has completed no step yet"
            case ev.AllocationTaken():
                return f"run {event.restart_count} of the Slurm job has not launched yet"
            case ev.RequeueStarted():
                return "the job is being requeued"
            case ev.Decided():
                return "decided, not launched yet"
    return "not decided yet"


def times(report: IncidentReport) -> str:
    """Return the three durations, and how many steps were repeated; of how many, while that goes on."""
    durations = [("detect", report.detect_s), ("localise", report.localise_s), ("recover", report.recover_s)]
    text = ", ".join(f"{name} {'-' if value is None else f'{value:.1f} s'}" for name, value in durations)
    if report.steps_repeated is None:
        if not report.steps_anew:
            return text
        return (
            f"{text}; {count(report.steps_anew, 'optimizer step')} anew, unless the script resumes by itself"
        )
    if report.status is not IncidentStatus.OPEN:
        return f"{text}; {count(report.steps_repeated, 'step')} repeated"
    launched = [e for e in report.events if isinstance(e, ev.GenerationLaunched)]
    if not launched or launched[-1].restore is None:
        return text
    best = max(e.best_step for e in report.events if isinstance(e, ev.IncidentOpened))
    due = max(report.steps_repeated, best - launched[-1].restore.step)
    return f"{text}; {report.steps_repeated} of {count(due, 'step')} repeated so far"


def deciding_lines(report: IncidentReport) -> tuple[str, list[str]]:
    """Return the exit that explains the others, and its last lines; ``("", [])`` when no worker failed."""
    if report.root is None:
        return "", []
    exit = report.root.exit
    name = one_line(f"{exit.describe()} on {report.root.node}")
    if exit.says_nothing:
        return name, [f"(it {exit.says_nothing}; '--logs' shows what it wrote before)"]
    text = exit.error.traceback if exit.error is not None else ""
    lines = clean_log(text).rstrip().split("\n") if text else [clean_log(line) for line in exit.tail]
    return name, lines[-MAX_LINES:]


def actions_text(decided: ev.Decided) -> str:
    """Return the actions of one decision: ``evict n3, n5 takes its slot, restart``."""
    evicted = [a.node for a in decided.actions if isinstance(a, inc.Evict)]
    standbys = [a.standby for a in decided.actions if isinstance(a, inc.Replace)]
    parts = [f"evict {fold(evicted)}"] if evicted else []
    moved = [a.node for a in decided.actions if isinstance(a, inc.Replace) and a.node not in evicted]
    if moved and decided.verdict and decided.verdict.signature.kind is inc.FaultKind.UNREACHABLE:
        parts.append(f"go on without {fold(moved)}")
    elif moved:
        parts.append(f"{fold(moved)} {'stands' if len(moved) == 1 else 'stand'} by")
    if standbys:
        parts.append(
            f"{fold(standbys)} takes its slot" if len(standbys) == 1 else f"{fold(standbys)} take their slots"
        )
    parts += [text for action in decided.actions if (text := _action(action))]
    text = ", ".join(parts)
    return text if decided.carried_out else f"observed only: {text}"


def short_reason(decided: ev.Decided) -> str:
    """Return why it was decided, in one short sentence; the report on the incident has all of it."""
    return first_sentence(decided.verdict.reason if decided.verdict is not None else decided.reason)


def _action(action: inc.Action) -> str:
    match action:
        case inc.Swap(first=first, second=second):
            return f"{first} and {second} exchange their slots"
        case inc.RestartAgents(nodes=nodes):
            return f"start agents again on {fold(nodes)}"
        case inc.Restart():
            return "restart"
        case inc.Borrow(nodes=nodes):
            return f"ask for {count(nodes, 'node')} from outside the allocation"
        case inc.QuickTest(nodes=nodes):
            return f"test {fold(nodes)} quickly"
        case inc.Requeue(exclude=exclude):
            return f"requeue without {fold(exclude)}" if exclude else "requeue"
        case inc.Replay():
            return "replay the training in small groups"
        case inc.Diagnose(bitwise=bitwise):
            return "test the nodes" + (", also bitwise" if bitwise else "")
        case inc.RollBack(release=release, to=to, step=step):
            return f"roll release {release} back to {to}" + (f", from step {step}" if step >= 0 else "")
        case inc.GiveUp(code=code):
            return f"give up (exit code {code})"
    return ""


# -- the timeline ----------------------------------------------------------------------------------


def timeline(report: IncidentReport) -> list[TimelineEntry]:
    """Return what happened, in the order in which the controller learned of it."""
    every = (
        TimelineEntry(t=event.t, after_s=_after(event.t - report.t), what=what, text=one_line(text))
        for event in _told(report)
        for what, text in _entry(event, report)
    )
    found = []
    for _, alike in itertools.groupby(every, key=lambda entry: entry.what):
        run = list(alike)
        found += run[:MAX_ALIKE]
        if len(run) > MAX_ALIKE:
            found.append(msgspec.structs.replace(run[-1], text=f"and {len(run) - MAX_ALIKE} more"))
    return found


def _after(seconds: float) -> float:
    """Return the seconds as a table with one decimal shows them: never as -0.0."""
    return seconds if abs(seconds) >= 0.05 else 0.0


def _told(report: IncidentReport) -> Iterator[ev.AnyEvent]:
    """Yield its events; of the notes only those that tell of it, and equal ones of several nodes as one."""
    alike: dict[str, list[str]] = defaultdict(list)
    for event in report.events:
        if isinstance(event, ev.Noted) and event.node:
            alike[event.text].append(event.node)
    requeued = False
    for event in report.events:
        if isinstance(event, ev.RequeueStarted | ev.AllocationTaken):
            requeued = isinstance(event, ev.RequeueStarted)
        if isinstance(event, ev.Noted):
            if event.text.startswith(_STANDING) or event.text in report.signs:
                continue
            if requeued and event.text.startswith(_NOT_DEAD):
                continue
            if event.node:
                nodes = alike.pop(event.text, [])
                if not nodes:
                    continue
                event = msgspec.structs.replace(event, node=fold(nodes))
        yield event


def _entry(event: ev.AnyEvent, report: IncidentReport) -> Iterator[tuple[str, str]]:
    match event:
        case ev.IncidentOpened():
            yield "first sign", f"{event.symptom.value}: {first_sentence(event.detail)}"
        case ev.SymptomAdded():
            yield "also seen", f"{event.symptom.value}: {event.detail}"
        case ev.GenerationEnded():
            parts = [f"generation {event.generation}"]
            if event.exits:
                parts.append(f"{count(len(event.exits), 'rank')} failed")
            if event.generation == report.generations[0] and report.root is not None:
                # A rank that complains about a peer explains nothing: the one that failed first did not tell.
                label = "heard first" if blames_peer(report.root.exit) else "root cause"
                parts.append(f"{label}: {report.root.exit.describe()} on {report.root.node}")
            if event.sealed_step >= 0:
                parts.append(f"newest usable checkpoint: step {event.sealed_step}")
            yield "stopped", "; ".join(parts)
        case ev.Decided():
            yield "verdict", _verdict(event, report.signs)
            yield "done", actions_text(event)
        case ev.NodesTested():
            failed = f"failed: {fold(event.suspects)}" if event.suspects else "no node failed by itself"
            nodes = {result.node for result in event.results}
            left_out = "".join(f"; left out: {name} ({why})" for name, why in event.left_out.items())
            yield (
                "tests",
                f"{count(len(nodes), 'node')} in {event.took_s:.1f} s; {failed}; {event.reason}{left_out}",
            )
        case ev.QuickTested():
            yield "quick test", format_quick(event)
        case ev.Unanswered():
            yield "no answer", f"asked {fold(event.nodes)} for {event.asked}: {event.why}"
        case ev.IncidentClosed():
            numbered = report.steps_repeated is not None
            first = f"step {event.step} is the first new one" if numbered else "the script makes steps again"
            yield "over", f"{first} (generation {event.generation})"
        case ev.NodeEvicted() if event.node not in report.suspects:
            yield "evicted", f"{event.node}: {event.reason}"
        case ev.NodeDrained():
            yield "drained", f"{event.node} by {event.reason}"
        case ev.NodeUndrained():
            yield "drained", f"{event.node} no more"
        case ev.SpareSetAside():
            yield "set aside", f"standby {event.node}: {event.reason}"
        case ev.CompanionSubmitted():
            text = f"companion {event.job_id} was submitted, to lend a node from {event.source}"
            yield "companion", text
        case ev.CompanionStarted():
            yield "companion", f"companion {event.job_id} lends {event.node}"
        case ev.CompanionEnded():
            yield "companion", f"companion {event.job_id} ends: {event.reason}"
        case ev.NotLent():
            yield "companion", f"no node from {event.source}: {event.reason}"
        case ev.NodeReturned():
            yield "returned", f"{event.node} answers again; it is not used"
        case ev.NodeGivenBack():
            yield "given back", f"{event.node}: {event.how}"
        case ev.CheckpointBanned():
            yield "passed over", f"checkpoint {event.checkpoint}, in this job: {event.reason}"
        case ev.StorageWritten():
            yield "stored", f"the checkpoint of step {event.step} is on storage"
        case ev.SavingStarted():
            yield "saving", f"step {event.step} goes from memory to storage, within {event.most_s:.0f} s"
        case ev.GenerationLaunched():
            yield (
                "launched",
                f"generation {event.generation}{_whence(event, report)}{_left_out(event, report)}",
            )
        case ev.FirstStep():
            yield "first step", f"step {event.step}" if event.reported else "done"
        case ev.ControllerStarted():
            taken = f", taken over from {event.taken_from}: {event.reason}" if event.taken_from else ""
            yield "controller", f"started on {event.host}{taken}"
        case ev.UpdateRequested():
            deadline = f", at {date_and_time(event.deadline)} at the latest" if event.deadline else ""
            told = f": {event.message}" if event.message else ""
            text = f"{updates.who(event.by)} requests update {event.update} to release {event.release}, "
            yield "update", f"{text}{event.when.value}{deadline}{told}"
        case ev.UpdateTried():
            how = "passed" if event.ok else f"failed on {event.node or 'a node'}: {event.text}"
            yield "update", f"the trial of update {event.update} {how}, {event.took_s:.1f} s"
        case ev.UpdateApplied():
            instead = f" instead of {event.before}" if event.before else ""
            yield "update", f"update {event.update} is applied: release {event.release} runs{instead}"
        case ev.UpdateEnded():
            why = f": {event.reason}" if event.reason else ""
            yield "update", f"update {event.update} is {event.how.value}{why}"
        case ev.ReleaseProven():
            yield "release", f"{event.release} is good: {event.reason}"
        case ev.RequeueStarted():
            yield "requeue", event.reason
        case ev.AllocationTaken():
            yield "new run", f"run {event.restart_count} of the Slurm job on {fold(event.nodes)}"
        case ev.StageDone():
            how = event.detail if event.ok else f"failed: {event.detail}"
            yield "stage", f"{event.what}: {how or 'done'}"
        case ev.RunEnded():
            yield "job ended", f"exit code {event.code}: {event.reason}"
        case ev.DrillPlanted():
            yield "drill", f"{drills.title(event)}: {drills.what(event)}"
        case ev.DrillOver():
            yield "drill", f"drill {event.drill}: {event.reason}"
        case ev.Noted():
            yield "note", f"{event.node}: {event.text}" if event.node else event.text


def _verdict(event: ev.Decided, signs: Sequence[str]) -> str:
    """Return what is at fault and why; not again what the lines before it say was seen."""
    verdict = event.verdict
    if verdict is None:
        return event.reason
    if event.drill:
        return f"drill {event.drill}; as a fault: {verdict.reason}"
    at_fault = "the code is at fault"
    evidence = _evidence(verdict)
    if verdict.blame is inc.Blame.NOBODY:
        at_fault = "no node and no code is at fault"
        if verdict.confidence <= UNKNOWN:
            at_fault, evidence = "the cause is not known", _witness(verdict)
    if verdict.blame is inc.Blame.NODE:
        at_fault = f"{_nodes(verdict.suspects)} at fault"
    if inc.finds_out_more(event.actions):
        at_fault = "not known yet"
    # What follows the verdict's own reason are the actions, which have their line.
    has_actions = event.reason.startswith(f"{verdict.reason}: ")
    reason = verdict.reason if has_actions else event.reason
    seen = next((sign for sign in signs if reason.startswith(f"{sign}; ")), "")
    reason = reason[len(seen) + 2 :] if seen else reason
    return f"{at_fault} ({evidence}): {reason}"


def _whence(launched: ev.GenerationLaunched, report: IncidentReport) -> str:
    """Return `` from step 98 from memory``; without a checkpoint of ours what the steps tell."""
    if restored := restored_text(launched):
        return f" from {restored}"
    if report.steps_repeated is None:
        return ", which goes on where the script resumes by itself"
    steps = (e for e in report.events if isinstance(e, ev.FirstStep | ev.ProgressMade))
    first = next((e.step for e in steps if e.generation == launched.generation), None)
    if first is None:
        return " from the beginning, or where the script resumes by itself"
    best = max(e.best_step for e in report.events if isinstance(e, ev.IncidentOpened))
    is_anew = began_after(launched.restore_step, first, best) < 0
    return " from the beginning" if is_anew else f", whose first step that was seen is {first}"


def _left_out(launched: ev.GenerationLaunched, report: IncidentReport) -> str:
    """Return why numbers of generations are left out before this one; "" if none is."""
    before = max((number for number in report.generations if number < launched.generation), default=-1)
    if before < 0 or launched.generation == before + 1:
        return ""
    return f"; the numbers from {before + 1} on are left to the controller before, which may still use them"


def restored_text(launched: ev.GenerationLaunched) -> str:
    """Return ``step 98 from memory (6 parts), peer (2)``; "" for a generation that began with nothing."""
    return (
        restore.format_source(launched.restore_step, launched.tiers) if launched.restore is not None else ""
    )


# -- tests -----------------------------------------------------------------------------------------


def result_rows(results: Iterable[TestResult]) -> list[ResultRow]:
    """Return results, failures first; equal results of one test are one row."""
    groups: dict[tuple[str, Outcome, str], list[TestResult]] = defaultdict(list)
    for result in results:
        groups[result.test, result.outcome, result.text].append(result)
    return [
        ResultRow(
            test=test,
            nodes=fold(result.node for result in alike),
            outcome=outcome,
            text=one_line(text),
            value=one_line(alike[0].value) if len({result.value for result in alike}) == 1 else "",
            limit=one_line(alike[0].limit),
            took_s=max(result.took_s for result in alike),
        )
        for (test, outcome, text), alike in sorted(
            groups.items(), key=lambda item: (item[0][1].order, item[0][0])
        )
    ]
