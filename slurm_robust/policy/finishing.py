"""The last exits of a training run: which of them are no fault, although a signal ended the worker. Pure.

Libraries abort while they are taken down: a thread of a collective library finds its peers gone, or a driver
its context. A rank whose work was done then has lost nothing, and to restart it would do old steps again. The
rule asks for evidence:

* The script of the rank had returned, and so had its threads: whatever signal of its own ended it afterwards
  is noted, and it counts as ended with code 0.
* Its script had not returned, but it aborted (SIGABRT) after the newest step that any rank has completed, is
  not rank 0, which saves results as a rule, and all other ranks have ended with code 0 or do so within
  :data:`WAIT_S` seconds.

Any exception, a signal from outside (SIGKILL, SIGTERM) and a want of memory stay faults.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from slurm_robust.model.exits import WorkerExit, signal_name
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.progress import FINISHED, RETURNED, Progress
from slurm_robust.model.record import Record
from slurm_robust.util.text import count

WAIT_S = 10.0
"""Time for the other ranks to end, once one of them has ended or is about to."""

_OWN = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that a process gets for what it does itself."""


class LastExits(Record):
    """What the exits so far say of the training run."""

    is_done: bool
    """Every rank has ended, and its work was done."""
    waits: bool = False
    """Ranks that failed may have done so after their work: that is known when the others have ended."""
    aborted: tuple[NodeExit, ...] = ()
    """Ranks that a signal ended after their work."""

    @property
    def reason(self) -> str:
        """Why training is done."""
        if not self.aborted:
            return "every rank ended with code 0"
        first = self.aborted[0]
        also = f" and {count(len(self.aborted) - 1, 'other rank')}" if len(self.aborted) > 1 else ""
        how = signal_name(first.exit.signal or 0)
        who = f"rank {first.exit.rank} on {first.node}{also}"
        return f"the training was done: {how} ended {who} after its work, every other rank ended with code 0"


def judge(exits: Iterable[NodeExit], records: Iterable[Progress], world_size: int) -> LastExits:
    """Judge the exits. ``records``: the known step records of the ranks, also of ranks that ended."""
    by_rank = {record.rank: record for record in records}
    known = {each.exit.rank: each for each in exits}
    failed = [each for each in known.values() if each.exit.failed]
    if not failed:
        return LastExits(is_done=len(known) == world_size)
    newest = max((record.step for record in by_rank.values()), default=-1)
    returned = [each for each in failed if _has_returned(each.exit, by_rank.get(each.exit.rank))]
    aborted = [
        each
        for each in failed
        if each in returned or _aborted_last(each.exit, by_rank.get(each.exit.rank), newest)
    ]
    if len(aborted) < len(failed):
        return LastExits(is_done=False)
    unsure = [each for each in aborted if each not in returned]
    others_ended = len(failed) < len(known)
    if len(known) == world_size and (others_ended or not unsure):
        return LastExits(is_done=True, aborted=tuple(aborted))
    ends = others_ended or any(record.phase in (FINISHED, RETURNED) for record in by_rank.values())
    waits = not unsure or (ends and max(each.exit.age_s for each in unsure) <= WAIT_S)
    return LastExits(is_done=False, waits=waits and len(known) < world_size)


def _is_own(exit: WorkerExit) -> bool:
    return exit.signal in _OWN and exit.error is None and not exit.oom


def _has_returned(exit: WorkerExit, record: Progress | None) -> bool:
    return _is_own(exit) and record is not None and record.phase == RETURNED


def _aborted_last(exit: WorkerExit, record: Progress | None, newest: int) -> bool:
    if record is None or exit.rank == 0 or exit.signal != signal.SIGABRT or not _is_own(exit):
        return False
    return 0 <= newest <= record.step
