"""``srobust trace JOB``: the life of a job as spans, made from its journal when it is over or while it runs.

Each job of a training has a trace of its own, with the ids that it has alone.

Names and attributes are those of NVIDIA's one-logger if it has some (nv_one_logger 2.3: what Megatron-LM
and NeMo emit): ``application``, ``training_loop``, ``distributed_code_initialization``,
``model_initialization``, ``checkpoint_load``, ``checkpoint_save_async``; ``world_size``, ``session_tag``,
``train_iterations_start``, ``current_iteration``, ``latest_loss``. What it has no name for begins with
``srobust``. A span that has not ended is left out; a later export has it, and all others with the ids that
they had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.evidence.incident_text import actions_text
from slurm_robust.evidence.incidents import IncidentReport
from slurm_robust.evidence.updates import result
from slurm_robust.model import events as ev
from slurm_robust.model import startup
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.libraries import need
from slurm_robust.model.record import Record
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.model.updates import UpdateResult, UpdateRow
from slurm_robust.report.job_view import JobView, LaunchView
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.telemetry.perfetto import document
from slurm_robust.telemetry.spans import Trace, TraceSpan, Value, by_parent, endpoint_of
from slurm_robust.terminal.console import ScreenTable, section, show
from slurm_robust.trainings.find import load_events, named, newest_job
from slurm_robust.trainings.jobs import ChapterRow, begun, jobs_of
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.files import write_atomically
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


class TraceNotWritten(SrobustError):
    """The file for Perfetto cannot be written."""

    exit_code = ExitCode.JOB_DIR
    fix = "name a file in a folder where you may write"


def main(name: str, *, otlp: str | None, perfetto: Path | None, json: bool, job_dir: str | None) -> int:
    """Print the spans of a job or a training, send them, or write them to a file.

    Raises ``NoSuchJob``, ``JournalDamaged``, ``NotSent``, :class:`TraceNotWritten`.
    """
    if otlp is not None:
        need("opentelemetry", "srobust trace --otlp")
    slurm = make_slurm()
    found = named(name, job_dir, slurm)
    shown: Trace | TrainingTraces
    if isinstance(found, TrainingDirectory):
        shown = traces_of(found, slurm)
        traces = tuple(shown.jobs.values())
    else:
        shown = trace_of(JobView(events=load_events(found)))
        traces = (shown,)
    if otlp is not None:
        endpoint_of(otlp)
        from slurm_robust.telemetry.otlp import send

        for trace in traces:
            send(trace, otlp)
    if perfetto is not None:
        _write(perfetto, found, slurm)
        return 0
    if otlp is None or json:
        show(shown, render, json=json)
    else:
        of_jobs = f" of {len(traces)} jobs" if len(traces) > 1 else ""
        print(f"{count(sum(len(trace.spans) for trace in traces), 'span')}{of_jobs} sent to {one_line(otlp)}")
    return 0


def _write(target: Path, found: JobDirectory | TrainingDirectory, slurm: SlurmClient) -> None:
    """Write the spans of a job, of a training's newest one, for Perfetto. Raises :class:`TraceNotWritten`."""
    directory = newest_job(found, slurm) if isinstance(found, TrainingDirectory) else found
    job = JobView(events=load_events(directory))
    try:
        write_atomically(target, document(trace_of(job), of_nodes(job)), durable=False)
    except OSError as error:
        raise TraceNotWritten(f"{target}: {error.strerror}") from error
    print(f"{one_line(str(target))}: open it in ui.perfetto.dev or chrome://tracing")


def of_nodes(job: JobView) -> dict[str, list[TraceSpan]]:
    """Return what each node did: the generations in which it trained, and when it was evicted. Pure."""
    found: dict[str, list[TraceSpan]] = {}
    for launch in job.launches.values():
        if launch.ended is None:
            continue
        for slot, node in enumerate(launch.launched.slots):
            found.setdefault(node, []).append(
                TraceSpan(
                    key=f"{node} {launch.number}",
                    name=f"slot {slot}, generation {launch.number}",
                    begin=launch.launched.t,
                    end=launch.ended.t,
                    attributes={"srobust.reason": one_line(launch.ended.reason, MAX_TEXT)},
                )
            )
    for event in job.events:
        if isinstance(event, ev.NodeEvicted):
            gone: dict[str, Value] = {"srobust.reason": one_line(event.reason, MAX_TEXT)}
            found.setdefault(event.node, []).append(
                TraceSpan(
                    key=f"{event.node} out", name="evicted", begin=event.t, end=event.t, attributes=gone
                )
            )
    return dict(sorted(found.items()))


