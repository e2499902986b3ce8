"""Long stretches without a step, announced so that they are not taken for a hang."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from slurm_robust.worker.environment import RECORD
from slurm_robust.worker.step_record import RankPhase, RecordError, StepRecord

_log = logging.getLogger(__name__)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that what follows is ``name``, in which no step is completed.

    ::

        with slurm_robust.phase("evaluation"):
            evaluate(model)

    Any name will do, of which the first 32 bytes count: how long phases of one name take is learned, and a
    hang is what takes far longer. One rank that waits for others needs no phase of its own. Phases may be
    nested, and are announced by one thread. Does nothing outside of ``srobust run``, or if the step record
    cannot be opened: training comes first.
    """
    record = _own_record()
    try:
        with announced(record, name) if record is not None else nullcontext():
            yield
    finally:
        if record is not None:
            record.close()


class PhaseSwitch:
    """One phase at a time, for frameworks that call back at begin and end separately."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._is_on = False

    def begin(self, name: str) -> None:
        """Begin ``name``; what was before is over."""
        self.end()
        self._stack.enter_context(phase(name))
        self._is_on = True

    def end(self) -> None:
        """End the phase."""
        self._stack.close()
        self._is_on = False

    def __bool__(self) -> bool:
        return self._is_on


@contextmanager
def announced(record: StepRecord, name: str) -> Iterator[None]:
    """Do the same with an open record. The time of a phase within counts to that one alone."""
    before, within = record.phase, sum(record.spent.values())
    begin(record, name)
    begun = time.monotonic()
    try:
        yield
    finally:
        within = sum(record.spent.values()) - within
        record.spend(name, max(0.0, time.monotonic() - begun - within))
        if before.name:
            record.set_phase(before)
        else:
            begin(record, "")


def begin(record: StepRecord, name: str) -> None:
    """Begin phase ``name``."""
    record.set_phase(RankPhase(name=name, begin=time.monotonic()))


def _own_record() -> StepRecord | None:
    path = os.environ.get(RECORD)
    if not path:
        return None
    try:
        return StepRecord.open(path)
    except (OSError, RecordError) as error:
        _log.warning("this phase is not announced: %s", error)
        return None
