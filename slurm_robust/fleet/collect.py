"""The way from the spool into the index: ``srobust admin fleet collect``, which cron runs every few minutes.

A file leaves the spool only when the index has it. So whatever fails on the way (the database is away, Slurm
does not answer, this process is killed), the next collection does it again, and doing it twice changes
nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from slurm_robust.fleet.accept import (
    JobEntry,
    NodePlace,
    accept,
    held_by,
    places_of,
    submitted_of,
)
from slurm_robust.fleet.spool import SpooledFile, Unusable, remove, waiting_in
from slurm_robust.model.jobsummary import NodeWork, SpooledSummary
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import CommandFailed, SlurmCommandError
from slurm_robust.util.hostlist import InvalidHostlist, expand
from slurm_robust.util.text import one_line

if TYPE_CHECKING:
    from slurm_robust.fleet.index import FleetIndex

SLURMDBD_LATE_S = 600.0
"""Rows of a run may come so late; a summary waits for them in the spool."""

SLURM_AWAY_S = 3600.0
"""A summary waits so long for a Slurm that does not answer, and is then taken unverified."""

_AT_ONCE = 100
_MAX_PROBLEMS = 20


class Collected(Record):
    """What a collection did, in numbers of summaries."""

    new: int = 0
    renewed: int = 0
    unchanged: int = 0
    older: int = 0
    """The index knew more."""
    unverified: int = 0
    """Among those: Slurm's accounting has not confirmed nodes and times."""
    waiting: int = 0
    """Left in the spool until Slurm's accounting knows of the job."""
    kept: int = 0
    """Left in the spool because they cannot be read here."""
    dropped: int = 0
    """Removed, since they cannot be read."""
    problems: tuple[str, ...] = ()


def collect(folder: Path, index: FleetIndex, slurm: SlurmClient, *, rack: str, now: float) -> Collected:
    """Move what is in the spool into the index. ``now``: seconds since 1970.

    Raises the errors of :mod:`slurm_robust.fleet.errors`, and ``OSError``.
    """
    site, found = _Site(slurm, rack), waiting_in(folder)
    counts, problems = Counter[str](), list[str]()
    while part := list(itertools.islice(found, _AT_ONCE)):
        entries: list[JobEntry] = []
        done: list[SpooledFile | Unusable] = []
        for one in part:
            if isinstance(one, Unusable):
                counts["kept" if one.keep else "dropped"] += 1
                problems.append(f"{one.path.name}: {one.why}")
                if not one.keep:
                    done.append(one)
            elif (entry := site.entry_of(one.spooled, now)) is None:
                counts["waiting"] += 1
            else:
                counts["unverified"] += not entry.verified
                entries.append(entry)
                done.append(one)
        if entries:
            counts.update(structs.asdict(index.add(entries, site.places)))
        for one in done:
            remove(one)
    return Collected(**counts, problems=tuple(problems[:_MAX_PROBLEMS]))


class _Site:
    """What Slurm says; a question that it has not answered once is not put again."""

    def __init__(self, slurm: SlurmClient, rack: str) -> None:
        self._slurm = slurm
        self._silent = ""
        self._without_accounting = False
        self.places: dict[str, NodePlace] = {}
        self._cluster = ""
        try:
            self.places = places_of(slurm.nodes(), slurm.topology(), rack)
            self._cluster = slurm.config().get("ClusterName", "")
        except SlurmCommandError as error:
            self._silent = one_line(error.what)

    def entry_of(self, spooled: SpooledSummary, now: float) -> JobEntry | None:
        """Return the entry; None if the job is better taken later."""
        held = None if self._is_elsewhere(spooled) else self._held(spooled, now)
        if held is not None and not held and now - spooled.t < SLURMDBD_LATE_S:
            return None
        if self._silent and not self._is_elsewhere(spooled) and now - spooled.t < SLURM_AWAY_S:
            return None
        return accept(spooled, held=held, known=self._known(spooled), cluster=self._cluster, now=now)

    def _held(self, spooled: SpooledSummary, now: float) -> tuple[NodeWork, ...] | None:
        if self._silent or self._without_accounting:
            return None
        try:
            rows = self._slurm.accounting(spooled.job_id)
        except CommandFailed:
            self._without_accounting = True
            return None
        except SlurmCommandError as error:
            self._silent = one_line(error.what)
            return None
        return held_by(rows, submitted_of(spooled, now), min(spooled.t, now))

    def _known(self, spooled: SpooledSummary) -> frozenset[str] | None:
        """Return the nodes that the job may have held."""
        try:
            of_run = expand(spooled.nodes)
        except InvalidHostlist:
            of_run = ()
        if of_run:
            return frozenset(of_run) | {spooled.node}
        return None if self._is_elsewhere(spooled) else frozenset(self.places) or None

    def _is_elsewhere(self, spooled: SpooledSummary) -> bool:
        """Return whether the job is of another cluster, about which this Slurm would tell of another job."""
        return bool(spooled.cluster and self._cluster and spooled.cluster != self._cluster)
