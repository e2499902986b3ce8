"""What quarantine and the shared spares do alike with their reservations."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import CommandFailed, ReservationInUse, ReservationNotFound

END_S = 60.0
"""How long the end of the jobs in a reservation may take."""


def end_reservation(
    slurm: SlurmClient,
    name: str,
    *,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Delete the reservation and cancel the jobs in it, for Slurm refuses while one runs. Gone is good, too.

    Raises SlurmCommandError types; :class:`ReservationInUse` when the jobs have not ended after
    :data:`END_S` seconds.
    """
    deadline = clock() + END_S
    while True:
        try:
            slurm.delete_reservation(name)
            return
        except ReservationNotFound:
            return  # Another user was faster.
        except (CommandFailed, ReservationInUse):
            if clock() > deadline:
                raise
        # Pending jobs in it, too: each would take the nodes of a job that ends.
        for job in slurm.jobs():
            if job.reservation == name:
                slurm.cancel(job.job_id)
        pause(1.0)
