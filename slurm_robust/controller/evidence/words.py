"""An incident in words: what the bundle's README and ``srobust incident`` say. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from slurm_robust.analysis.actions import in_short
from slurm_robust.analysis.incidents import Standing, Story
from slurm_robust.controller.evidence.texts import clean, count, one_line
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.diagnosis import TestResult
from slurm_robust.model.findings import Outcome
from slurm_robust.model.record import Record
from slurm_robust.policy.restore import in_words
from slurm_robust.util.hostlist import fold

MOST_LINES = 20
"""Last lines of a worker that are shown as those that decided."""

MOST_ALIKE = 8
"""Notes, or other things of one kind, that are shown in a row: a thousand nodes may say the same."""

RUNGS = {
    1: "what was observed",
    2: "network alerts",
    3: "the exception or exit of a rank",
    4: "stacks",
    5: "tests",
    6: "the end of the workers alone",
    7: "what was tried before",
    8: "a replay of the training",
}


class Moment(Record):
    """One line of the story. ``after_s``: seconds since the first sign, by the controller's wall clock."""

    t: float
    after_s: float
    what: str
    text: str


class ResultRow(Record):
    """Results of tests that are alike. ``nodes`` as Slurm writes lists of nodes."""

    test: str
    nodes: str
    outcome: Outcome
    text: str
    value: str
    limit: str
    took_s: float


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(set(names)) > 1 else ''} {fold(names)}"


# -- the incident in a few lines -------------------------------------------------------------------


def facts(story: Story) -> list[tuple[str, str]]:
    """What everybody wants to know first, by name."""
    first = next(e for e in story.events if isinstance(e, ev.IncidentOpened))
    return [
        ("seen", one_line(f"{first.symptom.value}: {first.detail}")),
        ("blamed", blamed(story) + _how_sure(story)),
        ("done", done(story) or "nothing yet"),
        ("outcome", outcome(story)),
        ("times", times(story)),
    ]


def blamed(story: Story) -> str:
    """Who is held responsible, in a few words."""
    verdict = story.verdict
    if story.testing and story.standing is Standing.OPEN:
        return "not known yet"
    match story.blame:
        case inc.Blame.NODE if verdict is not None:
            return _nodes(verdict.suspects)
        case inc.Blame.CODE if verdict is not None:
            return one_line(f"the code ({verdict.signature})")
        case inc.Blame.NOBODY:
            return "nobody"
    return "-"


def _how_sure(story: Story) -> str:
    verdict = story.verdict
    if verdict is None or story.blame is None:
        return ""
    return f" ({_evidence(verdict)})"


def _evidence(verdict: inc.Verdict) -> str:
    return f"by {RUNGS.get(verdict.rung, 'unknown')}, {verdict.confidence:.0%} sure"


def done(story: Story) -> str:
    """All that was decided, one after the other."""
    return "; then ".join(in_short(e) for e in story.events if isinstance(e, ev.Decided))


def outcome(story: Story) -> str:
    """How it ended, or how far it is."""
    last = story.events[-1]
    if isinstance(last, ev.IncidentClosed):
        took = last.t - story.summary.t
        return f"training goes on: step {last.step} was done {took:.1f} s after the first sign"
    if isinstance(last, ev.RunEnded):
        return one_line(f"the job ended with exit code {last.code}: {last.reason}")
    if not story.carried_out:
        return "only observed: nothing was done about it"
    return "open: " + _how_far(story)


def _how_far(story: Story) -> str:
    if story.testing:
        return "nodes are held for tests"
    for event in reversed(story.events):
        match event:
            case ev.FirstStep():
                return f"generation {event.generation} runs, but has not got further than before"
            case ev.GenerationLaunched():
                return f"generation {event.generation} was launched and has done no step yet"
            case ev.AllocationTaken():
                return f"run {event.restart_count} of the Slurm job has not launched yet"
            case ev.RequeueStarted():
                return "the job is being requeued"
            case ev.Decided():
                return "decided, and not launched yet"
    return "not decided yet"


def times(story: Story) -> str:
    """The three durations, and what was lost besides."""
    s = story.summary
    words = [("detect", s.detect_s), ("localise", s.localise_s), ("recover", s.recover_s)]
    text = ", ".join(f"{name} {'-' if value is None else f'{value:.1f} s'}" for name, value in words)
    if story.steps is None:
        return text
    return f"{text}; {count(story.steps, 'step')} repeated"


def deciding_lines(story: Story) -> tuple[str, list[str]]:
    """Who failed first by cause, and the last lines from there; ``("", [])`` when no worker failed."""
    if story.root is None:
        return "", []
    exit = story.root.exit
    text = exit.error.traceback if exit.error is not None else ""
    lines = clean(text).rstrip().split("\n") if text else [clean(line) for line in exit.tail]
    return one_line(f"{exit.describe()} on {story.root.node}"), lines[-MOST_LINES:]


# -- the story in order ----------------------------------------------------------------------------