def traces_of(training: TrainingDirectory, slurm: SlurmClient) -> TrainingTraces:
    """Return all jobs of a training. Raises ``NoSuchJob`` if none of them has a journal."""
    jobs = jobs_of(training, slurm)
    if not begun(jobs):
        newest_job(training, slurm)  # says why there is none
    return TrainingTraces(
        training=training.name,
        jobs={job.chapter.job: trace_of(JobView(events=job.events)) for job in begun(jobs)},
        left_out={row.job: row.how for row in jobs if isinstance(row, ChapterRow)},
    )


def trace_of(job: JobView) -> Trace:
    """Return all spans of a journal that have ended. Pure."""
    state, started = job.state, job.started
    cluster = started.cluster if started is not None else ""
    about: dict[str, Value] = {
        "slurm.job.id": state.job_id,
        "slurm.cluster.name": cluster,
        "session_tag": state.run_id,
        "srobust.training": state.training,
        "world_size": state.world.placement.world_size,
        "srobust.version": started.version if started is not None else "",
    }
    spans: list[TraceSpan] = []
    if started is not None and state.ended is not None and state.ended.final:
        reason = one_line(state.ended.reason, MAX_TEXT)
        spans.append(
            TraceSpan(
                key=APPLICATION,
                name=APPLICATION,
                begin=started.t,
                end=state.ended.t,
                attributes={
                    "process.command_args": one_line(" ".join(started.command), MAX_TEXT),
                    "process.exit.code": state.ended.code,
                    "srobust.reason": reason,
                },
                error=reason if state.ended.code else "",
            )
        )
    spans += _runs(job.events)
    for launch in job.launches.values():
        spans += _generation(launch)
    for report in job.incidents:
        spans += _incident(report)
    for row in job.updates:
        spans += _update(row)
    spans += (
        TraceSpan(
            key=f"stored {event.generation} {event.step}",
            name=SAVE,
            begin=event.t - event.seconds,
            end=event.t,
            parent=f"generation {event.generation}",
            attributes={"current_iteration": event.step, "srobust.tier": "storage"},
        )
        for event in job.events
        if isinstance(event, ev.StorageWritten)
    )
    return Trace(
        key=f"{cluster} {state.job_id} {state.run_id}",
        service="slurm_robust",
        attributes={name: value for name, value in about.items() if value != ""},
        spans=tuple(spans),
    )


def _runs(events: Sequence[ev.AnyEvent]) -> Iterator[TraceSpan]:
    """Yield what the job did between two requeues."""
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


def _first_iteration(launch: LaunchView) -> dict[str, int]:
    """Return the attribute of the first step; none if only the script knows where it resumed."""
    is_known = launch.launched.restore is not None or launch.first is None or launch.first.reported
    return {"train_iterations_start": launch.launched.restore_step + 1} if is_known else {}


def _generation(launch: LaunchView) -> Iterator[TraceSpan]:
    """Yield a launch of the workers that has ended, with its start phases and its training."""
    if launch.ended is None:
        return
    key = f"generation {launch.number}"
    begin = launch.launched.t - sum(one.median_s for one in launch.phases if one.phase in _BEFORE_LAUNCH)
    yield TraceSpan(
        key=key,
        name="srobust.generation",
        begin=begin,
        end=launch.ended.t,
        parent=f"run {launch.run}",
        attributes={
            "srobust.generation": launch.number,
            **_first_iteration(launch),
            "srobust.nodes": len(launch.launched.slots),
            "srobust.reason": one_line(launch.ended.reason, MAX_TEXT),
        },
    )
    for one in launch.phases:
        yield TraceSpan(
            key=f"{key} {one.phase}",
            name=NAMES.get(one.phase, f"srobust.start.{one.phase.replace(' ', '_')}"),
            begin=begin,
            end=begin + one.median_s,
            parent=key,
            attributes={
                "srobust.median_s": one.median_s,
                **({"srobust.slowest_node": next(iter(one.nodes))} if one.nodes else {}),
            },
        )
        begin += one.median_s
    if launch.first is not None and launch.last is not None:
        yield TraceSpan(
            key=f"{key} training",
            name=TRAINING_LOOP,
            begin=launch.first.t,
            end=max(launch.first.t, launch.ended.t),
            parent=key,
            attributes={
                "train_iterations_start": launch.first.step,
                "current_iteration": launch.last.step,
                **({"latest_loss": launch.last.loss} if launch.last.loss is not None else {}),
            },
        )


