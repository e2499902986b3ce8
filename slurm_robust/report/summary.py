"""The facts about a job that every view shows, as one record."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.analysis.ettr import IncidentSummary, Productivity, incidents, productivity
from slurm_robust.analysis.interval import IntervalAdvice, advise
from slurm_robust.controller.journal import fold
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.policy.restore import in_words


class Summary(Record):
    """A job in one look. ``phase`` in a word; ``step`` -1 before the first; ``slurm`` is Slurm's state.

    ``aside``: standbys that do not answer, and why. ``restored``: with what the newest generation began, in
    words, "" for a fresh start; ``stored``: the newest step that went from memory to storage, if any;
    ``interval``: how often one should, if known.
    """

    job_id: int
    command: tuple[str, ...]
    phase: str
    reason: str
    exit_code: int | None
    slurm: str
    advice: str
    run: int
    generation: int
    step: int
    loss: float | None
    slots: tuple[str, ...]
    spares: tuple[str, ...]
    aside: dict[str, str]
    evicted: dict[str, str]
    incidents: tuple[IncidentSummary, ...]
    productivity: Productivity
    restored: str
    stored: ev.StorageWritten | None
    interval: IntervalAdvice | None
    notes: tuple[str, ...]


def summarize(events: Sequence[ev.AnyEvent], now: float, slurm: str = "", advice: str = "") -> Summary:
    """The summary of a journal. ``now`` is wall-clock time; ``slurm`` and ``advice`` come from outside."""
    state = fold(events)
    started = next((e for e in events if isinstance(e, ev.RunStarted)), None)
    progress = [e for e in events if isinstance(e, (ev.ProgressMade, ev.FirstStep))]
    last = progress[-1] if progress else None
    phase, reason = _phase(events)
    return Summary(
        job_id=state.job_id,
        command=started.command if started else (),
        phase=phase,
        reason=reason,
        exit_code=state.ended.code if state.ended else None,
        slurm=slurm,
        advice=advice,
        run=max(0, state.restart_count),
        generation=state.generation,
        step=last.step if last else -1,
        loss=last.loss if isinstance(last, ev.ProgressMade) else None,
        slots=state.slots,
        spares=state.spares,
        aside={node: why.reason for node, why in state.aside.items() if node in state.spares},
        evicted=dict(state.evicted),
        incidents=tuple(incidents(events)),
        productivity=productivity(events, now),
        restored=_restored(events),
        stored=state.stored,
        interval=advise(events, now),
        notes=tuple(f"{e.node}: {e.text}" if e.node else e.text for e in events if isinstance(e, ev.Noted)),
    )


def _restored(events: Sequence[ev.AnyEvent]) -> str:
    launched = next((e for e in reversed(events) if isinstance(e, ev.GenerationLaunched)), None)
    if launched is None or launched.restore is None:
        return ""
    # Journals of older versions name no tiers: there was storage only.
    return (
        in_words(launched.restore.step, launched.tiers) if launched.tiers else f"step {launched.restore.step}"
    )


def _phase(events: Sequence[ev.AnyEvent]) -> tuple[str, str]:
    state = fold(events)
    if state.ended is not None:
        return ("finished" if state.ended.code == 0 else "stopped"), state.ended.reason
    if state.requeueing is not None:
        return _requeue(events, state.requeueing)
    if state.incident is not None:
        return "recovering", f"incident {state.incident.number}: {state.incident.symptom.value}"
    if state.running:
        return ("training" if state.steps_here >= 0 else "starting"), ""
    return "starting", ""


def _requeue(events: Sequence[ev.AnyEvent], begun: ev.RequeueStarted) -> tuple[str, str]:
    """Whether Slurm has taken it, and with which words it has not."""
    orders = [e for e in events[events.index(begun) :] if isinstance(e, ev.StageDone)]
    if any(order.ok and order.what in ("requeue", "watcher") for order in orders):
        return "requeued", begun.reason
    return "requeueing", f"{begun.reason}; {orders[-1].detail}" if orders else begun.reason
