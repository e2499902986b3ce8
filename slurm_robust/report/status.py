"""``srobust status JOBID``: what happened to a job, on one screen."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table

from slurm_robust.report.completing import completing_advice
from slurm_robust.report.find import find, load_events
from slurm_robust.report.screen import Screen
from slurm_robust.report.slurmview import make_slurm, view_of
from slurm_robust.report.summary import Summary, summarize
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.requeue_plan import waiting_advice
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import as_json, one_line


def main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print the status of a job by id or folder. Raises ``NoSuchJob``, ``JournalDamaged``."""
    summary = look(name, job_dir, make_slurm())
    if json:
        print(as_json(summary))
    else:
        Screen().print(render(summary))
    return 0


def look(name: str, job_dir: str | None, slurm: SlurmClient) -> Summary:
    """The job now, and what Slurm says of it. Raises ``NoSuchJob``, ``JournalDamaged``."""
    events = load_events(find(name, job_dir, slurm))
    view = view_of(events, slurm)
    advice = ""
    if view.job is not None:
        advice = waiting_advice(view.job) or completing_advice(slurm, view.job)
    return summarize(events, time.time(), view.in_words(), advice)


def seconds(value: float | None) -> str:
    """A duration for a table: ``1.2``, ``-`` when unknown."""
    return "-" if value is None else f"{value:.1f}"


def incident_table(summary: Summary) -> Table:
    """One row per incident, in the words of the journal."""
    table = Table(title="Incidents", title_justify="left", expand=False)
    table.add_column("#", justify="right")
    for name in ("when", "seen", "verdict", "action"):
        table.add_column(name, overflow="fold")
    for name in ("detect s", "localise s", "recover s"):
        table.add_column(name, justify="right", no_wrap=True)
    for incident in summary.incidents:
        table.add_row(
            str(incident.number),
            time.strftime("%m-%d %H:%M:%S", time.localtime(incident.t)),
            _signs(summary.job_id, incident.number, incident.signs),
            one_line(incident.verdict or "-"),
            one_line(incident.action or "-"),
            seconds(incident.detect_s),
            seconds(incident.localise_s),
            seconds(incident.recover_s),
        )
    return table


def _signs(job_id: int, number: int, signs: tuple[str, ...]) -> str:
    """The first sign; those that followed say much the same again, and stand in the incident's story."""
    more = f"; {len(signs) - 1} more: srobust incident {job_id} {number}" if len(signs) > 1 else ""
    return one_line(signs[0]) + more


def render(summary: Summary) -> RenderableType:
    """The whole screen."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    phase = summary.phase + (f": {summary.reason}" if summary.reason else "")
    if summary.exit_code is not None:
        phase += f" (exit code {summary.exit_code})"
    rows = [
        ("job", f"{summary.job_id}  {' '.join(summary.command)}"),
        ("state", phase),
        ("Slurm", summary.slurm or "job not known to Slurm (any more)"),
        ("advice", summary.advice),
        ("step", _step(summary)),
        ("launched", f"generation {summary.generation}, run {summary.run} of the Slurm job"),
        ("restored", summary.restored),
        ("stored", _stored(summary)),
        ("nodes", f"{fold(summary.slots)}" + (f"  spare {fold(summary.spares)}" if summary.spares else "")),
        ("no answer", "; ".join(f"standby {node} ({why})" for node, why in summary.aside.items())),
        ("evicted", "; ".join(f"{node} ({why})" for node, why in summary.evicted.items())),
        ("ETTR", _ettr(summary)),
    ]
    for name, value in rows:
        if value:
            facts.add_row(name, one_line(value))
    parts: list[RenderableType] = [facts]
    if summary.incidents:
        parts.append(incident_table(summary))
    return Group(*parts)


def _step(summary: Summary) -> str:
    loss = f", loss {summary.loss:.4f}" if summary.loss is not None else ""
    return f"{summary.step}{loss}" if summary.step >= 0 else "none yet"


def _stored(summary: Summary) -> str:
    """The newest step on storage, and how often one should go there: ``step 90, written in 4.1 s; …``."""
    stored, advice = summary.stored, summary.interval
    text = f"step {stored.step}, written in {stored.seconds:.1f} s" if stored else ""
    if stored and advice:
        text += f"; advised (Daly): one every {advice.every_s:.0f} s or less often, with an incident every "
        text += f"{advice.mtbf_s:.0f} s so far"
    return text


def _ettr(summary: Summary) -> str:
    p = summary.productivity
    text = f"{p.ettr:.1%} ({p.productive_s:.0f} s of {p.wall_s:.0f} s), {p.steps} steps"
    if p.repeated is None:
        return f"{text}, as if each restart began anew: the script does not number its steps"
    return text + (f", {p.repeated} repeated" if p.repeated else "")
