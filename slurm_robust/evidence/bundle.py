"""The folder of an incident in the job directory, written for people and programs.

Threads of the controller write it. If storage fails, the job loses evidence and nothing else.
"""

from __future__ import annotations

import os
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_robust.analysis.logs import root_exit
from slurm_robust.evidence import incident_text
from slurm_robust.evidence import stacks as stack_text
from slurm_robust.evidence.incidents import IncidentReport, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Alert, Suspect
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.util.files import make_folder, write_atomically
from slurm_robust.util.text import clock, date_and_time, one_line

MIB = 1024 * 1024
MAX_TAIL = 64 * 1024
"""Bytes from the end of one worker's output."""

MAX_RANKS = 96
"""Ranks per generation whose output is kept. The journal has the last lines of the others."""

MAX_GENERATIONS = 3
STREAMS = ("err", "out")
MAX_JSON = 8 * MIB
MAX_STACKS = 8 * MIB
MAX_ALERTS = MIB
MAX_LINES = MIB
"""Bytes of one text for people."""

FEW = 4
"""Healthy ranks whose output is kept for comparison."""


WIDTH = 100

_FILES = (
    ("incident.json", "everything that the journal says about it, for programs"),
    ("stacks.txt", "what every rank was doing, if stacks were taken: groups of equal stacks, outliers first"),
    ("stacks.json", "the same for programs, with as many ranks as fit"),
    ("alerts.txt", "what the nodes' inspection saw (kernel log, GPUs, network), if anything"),
    ("alerts.json", "the same for programs"),
)


class SavedAlerts(Record):
    """``alerts.json``."""

    t: float
    """What ages count back from, in seconds since 1970."""
    alerts: dict[str, tuple[Alert, ...]]
    """By node."""
    left_out: int = 0
    """How many older ones there are."""


def save(directory: JobDirectory, number: int, events: Sequence[ev.AnyEvent]) -> Path:
    """Write ``incidents/NNN/``: the report for people and for programs, and the last output of ranks.

    It is rewritten as the incident proceeds, so that it never lags far behind the journal. Returns the
    folder, which does not exist if the journal has no such incident. Raises ``OSError`` after writing what
    can be written.
    """
    folder = folder_of(directory, number)
    report = next((s for s in reversed(incident_reports(events)) if s.number == number), None)
    if report is None:
        return folder
    make_folder(folder, below=directory.path)
    remove_leftovers(folder)
    encoded = next(text for text in _encoded(report) if len(text) <= MAX_JSON)
    write(folder / "incident.json", encoded + b"\n")
    write_lines(folder / "README.txt", readme(report))
    error = copy_tails(directory, report, folder)
    if error is not None:
        raise error
    return folder


def save_stacks(
    directory: JobDirectory, number: int, stacks: Sequence[RankStacks], localisation: Localisation
) -> None:
    """Write ``stacks.json`` and ``stacks.txt``. Raises ``OSError``."""
    folder = folder_of(directory, number)
    make_folder(folder, below=directory.path)
    write_lines(folder / "stacks.txt", stack_text.stacks_text(stacks, localisation))
    write(folder / "stacks.json", stack_text.bounded(stacks, localisation, MAX_STACKS))


def save_alerts(
    directory: JobDirectory, number: int, alerts: Mapping[str, Sequence[Alert]], t: float | None = None
) -> None:
    """Write ``alerts.json`` and ``alerts.txt``: what was seen on each node.

    ``t``: the time from which their ages count, in seconds since 1970 (by default now). Raises ``OSError``.
    """
    folder = folder_of(directory, number)
    make_folder(folder, below=directory.path)
    saved = _newest(alerts, time.time() if t is None else t, MAX_ALERTS)
    write_lines(folder / "alerts.txt", alerts_text(saved))
    write(folder / "alerts.json", msgspec.json.encode(saved) + b"\n")


def save_suspect(directory: JobDirectory, suspect: Suspect) -> Path:
    """Write ``suspects/<node>.json``, which the epilog of that node reads. Raises ``OSError``."""
    directory.suspects.mkdir(mode=0o700, exist_ok=True)
    path = directory.suspects / f"{suspect.node}.json"
    write_atomically(path, msgspec.json.encode(suspect), durable=True)
    return path


def folder_of(directory: JobDirectory, number: int) -> Path:
    """Return the folder of the bundle of incident ``number``."""
    return directory.incidents / f"{number:03d}"


def _encoded(report: IncidentReport) -> Iterator[bytes]:
    """Yield the report as JSON: whole, then with the exits of some ranks, then without its events."""
    yield msgspec.json.format(msgspec.json.encode(report), indent=1)
    few = []
    for event in report.events:
        if isinstance(event, ev.GenerationEnded):
            ranks = wanted_ranks(report, event.generation)
            exits = tuple(each for each in event.exits if each.exit.rank in ranks)
            event = msgspec.structs.replace(event, exits=exits)
        few.append(event)
    yield msgspec.json.encode(msgspec.structs.replace(report, events=tuple(few)))
    yield msgspec.json.encode(msgspec.structs.replace(report, events=(), placements={}))


# -- output of ranks --------------------------------------------------------------------------------


def wanted_generations(report: IncidentReport) -> tuple[int, ...]:
    """Return the generation that failed, and the newest ones since."""
    first, *since = report.generations
    return (first, *since[-(MAX_GENERATIONS - 1) :])


