"""Faults that a worker plants in itself, for a drill that the owner of the job has asked for.

The agent puts the order beside the worker's step record and sends :data:`DRILL_SIGNAL`; Python's handler of
it reads the order once, in the main thread, between two lines of whatever script that is. Without an order
the signal does nothing, and until it comes nothing of this costs anything.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from slurm_robust.model.drill import DrillFault, drill_text
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.threads import start_thread

DRILL_SIGNAL = signal.SIGRTMAX - 4
"""One below that for stacks."""

ORDER_SUFFIX = ".drill"

SLOW_FOR_S = 300.0
SLOW_FACTOR = 1.5
"""The rank rests after each step for this multiple of what the steps take by themselves."""

GROW_BYTES = 512 << 20
GROW_SHARE = 4
"""At most this part of the memory that is available is taken."""

GROW_FOR_S = 10.0
HOLD_S = 20.0
_PIECE = 4 << 20


class DrillOrder(Record):
    """What a worker is to do to itself."""

    drill: int
    fault: DrillFault


class PlantedError(RuntimeError):
    """The exception of a drill."""


def order_path(record: Path) -> Path:
    """Return the file for the order to the worker with this step record."""
    return record.with_suffix(ORDER_SUFFIX)


def prepare(record: str) -> None:
    """Have this process do what an order beside its step ``record`` says; never raises."""
    path = order_path(Path(record))

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            data = path.read_bytes()
            path.unlink()
            order = msgspec.json.decode(data, type=DrillOrder)
        except (OSError, *UNREADABLE):
            return
        _plant(order)

    try:
        signal.signal(DRILL_SIGNAL, handle)
    except (OSError, ValueError) as error:
        print(f"slurm_robust: this rank can take no drills: {error}", file=sys.stderr)


def _plant(order: DrillOrder) -> None:
    print(f"slurm_robust: {drill_text(order.drill)}: {order.fault.value}", file=sys.stderr, flush=True)
    match order.fault:
        case DrillFault.HANG_RANK:
            _hang()
        case DrillFault.LOCK_RANK:
            _hang_with_the_lock()
        case DrillFault.RAISE_ERROR:
            raise PlantedError(drill_text(order.drill))
        case DrillFault.NAN_LOSS:
            _spoil_loss()
        case DrillFault.SLOW_RANK:
            _slow_down()
        case DrillFault.GROW_MEMORY:
            start_thread("drill", _grow)


def _hang() -> NoReturn:
    while True:
        time.sleep(0.1)


def _hang_with_the_lock() -> NoReturn:
    libc = ctypes.PyDLL(None)  # whose calls keep the interpreter's lock
    while True:
        libc.pause()


def _spoil_loss() -> None:
    """Report every loss from now on as NaN; the training itself is not touched."""
    from slurm_robust.worker.step_record import StepRecord

    report = StepRecord.report

    def spoilt(
        self: StepRecord, step: int, loss: float | None = None, grad_norm: float | None = None
    ) -> None:
        report(self, step, math.nan if loss is not None else None, grad_norm)

    StepRecord.report = spoilt  # type: ignore[method-assign]


def _slow_down() -> None:
    """Rest after each step of an optimizer."""
    from slurm_robust.worker import optimizer_steps

    until, last, own_s = time.monotonic() + SLOW_FOR_S, time.monotonic(), math.inf

    def rest() -> None:
        nonlocal last, own_s
        now = time.monotonic()
        if now < until:
            own_s = min(own_s, now - last)
            time.sleep(SLOW_FACTOR * own_s)
        last = time.monotonic()

    optimizer_steps.call_after_each(rest)


def _grow() -> None:
    """Take memory piece by piece, hold it for a while, and give it back."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pieces = min(GROW_BYTES, available // GROW_SHARE) // _PIECE
    held = []
    for _ in range(pieces):
        held.append(bytearray(os.urandom(1) * _PIECE))  # each page is touched
        time.sleep(GROW_FOR_S / pieces)
    time.sleep(HOLD_S)
