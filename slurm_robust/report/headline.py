"""What a reader of a report sees first: how the job stands, the figures, and what was lost to what. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.evidence.updates import results
from slurm_robust.ledger.classes import Part
from slurm_robust.ledger.summary import DRILL, WINDOW_S, Lost, Summary
from slurm_robust.model.record import Record
from slurm_robust.report.job_report import JobReport
from slurm_robust.report.situation import Tone, not_saved, queue_text, state_text, tone_of
from slurm_robust.trainings.jobs import ChapterState
from slurm_robust.trainings.phase import CANCELLED, REQUEUED
from slurm_robust.util.text import duration, one_line

YOUNG_S = 2 * WINDOW_S
"""The ETTR of the last hour is a figure of its own, and a low ETTR a warning, from this age of a job on."""

LOW_ETTR, BAD_ETTR = 0.9, 0.7
"""Below these the ETTR is a warning, and bad."""

OUTSIDE = "outside of incidents"
"""The cause of lost time that belongs to no incident: the first queue and start, checkpoints, updates."""


class Banner(Record):
    """How a job stands, in one line."""

    tone: Tone
    text: str
    """``Waits in Slurm's queue for 40 s for 5 nodes``."""
    more: str
    """The reason, and what to do; "" for nothing more."""


class Figure(Record):
    """One number."""

    name: str
    value: str
    unit: str
    about: str
    """What it is, in a sentence."""
    note: str = ""
    """What of the number matters most, such as how many of them are open."""
    tone: Tone = Tone.PLAIN

    @property
    def text(self) -> str:
        """The number with its unit and note."""
        text = f"{self.value} {self.unit}".strip()
        return f"{text} ({self.note})" if self.note else text


class LostRow(Record):
    """What was lost to one cause."""

    cause: str
    incidents: int
    lost: Lost


# -- how it stands ---------------------------------------------------------------------------------


def banner(report: JobReport) -> Banner:
    """Return how the job stands, in the words of ``srobust status``."""
    phase, more = report.phase, report.reason
    if phase in (REQUEUED, ChapterState.PENDING.value) or (report.waiting is not None and not report.ended):
        return _waits(report)
    text = state_text(phase, report.exit_code)
    if phase == "training":
        step = max((step for step in report.progress.step[-1:]), default=-1)
        text += f", step {step:,} is done" if step >= 0 else ""
        more = "" if report.slurm else "as of the end of the journal"
    elif phase == "recovering":
        opened = next((e for e in reversed(report.incidents) if e.row.status is IncidentStatus.OPEN), None)
        text += f" for {duration(report.end - opened.begin)}" if opened is not None else ""
    elif phase == CANCELLED:
        more = not_saved(report.reason)
    return _banner(tone_of(phase), text, more)


def _banner(tone: Tone, text: str, more: str) -> Banner:
    return Banner(tone=tone, text=one_line(text[:1].upper() + text[1:]), more=one_line(more))


def _waits(report: JobReport) -> Banner:
    """Return what a job that is in Slurm's queue waits for, and the way out."""
    found, more = report.waiting, [report.reason]
    if found is not None:
        text, _, places = queue_text(found, report.end).partition(": ")
        more = [places or found.reason, found.advice, report.reason]
    else:
        queued = [stage for stage in report.stages[-1:] if stage.part is Part.QUEUE]
        lasts = f" for {duration(max(0.0, report.end - queued[0].begin))}" if queued else ""
        is_seen = report.slurm or report.phase != REQUEUED
        text = f"waits in Slurm's queue{lasts}" if is_seen else state_text(REQUEUED)
    tone = Tone.BAD if report.phase == REQUEUED else Tone.WARNING
    return _banner(tone, text, "; ".join(filter(None, more)))


# -- figures ---------------------------------------------------------------------------------------


def figures(report: JobReport) -> tuple[Figure, ...]:
    """Return the figures, those that matter most first."""
    return tuple(_figures(report))


