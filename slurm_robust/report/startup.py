"""``srobust status --phases JOB``: what the time of one generation's start, and of a recovery, went into."""

from __future__ import annotations

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.evidence.incidents import IncidentReport
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.model.startup import START_PHASES, PhaseTimes
from slurm_robust.report.chapters import place_text
from slurm_robust.report.job_view import JobView
from slurm_robust.terminal.console import facts_table, plain_table, section, show
from slurm_robust.trainings.find import find, load_events, place_of
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import date_and_time, fold_ranks, one_line

MAX_SHOWN = 5
"""Nodes of a phase on the screen; ``--json`` has more."""


class NoSuchGeneration(SrobustError):
    """The journal has no generation of that number."""

    exit_code = ExitCode.NO_INPUT


class GenerationStart(Record):
    """The start of one generation: all that ``--json`` prints. Durations in seconds; None: not known."""

    job_id: int
    generation: int
    t: float
    """When it was launched, in seconds since 1970."""

    slots: tuple[str, ...]
    restored: str
    """The checkpoint with which it began, "" for a fresh start."""

    queued_s: float | None
    """Time from submission or requeue to the start by Slurm, if it is the first generation of a run."""

    took_s: float | None
    """Time from the order to launch until all ranks had completed a step."""

    phases: tuple[PhaseTimes, ...]
    incident: int = 0
    """The incident in which it was launched, 0 for none."""

    stages: dict[str, float] = {}
    """What the time from that fault until the first new step went into, in order."""

    training: str = ""
    """The training of the job, and which of its jobs it is, in words; "" for a job without one."""
    by_wall_clocks: bool = False
    """Another controller ended that incident, so ``stages`` follow from the times of the journal's events."""


def start_of(job: JobView, generation: int | None = None) -> GenerationStart:
    """Return the start of ``generation``, else of the newest. Raises :class:`NoSuchGeneration`."""
    number = max(job.launches, default=0) if generation is None else generation
    if number not in job.launches:
        name = f"job {job.state.job_id}"
        if generation is None:
            raise NoSuchGeneration(f"{name} has launched no generation yet", fix="try again when it trains")
        fix = f"name one of {fold_ranks(job.launches)}" if job.launches else "try again when it trains"
        raise NoSuchGeneration(f"{name} has no generation {number}", fix=fix)
    launch, incident = job.launches[number], job.incident_of.get(number)
    closed = (
        next((e for e in incident.events if isinstance(e, ev.IncidentClosed)), None) if incident else None
    )
    stages = closed.stages if closed is not None else {}
    return GenerationStart(
        job_id=job.state.job_id,
        generation=number,
        t=launch.launched.t,
        slots=launch.launched.slots,
        restored=launch.restored,
        queued_s=launch.queued_s,
        took_s=launch.took_s,
        phases=launch.phases,
        incident=incident.number if incident is not None else 0,
        stages=stages or (_journal_stages(incident) if incident is not None else {}),
        by_wall_clocks=incident is not None and not stages,
    )


_ENDED_BY: dict[type[ev.AnyEvent], str] = {
    ev.GenerationEnded: "stopping",
    ev.Decided: "deciding",
    ev.RequeueStarted: "saving",
    ev.ControllerStarted: "without controller",
    ev.GenerationLaunched: "gathering",
    ev.FirstStep: "running",
    ev.IncidentClosed: "repeating",
}


def _journal_stages(incident: IncidentReport) -> dict[str, float]:
    """Return the stages by the times of the journal's events, of wall clocks."""
    stages, before = {"detecting": incident.detect_s}, incident.t
    for event in incident.events:
        stage = _ENDED_BY.get(type(event))
        if stage is not None and event.t >= before:
            stages[stage] = round(stages.get(stage, 0.0) + event.t - before, 3)
            before = event.t
    return stages


def main(name: str, *, generation: int | None, json: bool, job_dir: str | None) -> int:
    """Print it. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NoSuchGeneration`."""
    directory = find(name, job_dir, make_slurm())
    job = JobView(events=load_events(directory))
    start = start_of(job, generation)
    if (state := job.state).training:
        chapter = state.continued.chapter if state.continued is not None else 1
        place = place_of(directory, state.training, state.run_id)
        start = replace(start, training=place_text(place.training, chapter, place.newest))
    show(start, render, json=json)
    return 0


def render(start: GenerationStart) -> RenderableType:
    """Return the whole screen."""
    queued = f"{start.queued_s:.0f} s from submission or requeue" if start.queued_s is not None else ""
    took = f"{start.took_s:.2f} s after the launch" if start.took_s is not None else ""
    rows = [
        ("training", start.training),
        ("generation", f"{start.generation} of job {start.job_id} on {fold_nodes(start.slots)}"),
        ("launched", date_and_time(start.t)),
        ("restored", start.restored),
        ("in Slurm's queue", queued),
        ("first step", took),
    ]
    parts: list[RenderableType] = [facts_table((name, one_line(text)) for name, text in rows if text)]
    if start.stages:
        clocks = ", by wall clocks, since another controller began" if start.by_wall_clocks else ""
        title = f"Recovery: incident {start.incident}, from the fault to the first new step (seconds{clocks})"
        names = [*map(one_line, start.stages), "all"]
        stages = plain_table(*names, right=names)
        for column in stages.columns:
            column.overflow = "ellipsis"
        stages.add_row(*(f"{spent:.2f}" for spent in (*start.stages.values(), sum(start.stages.values()))))
        parts += section(title, stages)
    if not start.phases:
        parts.append("\nIts phases are not known yet: they are recorded at its first step, or at its end.")
        return Group(*parts)
    phases = plain_table("phase", "median", "nodes, slowest first", "what", right=("median",))
    for column in phases.columns[:2]:
        column.no_wrap = True
    phases.columns[-1].style = "dim"
    for times in start.phases:
        shown = list(times.nodes.items())[:MAX_SHOWN]
        more = f"; {times.measured - len(shown)} more" if times.measured > len(shown) else ""
        phases.add_row(
            one_line(times.phase),
            f"{times.median_s:.2f}",
            Text(", ".join(f"{one_line(node)} {spent:.2f}" for node, spent in shown) + more),
            START_PHASES.get(times.phase, ""),
        )
    return Group(*parts, *section("Start of the nodes (seconds)", phases))
