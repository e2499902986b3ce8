"""``srobust trace JOB``: the life of a job as spans, made from its journal when it is over or while it runs.

Of a training each job has a trace of its own, with the ids that it has alone.

Names and attributes are those of NVIDIA's one-logger where it has some (nv_one_logger 2.3: what Megatron-LM
and NeMo emit): ``application``, ``training_loop``, ``distributed_code_initialization``,
``model_initialization``, ``checkpoint_load``, ``checkpoint_save_async``; ``world_size``, ``session_tag``,
``train_iterations_start``, ``current_iteration``, ``latest_loss``. What it has no name for begins with
``srobust``. A span that has not ended is left out; a later export has it, and all others with the ids that
they had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_robust.evidence.incident_text import actions_text
from slurm_robust.model import events as ev
from slurm_robust.model import startup
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.telemetry.spans import NotSent, Trace, TraceSpan, Value, by_parent, endpoint_of
from slurm_robust.terminal.console import section, show
from slurm_robust.trainings.find import load_events, named, newest_job
from slurm_robust.trainings.jobs import ChapterRow, begun, jobs_of
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.text import count, date_and_time, one_line

APPLICATION, TRAINING_LOOP = "application", "training_loop"
NAMES = {
    startup.GROUP: "distributed_code_initialization",
    startup.MODEL: "model_initialization",
    startup.RESTORE: "checkpoint_load",
}
"""Start phases by one-logger's names."""

SAVE = "checkpoint_save_async"
MAX_TEXT = 500
_BEFORE_LAUNCH = (startup.STOP, startup.GPUS, startup.AGENT, startup.ZYGOTE)


class TrainingTraces(Record):
    """The jobs of a training, each with a trace of its own: what ``srobust trace NAME --json`` prints."""

    training: str
    jobs: dict[str, Trace]
    """By job as squeue shows it, oldest first."""
    left_out: dict[str, str] = {}
    """Jobs without a journal, with what they do or why it cannot be read."""


def main(name: str, *, otlp: str | None, json: bool, job_dir: str | None) -> int:
    """Print the spans of a job or a training, or send them.

    Raises ``NoSuchJob``, ``JournalDamaged``, ``NotSent``.
    """
    slurm = make_slurm()
    found = named(name, job_dir, slurm)
    if isinstance(found, TrainingDirectory):
        every = traces_of(found, slurm)
        if not _sent(tuple(every.jobs.values()), otlp, json=json):
            show(every, render_all, json=json)
    else:
        trace = trace_of(load_events(found))
        if not _sent((trace,), otlp, json=json):
            show(trace, render, json=json)
    return 0


def _sent(traces: Sequence[Trace], otlp: str | None, *, json: bool) -> bool:
    """Send them if that was asked for; return whether nothing is left to print. Raises :class:`NotSent`."""
    if otlp is None:
        return False
    endpoint_of(otlp)
    try:
        from slurm_robust.telemetry.otlp import send
    except ImportError as error:
        raise NotSent(
            f"OpenTelemetry is not installed ({error})", fix="pip install 'slurm_robust[otlp]'"
        ) from error
    for trace in traces:
        send(trace, otlp)
    if not json:
        of_jobs = f" of {len(traces)} jobs" if len(traces) > 1 else ""
        print(f"{count(sum(len(trace.spans) for trace in traces), 'span')}{of_jobs} sent to {one_line(otlp)}")
    return not json


def traces_of(training: TrainingDirectory, slurm: SlurmClient) -> TrainingTraces:
    """All jobs of a training. Raises ``NoSuchJob`` where none of them has a journal."""
    jobs = jobs_of(training, slurm)
    if not begun(jobs):
        newest_job(training, slurm)  # says why there is none
    return TrainingTraces(
        training=training.name,
        jobs={job.chapter.job: trace_of(job.events) for job in begun(jobs)},
        left_out={row.job: row.how for row in jobs if isinstance(row, ChapterRow)},
    )


