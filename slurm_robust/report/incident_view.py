"""``srobust incidents JOB``, all that went wrong with a job, and ``srobust incident JOB N``, one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.evidence import incident_text
from slurm_robust.evidence import stacks as stack_text
from slurm_robust.evidence.bundle import SavedAlerts, alerts_text, folder_of, wanted_ranks
from slurm_robust.evidence.incident_text import IncidentRow, incident_row
from slurm_robust.evidence.incidents import IncidentReport, find_report
from slurm_robust.evidence.stacks import SavedStacks
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.nodeseen import NodeSeen
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.model.updates import UpdateRow
from slurm_robust.report.hookseen import seen_of, told
from slurm_robust.report.incident_table import INCIDENT_STYLES, incident_table
from slurm_robust.report.job_view import JobView
from slurm_robust.report.together import all_incidents
from slurm_robust.report.updates import update_table
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import STYLES, Bar, ScreenTable, facts_table, indented, section, show
from slurm_robust.trainings.find import find, load_events, named, newest_job
from slurm_robust.trainings.jobs import begun, jobs_of, journals_after, later_of
from slurm_robust.trainings.slurmview import make_slurm, view_of
from slurm_robust.util.text import clean_log, clock, count, date_and_time, one_line

MAX_LOGS = 8
"""Files of which ``--logs`` shows the end; the folder has the others."""

LOG_LINES = 30
MAX_GROUPS = 12
"""Groups of equal stacks, and alerts, that are shown by default."""

_Saved = TypeVar("_Saved", SavedAlerts, SavedStacks)


class IncidentListing(Record):
    """All that ``srobust incidents --json`` prints."""

    job_id: int
    job: str
    """Its state."""
    incidents: tuple[IncidentRow, ...]
    left_out: int = 0
    """Older incidents."""
    updates: tuple[UpdateRow, ...] = ()
    """Updates of the code, since the oldest of these incidents if older ones are left out."""
    training: str = ""
    """The training whose incidents these are; then ``job`` is its newest job. "" for those of one job."""


def show_all(name: str, *, json: bool, last: int | None, job_dir: str | None) -> int:
    """Print the incidents of a job. Raises ``NoSuchJob``, ``JournalDamaged``."""
    slurm = make_slurm()
    found = named(name, job_dir, slurm)
    if isinstance(found, TrainingDirectory):
        shown = listing_of_training(found, last, slurm)
    else:
        shown = listing(*_load(found, slurm), last)
    show(shown, render_list, json=json)
    return 0


def listing_of_training(training: TrainingDirectory, last: int | None, slurm: SlurmClient) -> IncidentListing:
    """Return the newest ``last`` incidents of all jobs of a training. Raises ``NoSuchJob``."""
    jobs = begun(jobs_of(training, slurm))
    if not jobs:
        newest_job(training, slurm)  # says why there is none
    *earlier, newest = jobs
    job, state = _load(newest.directory, slurm)
    # A later job began only when those before it were over.
    every = [
        (one.chapter.job, JobView(events=one.events, is_over=True, later=later))
        for one, later in zip(earlier, later_of(jobs), strict=False)
    ]
    every.append((newest.chapter.job, job))
    rows = all_incidents([(name, tuple(map(incident_row, one.incidents))) for name, one in every])
    shown = rows if last is None else rows[-last:]
    updates = tuple(replace(row, job=name) for name, one in every for row in one.updates)
    return IncidentListing(
        job_id=newest.chapter.job_id,
        job=state,
        incidents=shown,
        left_out=len(rows) - len(shown),
        updates=_beside(updates, shown, len(rows)),
        training=training.name,
    )


def _load(directory: JobDirectory, slurm: SlurmClient) -> tuple[JobView, str]:
    """Return a job and its state (``training; Slurm: RUNNING``).

    Slurm is asked because a job that Slurm ended could not write that down.
    Raises ``NoSuchJob``, ``JournalDamaged``.
    """
    events = load_events(directory)
    with Bar("asking Slurm"):
        view = view_of(events, slurm)
    job = JobView(events=events, is_over=view.is_over, later=journals_after(directory, events))
    phase, _ = job.activity
    return job, f"{phase}; Slurm: {view.state}" if view.state else phase


def listing(job: JobView, state: str, last: int | None) -> IncidentListing:
    """Return the newest ``last`` incidents of a job, or all of them; ``state``: its state."""
    chosen = job.incidents[-last:] if last is not None else job.incidents
    rows = tuple(map(incident_row, chosen))
    return IncidentListing(
        job_id=job.state.job_id,
        job=state,
        incidents=rows,
        left_out=len(job.incidents) - len(chosen),
        updates=_beside(job.updates, rows, len(job.incidents)),
    )


def _beside(updates: tuple[UpdateRow, ...], shown: Sequence[IncidentRow], many: int) -> tuple[UpdateRow, ...]:
    """Return the updates since the oldest of ``shown``; all of them if all ``many`` incidents are."""
    if len(shown) == many or not shown:
        return updates
    return tuple(row for row in updates if row.t >= shown[0].t)


def render_list(found: IncidentListing) -> RenderableType:
    """Return the whole screen of ``srobust incidents``."""
    title = Text(f"job {found.job_id} ({one_line(found.job)}): ", style="bold")
    if found.training:
        state = f"newest job {found.job_id}: {one_line(found.job)}"
        title = Text(f"training {one_line(found.training)} ({state}): ", style="bold")
    updates = section("Updates", update_table(found.updates)) if found.updates else ()
    if not found.incidents:
        title.append("no incident", style="")
        return Group(title, *updates) if updates else title
    left_out = f" ({count(found.left_out, 'older one')} not shown)" if found.left_out else ""
    title.append(f"{count(len(found.incidents), 'incident')}{left_out}")
    return Group(title, incident_table(found.job_id, found.incidents), *updates)


# -- one incident ----------------------------------------------------------------------------------


class Bundle(Record):
    """All that ``srobust incident --json`` prints."""

    job: str
    """Its state."""
    facts: dict[str, str]
    incident: IncidentReport
    root: NodeExit | None
    """The exit that explains the others."""
    folder: str
    files: dict[str, int]
    """Names in ``folder`` with their bytes."""
    alerts: SavedAlerts | None = None
    stacks: SavedStacks | None = None
    damaged: dict[str, str] = {}
    seen: tuple[NodeSeen, ...] = ()
    """What prolog and epilog told of the nodes that it blames."""


def show_one(name: str, number: int, *, json: bool, logs: bool, stacks: bool, job_dir: str | None) -> int:
    """Print one incident. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NoSuchIncident`."""
    slurm = make_slurm()
    directory = find(name, job_dir, slurm)
    found = gather(directory, *_load(directory, slurm), number, name)
    show(found, partial(render, logs=logs, stacks=stacks), json=json)
    return 0


def gather(directory: JobDirectory, job: JobView, state: str, number: int, name: str) -> Bundle:
    """Return one incident of a job that a person calls ``name``, and the contents of its folder.

    Raises :class:`NoSuchIncident`.
    """
    report = find_report(directory, job.incidents, number, name)
    folder = folder_of(directory, number)
    damaged: dict[str, str] = {}
    return Bundle(
        job=state,
        facts=dict(incident_text.facts(report)),
        incident=report,
        root=report.root,
        folder=str(folder),
        files={
            str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(folder.rglob("[!.]*"))
            if path.is_file()
        },
        alerts=_saved(folder / "alerts.json", SavedAlerts, damaged),
        stacks=_saved(folder / "stacks.json", SavedStacks, damaged),
        damaged=damaged,
        seen=tuple(seen for seen in seen_of(directory) if seen.node in report.suspects),
    )


def _saved(path: Path, kind: type[_Saved], damaged: dict[str, str]) -> _Saved | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        damaged[path.name] = str(error)
        return None


# -- the screen ------------------------------------------------------------------------------------


def render(bundle: Bundle, *, logs: bool = False, stacks: bool = False) -> RenderableType:
    """Return the whole screen; ``logs``, ``stacks``: with the last lines of the ranks, and all stacks."""
    parts = list(_parts(bundle))
    if stacks:
        try:
            text = (Path(bundle.folder) / "stacks.txt").read_text(errors="replace")
        except FileNotFoundError:
            text = "no stacks were taken"
        except OSError as error:
            text = f"stacks.txt cannot be read: {error.strerror}"
        parts += section("Stacks in full", indented(clean_log(text)))
    return Group(*parts, *(_logs(bundle) if logs else ()))


def _parts(bundle: Bundle) -> Iterator[RenderableType]:
    report = bundle.incident
    yield Text.assemble(
        (f"Incident {report.number} of job {report.job_id}", "bold"),
        f", {date_and_time(report.t)} (",
        (report.status.value, INCIDENT_STYLES[report.status]),
        one_line(f"); the job: {bundle.job}"),
    )
    yield facts_table(bundle.facts.items(), indent="  ")
    root, lines = incident_text.deciding_lines(report)
    last_lines = section(f"Last lines of {root}", *map(indented, lines)) if root else ()
    raised = report.root is not None and report.root.exit.error is not None
    if raised:  # what a program raised says more than anything that was done about it
        yield from last_lines

    table = ScreenTable(head=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in incident_text.timeline(report):
        table.add_row(f"  {clock(entry.t)}", f"{entry.after_s:.1f}", entry.what, Text(entry.text))
    yield from section("In order (time, seconds since the first sign)", table)

    if not raised:
        yield from last_lines

    alerts = list(alerts_text(bundle.alerts)) if bundle.alerts is not None else []
    if alerts:
        yield from section("Alerts of the nodes", *map(indented, alerts[:MAX_GROUPS]))
    if len(alerts) > MAX_GROUPS:
        yield indented(f"and {len(alerts) - MAX_GROUPS} more in alerts.txt", "dim")
    yield from told(bundle.seen)

    if (saved := bundle.stacks) is not None:
        table = ScreenTable(head=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for number, each in enumerate(saved.groups[:MAX_GROUPS], 1):
            style = "bold red" if each.is_outlier else ""
            table.add_row(f"  {number}", Text(stack_text.title(each), style=style), Text(each.doing))
        yield from section("Stacks", indented(stack_text.placed(saved.localisation)), table)
        if len(saved.groups) > MAX_GROUPS:
            yield indented(f"and {count(len(saved.groups) - MAX_GROUPS, 'group')} more", "dim")
        yield from map(indented, saved.flight[:MAX_GROUPS])

    for tested in report.tests:
        table = ScreenTable()
        for name in ("test", "result", "nodes", "what", "measured", "limit"):
            table.add_column(name, overflow="fold", no_wrap=name == "result")
        table.add_column("s", justify="right", no_wrap=True)
        for row in incident_text.result_rows(tested.results):
            result = Text(row.outcome.value, style=STYLES[row.outcome])
            cells = (row.nodes, row.text, row.value, row.limit)
            table.add_row(one_line(row.test), result, *map(Text, cells), f"{row.took_s:.1f}")
        yield from section(f"Tests of nodes, {tested.took_s:.1f} s: {one_line(tested.reason)}", table)

    yield from section("Files", indented(bundle.folder))
    if not bundle.files:
        yield indented("the folder is empty: not written yet, or storage refused it", "yellow")
        return
    names = [name for name in bundle.files if not name.startswith("logs/")]
    if ends := len(bundle.files) - len(names):
        names.append(f"the ends of {count(ends, 'log')} in logs/")
    yield indented(f"{', '.join(names)}; {sum(bundle.files.values()) / 1e3:.0f} kB")
    for name, why in bundle.damaged.items():
        yield indented(f"{name} cannot be read: {why}", "red")


def _logs(bundle: Bundle) -> Iterator[RenderableType]:
    """Yield the ends of the saved output of ranks, the root cause first."""
    names = [name for name in bundle.files if name.startswith("logs/")]
    report = bundle.incident
    order = {
        f"logs/gen-{generation:03d}/rank-{rank:05d}": (place, at)
        for at, generation in enumerate(report.generations)
        for place, rank in enumerate(wanted_ranks(report, generation))
    }
    last = (len(names), 0)
    names.sort(key=lambda name: (order.get(name.rpartition(".")[0], last), name))
    if not names:
        yield from section("Logs", indented("no output was saved", "dim"))
    for name in names[:MAX_LOGS]:
        try:
            text = (Path(bundle.folder) / name).read_text(errors="replace")
        except OSError as error:
            text = f"cannot be read: {error.strerror}"
        lines = clean_log(text).rstrip("\n").split("\n")[-LOG_LINES:]
        yield from section(name, *map(indented, lines))
    if len(names) > MAX_LOGS:
        yield Text(f"\n{count(len(names) - MAX_LOGS, 'file')} more in {bundle.folder}/logs", style="dim")