def wanted_ranks(report: IncidentReport, generation: int) -> tuple[int, ...]:
    """Return ranks whose output is kept: the root, those on suspects, other failed ones, and a few more."""
    exits = report.exits_of(generation) or report.failed
    root = root_exit(exits)
    ranks = [root.exit.rank] if root is not None else []
    first = report.placements.get(report.generation)
    for node in report.suspects:
        ranks += first.ranks_of(node) if first is not None else ()
    ranks += [found.exit.rank for found in exits]
    known = set(ranks)
    world = first.world_size if first is not None else 0
    few = [rank for rank in range(min(world, len(known) + FEW)) if rank not in known][:FEW]
    every = list(dict.fromkeys(ranks))[: MAX_RANKS - len(few)]
    return (*every, *few)


def copy_tails(directory: JobDirectory, report: IncidentReport, folder: Path) -> OSError | None:
    """Copy the ends of the workers' output. Returns the first error: a bad file must not cost the others."""
    failed: OSError | None = None
    logs = folder / "logs"
    planned = {
        logs / directory.logs(generation).name / source.name: source
        for generation in wanted_generations(report)
        for rank in wanted_ranks(report, generation)
        for stream in STREAMS
        for source in [directory.worker_log(generation, rank, stream)]
    }
    for old in [path for path in logs.glob("*/[!.]*") if path not in planned]:
        old.unlink(missing_ok=True)
    for target, source in planned.items():
        try:
            _copy_tail(source, target, folder)
        except OSError as error:
            failed = failed or error
    return failed


def _copy_tail(source: Path, target: Path, folder: Path) -> None:
    try:
        with source.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_TAIL))
            data = file.read(MAX_TAIL)
    except FileNotFoundError:
        return  # a rank that never got as far as its own output
    if data:
        make_folder(target.parent, below=folder)
        write(target, data)


# -- README.txt -------------------------------------------------------------------------------------


def readme(report: IncidentReport) -> Iterator[str]:
    """Yield the lines of the file."""
    when = date_and_time(report.t)
    yield f"Incident {report.number} of job {report.job_id}, {when} ({report.status.value})"
    yield ""
    for name, text in incident_text.facts(report):
        yield from _paragraph(f"  {name:<9} ", text)
    yield from ("", "In order (time, seconds since the first sign)")
    for entry in incident_text.timeline(report):
        yield from _paragraph(f"  {clock(entry.t)} {entry.after_s:8.1f}  {entry.what:<11} ", entry.text)
    root, lines = incident_text.deciding_lines(report)
    if root:
        yield from ("", f"Last lines of {root}")
        yield from (f"  | {line}" for line in lines)
    for tested in report.tests:
        yield from ("", f"Tests, {tested.took_s:.1f} s")
        for row in incident_text.result_rows(tested.results):
            what = " ".join(filter(None, (row.text, row.value, f"(limit {row.limit})" if row.limit else "")))
            yield from _paragraph(f"  {row.outcome.value:<8}{row.test}: ", f"{row.nodes}  {what}".rstrip())
    yield from ("", "Files")
    for name, text in _FILES:
        yield from _paragraph(f"  {name:<16} ", text)
    for generation in wanted_generations(report):
        when = "which failed" if generation == report.generations[0] else "launched after it"
        name = f"logs/gen-{generation:03d}/"
        text = f"last output of the ranks of generation {generation}, {when}"
        yield from _paragraph(f"  {name:<16} ", text)
    yield from ("", f"'srobust incident {report.job_id} {report.number}' shows the same.")


def _paragraph(head: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    ) or [head.rstrip()]


# -- alerts -----------------------------------------------------------------------------------------


def _newest(alerts: Mapping[str, Sequence[Alert]], t: float, most: int) -> SavedAlerts:
    """Return the newest alerts of all nodes that fit into ``most`` bytes of JSON."""
    newest = sorted(
        ((node, alert) for node in alerts for alert in alerts[node]), key=lambda pair: pair[1].age_s
    )
    chosen: dict[str, list[Alert]] = {}
    count = 0
    for node, alert in newest:
        most -= len(msgspec.json.encode(alert)) + len(node)
        if most < 0:
            break
        chosen.setdefault(node, []).append(alert)
        count += 1
    ordered = {node: tuple(chosen[node]) for node in sorted(chosen)}
    return SavedAlerts(t=t, alerts=ordered, left_out=len(newest) - count)


def alerts_text(saved: SavedAlerts) -> Iterator[str]:
    """Yield a line per alert, of each node the newest first.

    ``n6  10:00:01 to 10:00:04: net.link mlx5_0/1: link down (blames fabric, suggests reset)``
    """
    for node, alerts in saved.alerts.items():
        for one in alerts:
            until = "and still there" if one.ended_s is None else f"to {clock(saved.t - one.ended_s)}"
            what = f"{one.check} {one.subject}".strip()
            advice = f"blames {one.blame.value}, suggests {one.suggestion.value}"
            text = f"{clock(saved.t - one.age_s)} {until}: {what}: {one.text} ({advice})"
            yield f"{node}  {one_line(text)}"
    if saved.left_out:
        yield f"and {saved.left_out} older ones"


# -- files ------------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, whole or not at all. Raises ``OSError``."""
    # A thread that hung in storage may continue just now, so no two threads share a name.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterator[str]) -> None:
    """Write as :func:`write` does, cut after :data:`MAX_LINES` bytes."""
    data, cut = bytearray(), b"(cut here)\n"
    for line in lines:
        encoded = line.encode(errors="replace") + b"\n"
        if len(data) + len(encoded) + len(cut) > MAX_LINES:
            data += cut
            break
        data += encoded
    write(path, bytes(data))


def remove_leftovers(folder: Path) -> None:
    """Remove what controllers left that were killed while they wrote."""
    for path in folder.rglob(".*"):
        if f".{os.getpid()}-" not in path.name:
            path.unlink(missing_ok=True)