def trace_of(events: Sequence[ev.AnyEvent]) -> Trace:
    """All spans of a journal that have ended. Pure."""
    state = fold(events)
    started = next((event for event in events if isinstance(event, ev.RunStarted)), None)
    cluster = started.cluster if started is not None else ""
    about: dict[str, Value] = {
        "slurm.job.id": state.job_id,
        "slurm.cluster.name": cluster,
        "session_tag": state.run_id,
        "srobust.training": state.training,
        "world_size": state.placement.world_size,
        "srobust.version": started.version if started is not None else "",
    }
    found: list[TraceSpan] = []
    if started is not None and state.ended is not None and state.ended.final:
        found.append(
            TraceSpan(
                key=APPLICATION,
                name=APPLICATION,
                begin=started.t,
                end=state.ended.t,
                attributes={
                    "process.command_args": one_line(" ".join(started.command), MAX_TEXT),
                    "process.exit.code": state.ended.code,
                    "srobust.reason": one_line(state.ended.reason, MAX_TEXT),
                },
                error=one_line(state.ended.reason, MAX_TEXT) if state.ended.code else "",
            )
        )
    found += _runs(events)
    found += _generations(events)
    found += _incidents(events)
    found += _checkpoints(events)
    return Trace(
        key=f"{cluster} {state.job_id} {state.run_id}",
        service="slurm_robust",
        attributes={name: value for name, value in about.items() if value != ""},
        spans=tuple(found),
    )


def _runs(events: Sequence[ev.AnyEvent]) -> Iterator[TraceSpan]:
    """What the job did between two requeues."""
    begun: ev.AllocationTaken | None = None
    for event in events:
        over = isinstance(event, ev.RunEnded | ev.AllocationTaken)
        if begun is not None and over:
            yield TraceSpan(
                key=f"run {begun.restart_count}",
                name="srobust.run",
                begin=begun.t,
                end=event.t,
                parent=APPLICATION,
                attributes={"slurm.restart_count": begun.restart_count, "srobust.nodes": len(begun.nodes)},
            )
            begun = None
        if isinstance(event, ev.AllocationTaken):
            begun = event


def _generations(events: Sequence[ev.AnyEvent]) -> Iterator[TraceSpan]:
    """Each launch of the workers, with its start phases and its training."""
    launched: ev.GenerationLaunched | None = None
    measured: ev.StartMeasured | None = None
    first: ev.FirstStep | None = None
    last: ev.FirstStep | ev.ProgressMade | None = None
    run = -1
    for event in events:
        match event:
            case ev.AllocationTaken():
                run = event.restart_count
            case ev.GenerationLaunched():
                launched, measured, first, last = event, None, None, None
            case ev.StartMeasured():
                measured = event
            case ev.FirstStep():
                first = last = event
            case ev.ProgressMade():
                last = event
            case ev.GenerationEnded() | ev.RunEnded() if launched is not None:
                yield from _generation(launched, event, measured, first, last, f"run {run}")
                launched = None


def _generation(
    launched: ev.GenerationLaunched,
    ended: ev.GenerationEnded | ev.RunEnded,
    measured: ev.StartMeasured | None,
    first: ev.FirstStep | None,
    last: ev.FirstStep | ev.ProgressMade | None,
    parent: str,
) -> Iterator[TraceSpan]:
    number = launched.generation
    key = f"generation {number}"
    phases = measured.phases if measured is not None and measured.generation == number else ()
    before = [one for one in phases if one.phase in _BEFORE_LAUNCH]
    begin = launched.t - sum(one.median_s for one in before)
    yield TraceSpan(
        key=key,
        name="srobust.generation",
        begin=begin,
        end=ended.t,
        parent=parent,
        attributes={
            "srobust.generation": number,
            "train_iterations_start": launched.restore_step + 1,
            "srobust.nodes": len(launched.slots),
            "srobust.reason": one_line(ended.reason, MAX_TEXT),
        },
    )
    at = begin
    for one in phases:
        yield TraceSpan(
            key=f"{key} {one.phase}",
            name=NAMES.get(one.phase, f"srobust.start.{one.phase.replace(' ', '_')}"),
            begin=at,
            end=at + one.median_s,
            parent=key,
            attributes={
                "srobust.median_s": one.median_s,
                **({"srobust.slowest_node": next(iter(one.nodes))} if one.nodes else {}),
            },
        )
        at += one.median_s
    if first is not None and last is not None:
        loss = last.loss if isinstance(last, ev.ProgressMade) else None
        yield TraceSpan(
            key=f"{key} training",
            name=TRAINING_LOOP,
            begin=first.t,
            end=max(first.t, ended.t),
            parent=key,
            attributes={
                "train_iterations_start": first.step,
                "current_iteration": last.step,
                **({"latest_loss": loss} if loss is not None else {}),
            },
        )


