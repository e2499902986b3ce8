"""``srobust incident JOB N``: what happened, in order, and what it was concluded from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slurm_robust.analysis.incidents import Story, stories
from slurm_robust.analysis.stacks.groups import fold as fold_ranks
from slurm_robust.controller.evidence import alerts as alert_text
from slurm_robust.controller.evidence import stacks as stack_text
from slurm_robust.controller.evidence import words
from slurm_robust.controller.evidence.alerts import SavedAlerts
from slurm_robust.controller.evidence.bundle import folder_of
from slurm_robust.controller.evidence.folder import wanted_ranks
from slurm_robust.controller.evidence.stacks import SavedStacks
from slurm_robust.controller.evidence.texts import clean, count, one_line
from slurm_robust.model import events as ev
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.report.incidents import STYLES, job_in_words, load
from slurm_robust.report.screen import Screen
from slurm_robust.util.text import as_json

MOST_LOGS = 8
"""Files of which ``--logs`` shows the end; the folder has the others."""

LOG_LINES = 30
MOST_GROUPS = 12
"""Groups of equal stacks, and alerts, that are shown without being asked for."""

_RESULTS = {Outcome.FAIL: "bold red", Outcome.UNKNOWN: "yellow", Outcome.PASS: "green"}
_Saved = TypeVar("_Saved", SavedAlerts, SavedStacks)


class NoSuchIncident(SrobustError):
    """The journal has no incident of that number."""

    exit_code = ExitCode.NO_INPUT
    fix = "'srobust incidents JOB' lists them"


class Bundle(Record):
    """All that ``--json`` prints. ``files``: names in ``folder`` with their bytes.

    ``job`` is its state in words; ``root`` the exit that explains the others. ``damaged``: files that cannot
    be read, with the reason.
    """

    job: str
    facts: dict[str, str]
    incident: Story
    root: NodeExit | None
    folder: str
    files: dict[str, int]
    alerts: SavedAlerts | None = None
    stacks: SavedStacks | None = None
    damaged: dict[str, str] = {}


def main(name: str, number: int, *, json: bool, logs: bool, stacks: bool, job_dir: str | None) -> int:
    """Print one incident. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NoSuchIncident`."""
    directory, events, slurm = load(name, job_dir)
    bundle = gather(directory, events, number, job_in_words(events, slurm))
    if json:
        print(as_json(bundle))
        return 0
    console = Screen()
    console.print(render(bundle))
    if stacks:
        console.print(_stacks_text(bundle))
    if logs:
        console.print(Group(*_logs(bundle)))
    return 0


def gather(directory: JobDirectory, events: Sequence[ev.AnyEvent], number: int, job: str) -> Bundle:
    """One incident, and what its folder holds; ``job``: how it is. Raises :class:`NoSuchIncident`."""
    every = {story.number: story for story in stories(events)}
    if number not in every:
        those = f"it has {fold_ranks(every)}" if every else "it has none"
        raise NoSuchIncident(f"{directory.path} has no incident {number}; {those}")
    story, folder = every[number], folder_of(directory, number)
    damaged: dict[str, str] = {}
    return Bundle(
        job=job,
        facts=dict(words.facts(story)),
        incident=story,
        root=story.root,
        folder=str(folder),
        files={
            str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(folder.rglob("[!.]*"))
            if path.is_file()
        },
        alerts=_saved(folder / "alerts.json", SavedAlerts, damaged),
        stacks=_saved(folder / "stacks.json", SavedStacks, damaged),
        damaged=damaged,
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


def render(bundle: Bundle) -> RenderableType:
    """The whole screen, without what ``--stacks`` and ``--logs`` add."""
    story = bundle.incident
    title = Text.assemble(
        (f"Incident {story.number} of job {story.job_id}", "bold"),
        time.strftime(", %Y-%m-%d %H:%M:%S (", time.localtime(story.summary.t)),
        (story.standing.value, STYLES[story.standing]),
        one_line(f"); the job: {bundle.job}"),
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in bundle.facts.items():
        facts.add_row(f"  {name}", Text(value))
    return Group(
        title,
        facts,
        *_section("In order (time, seconds since the first sign)", _timeline(story)),
        *_deciding(story),
        *_alerts(bundle.alerts),
        *_stacks(bundle.stacks),
        *(part for tested in story.tests for part in _tests(tested)),
        *_files(bundle),
    )


def _section(title: str, *parts: RenderableType) -> tuple[RenderableType, ...]:
    return ("", Text(one_line(title), style="bold"), *parts)


def _indented(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2), expand=False)


def _timeline(story: Story) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for moment in words.moments(story):
        clock = time.strftime("%H:%M:%S", time.localtime(moment.t))
        table.add_row(f"  {clock}", f"{moment.after_s:.1f}", moment.what, Text(moment.text))
    return table


def _deciding(story: Story) -> Iterator[RenderableType]:
    who, lines = words.deciding_lines(story)
    if who:
        yield from _section(f"Last lines of {who}", *map(_indented, lines))
        if not lines:
            yield _indented("it wrote nothing", "dim")


def _alerts(saved: SavedAlerts | None) -> Iterator[RenderableType]:
    lines = list(alert_text.in_words(saved)) if saved is not None else []
    if lines:
        yield from _section("Alerts of the nodes", *map(_indented, lines[:MOST_GROUPS]))
        if len(lines) > MOST_GROUPS:
            yield _indented(f"and {len(lines) - MOST_GROUPS} more in alerts.txt", "dim")


def _stacks(saved: SavedStacks | None) -> Iterator[RenderableType]:
    if saved is None:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for number, each in enumerate(saved.groups[:MOST_GROUPS], 1):
        style = "bold red" if each.is_outlier else ""
        table.add_row(f"  {number}", Text(stack_text.title(each), style=style), Text(each.doing))
    yield from _section("Stacks", _indented(stack_text.placed(saved.localisation)), table)
    if len(saved.groups) > MOST_GROUPS:
        yield _indented(f"and {count(len(saved.groups) - MOST_GROUPS, 'group')} more", "dim")
    yield from map(_indented, saved.flight[:MOST_GROUPS])


def _tests(tested: ev.NodesTested) -> tuple[RenderableType, ...]:
    table = Table(box=box.SIMPLE_HEAD, expand=False, pad_edge=False)
    for name in ("test", "result", "nodes", "what", "measured", "limit"):
        table.add_column(name, overflow="fold", no_wrap=name == "result")
    table.add_column("s", justify="right", no_wrap=True)
    for row in words.result_rows(tested.results):
        result = Text(row.outcome.value, style=_RESULTS[row.outcome])
        cells = (row.nodes, row.text, row.value, row.limit)
        table.add_row(one_line(row.test), result, *map(Text, cells), f"{row.took_s:.1f}")
    return _section(f"Tests of nodes, {tested.took_s:.1f} s: {one_line(tested.reason)}", table)


def _files(bundle: Bundle) -> Iterator[RenderableType]:
    yield from _section("Files", _indented(bundle.folder))
    if not bundle.files:
        yield _indented("nothing is there: not written yet, or storage refused it", "yellow")
        return
    logs = [name for name in bundle.files if name.startswith("logs/")]
    names = [name for name in bundle.files if name not in logs]
    size = sum(bundle.files.values())
    log_words = [f"the ends of {count(len(logs), 'log')} in logs/"] if logs else []
    yield _indented(f"{', '.join([*names, *log_words])}; {size / 1e3:.0f} kB")
    for name, why in bundle.damaged.items():
        yield _indented(f"{name} cannot be read: {why}", "red")


def _stacks_text(bundle: Bundle) -> RenderableType:
    try:
        text = (Path(bundle.folder) / "stacks.txt").read_text(errors="replace")
    except FileNotFoundError:
        text = "none were taken"
    except OSError as error:
        text = f"stacks.txt cannot be read: {error.strerror}"
    return Group(*_section("Stacks in full", _indented(clean(text))))


def _logs(bundle: Bundle) -> Iterator[RenderableType]:
    """Ends of what is saved of the ranks' output, of the root first."""
    names = [name for name in bundle.files if name.startswith("logs/")]
    story = bundle.incident
    order = {
        f"logs/gen-{generation:03d}/rank-{rank:05d}": (place, at)
        for at, generation in enumerate(story.generations)
        for place, rank in enumerate(wanted_ranks(story, generation))
    }
    last = (len(names), 0)
    names.sort(key=lambda name: (order.get(name.rpartition(".")[0], last), name))
    if not names:
        yield from _section("Logs", _indented("none were saved", "dim"))
    for name in names[:MOST_LOGS]:
        try:
            text = (Path(bundle.folder) / name).read_text(errors="replace")
        except OSError as error:
            text = f"cannot be read: {error.strerror}"
        lines = clean(text).rstrip("\n").split("\n")[-LOG_LINES:]
        yield from _section(name, *map(_indented, lines))
    if len(names) > MOST_LOGS:
        yield Text(f"\n{count(len(names) - MOST_LOGS, 'file')} more in {bundle.folder}/logs", style="dim")
