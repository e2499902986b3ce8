"""``srobust doctor``: gathers, judges, prints."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from rich.console import Group, RenderableType

from slurm_robust.config.job import JobConfig
from slurm_robust.doctor.gather import DoctorRequest, gather
from slurm_robust.doctor.rule import Hazard, Level, apply_all
from slurm_robust.doctor.rules import RULES
from slurm_robust.doctor.rules.ends import ends
from slurm_robust.kernel.host import Host
from slurm_robust.model.events import StorageWritten
from slurm_robust.model.journal import JournalDamaged, read
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.select import make_client
from slurm_robust.terminal.console import Wrapped, show
from slurm_robust.trainings.find import NoSuchJob, find
from slurm_robust.util.text import as_json, one_line

FOUND = 1
"""The exit code of a report with something bad."""

_INDENT = " " * 11


class HazardReport(Record):
    """All rules applied, the worst first; ``unseen``: what no rule could look at."""

    host: str
    hazards: tuple[Hazard, ...]
    unseen: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    """How long Slurm leaves the job at each of its ends."""

    @property
    def options_line(self) -> str:
        """The line with the options of sbatch that mend what was found, "" for none."""
        mends = [hazard.sbatch for hazard in self.hazards if hazard.sbatch]
        last = {option.partition("=")[0]: option for option in mends}
        return f"#SBATCH {' '.join(last.values())}" if last else ""

    def of(self, level: Level) -> list[Hazard]:
        """Return the hazards of one level."""
        return [hazard for hazard in self.hazards if hazard.level is level]


def main(
    wanted: DoctorRequest,
    config: JobConfig,
    *,
    json: bool,
    verbose: bool,
    clean: Callable[[str], str] | None = None,
) -> int:
    """Print what was found; 0 or :data:`FOUND`. ``clean``: rewrites what is printed as JSON.

    Raises what ``gather`` does.
    """
    report = examine(wanted, config)
    if clean is not None:
        print(as_json(msgspec.json.decode(clean(msgspec.json.encode(report).decode()))))
    else:
        show(report, partial(render, verbose=verbose), json=json)
    return FOUND if report.of(Level.BAD) else 0


def examine(wanted: DoctorRequest, config: JobConfig, slurm: SlurmClient | None = None) -> HazardReport:
    """Return what was found. Raises what ``gather`` does. ``slurm``: by default the client of ``config``."""
    slurm = slurm or make_client(config.slurm.backend, config.slurm.timeout_s)
    facts, unseen = gather(wanted, config, os.environ, slurm, Host())
    return HazardReport(
        host=socket.gethostname(), hazards=apply_all(RULES, facts), unseen=unseen, ends=tuple(ends(facts))
    )


def saved_s(job_id: int) -> float | None:
    """Return how long the job took to store its newest step from memory; None if no journal tells."""
    try:
        events = read(find(str(job_id), None).journal)
    except (NoSuchJob, JournalDamaged, OSError):
        return None
    took = (e.seconds for e in reversed(events) if isinstance(e, StorageWritten))
    return next(took, None)


def render(report: HazardReport, *, verbose: bool) -> RenderableType:
    """Return the whole screen."""
    return Group(*_lines(report, verbose=verbose))


def _lines(report: HazardReport, *, verbose: bool) -> Iterator[RenderableType]:
    if report.ends:
        yield "at its end Slurm leaves a job, to save what only memory has:"
    for end in report.ends:
        yield _told(end)
    for part in report.unseen:
        yield Wrapped(f"not seen: {one_line(part, None)}", _INDENT)
    for hazard in reversed(report.hazards):  # the worst where the eye is: above the prompt
        if hazard.level in (Level.BAD, Level.NOTE) or verbose:
            label = "BAD" if hazard.level is Level.BAD else hazard.level.value
            place = f"line {hazard.script_line}, " if hazard.script_line is not None else ""
            text = f"{label:>7}  {place}{hazard.rule}: {one_line(hazard.text, None)}".rstrip(": ")
            yield Wrapped(text, _INDENT)
            if hazard.why:
                yield _told(f"why: {hazard.why}")
                yield _told(f"fix: {hazard.fix}")
            if hazard.source and verbose:
                yield _told(f"source: {hazard.source}")
    if report.options_line:
        yield "a line for the batch script, above its first command:"
        yield Wrapped(report.options_line, "#SBATCH ")  # as sbatch reads more than one
    counts = (f"{len(report.of(level))} {level.value}" for level in Level)
    more = "" if verbose else "; --verbose lists all"
    yield Wrapped(f"{report.host}: {len(report.hazards)} rules, {', '.join(counts)}{more}", _INDENT)


def _told(text: str) -> RenderableType:
    return Wrapped(_INDENT + text, _INDENT + " " * len("why: "))