def _incidents(events: Sequence[ev.AnyEvent]) -> Iterator[TraceSpan]:
    """Each incident that is over, with the stages of its recovery."""
    opened: ev.IncidentOpened | None = None
    decided: ev.Decided | None = None
    for event in events:
        if isinstance(event, ev.IncidentOpened):
            opened, decided = event, None
        elif opened is None:
            continue
        elif isinstance(event, ev.Decided):
            decided = event
        elif isinstance(event, ev.IncidentClosed) or (isinstance(event, ev.RunEnded) and event.final):
            stages = event.stages if isinstance(event, ev.IncidentClosed) else {}
            yield from _incident(opened, decided, event.t, stages)
            opened = None


def _incident(
    opened: ev.IncidentOpened, decided: ev.Decided | None, end: float, stages: Mapping[str, float]
) -> Iterator[TraceSpan]:
    key, begin = f"incident {opened.incident}", opened.t - opened.detect_s
    attributes: dict[str, Value] = {
        "srobust.incident": opened.incident,
        "srobust.symptom": opened.symptom.value,
        "srobust.generation": opened.generation,
        "srobust.detect_s": opened.detect_s,
    }
    if decided is not None:
        attributes["srobust.actions"] = one_line(actions_text(decided), MAX_TEXT)
        attributes["srobust.reason"] = one_line(decided.reason, MAX_TEXT)
        if decided.verdict is not None:
            attributes["srobust.blame"] = decided.verdict.blame.value
            attributes["srobust.suspects"] = one_line(", ".join(decided.verdict.suspects), MAX_TEXT)
    yield TraceSpan(
        key=key,
        name="srobust.incident",
        begin=begin,
        end=end,
        parent=APPLICATION,
        attributes=attributes,
        error=one_line(f"{opened.symptom.value}: {opened.detail}", MAX_TEXT),
    )
    at = begin
    for stage, seconds in stages.items():
        name = f"srobust.recovery.{one_line(stage, MAX_TEXT).replace(' ', '_')}"
        yield TraceSpan(key=f"{key} {stage}", name=name, begin=at, end=at + seconds, parent=key)
        at += seconds


def _checkpoints(events: Sequence[ev.AnyEvent]) -> Iterator[TraceSpan]:
    """Those that went from memory to storage."""
    for event in events:
        if isinstance(event, ev.StorageWritten):
            yield TraceSpan(
                key=f"stored {event.generation} {event.step}",
                name=SAVE,
                begin=event.t - event.seconds,
                end=event.t,
                parent=f"generation {event.generation}",
                attributes={"current_iteration": event.step, "srobust.tier": "storage"},
            )


def render_all(traces: TrainingTraces) -> RenderableType:
    """The spans of each job below its name."""
    parts: list[RenderableType] = []
    for job, trace in traces.jobs.items():
        parts += section(f"job {one_line(job)} of training {one_line(traces.training)}", render(trace))
    parts += (Text(f"job {one_line(job)}: {one_line(how)}") for job, how in traces.left_out.items())
    return Group(*parts)


def render(trace: Trace) -> Table:
    """One line for each span, children below their parents."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name in ("begin", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("span", overflow="fold")
    children = by_parent(trace.spans)
    known = {span.key for span in trace.spans}
    tops = [span for parent, spans in children.items() if parent not in known for span in spans]
    _rows(table, sorted(tops, key=lambda span: span.begin), children, 0)
    return table


def _rows(
    table: Table, spans: Sequence[TraceSpan], children: Mapping[str, list[TraceSpan]], depth: int
) -> None:
    for span in spans:
        text = one_line(f"{span.name}  {span.error}" if span.error else span.name)
        table.add_row(date_and_time(span.begin), f"{span.seconds:.1f}", Text("  " * depth + text))
        _rows(table, children.get(span.key, ()), children, depth + 1)
