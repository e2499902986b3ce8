"""A job in a few kilobytes: what its controller leaves in ``summary.json`` for the fleet index of the site.

The file belongs to the job's user. The epilog of the controller's node reads it as data, adds what Slurm says
of the job, and puts both into its spool as a :class:`SpooledSummary`, from which ``srobust admin fleet
collect`` fills the index. Everything inside :class:`JobSummary` is the word of a user; everything beside it
is root's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from slurm_robust.model.record import UNREADABLE, Record

FORMAT = 1
"""Version of both records. Later releases raise it when a reader of this one would misread them."""

MAX_BYTES = 512 * 1024
"""Largest size of the file."""

MAX_INCIDENTS = 1000
"""The newest ones; a job that has more tells how many it leaves out."""

MAX_NAMES = 20_000
"""Names of nodes in all of :attr:`JobSummary.work`."""

MAX_BLAMED = 64
"""Nodes of one incident."""

MAX_DETAIL = 200
"""Characters of one text."""

SPOOLED_NAME = r"[0-9]{1,10}\.[0-9]{1,10}(?:\.[A-Za-z0-9_-]{1,40})?\.json"
"""``<uid>.<job id>[.<cluster>].json``: of each job one file."""


class NodeWork(Record):
    """Nodes that the job held from ``start`` to ``end``, in seconds since 1970."""

    nodes: tuple[str, ...]
    start: float
    end: float


class IncidentSummary(Record):
    """One incident of a job."""

    number: int
    t: float
    """When it was seen, in seconds since 1970 by slurmctld's clock if that is known."""
    symptom: str
    cause: str
    """``node``, ``network``, ``code``, ``nobody``, ``drill`` or ``undecided``."""
    nodes: tuple[str, ...] = ()
    """That were blamed."""
    detail: str = ""
    recover_s: float | None = None
    """Seconds from the decision to the first new step."""
    lost_node_s: dict[str, float] = {}
    """Node-seconds by class of time, productive ones left out."""


class JobSummary(Record):
    """``summary.json`` in the job directory. Times are in seconds, points in time since 1970."""

    format: int
    job_id: int
    node: str
    """Node of the controller that wrote it: the epilog of this node reads it."""
    t: float
    """When it was written."""
    version: str = ""
    cluster: str = ""
    array_task: str = ""
    training: str = ""
    """The name of the training of which the job is a chapter, "" for none."""
    submitted: float | None = None
    """When the job's first run was submitted."""
    started: float | None = None
    ended: float | None = None
    """None while the job goes on."""
    exit_code: int | None = None
    """None while the job goes on."""
    wall_s: float = 0.0
    """Since it was submitted; grows as long as the job lives, whatever clocks do."""
    since_start_s: float = 0.0
    """Since its first start, requeues included."""
    effective_s: float = 0.0
    """In which steps were done for the first time. ETTR: this by ``since_start_s``."""
    nodes: int = 0
    """The most that it held at a time."""
    generations: int = 0
    write_s: float | None = None
    """Median time until a checkpoint was on shared storage."""
    incidents: tuple[IncidentSummary, ...] = ()
    left_out: int = 0
    """Older incidents than those."""
    work: tuple[NodeWork, ...] = ()
    """The newest ones, if all would be more than :data:`MAX_NAMES` names."""

    @property
    def ettr(self) -> float:
        """The effective training time ratio, 0 before the first step."""
        return self.effective_s / self.since_start_s if self.since_start_s > 0 else 0.0


class SpooledSummary(Record):
    """What the epilog puts into the spool. All but ``summary`` is what Slurm told the epilog."""

    format: int
    job_id: int
    uid: int
    user: str
    cluster: str
    """"" if Slurm does not tell."""
    node: str
    """Whose epilog it was."""
    t: float
    """When, by that node's clock."""
    started: float | None
    """When the run that ended was started; None if Slurm does not tell."""
    nodes: str
    """A hostlist of the nodes of the run, "" if Slurm does not tell."""
    summary: JobSummary


class SummaryRefused(ValueError):
    """Bytes that are no summary, or one that this release does not understand; the message says why."""


class SummaryOfTheFuture(SummaryRefused):
    """A later release wrote it."""


class _Head(Record):
    format: int


# Made while there is one thread; see Record.
_heads = msgspec.json.Decoder(_Head)
_summaries = msgspec.json.Decoder(JobSummary)
_spooled = msgspec.json.Decoder(SpooledSummary)

T = TypeVar("T")


def decode_summary(data: bytes) -> JobSummary:
    """Decode the summary in a file of a user. Raises :class:`SummaryRefused`."""
    return _decoded(_summaries.decode, data)


def decode_spooled(data: bytes) -> SpooledSummary:
    """Decode a file of the spool. Raises :class:`SummaryRefused`."""
    return _decoded(_spooled.decode, data)


def encode(record: JobSummary | SpooledSummary) -> bytes:
    """Encode as a line of JSON."""
    return msgspec.json.encode(record) + b"\n"


def _decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    if not data.strip():
        raise SummaryRefused("empty")
    try:
        head = _heads.decode(data)
        if head.format > FORMAT:
            raise SummaryOfTheFuture(
                f"of format {head.format}, which a later release wrote: upgrade slurm_robust here"
            )
        if head.format != FORMAT:
            raise SummaryRefused(f"of format {head.format}, which no release writes")
        return decode(data)
    except UNREADABLE as error:
        raise SummaryRefused(f"not a summary: {error}") from error
