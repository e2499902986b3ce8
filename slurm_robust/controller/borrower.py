"""Companions in Slurm: submitted, waited for, and ended."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.config.job import CompanionConfig
from slurm_robust.controller.effects import BorrowAnswer
from slurm_robust.model.companion import Source
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import Lent, companion_job, is_companion_of
from slurm_robust.slurm.errors import JobNotFound, SlurmCommandError, SlurmError
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count as counted

POLL_S = 0.5
LEAST_LEFT_S = 120.0
"""With less time left for the job, a companion is not worth its start."""

Submitted = Callable[[int, Source], None]


@dataclass
class _Wish:
    """What is still to come, and what came of the rest."""

    missing: int
    nodes: dict[int, str] = field(default_factory=dict)
    refusals: list[tuple[Source, str]] = field(default_factory=list)


class Borrower:
    """Gets nodes for one run of a job by companions. From any thread."""

    def __init__(
        self,
        slurm: SlurmClient,
        config: CompanionConfig,
        lent: Lent,
        *,
        job_id: int,
        run: int,
        run_id: str,
        folder: Path,
        cwd: str = "",
        user: str = "",
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``folder``: for the output of companions; ``cwd``: where the job was submitted.

        ``user``: whose it is, "" for the owner of this process.
        """
        self._slurm = slurm
        self._config = config
        self._lent = lent
        self._job_id, self._run, self._run_id = job_id, run, run_id
        self._folder = folder
        self._cwd = cwd
        self._user = user
        self._environ = environ
        self._clock = clock or SystemClock()
        self._wall = wall

    def borrow(
        self,
        sources: Sequence[Source],
        missing: int,
        exclude: Collection[str],
        submitted: Submitted,
        *,
        some: bool = False,
    ) -> BorrowAnswer:
        """``missing`` nodes from ``sources``, in their order, each waited for ``wait_s`` at most.

        Calls ``submitted`` for each companion at once. ``some``: fewer than all are of use, too. Raises no
        error of Slurm.
        """
        wish = _Wish(missing)
        try:
            left_s = self._time_left()
        except (SlurmError, CommandTimeout) as error:
            return BorrowAnswer(refusals=((sources[0], f"Slurm does not show the job: {_why(error)}"),))
        if left_s is not None and left_s < LEAST_LEFT_S:
            why = f"only {left_s:.0f} s are left of the job's time"
            return BorrowAnswer(refusals=((sources[0], why),))
        for number, source in enumerate(sources):
            if wish.missing:
                is_last = number == len(sources) - 1 and not some
                self._ask(wish, source, left_s, tuple(exclude), submitted, whole=is_last)
        return BorrowAnswer(nodes=wish.nodes, refusals=tuple(wish.refusals))

    def end(self, jobs: Collection[int]) -> tuple[str, ...]:
        """Cancel these companions; why some could not be, in which case they end a little later."""
        failed = []
        for job_id in jobs:
            try:
                self._slurm.cancel(job_id)
            except (SlurmError, CommandTimeout) as error:
                failed.append(
                    f"companion {job_id} is not cancelled now ({_why(error)}); it ends with the job"
                )
        return tuple(failed)

    def sweep(self, known: Collection[int]) -> tuple[int, ...]:
        """Cancel companions of this job that nobody knows: an earlier controller or run asked for them.

        Raises ``SlurmError``.
        """
        user = self._user or pwd.getpwuid(os.getuid()).pw_name
        strays = tuple(
            job.job_id
            for job in self._slurm.jobs(user)
            if job.job_id not in known and is_companion_of(job, self._job_id, self._run_id)
        )
        self.end(strays)
        return strays

    def _time_left(self) -> float | None:
        end = self._slurm.allocation(self._job_id).end_time
        return None if end is None else end - self._wall()

    def _ask(
        self,
        wish: _Wish,
        source: Source,
        left_s: float | None,
        exclude: tuple[str, ...],
        submitted: Submitted,
        *,
        whole: bool,
    ) -> None:
        """``whole``: fewer than all that are missing are of no use."""
        free, why = self._free(source, exclude)
        most = wish.missing if free is None else min(wish.missing, free)
        if most == 0 or (whole and most < wish.missing):
            wish.refusals.append((source, why))
            return
        request = companion_job(
            self._job_id,
            run=self._run,
            run_id=self._run_id,
            source=source,
            gpus=self._lent.gpus,
            time_left_s=left_s,
            output=str(self._folder / "companion-%j.log"),
            cwd=self._cwd,
            environ=self._environ,
            exclude=exclude,
            options=self._config.sbatch,
        )
        waiting: list[int] = []
        try:
            for _ in range(most):
                waiting.append(self._slurm.submit(request))
                submitted(waiting[-1], source)
        except (SlurmError, CommandTimeout) as error:
            wish.refusals.append((source, _why(error)))
        self._wait(wish, source, waiting)

    def _free(self, source: Source, exclude: tuple[str, ...]) -> tuple[int | None, str]:
        """How many nodes are free now, None where Slurm does not say, with a text for too few.

        To ask is faster than to wait for a companion in a queue that does not move.
        """
        if not source.reservation:
            return None, ""
        try:
            found = next((r for r in self._slurm.reservations() if r.name == source.reservation), None)
            if found is None:
                return None, ""  # sbatch says why
            nodes = self._slurm.nodes(found.nodes)
        except (SlurmError, CommandTimeout):
            return None, ""
        free = [node for node in nodes if node.usable and "IDLE" in node.states and node.name not in exclude]
        names = fold(node.name for node in nodes)
        return len(free), f"{len(free)} of {counted(len(nodes), 'node')} free ({names})"

    def _wait(self, wish: _Wish, source: Source, waiting: list[int]) -> None:
        """Until all run, or ``wait_s`` is over."""
        deadline = self._clock.monotonic() + self._config.wait_s
        last: dict[int, str] = {}
        while waiting:
            for job_id in tuple(waiting):
                if self._look(wish, source, job_id, last):
                    waiting.remove(job_id)
            if not waiting or self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(POLL_S)
        self.end(waiting)
        for job_id in waiting:
            why = f"companion {job_id} has not started within {self._config.wait_s:g} s"
            wish.refusals.append((source, why + (f" ({last[job_id]})" if last.get(job_id) else "")))

    def _look(self, wish: _Wish, source: Source, job_id: int, last: dict[int, str]) -> bool:
        """Whether it is known what became of the companion."""
        try:
            job = self._slurm.job(job_id)
        except JobNotFound:
            wish.refusals.append((source, f"companion {job_id} is gone"))
            return True
        except (SlurmError, CommandTimeout) as error:
            last[job_id] = _why(error)
            return False
        if job.is_running and job.nodes and "CONFIGURING" not in job.states:
            (node,) = job.nodes
            self._lent.add(job_id, node)
            wish.nodes[job_id] = node
            wish.missing -= 1
            return True
        if job.is_finished or job.is_completing:
            states = "+".join(sorted(job.states))
            wish.refusals.append((source, f"companion {job_id} ended at once ({states})"))
            return True
        last[job_id] = job.reason
        return False


def _why(error: Exception) -> str:
    return error.what if isinstance(error, SlurmCommandError) else str(error)
