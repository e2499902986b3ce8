"""The text of a message: one notice or several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_robust.model.notice import Notice, NoticeKind
from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import clock, one_line

MAX_NOTICES = 20
"""Most notices in one message; what is less urgent or older is left out."""

MAX_SUBJECT = 200


class Subject(Record):
    """The job as messages name it."""

    job: str
    """``123``, or an array's task as squeue shows it."""
    command: str = ""
    """What it runs, in one line."""
    cluster: str = ""
    observes: bool = False
    """Whether the job runs in observe mode."""
    name: str = ""
    """As commands of ours take it: the job's id or its folder."""

    def __str__(self) -> str:
        if not self.job:
            return "no job"
        where = f" on {self.cluster}" if self.cluster else ""
        mode = " (observe mode)" if self.observes else ""
        return f"job {self.job}{where}{mode}"


class Message(Record):
    """What a channel sends as one message."""

    subject: str
    """One line."""
    text: str
    """Lines, without an end of line behind the last."""
    facts: dict[str, str]
    """For programs: ``SROBUST_NOTICE_<NAME>``."""


def compose(job: Subject, notices: Sequence[Notice], left_out: int = 0, *, again: bool = False) -> Message:
    """Return the message of ``notices``, of which there is at least one.

    ``left_out``: this many more are not in it; ``again``: a part of it may have arrived before.
    """
    standing = stand(notices)
    first = most_urgent(standing)
    more = f" (and {len(standing) - 1} more)" if len(standing) > 1 else ""
    subject = one_line(f"srobust: {job}: {first.short or first.text}{more}", MAX_SUBJECT)
    lines = [one_line(f"srobust: {job}") + (f", {one_line(job.command, 100)}" if job.command else "")]
    if again:
        lines.append("A part of this may have been sent before.")
    for notice in notices:
        lines.append(f"{clock(notice.t)} {notice.severity.value}: {notice.text}")
        lines += [f"  nodes: {fold(notice.nodes)}"] if notice.nodes else []
        lines += [f"  controller: {notice.action}"] if notice.action else []
    if left_out:
        lines.append(f"{left_out} more {'was' if left_out == 1 else 'were'} left out.")
    commands = dict.fromkeys(notice.command for notice in notices if notice.command)
    if left_out and job.name:
        commands[f"srobust incidents {job.name}"] = None
    lines += [f"next: {command}" for command in commands]
    facts = _facts(job, first, notices, left_out, subject)
    return Message(subject=subject, text="\n".join(lines), facts=facts)


def stand(notices: Sequence[Notice]) -> list[Notice]:
    """Return the notices that still hold when all are told: no others of an incident that is over."""
    over = {notice.incident for notice in notices if notice.kind is NoticeKind.RECOVERY}
    return [n for n in notices if n.kind is NoticeKind.RECOVERY or not n.incident or n.incident not in over]


def most_urgent(notices: Iterable[Notice]) -> Notice:
    """Return the newest of those with the highest severity."""
    return max(notices, key=lambda notice: (notice.severity.rank, notice.t))


def _facts(
    job: Subject, first: Notice, notices: Sequence[Notice], left_out: int, subject: str
) -> dict[str, str]:
    nodes = [node for notice in notices for node in notice.nodes]
    return {
        "ID": f"{job.job}/{first.key}" if job.job else first.key,
        "JOB": job.job,
        "CLUSTER": job.cluster,
        "SUBJECT": subject,
        "SEVERITY": first.severity.value,
        "KIND": first.kind.value,
        "KINDS": ",".join(dict.fromkeys(notice.kind.value for notice in notices)),
        "INCIDENT": str(first.incident or ""),
        "NODES": one_line(fold(nodes), 2000),
        "ACTION": first.action,
        "NEXT": first.command,
        "MODE": "observe" if job.observes else "act",
        "COUNT": str(len(notices)),
        "LEFT_OUT": str(left_out),
    }
