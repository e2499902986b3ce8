"""When the batch host dies, the job has no supervisor any more: hand it back to Slurm.

Slurm keeps a job that was submitted with ``--no-kill`` RUNNING on its other nodes after the loss of
its batch host, without a batch script, until its time limit (measured on 22.05). Training may even go on, but
the next fault would be the last. If no other node could take over (:mod:`.takeover`), no controller has
answered for long, and Slurm itself says that the batch host is DOWN (and the controller's host, if that is
another one), an agent requeues the job without them. The next run continues from the journal.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import JournalDamaged, fold, read
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import OF_JOB
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.errors import NotInAllocation, SlurmError
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import Allocation, SlurmJob, SlurmNode
from slurm_robust.slurm.requeue import RequeueRequest, Until, carry_out
from slurm_robust.slurm.select import make_client
from slurm_robust.slurm.watcher import arrange_watcher
from slurm_robust.util.threads import start_thread
from slurm_robust.wire.epochs import newest_epoch

# Longer than any start of a new controller; Slurm needs minutes for its own conclusion anyway.
ORPHAN_S = 60.0
ASK_EVERY_S = 30.0
# Enough for one of them to live, few enough for slurmctld.
RESCUERS = 3
ASK_S = 20.0


def is_rescuer(node: str, allocation: Allocation) -> bool:
    """Return whether ``node`` is one of the few that rescue the job when its batch host is gone."""
    others = [n for n in allocation.nodes if n != allocation.batch_host]
    return node in others[:RESCUERS]


def is_orphan(job: SlurmJob, hosts: Sequence[SlurmNode], restart_count: int) -> bool:
    """Return whether this run of the job goes on in Slurm's books without any of ``hosts``, which led it."""
    return job.is_in_run(restart_count) and bool(hosts) and all(host.is_down for host in hosts)


class OrphanWatch:
    """Asks Slurm in a thread of its own, only while the controller is silent for long."""

    def __init__(
        self, node: str, job: JobDirectory, make: Callable[[], SlurmClient] = lambda: make_client("cli")
    ) -> None:
        self._job = job
        self._make = make
        self._allocation = _allocation(node)
        self._thread: threading.Thread | None = None
        self._next = ORPHAN_S + random.uniform(0, ASK_EVERY_S)

    def tick(self, silence_s: float) -> None:
        """Ask when it is time; no controller has answered for ``silence_s``. Does not block."""
        if silence_s < ORPHAN_S:
            self._next = ORPHAN_S + random.uniform(0, ASK_EVERY_S)
            return
        busy = self._thread is not None and self._thread.is_alive()
        if self._allocation is None or silence_s < self._next or busy:
            return
        self._next = silence_s + ASK_EVERY_S
        self._thread = start_thread("orphan", self._ask)

    def _ask(self) -> None:
        assert self._allocation is not None
        try:
            newest = newest_epoch(self._job.epochs)
            controller = newest.node if newest is not None else ""
            log = self._job.path / "requeue.jsonl"
            rescue(self._make(), self._allocation, log, controller, _need(self._job))
        except (SlurmError, CommandTimeout, OSError):
            pass  # Slurm or the storage does not answer now; it is asked again


def rescue(
    client: SlurmClient, allocation: Allocation, log: Path, controller: str = "", need: Need | None = None
) -> bool:
    """Requeue the job if it is an orphan; whether that was done. Raises ``SlurmError``, ``OSError``.

    ``controller``: the node of the newest one, "" if it is not known; ``need``: with how many nodes the
    job can go on, None if that is not known.
    """
    job = client.job(allocation.job_id)
    hosts = tuple(dict.fromkeys(filter(None, (job.batch_host or allocation.batch_host, controller))))
    if not is_orphan(job, client.nodes(hosts), allocation.restart_count):
        return False
    order = RequeueRequest(
        job_id=allocation.job_id,
        ending_run=allocation.restart_count,
        exclude=hosts,
        need=need,
        until=Until.EXCLUDED,
    )
    outcome = carry_out(client, order, timeout_s=ASK_S)
    if outcome.ok:
        arrange_watcher(client, order, keep_off=allocation.nodes, log=log)
    return outcome.ok


def _need(job: JobDirectory) -> Need | None:
    """Return with how many nodes the job can go on, by its journal; None if that cannot be read."""
    try:
        state = fold(read(job.journal))
    except (OSError, JournalDamaged):
        return None
    return (
        Need(
            least=len(state.world.slots),
            most=len(state.world.slots) + state.wanted_spares,
            segment=state.segment,
        )
        if state.world.slots
        else None
    )


def _allocation(node: str) -> Allocation | None:
    if OF_JOB in os.environ:
        return None  # this allocation is a companion's, which ends by itself
    try:
        allocation = allocation_from_environment(os.environ)
    except NotInAllocation:
        return None  # started by hand or by a test: there is no job to rescue
    return allocation if is_rescuer(node, allocation) else None