def _figures(report: JobReport) -> Iterator[Figure]:
    found = report.ledger
    since_s = (found.wall_ms - found.started_ms) / 1000
    is_old = since_s >= YOUNG_S
    yield Figure(
        name="ETTR",
        value=f"{100 * found.ettr:.2f}",
        unit="%",
        about="Effective training time ratio: the time in which steps were done for the first time, of the "
        f"{duration(since_s)} since the first start.",
        tone=_ettr_tone(found.ettr) if is_old else Tone.PLAIN,
    )
    if is_old and not report.ended:
        yield Figure(
            name="last hour",
            value=f"{100 * found.ettr_window:.2f}",
            unit="%",
            about="The ETTR of the last hour.",
            tone=_ettr_tone(found.ettr_window),
        )
    statuses = Counter(entry.row.status for entry in report.incidents)
    is_open = statuses[IncidentStatus.OPEN]
    yield Figure(
        name="incidents",
        value=f"{len(found.incidents) - found.drills:,}",
        unit="",
        note=f"{is_open} open" if is_open else "",
        about="Faults for which training stopped, or was about to.",
        tone=Tone.BAD if is_open else Tone.PLAIN,
    )
    if found.drills:
        yield _drills(found)
    yield Figure(
        name="lost",
        value=_span(found.lost.ms / 1000)[0],
        unit=_span(found.lost.ms / 1000)[1],
        about=f"All time without a new step, since the job was submitted: {lost_text(found.lost)}.",
    )
    if found.lost.gpu_hours:
        yield Figure(
            name="lost on GPUs",
            value=f"{found.lost.gpu_hours:,.0f}"
            if found.lost.gpu_hours >= 10
            else f"{found.lost.gpu_hours:.1f}",
            unit="GPU hours",
            about="Lost time, by the GPUs that the job held meanwhile.",
        )
    if found.mttr_s is not None:
        about = (
            "Mean time to recovery (MTTR): from a fault to the first new step, of incidents that are over."
        )
        value, unit = _span(found.mttr_s)
        yield Figure(name="MTTR", value=value, unit=unit, about=about)
    if found.mttf_s is not None:
        about = "Mean time to failure (MTTF): the time with nodes, per incident."
        value, unit = _span(found.mttf_s)
        yield Figure(name="MTTF", value=value, unit=unit, about=about)
    yield Figure(
        name="steps", value=f"{found.steps:,}", unit="", about="Steps that were done; each counts once."
    )
    if found.repeated:
        about = "Steps that were done again after a restart."
        yield Figure(name="steps again", value=f"{found.repeated:,}", unit="", about=about)
    if report.updates:
        value, _, note = results(report.updates).partition(": ")
        about = f"Changes of the code by its owner: {note}."
        yield Figure(name="updates", value=value, unit="", note=note, about=about)


def _drills(found: Summary) -> Figure:
    """Return how many incidents were drills, and what they cost."""
    without = f", ETTR without them {found.ettr_undrilled:.2%}" if found.ettr_undrilled is not None else ""
    lost = found.causes[DRILL].ms / 1000 if DRILL in found.causes else 0.0
    note = f"they took {duration(lost)}{without}"
    about = f"Incidents that their owner had planted, which count as no failures; {note}."
    return Figure(name="drills", value=str(found.drills), unit="", about=about, note=note)


def _ettr_tone(ettr: float) -> Tone:
    return Tone.BAD if ettr < BAD_ETTR else Tone.WARNING if ettr < LOW_ETTR else Tone.GOOD


def _span(seconds: float) -> tuple[str, str]:
    """Return a duration as one number and its unit."""
    for least, each, unit in ((2 * 86400, 86400, "days"), (10800, 3600, "h"), (180, 60, "min")):
        if seconds >= least:
            return f"{seconds / each:.1f}", unit
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}", "s"


# -- what was lost ---------------------------------------------------------------------------------


def lost_text(lost: Lost) -> str:
    """Return ``3 h 20 min (6.7 node hours, 53 GPU hours)``."""
    text = f"{duration(lost.ms / 1000)} ({lost.node_hours:,.1f} node hours"
    return text + (f", {lost.gpu_hours:,.0f} GPU hours)" if lost.gpu_hours else ")")


def lost_rows(report: JobReport) -> tuple[LostRow, ...]:
    """Return lost time by cause; the rows add up to all that was lost."""
    found = report.ledger
    numbers = Counter(cost.cause for cost in found.incidents)
    rows = [LostRow(cause=cause, incidents=numbers[cause], lost=lost) for cause, lost in found.causes.items()]
    known = sum((row.lost for row in rows), Lost())
    rest = Lost(
        ms=found.lost.ms - known.ms,
        node_hours=max(0.0, found.lost.node_hours - known.node_hours),
        gpu_hours=max(0.0, found.lost.gpu_hours - known.gpu_hours),
    )
    return (*rows, *([LostRow(cause=OUTSIDE, incidents=0, lost=rest)] if rest.ms else []))


# -- one line of characters ------------------------------------------------------------------------

PART_STYLES: dict[Part, str] = {
    Part.TRAINING: "black on green",
    Part.SLOW: "black on bright_green",
    Part.PHASES: "black on cyan",
    Part.CHECKPOINTS: "black on bright_blue",
    Part.UPDATES: "black on bright_cyan",
    Part.LOST_STEPS: "black on yellow",
    Part.RECOVERY: "black on red",
    Part.RESTART: "black on bright_yellow",
    Part.QUEUE: "black on magenta",
    Part.IDLE: "black on white",
}
"""Colours of the parts on a terminal."""


def widths(shares: tuple[float, ...], whole: int) -> list[int]:
    """Return whole numbers near ``shares`` of ``whole``, which add up to it."""
    exact = [share * whole for share in shares]
    found = [int(each) for each in exact]
    for place in sorted(range(len(exact)), key=lambda place: found[place] - exact[place]):
        if sum(found) == whole:
            break
        found[place] += 1
    return found
