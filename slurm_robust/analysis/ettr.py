"""Productive time from the journal: ETTR, and the three durations of each incident.

ETTR (effective training time ratio) = productive training time / wall-clock time of the job
(ByteRobust, section 2). Productive is the time in which steps were done that count in the end: a
step that had to be repeated counts once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slurm_robust.analysis.actions import in_short
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, finds_out_more
from slurm_robust.model.record import Record


class IncidentSummary(Record):
    """One incident as the person on call wants to read it. Durations in seconds; None: not yet.

    ``signs``: what was seen, one after the other; ``detail`` is all of them.
    """

    number: int
    t: float
    generation: int
    symptom: str
    detail: str
    verdict: str = ""
    action: str = ""
    detect_s: float = 0.0
    localise_s: float | None = None
    recover_s: float | None = None
    signs: tuple[str, ...] = ()


class Productivity(Record):
    """``ettr`` = ``productive_s`` / ``wall_s``; ``steps`` counts each step once, ``repeated`` the rest.

    A script that does not number its steps begins anew in each generation, as far as anybody knows; how many
    it did again is then None once it was restarted.
    """

    wall_s: float
    productive_s: float
    ettr: float
    steps: int
    repeated: int | None


def _blame_in_words(decided: ev.Decided) -> str:
    verdict = decided.verdict
    if verdict is None:
        return decided.reason
    if verdict.blame is Blame.NODE:
        return f"node {','.join(verdict.suspects)} is at fault"
    if verdict.blame is Blame.CODE:
        return f"code: {verdict.signature}"
    return f"transient ({verdict.signature})"


def incidents(events: Sequence[ev.AnyEvent]) -> list[IncidentSummary]:
    """All incidents in order, with the last decision of each."""
    found: dict[int, IncidentSummary] = {}
    for event in events:
        if isinstance(event, ev.IncidentOpened):
            found[event.incident] = IncidentSummary(
                number=event.incident,
                t=event.t,
                generation=event.generation,
                symptom=event.symptom.value,
                detail=event.detail,
                signs=(event.detail,),
                detect_s=event.detect_s,
            )
        elif isinstance(event, ev.SymptomAdded) and event.incident in found:
            known = found[event.incident]
            signs = (*known.signs, event.detail)
            found[event.incident] = _with(known, detail="; ".join(signs), signs=signs)
        elif isinstance(event, ev.Decided) and event.incident in found:
            known = found[event.incident]
            action = in_short(event)
            # The time of tests belongs to finding out, not to recovery.
            final = known.localise_s is None and not finds_out_more(event.actions)
            found[event.incident] = _with(
                known,
                verdict=_blame_in_words(event),
                action=f"{known.action}; then {action}" if known.action else action,
                localise_s=event.localise_s if final else known.localise_s,
            )
        elif isinstance(event, ev.IncidentClosed) and event.incident in found:
            found[event.incident] = _with(found[event.incident], recover_s=event.recover_s)
    return list(found.values())


def _with(summary: IncidentSummary, **changes: object) -> IncidentSummary:
    return msgspec.structs.replace(summary, **changes)


class _Stretch:
    """Steps of one generation: first and newest step with their times."""

    def __init__(self, first: ev.FirstStep) -> None:
        self.reported = first.reported
        self.first = self.last = first.step
        self.t_first = self.t_last = first.t

    def see(self, event: ev.ProgressMade) -> None:
        if event.step > self.last:
            self.last, self.t_last = event.step, event.t


def end_of(events: Sequence[ev.AnyEvent], now: float) -> float:
    """When the run ended, ``now`` while it goes on; one that was told to end may have been started again."""
    last = next((e for e in reversed(events) if isinstance(e, ev.RunEnded | ev.ControllerStarted)), None)
    return last.t if isinstance(last, ev.RunEnded) else now


def productivity(events: Sequence[ev.AnyEvent], now: float) -> Productivity:
    """Productive time until the run's end, or until ``now`` (wall clock) while it goes on."""
    if not events:
        return Productivity(wall_s=0.0, productive_s=0.0, ettr=0.0, steps=0, repeated=0)
    start = events[0].t
    end = end_of(events, now)
    stretches: dict[int, _Stretch] = {}
    for event in events:
        if isinstance(event, ev.FirstStep):
            stretches[event.generation] = _Stretch(event)
        elif isinstance(event, ev.ProgressMade) and event.generation in stretches:
            stretches[event.generation].see(event)
    productive, steps, repeated, best = 0.0, 0, 0, {True: -1, False: -1}
    for _, s in sorted(stretches.items()):
        done = s.last - s.first + 1
        new = max(0, s.last - max(best[s.reported], s.first - 1))
        seconds = max(0.0, s.t_last - s.t_first)
        # The first step of a stretch has no measured length of its own: it took about the mean.
        mean = seconds / (done - 1) if done > 1 else 0.0
        productive += mean * new
        steps, repeated = steps + new, repeated + done - new
        best[s.reported] = max(best[s.reported], s.last)
    known = len(stretches) < 2 or all(s.reported for s in stretches.values())
    wall = max(0.0, end - start)
    return Productivity(
        wall_s=wall,
        productive_s=productive,
        ettr=min(1.0, productive / wall) if wall > 0 else 0.0,
        steps=steps,
        repeated=repeated if known else None,
    )
