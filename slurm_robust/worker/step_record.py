"""The step record: one worker's progress in a small file of node-local shared memory.

The agent reads it from outside, so a worker that hangs, is stopped or was killed in the middle of a
write still shows how far it came. Times are CLOCK_MONOTONIC, one clock for all processes of a node.

The file has these areas, each with one writer, little-endian, 1024 bytes in all::

    0    header   magic "SRSTEP\\0\\0", version u32, rank i32, generation i64, created f64, crc u32
    128  request  i64: step at which a checkpoint is asked for, -1 none               (agent writes)
    136  stride   i64: steps that are multiples of it go to peers                     (agent writes)
    144  flush    i64: step whose snapshot is wanted on storage, -1 none              (agent writes)
    152  local    i64: snapshots are taken of steps that are multiples of it          (agent writes)
    160  hold     f64: seconds for which no step begins after that of ``request``, 0 none (agent writes)
    168  buffers  i64: snapshots for which the rank has room in memory, plus 1; 0 not known (worker writes)
    192  counts   2 slots of 32 bytes: sequence u64 (= optimizer steps), time f64, crc u32
    256  report   2 slots of 96 bytes: sequence u64, step i64, time f64, loss f64, grad_norm f64,
                  checkpoint i64, flags u32, bad_step i64, crc u32                    (worker writes)
    448  phase    2 slots of 64 bytes: sequence u64, begin f64, name (UTF-8, 32 bytes), crc u32
    576  marks    6 f64: when the worker came to each :class:`Mark`, 0 not yet        (worker writes)
    624  reserve  f64: when the worker began to reserve memory for snapshots; with a minus when that
                  ended, 0 never                                                      (worker writes)
    640  spent    8 f64: seconds in phases and checkpoints so far, by name            (worker writes)
    704  names    8 times 24 bytes (UTF-8) of ``spent``, in the order of first use    (worker writes)
    896  times    2 slots of 64 bytes: sequence u64, stride i64, apart f64, whole f64, blocked f64,
                  every i64, crc u32 (:class:`SnapshotTimes`)                         (worker writes)

A seqlock whose reader never waits: the writer fills the older of the two slots with the next sequence
number; the reader takes the slot with the higher number whose CRC is right. A slot that is being written, or
was left half written by a killed worker, fails its CRC and the earlier record counts. The request is one
aligned 8-byte store, and so are a mark, the time of a reservation and the seconds of a name, which is written
before them. Phases are rare, so their writer keeps nothing: it reads what is there.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

from slurm_robust.model import startup
from slurm_robust.model.progress import RESERVE, Progress, SnapshotTimes
from slurm_robust.model.record import Record

NO_STEP = -1

_MAGIC = b"SRSTEP\0\0"
_VERSION = 9
_SIZE = 1024
_HEADER = struct.Struct("<8sIiqd")
_COUNT = struct.Struct("<Qd")
_REPORT = struct.Struct("<QqdddqIq")
_PHASE = struct.Struct("<Qd32s")
_TIMES = struct.Struct("<Qqdddq")
_CRC = struct.Struct("<I")
_REQUEST_AT = 128
_HOLD_AT = 160
_BUFFERS_AT = 168
_COUNTS_AT = (192, 224)
_REPORTS_AT = (256, 352)
_PHASES_AT = (448, 512)
_TIMES_AT = (896, 960)
_MARKS_AT = 576
_RESERVE_AT = 624
_SPENT_AT = 640
_NAMES_AT, _NAME_SIZE, _MAX_NAMES = 704, 24, 8
_REPORTS, _HAS_LOSS, _HAS_GRAD_NORM = 1, 2, 4
_READ_TRIES = 100


class RecordError(ValueError):
    """The file is no step record of this version: the message names it."""


class Mark(IntEnum):
    """A point that a worker passes on its way to its first step."""

    SCRIPT = 0  # its script begins
    JOINS = 1  # it asks for its process group
    JOINED = 2
    RESTORES = 3  # it asks for the state to go on from
    RESTORED = 4
    STEPPED = 5  # its first step is completed


_ENDED_BY = {
    Mark.SCRIPT: startup.WORKER,
    Mark.JOINS: startup.IMPORTS,
    Mark.JOINED: startup.GROUP,
    Mark.RESTORES: startup.MODEL,
    Mark.RESTORED: startup.RESTORE,
    Mark.STEPPED: startup.FIRST_STEP,
}


class RankPhase(Record):
    """What a rank does between steps."""

    name: str = ""  # of which the first 32 bytes count; "": it does nothing of that kind
    begin: float = -math.inf  # monotonic seconds, since when


class _Report(Record):
    """Content of a report slot."""

    step: int = NO_STEP
    time: float = 0.0  # when ``step`` was completed
    loss: float | None = None
    grad_norm: float | None = None
    checkpoint: int = NO_STEP
    reports: bool = False
    bad_step: int = NO_STEP

    def packed(self, sequence: int) -> bytes:
        flags = (
            _REPORTS * self.reports
            | _HAS_LOSS * (self.loss is not None)
            | _HAS_GRAD_NORM * (self.grad_norm is not None)
        )
        return _REPORT.pack(
            sequence,
            self.step,
            self.time,
            self.loss if self.loss is not None else 0.0,
            self.grad_norm if self.grad_norm is not None else 0.0,
            self.checkpoint,
            flags,
            self.bad_step,
        )

    @classmethod
    def unpacked(cls, content: bytes) -> _Report:
        _, step, when, loss, grad_norm, checkpoint, flags, bad_step = _REPORT.unpack(content)
        return cls(
            step=step,
            time=when,
            loss=loss if flags & _HAS_LOSS else None,
            grad_norm=grad_norm if flags & _HAS_GRAD_NORM else None,
            checkpoint=checkpoint,
            reports=bool(flags & _REPORTS),
            bad_step=bad_step,
        )


class StepRecord:
    """One worker's step record. The agent creates it just before it starts the worker.

    Writers: the agent only :meth:`request_checkpoint`, :meth:`set_stride` and :meth:`set_flush`; the
    worker's optimizer hook only :meth:`count_optimizer_step`; the thread that reserves memory for snapshots
    only :meth:`reserving`; the worker's script :meth:`set_phase`; its ``Checkpointer`` also does that, and
    all else. Each calls from one thread at a time. Any code in the worker may :meth:`mark`, and any process
    may read.
    """

    def __init__(self, mapping: mmap.mmap, path: Path) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self._map = mapping
        self.path = path
        header = mapping[: _HEADER.size]
        magic, version, rank, generation, created = _HEADER.unpack(header)
        if magic != _MAGIC or mapping[_HEADER.size : _HEADER.size + 4] != _CRC.pack(zlib.crc32(header)):
            raise RecordError(f"{path} is not a step record")
        if version != _VERSION:
            raise RecordError(
                f"{path} is a step record of version {version}, this is version {_VERSION}: "
                "use the same slurm_robust for agents and workers"
            )
        self.rank: int = rank
        self.generation: int = generation
        self.created: float = created
        self._count = _count_of(self._read(_COUNTS_AT, _COUNT))
        self._sequence, self._report = self._newest_report()
        # One aligned item of a native view is one load or store; struct would go byte by byte. Made last,
        # since a mapping cannot be closed while there is a view of it, as that of a damaged record must be.
        self._request = memoryview(mapping)[_REQUEST_AT : _REQUEST_AT + 32].cast("q")
        self._hold = memoryview(mapping)[_HOLD_AT : _HOLD_AT + 8].cast("d")
        self._buffers = memoryview(mapping)[_BUFFERS_AT : _BUFFERS_AT + 8].cast("q")
        self._marks = memoryview(mapping)[_MARKS_AT : _MARKS_AT + 8 * len(Mark)].cast("d")
        self._reserve = memoryview(mapping)[_RESERVE_AT : _RESERVE_AT + 8].cast("d")
        self._spent = memoryview(mapping)[_SPENT_AT : _SPENT_AT + 8 * _MAX_NAMES].cast("d")

    @classmethod
    def create(cls, path: Path | str, *, generation: int, rank: int) -> StepRecord:
        """Make the file (mode 0600), replacing an older one whole. Raises ``OSError``."""
        path = Path(path)
        header = _HEADER.pack(_MAGIC, _VERSION, rank, generation, time.monotonic())
        content = bytearray(_SIZE)
        content[: _HEADER.size + 4] = header + _CRC.pack(zlib.crc32(header))
        struct.pack_into("<qqqq", content, _REQUEST_AT, NO_STEP, 1, NO_STEP, 1)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(beside, path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str) -> StepRecord:
        """Map an existing record. Raises ``OSError``, or :class:`RecordError` for another file."""
        path = Path(path)
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != _SIZE:
                raise RecordError(f"{path} is not a step record: it should have {_SIZE} bytes")
            mapping = mmap.mmap(file.fileno(), _SIZE)
        try:
            return cls(mapping, path)
        except RecordError:
            mapping.close()
            raise

    def close(self) -> None:
        """Unmap; the file stays. May be called again."""
        self._request.release()
        self._hold.release()
        self._buffers.release()
        self._marks.release()
        self._reserve.release()
        self._spent.release()
        self._map.close()

    # -- the worker's side ------------------------------------------------------------------------

    def count_optimizer_step(self) -> None:
        """Count one more optimizer step. Called in every step: about a microsecond."""
        self._count += 1
        if self._count == 1:
            self.mark(Mark.STEPPED)
        content = _COUNT.pack(self._count, time.monotonic())
        self._write(_COUNTS_AT[self._count & 1], content)

    def announce_reports(self) -> None:
        """Let the script number its steps itself from now on: optimizer steps are not shown any more."""
        self._put(reports=True)

    def report(self, step: int, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Step ``step`` was completed just now."""
        if self._report.step == NO_STEP:
            self._marks[Mark.STEPPED] = time.monotonic()  # rather than its first optimizer step
        bad_step = self._report.bad_step
        if bad_step == NO_STEP and loss is not None and not math.isfinite(loss):
            bad_step = step
        self._put(
            step=step, time=time.monotonic(), loss=loss, grad_norm=grad_norm, reports=True, bad_step=bad_step
        )

    def set_checkpoint(self, step: int) -> None:
        """Show that this rank's part of the checkpoint of ``step`` is published."""
        self._put(checkpoint=step)

    def mark(self, mark: Mark) -> None:
        """Note that the worker has come to ``mark`` just now; only the first time counts."""
        if not self._marks[mark]:
            self._marks[mark] = time.monotonic()

    def set_phase(self, phase: RankPhase) -> None:
        """Show ``phase`` from now on."""
        name = phase.name.encode(errors="replace")[: _PHASE.size - 16]
        sequence = _count_of(self._read(_PHASES_AT, _PHASE)) + 1
        self._write(_PHASES_AT[sequence & 1], _PHASE.pack(sequence, phase.begin, name))

    @contextmanager
    def reserving(self) -> Iterator[None]:
        """Show the phase ``RESERVE``, beside phases that the script announces, which go before it.

        The record may be closed meanwhile.
        """
        self._show_reservation(time.monotonic())
        try:
            yield
        finally:
            self._show_reservation(-time.monotonic())

    def show_snapshots(self, times: SnapshotTimes) -> None:
        """Show what snapshots take."""
        sequence = _count_of(self._read(_TIMES_AT, _TIMES)) + 1
        content = _TIMES.pack(
            sequence, times.stride, times.apart_s, times.whole_s, times.blocked_s, times.every
        )
        self._write(_TIMES_AT[sequence & 1], content)

    @property
    def snapshots(self) -> SnapshotTimes | None:
        """What snapshots take, None if that is not known (yet)."""
        content = self._read(_TIMES_AT, _TIMES)
        if content is None:
            return None
        _, stride, apart_s, whole_s, blocked_s, every = _TIMES.unpack(content)
        return SnapshotTimes(
            stride=stride, apart_s=apart_s, whole_s=whole_s, blocked_s=blocked_s, every=every
        )

    def show_buffers(self, number: int) -> None:
        """Show for how many snapshots this rank has room in memory."""
        self._buffers[0] = number + 1

    @property
    def buffers(self) -> int | None:
        """For how many snapshots this rank has room in memory, None if that is not known (yet)."""
        return self._buffers[0] - 1 if self._buffers[0] else None

    def spend(self, name: str, seconds: float) -> None:
        """Add ``seconds`` that went into ``name``, in which no step was completed.

        The first 24 bytes of the name count. If there are more names than room, the last one has the rest.
        """
        wanted = name.encode(errors="replace")[:_NAME_SIZE]
        if not wanted:
            return
        for index in range(_MAX_NAMES):
            at = _NAMES_AT + index * _NAME_SIZE
            if not self._map[at]:
                self._map[at : at + len(wanted)] = wanted
            elif index < _MAX_NAMES - 1 and self._map[at : at + _NAME_SIZE].rstrip(b"\0") != wanted:
                continue
            self._spent[index] += seconds
            return

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by name, of what is over."""
        found: dict[str, float] = {}
        for index, seconds in enumerate(self._spent):
            if seconds:
                at = _NAMES_AT + index * _NAME_SIZE
                found[self._map[at : at + _NAME_SIZE].rstrip(b"\0").decode(errors="ignore")] = seconds
        return found

    @property
    def phase(self) -> RankPhase:
        """What :meth:`set_phase` shows now."""
        content = self._read(_PHASES_AT, _PHASE)
        if content is None:
            return RankPhase()
        _, begin, name = _PHASE.unpack(content)
        return RankPhase(name=name.rstrip(b"\0").decode(errors="ignore"), begin=begin)

    @property
    def requested_checkpoint(self) -> int:
        """Step at which the controller wants a checkpoint, -1 for none."""
        return self._request[0]

    def hold_s(self, step: int) -> float:
        """Return for how many seconds no step may begin after ``step``, 0 if one may begin at once."""
        return self._hold[0] if step == self._request[0] else 0.0

    @property
    def stride(self) -> int:
        """Snapshots of steps that are multiples of it go to peers."""
        return self._request[1]

    @property
    def local_stride(self) -> int:
        """Snapshots are taken of steps that are multiples of it."""
        return self._request[3]

    @property
    def flush(self) -> int:
        """Step whose snapshot is wanted on storage, -1 for none."""
        return self._request[2]

    # -- the agent's side -------------------------------------------------------------------------

    def request_checkpoint(self, step: int, hold_s: float = 0.0) -> None:
        """Ask the worker for a checkpoint right after it has completed ``step``.

        It begins no other step for ``hold_s`` seconds then, or until another step is asked for.
        """
        self._hold[0] = hold_s
        self._request[0] = step

    def set_stride(self, stride: int, local: int = 1) -> None:
        """Let the worker know which snapshots go to peers, so that it keeps the newest two of them.

        ``local``: it takes those of multiples of this, a divisor of ``stride``.
        """
        self._request[1] = stride  # first: whoever takes fewer keeps those of the stride already
        self._request[3] = local

    def set_flush(self, step: int) -> None:
        """Have the worker keep the snapshot of ``step`` until another is wanted; -1 for none."""
        self._request[2] = step

    def progress(self, now_monotonic: float) -> Progress:
        """Return what the worker has done until ``now_monotonic`` (``time.monotonic()`` of this node).

        Before the first step the age is that of the record. Raises :class:`RecordError` if both
        slots of an area are damaged, which no worker that only uses this class can cause.
        """
        _, report = self._newest_report()
        counted = self._read(_COUNTS_AT, _COUNT)
        if report.reports:
            step, when = report.step, report.time
        else:
            step = _count_of(counted) - 1
            when = _COUNT.unpack(counted)[1] if counted else 0.0
        phase = self._shown_phase()
        return Progress(
            rank=self.rank,
            step=step,
            reported=report.reports,
            age_s=max(0.0, now_monotonic - (when or self.created)),
            loss=report.loss,
            grad_norm=report.grad_norm,
            checkpoint=report.checkpoint,
            phase=phase.name,
            phase_s=max(0.0, now_monotonic - phase.begin),
            bad_step=report.bad_step,
            restored=bool(self._marks[Mark.RESTORED]),
        )

    @property
    def start_phases(self) -> dict[str, float]:
        """Seconds of the phases of the worker's start that are over (:mod:`slurm_robust.model.startup`).

        The first begins with this record. Each goes on from its predecessor in time: a script need not keep
        to their order.
        """
        found: dict[str, float] = {}
        before = self.created
        for when, mark in sorted((self._marks[mark], mark) for mark in Mark):
            if when:
                found[_ENDED_BY[mark]] = when - before
                before = when
        return found

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._map.closed

    def _show_reservation(self, when: float) -> None:
        with suppress(ValueError):  # the view is released: the record was closed
            self._reserve[0] = when

    def _shown_phase(self) -> RankPhase:
        phase, reserve = self.phase, self._reserve[0]
        if phase.name or not reserve:
            return phase
        if reserve > 0:
            return RankPhase(name=RESERVE, begin=reserve)
        return RankPhase(begin=max(phase.begin, -reserve))

    # -- slots ------------------------------------------------------------------------------------

    def _put(self, **changes: float | bool | None) -> None:
        fields = {name: getattr(self._report, name) for name in _Report.__struct_fields__}
        self._report = _Report(**{**fields, **changes})
        self._sequence += 1
        self._write(_REPORTS_AT[self._sequence & 1], self._report.packed(self._sequence))

    def _write(self, at: int, content: bytes) -> None:
        self._map[at : at + len(content) + 4] = content + _CRC.pack(zlib.crc32(content))

    def _newest_report(self) -> tuple[int, _Report]:
        content = self._read(_REPORTS_AT, _REPORT)
        if content is None:
            return 0, _Report()
        return _count_of(content), _Report.unpacked(content)

    def _read(self, slots: tuple[int, int], layout: struct.Struct) -> bytes | None:
        """Return the content of the newer whole slot; None when nothing was ever written."""
        length = layout.size
        # A second try is needed only if the writer went round both slots during the first.
        for _ in range(_READ_TRIES):
            found = [bytes(self._map[at : at + length + 4]) for at in slots]
            whole = [
                content[:length]
                for content in found
                if content[length:] == _CRC.pack(zlib.crc32(content[:length])) and _count_of(content)
            ]
            if whole:
                return max(whole, key=_count_of)
            if any(not any(content) for content in found):
                return None
        raise RecordError(f"{self.path} is damaged: no whole slot after {_READ_TRIES} reads")


def _count_of(content: bytes | None) -> int:
    """Return the sequence number that every slot begins with; 0 for no content."""
    return int.from_bytes(content[:8], "little") if content else 0