def _incident(report: IncidentReport) -> Iterator[TraceSpan]:
    """Yield an incident that is over, with the stages of its recovery."""
    end = report.events[-1]
    if not isinstance(end, ev.IncidentClosed | ev.RunEnded):
        return
    key, begin = f"incident {report.number}", report.t - report.detect_s
    opened = next(event for event in report.events if isinstance(event, ev.IncidentOpened))
    decided = next((event for event in reversed(report.events) if isinstance(event, ev.Decided)), None)
    attributes: dict[str, Value] = {
        "srobust.incident": report.number,
        "srobust.symptom": opened.symptom.value,
        "srobust.generation": report.generation,
        "srobust.detect_s": report.detect_s,
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
        end=end.t,
        parent=APPLICATION,
        attributes=attributes,
        error=one_line(f"{opened.symptom.value}: {opened.detail}", MAX_TEXT),
    )
    for stage, seconds in (end.stages if isinstance(end, ev.IncidentClosed) else {}).items():
        name = f"srobust.recovery.{one_line(stage, MAX_TEXT).replace(' ', '_')}"
        yield TraceSpan(key=f"{key} {stage}", name=name, begin=begin, end=begin + seconds, parent=key)
        begin += seconds


def _update(row: UpdateRow) -> Iterator[TraceSpan]:
    """Yield an update from its request until its release is judged, with what it stopped training for."""
    end = row.judged or row.over
    key = f"update {row.number}"
    if end is None:
        return
    attributes: dict[str, Value] = {
        "srobust.update": row.number,
        "srobust.release": row.release,
        "srobust.release_before": row.before,
        "srobust.result": row.result.value,
        "srobust.reason": one_line(row.why, MAX_TEXT),
        "enduser.id": one_line(row.by.user, MAX_TEXT),
        "srobust.message": one_line(row.message, MAX_TEXT),
    }
    failed = row.result in (UpdateResult.REFUSED, UpdateResult.ROLLED_BACK)
    yield TraceSpan(
        key=key,
        name="srobust.update",
        begin=row.t,
        end=max(row.t, end),
        parent=APPLICATION,
        attributes={name: value for name, value in attributes.items() if value != ""},
        error=result(row) if failed else "",
    )
    if row.stopped is not None and row.stopped_s is not None:
        yield TraceSpan(
            key=f"{key} stop",
            name="srobust.update.stop",
            begin=row.stopped,
            end=row.stopped + row.stopped_s,
            parent=key,
        )


def render(shown: Trace | TrainingTraces) -> RenderableType:
    """Return one line for each span, children below their parents; of a training below each job."""
    if isinstance(shown, TrainingTraces):
        parts: list[RenderableType] = []
        for job, trace in shown.jobs.items():
            parts += section(f"job {one_line(job)} of training {one_line(shown.training)}", render(trace))
        parts += (Text(f"job {one_line(job)}: {one_line(how)}") for job, how in shown.left_out.items())
        return Group(*parts)
    table = ScreenTable(head=False)
    for name in ("begin", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("span", overflow="fold")
    table.add_column("on", overflow="fold")
    children = by_parent(shown.spans)
    known = {span.key for span in shown.spans}
    tops = [span for parent, spans in children.items() if parent not in known for span in spans]
    _rows(table, sorted(tops, key=lambda span: span.begin), children, 0)
    return table


def _rows(
    table: ScreenTable, spans: Sequence[TraceSpan], children: Mapping[str, list[TraceSpan]], depth: int
) -> None:
    for span in spans:
        text = one_line(f"{span.name}  {span.error}" if span.error else span.name)
        begin, took = date_and_time(span.begin), f"{span.seconds:.1f}"
        table.add_row(begin, took, Text("  " * depth + text), Text(_where(span)))
        _rows(table, children.get(span.key, ()), children, depth + 1)


def _where(span: TraceSpan) -> str:
    """Return the node that a span is about, or on how many nodes it was."""
    about = span.attributes
    if node := about.get("srobust.slowest_node") or about.get("srobust.suspects"):
        return one_line(str(node))
    nodes = about.get("srobust.nodes")
    return count(nodes, "node") if isinstance(nodes, int) else ""
