"""Companions in Slurm: submitted, waited for, and ended."""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_robust.config.job import CompanionConfig
from slurm_robust.engine.questions import BorrowAnswer
from slurm_robust.model.companion import CompanionPool
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.clock import clock_offset
from slurm_robust.slurm.companion import Lent, companion_job, is_companion_of
from slurm_robust.slurm.errors import (
    JobNotFound,
    PermissionDenied,
    ReservationNotFound,
    SlurmCommandError,
    SlurmError,
    SlurmTimeout,
)
from slurm_robust.slurm.process import CommandTimeout
from slurm_robust.slurm.records import OF_RESERVATION
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.requeue import Clock, SystemClock
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count as counted

POLL_S = 0.5
MIN_LEFT_S = 120.0
"""If less time is left for the job, a companion is not worth its start."""

CANCEL_TRIES = 8
CANCEL_PAUSE_S, LONGEST_CANCEL_PAUSE_S = 5.0, 60.0
"""Seconds between two attempts to cancel a companion, doubled each time."""

FIND_TRIES, FIND_PAUSE_S = 3, 2.0
"""Looks for a companion that Slurm may have taken although its answer was lost, while training waits."""

SETTLE_TRIES, SETTLE_PAUSE_S = 5, 30.0
"""The same when nothing waits for them any more: what appears then is cancelled."""

Submitted = Callable[[int, CompanionPool], None]


_Place = frozenset[str] | None
"""The nodes of which a companion is to lend one; None: any."""

_ALL_THE_SAME = (
    "(fix: more standbys in the allocation; companions.without_nvlink takes such a node all the same)"
)
_OWN_CHANNEL = (
    "the job's nodes share memory of GPUs over NVLink, and Slurm gives each job an IMEX channel of its own "
    f"(SwitchType=switch/nvidia_imex), so a lent node cannot import it {_ALL_THE_SAME}"
)