def moments(story: Story) -> list[Moment]:
    """What happened, in the order in which the controller learnt of it."""
    begin = story.summary.t
    every = (
        Moment(t=event.t, after_s=event.t - begin, what=what, text=one_line(text))
        for event in story.events
        for what, text in _told(event, story)
    )
    found = []
    for _, alike in itertools.groupby(every, key=lambda moment: moment.what):
        run = list(alike)
        found += run[:MOST_ALIKE]
        if len(run) > MOST_ALIKE:
            found.append(msgspec.structs.replace(run[-1], text=f"and {len(run) - MOST_ALIKE} more"))
    return found


def _told(event: ev.AnyEvent, story: Story) -> Iterator[tuple[str, str]]:
    match event:
        case ev.IncidentOpened():
            yield "first sign", f"{event.symptom.value}: {event.detail}"
        case ev.SymptomAdded():
            yield "also seen", f"{event.symptom.value}: {event.detail}"
        case ev.GenerationEnded():
            yield "stopped", _end(event, story)
        case ev.Decided():
            yield "verdict", _verdict(event)
            yield "done", in_short(event)
        case ev.NodesTested():
            yield "tests", _tests(event)
        case ev.Unanswered():
            yield "no answer", f"asked {fold(event.nodes)} for {event.asked}: {event.why}"
        case ev.IncidentClosed():
            yield "over", f"step {event.step} is done, the first new one (generation {event.generation})"
        case _:
            yield from _told_of_the_job(event, story)


def _told_of_the_job(event: ev.AnyEvent, story: Story) -> Iterator[tuple[str, str]]:
    match event:
        case ev.NodeEvicted() if event.node not in story.suspects:
            yield "evicted", f"{event.node}: {event.reason}"
        case ev.NodeReturned():
            yield "returned", f"{event.node} answers again; it is not used"
        case ev.CheckpointBanned():
            yield "banned", f"checkpoint {event.checkpoint} is not used again: {event.reason}"
        case ev.StorageWritten():
            yield "stored", f"the checkpoint of step {event.step} is on storage"
        case ev.GenerationLaunched():
            yield "launched", f"generation {event.generation} {_restored(event)}"
        case ev.FirstStep():
            yield "first step", f"step {event.step}" if event.reported else "done"
        case ev.ControllerStarted():
            yield "controller", f"a new one on {event.host}"
        case ev.RequeueStarted():
            yield "requeue", event.reason
        case ev.AllocationTaken():
            yield "new run", f"run {event.restart_count} of the Slurm job on {fold(event.nodes)}"
        case ev.StageDone():
            yield "stage", f"{event.what}: {'' if event.ok else 'failed: '}{event.detail}"
        case ev.RunEnded():
            yield "job ended", f"exit code {event.code}: {event.reason}"
        case ev.Noted():
            yield "note", f"{event.node}: {event.text}" if event.node else event.text


def _end(event: ev.GenerationEnded, story: Story) -> str:
    words = [f"generation {event.generation}"]
    if event.exits:
        words.append(f"{count(len(event.exits), 'rank')} failed")
    if event.generation == story.generations[0] and story.root is not None:
        words.append(f"{story.root.exit.describe()} on {story.root.node} was first by cause")
    if event.sealed_step >= 0:
        words.append(f"newest checkpoint that counts: step {event.sealed_step}")
    return "; ".join(words)


def _verdict(event: ev.Decided) -> str:
    verdict = event.verdict
    if verdict is None:
        return event.reason
    who = "nobody is at fault" if verdict.blame is inc.Blame.NOBODY else "the code is at fault"
    if verdict.blame is inc.Blame.NODE:
        who = f"{_nodes(verdict.suspects)} at fault"
    if any(isinstance(action, inc.Diagnose | inc.Replay) for action in event.actions):
        who = "not known yet"
    # What follows the verdict's own reason are the actions, which have their line.
    has_actions = event.reason.startswith(f"{verdict.reason}: ")
    reason = verdict.reason if has_actions else event.reason
    return f"{who} ({_evidence(verdict)}): {reason}"


def _tests(event: ev.NodesTested) -> str:
    failed = f"failed: {fold(event.suspects)}" if event.suspects else "no node failed by itself"
    nodes = {result.node for result in event.results}
    left_out = "".join(f"; left out: {name} ({why})" for name, why in event.left_out.items())
    return f"{count(len(nodes), 'node')} in {event.took_s:.1f} s; {failed}; {event.reason}{left_out}"


def _restored(event: ev.GenerationLaunched) -> str:
    if event.restore is None:
        return "from the beginning"
    # Journals of older versions name no tiers: there was storage only.
    where = in_words(event.restore.step, event.tiers) if event.tiers else f"step {event.restore.step}"
    return f"from {where}"


def result_rows(results: Iterable[TestResult]) -> list[ResultRow]:
    """Results, failures first; those of one test that say the same are one row."""
    groups: dict[tuple[str, Outcome, str], list[TestResult]] = defaultdict(list)
    for result in results:
        groups[result.test, result.outcome, result.text].append(result)
    order = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS)
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
            groups.items(), key=lambda item: (order.index(item[0][1]), item[0][0])
        )
    ]
