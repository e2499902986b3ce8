"""Long stretches without a step, announced so that they are not taken for a hang."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from slurm_robust.wire.record import RankPhase, RecordError, StepRecord
from slurm_robust.worker.environment import RECORD

_log = logging.getLogger(__name__)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that what follows is ``name``, in which no step is completed.

    ::

        with slurm_robust.phase("evaluation"):
            evaluate(model)

    Any name will do, of which the first 32 bytes count: how long phases of one name take is learned, and a
    hang is what takes far longer. One rank that waits for others needs no phase of its own. Phases may be
    nested, and are announced by one thread. Does nothing outside of ``srobust run``, or where the step record
    cannot be opened: training comes first.
    """
    record = _own_record()
    try:
        with announced(record, name) if record is not None else nullcontext():
            yield
    finally:
        if record is not None:
            record.close()


@contextmanager
def announced(record: StepRecord, name: str) -> Iterator[None]:
    """The same with an open record."""
    before = record.phase
    begin(record, name)
    try:
        yield
    finally:
        if before.name:
            record.set_phase(before)
        else:
            begin(record, "")


def begin(record: StepRecord, name: str) -> None:
    """From now on it is ``name``."""
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