@dataclass
class _Wish:
    """What is still to come, and what came of the rest."""

    places: list[_Place]
    """One for each node that is missing."""
    nodes: dict[int, str] = field(default_factory=dict)
    refusals: list[tuple[CompanionPool, str]] = field(default_factory=list)


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
        """``folder``: for the output of companions; ``cwd``: the directory from which the job was submitted.

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
        self._known: set[int] = set()  # companions that were submitted or adopted here
        self._submitting = threading.Lock()
        self._unsure = False  # Slurm may have taken one that was not found

    def borrow(
        self,
        sources: Sequence[CompanionPool],
        missing: int,
        exclude: Collection[str],
        submitted: Submitted,
        *,
        some: bool = False,
        near: Sequence[str] = (),
    ) -> BorrowAnswer:
        """Borrow ``missing`` nodes from ``sources``, in their order, and wait ``wait_s`` at most for each.

        Calls ``submitted`` for each companion immediately. ``some``: fewer than all are of use, too.
        ``near``: nodes whose NVLink cliques the first of them must be of, by Slurm's blocks. Raises no error
        of Slurm.
        """
        places, refusal = self._places(near)
        if refusal:
            return BorrowAnswer(refusals=((sources[0], refusal),))
        wish = _Wish([*places, *[None] * missing][:missing])
        try:
            left_s = self._time_left()
        except (SlurmError, CommandTimeout) as error:
            return BorrowAnswer(refusals=((sources[0], f"Slurm does not show the job: {_why(error)}"),))
        if left_s is not None and left_s < MIN_LEFT_S:
            why = f"only {left_s:.0f} s are left of the job's time"
            return BorrowAnswer(refusals=((sources[0], why),))
        for number, source in enumerate(sources):
            if wish.places:
                is_last = number == len(sources) - 1 and not some
                self._ask(wish, source, left_s, tuple(exclude), submitted, whole=is_last)
        return BorrowAnswer(nodes=wish.nodes, refusals=tuple(wish.refusals))

    def _places(self, near: Sequence[str]) -> tuple[list[_Place], str]:
        """Return the nodes in the block of each of ``near``, or why such nodes cannot be lent."""
        if not near:
            return [], ""
        try:
            own_channel = self._slurm.config().get("SwitchType", "").endswith("/nvidia_imex")
            blocks = [one for one in self._slurm.topology() if one.is_block and not one.level]
        except (SlurmError, CommandTimeout) as error:
            return [], f"Slurm does not show which nodes are of one NVLink clique: {_why(error)}"
        if own_channel:
            return [], _OWN_CHANNEL
        places: list[_Place] = [frozenset(b.nodes) for node in near for b in blocks if node in b.nodes]
        if len(places) < len(near):
            unknown = fold(node for node in near if not any(node in block.nodes for block in blocks))
            return [], f"no block of topology/block shows the NVLink clique of {unknown} {_ALL_THE_SAME}"
        return places, ""

    def end(self, jobs: Collection[int], report: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
        """Cancel these companions, again and again within minutes; why some could not be.

        ``report`` gets the first failure of each immediately.
        """
        failed = self._cancel(jobs)
        for job_id, why in failed.items():
            report(f"companion {job_id} is not cancelled now ({why}); it is tried again")
        pause_s, tries = CANCEL_PAUSE_S, 1
        while failed and tries < CANCEL_TRIES:
            self._clock.sleep(pause_s)
            pause_s, tries = min(2 * pause_s, LONGEST_CANCEL_PAUSE_S), tries + 1
            failed = self._cancel(failed)
        return tuple(
            f"companion {job_id} could not be cancelled in {tries} attempts ({why}); it ends with the job"
            for job_id, why in failed.items()
        )

    def _cancel(self, jobs: Collection[int]) -> dict[int, str]:
        """Cancel once; return the companions that could not be cancelled, with the reason."""
        failed = {}
        for job_id in jobs:
            try:
                self._slurm.cancel(job_id)
            except (SlurmError, CommandTimeout) as error:
                failed[job_id] = _why(error)
        return failed

    def sweep(self, known: Collection[int]) -> tuple[int, ...]:
        """Cancel unknown companions of this job: an earlier controller or run asked for them.

        Raises ``SlurmError``.
        """
        strays = self._strays(known)
        self.end(strays)
        return strays

    def settle(self) -> tuple[int, ...]:
        """Cancel companions that appear although Slurm's answer to their submission was lost.

        Returns immediately if no answer was lost. Raises no error of Slurm.
        """
        found: tuple[int, ...] = ()
        tries = SETTLE_TRIES if self._unsure else 0
        self._unsure = False
        for _ in range(tries):
            self._clock.sleep(SETTLE_PAUSE_S)
            try:
                strays = self._strays(self._lent.lenders)
            except (SlurmError, CommandTimeout):
                continue
            self.end(strays)
            found += strays
        return tuple(dict.fromkeys(found))

    def _strays(self, known: Collection[int]) -> tuple[int, ...]:
        """Return this run's companions that are neither ``known`` nor lend a node nor were submitted here."""
        user = self._user or pwd.getpwuid(os.getuid()).pw_name
        with self._submitting:  # what is being submitted now is no stray
            jobs = self._slurm.jobs(user)
        return tuple(
            job.job_id
            for job in jobs
            if job.job_id not in (*known, *self._known)
            and not job.is_finished
            and is_companion_of(job, self._job_id, self._run_id)
        )

    def _find_lost(self) -> int | None:
        """Return the companion that Slurm has taken although its answer was lost; None if none is found."""
        for attempt in range(FIND_TRIES):
            if attempt:
                self._clock.sleep(FIND_PAUSE_S)
            try:
                strays = self._strays(self._lent.lenders)
            except (SlurmError, CommandTimeout):
                continue
            if strays:
                return max(strays)
        self._unsure = True
        return None

    def _time_left(self) -> float | None:
        """Return the time left by slurmctld's clock, if that tells its time."""
        end = self._slurm.allocation(self._job_id).end_time
        if end is None:
            return None
        return end - (self._wall() - (clock_offset(self._slurm, self._wall) or 0.0))

    def _ask(
        self,
        wish: _Wish,
        source: CompanionPool,
        left_s: float | None,
        exclude: tuple[str, ...],
        submitted: Submitted,
        *,
        whole: bool,
    ) -> None:
        """Ask one source, and wait until all run, or ``wait_s`` is over.

        ``whole``: fewer than all that are missing are of no use.
        """
        free, why = self._free(source, exclude)
        places = _with_room(wish.places, free)
        if not places or (whole and len(places) < len(wish.places)):
            short = free is not None and len(free) >= len(wish.places)
            far = (
                f"{len(places)} of {fold(free or ())} in the NVLink cliques of the lost nodes {_ALL_THE_SAME}"
            )
            wish.refusals.append((source, far if short else why))
            return
        waiting: dict[int, _Place] = {}
        try:
            for place in places:
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
                    exclude=(*exclude, *self._others(place, exclude)),
                    options=self._config.sbatch,
                )
                job_id = self._submit(request)
                waiting[job_id] = place
                submitted(job_id, source)
        except (SlurmError, CommandTimeout) as error:
            wish.refusals.append((source, _why(error) + _fix(source, error)))
        deadline = self._clock.monotonic() + self._config.wait_s
        last: dict[int, str] = {}
        while waiting:
            for job_id, place in tuple(waiting.items()):
                if self._look(wish, source, job_id, place, last):
                    del waiting[job_id]
            if not waiting or self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(POLL_S)
        self._cancel(waiting)  # once: the core has those cancelled that could not be
        for job_id in waiting:
            why = f"companion {job_id} has not started within {self._config.wait_s:g} s"
            reason = last.get(job_id, "")
            wish.refusals.append((source, why + (f" ({reason})" if reason else "") + _fix(source, reason)))

    def _submit(self, request: SubmitRequest) -> int:
        """Raises as :meth:`SlurmClient.submit`, but for an answer that was lost after Slurm took the job."""
        try:
            with self._submitting:
                job_id = self._slurm.submit(request)
                self._known.add(job_id)
                return job_id
        except (SlurmTimeout, CommandTimeout):
            if (found := self._find_lost()) is None:
                raise
            self._known.add(found)
            return found

    def _others(self, place: _Place, exclude: Collection[str]) -> tuple[str, ...]:
        """Return all nodes outside ``place`` that are not excluded anyway. Raises ``SlurmError``."""
        if place is None:
            return ()
        names = (node.name for node in self._slurm.nodes())
        return tuple(name for name in names if name not in place and name not in exclude)

    def _free(self, source: CompanionPool, exclude: tuple[str, ...]) -> tuple[list[str] | None, str]:
        """Return which nodes are free now, None if Slurm does not say, with a text for too few.

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
        free = [
            node.name
            for node in nodes
            if node.is_idle and node.usable_despite(OF_RESERVATION) and node.name not in exclude
        ]
        names = fold(node.name for node in nodes)
        why = f"{len(free)} of {counted(len(nodes), 'node')} free ({names}; see srobust spares status)"
        return free, why

    def _look(
        self, wish: _Wish, source: CompanionPool, job_id: int, place: _Place, last: dict[int, str]
    ) -> bool:
        """Return whether it is known what became of the companion."""
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
            wish.places.remove(place)
            return True
        if job.is_finished or job.is_completing:
            states = "+".join(sorted(job.states))
            wish.refusals.append((source, f"companion {job_id} ended immediately ({states})"))
            return True
        last[job_id] = job.reason
        return False


def _with_room(places: Sequence[_Place], free: Sequence[str] | None) -> list[_Place]:
    """Return the places for which there are ``free`` nodes; all if that is not known."""
    if free is None:
        return list(places)
    left, found = list(free), list[_Place]()
    for place in sorted(places, key=lambda place: place is None):
        if (node := next((one for one in left if place is None or one in place), None)) is not None:
            left.remove(node)
            found.append(place)
    return found


_MAKE_IT = " (fix: srobust spares create, or another companions.reservation)"


def _fix(source: CompanionPool, why: Exception | str) -> str:
    """Return the fix for a refusal of a reservation, by an error or by a reason of Slurm; "" if unknown."""
    if not source.reservation:
        return ""
    if isinstance(why, PermissionDenied):
        return " (fix: an administrator lets your user or account use it)"
    deleted = ("ReservationDeleted", f"Reservation_{source.reservation}_was_deleted")
    return _MAKE_IT if isinstance(why, ReservationNotFound) or why in deleted else ""


def _why(error: Exception) -> str:
    return error.what if isinstance(error, SlurmCommandError) else str(error)
