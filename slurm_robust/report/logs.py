"""``srobust logs JOB``: the output of a training's ranks, followed across restarts and requeues."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.events import RunEnded, decode_event
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import JobNotFound, SlurmError
from slurm_robust.trainings.find import NoSuchJob, NotBegun, find, load_events
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.text import as_json, fold_ranks, one_line, settled, visible, without_escapes

POLL_S = 0.5
BEGIN_POLL_S = 5.0
"""Between two searches for a job that has not begun; each asks slurmctld."""

# A job that was cancelled, or ran out of time, has not recorded its end: only Slurm knows.
ASK_SLURM_S = 15.0
_BLOCK = 1 << 16
_LAST_EVENT = 1 << 14  # bytes; the end of a run is a short event


class LogSelection(Record):
    """What to show."""

    rank: int | None = 0
    """None for all."""
    generation: int | None = None
    """None for the newest and its successors."""
    stream: str = "out"
    """``out`` or ``err``."""
    lines: int | None = 50
    """Lines of each rank's past, None for all."""
    follow: bool = False
    json: bool = False


class _OutputLine(Record):
    """One line of output, as ``--json`` prints it."""

    generation: int
    rank: int
    stream: str
    line: str


def main(name: str, wanted: LogSelection, *, job_dir: str | None) -> int:
    """Print the output of a job's ranks. Raises ``NoSuchJob``, ``JournalDamaged``."""
    slurm = make_slurm()
    directory = wait(name, job_dir, slurm, time.sleep) if wanted.follow else find(name, job_dir, slurm)
    book = Logs(directory, wanted)
    if not wanted.follow:  # without the journal, which may be damaged
        for line in book.past():
            _print(line, wanted)
        return ExitCode.SUCCESS
    job_id = fold(load_events(directory)).job_id
    for line in book.follow(RunEnd(directory, slurm, job_id), time.sleep):
        _print(line, wanted)
    return ExitCode.SUCCESS


def wait(name: str, job_dir: str | None, slurm: SlurmClient, pause: Callable[[float], None]) -> JobDirectory:
    """Wait for the folder of a job that is pending. Raises ``NoSuchJob`` if none can come."""
    reported = ""
    while True:
        try:
            return find(name, job_dir, slurm)
        except NotBegun as missing:
            if not missing.may_begin:
                raise
            if str(missing) != reported:
                reported = str(missing)
                said = one_line(reported)
                print(f"srobust: {said}; waiting for it, Ctrl-C ends this", file=sys.stderr, flush=True)
        pause(BEGIN_POLL_S)


def _print(line: _OutputLine, wanted: LogSelection) -> None:
    if wanted.json:
        text = as_json(line, indent=None)
    else:
        # A progress bar overwrites itself: its last state counts.
        shown = visible(without_escapes(settled(line.line)).expandtabs())
        text = (f"rank {line.rank} | " if wanted.rank is None else "") + shown
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Logs:
    """The output of one job's ranks, read as it grows."""

    def __init__(self, directory: JobDirectory, wanted: LogSelection) -> None:
        self._directory = directory
        self._wanted = wanted

    def past(self) -> Iterator[_OutputLine]:
        """Yield the output so far. Raises ``NoSuchJob`` if there is nothing."""
        generation = self._wanted.generation or max(self._generations(), default=0)
        files = self._open(generation, {}, self._wanted.lines)
        if not files:
            raise self._nothing(generation)
        self._introduce(generation)
        for rank, file in sorted(files.items()):
            yield from self._lines(generation, rank, file.read(whole=False))

    def follow(self, is_over: Callable[[], bool], pause: Callable[[float], None]) -> Iterator[_OutputLine]:
        """Yield the output so far and what follows, until ``is_over`` or the wanted generation has ended."""
        asked = self._wanted.generation
        generation = asked or max(self._generations(), default=0)
        files: dict[int, _File] = {}
        introduced, lines = 0, self._wanted.lines
        while True:
            later = min((g for g in self._generations() if g > generation), default=0)
            over = bool(asked and later) or is_over()
            files = self._open(generation, files, lines)
            if files and introduced != generation:
                introduced = generation
                self._introduce(generation)
            for rank, file in sorted(files.items()):
                yield from self._lines(generation, rank, file.read(whole=not (later or over)))
            if over and (asked or not later):
                if not introduced:
                    raise self._nothing(generation)
                return
            if later:
                generation, files, lines = later, {}, None
            else:
                pause(POLL_S)

    def _generations(self) -> set[int]:
        names = (path.name for path in self._directory.logs(0).parent.glob("gen-*"))
        there = {int(number) for name in names if (number := name.removeprefix("gen-")).isdecimal()}
        return {generation for generation in there if not self._directory.logs_ahead(generation).exists()}

    def _open(self, generation: int, known: dict[int, _File], lines: int | None) -> dict[int, _File]:
        """Return the wanted files that exist; those that are ``known`` keep their position."""
        wanted = self._wanted
        if wanted.rank is not None:
            ranks = {wanted.rank}
        else:
            ranks = set(self._directory.worker_logs(generation, wanted.stream))
        found = dict(known)
        for rank in ranks - known.keys():
            path = self._directory.worker_log(generation, rank, wanted.stream)
            if path.exists():
                found[rank] = _File(path, lines)
        return found

    def _lines(self, generation: int, rank: int, texts: Iterator[str]) -> Iterator[_OutputLine]:
        stream = self._wanted.stream
        return (_OutputLine(generation=generation, rank=rank, stream=stream, line=text) for text in texts)

    def _introduce(self, generation: int) -> None:
        """Name the file on standard error: standard output has nothing but the training's output."""
        rank = self._wanted.rank
        logs = self._directory.logs(generation)
        path = logs if rank is None else self._directory.worker_log(generation, rank, self._wanted.stream)
        print(f"==> generation {generation}: {one_line(str(path), None)}", file=sys.stderr, flush=True)

    def _nothing(self, generation: int) -> NoSuchJob:
        wanted, there = self._wanted, self._generations()
        if not there:
            text = f"no worker of {self._directory.path} has been started yet"
            fix = "'srobust status' says how far the job is; -f waits for the output"
        elif generation not in there:
            text = f"generation {generation} has no output in {self._directory.logs(0).parent}"
            fix = f"give one of {fold_ranks(there)}"
        else:
            ranks = sorted(self._directory.worker_logs(generation, wanted.stream))
            name = "any rank" if wanted.rank is None else f"rank {wanted.rank}"
            text = f"no output of {name} in generation {generation}"
            fix = f"give one of {fold_ranks(ranks)}" if ranks else "-f waits for the output"
        return NoSuchJob(text, fix=fix)


class _File:
    """One rank's file, read from the begin of the last ``lines`` lines."""

    def __init__(self, path: Path, lines: int | None) -> None:
        self._path = path
        self._rest = b""
        self._offset = 0 if lines is None else _begin_of_last(path, lines)

    def read(self, *, whole: bool) -> Iterator[str]:
        """Yield lines written since the last call; without ``whole`` also one that has no end yet."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(_BLOCK):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        if not whole and self._rest:
            rest, self._rest = self._rest, b""
            yield rest.decode(errors="replace")


def _begin_of_last(path: Path, lines: int) -> int:
    """Return the offset at which the last ``lines`` lines of a file begin."""
    with path.open("rb") as file:
        at = end = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and tail.count(b"\n") <= lines:
            at = max(0, at - _BLOCK)
            file.seek(at)
            tail = file.read(end - at)
    before, *kept = tail.removesuffix(b"\n").rsplit(b"\n", lines)
    if lines == 0:
        return end
    return at + len(before) + 1 if len(kept) == lines else 0


class RunEnd:
    """Whether the run is over, by its journal or by Slurm."""

    def __init__(self, directory: JobDirectory, slurm: SlurmClient, job_id: int) -> None:
        self._journal = directory.journal
        self._slurm = slurm
        self._job_id = job_id
        self._size = -1
        self._asked = time.monotonic() - ASK_SLURM_S  # the first check asks immediately
        self._reported = False

    def __call__(self) -> bool:
        """Check once; reads the end of the journal only if it has grown."""
        try:
            size = self._journal.stat().st_size
            if size != self._size:
                self._size = size
                with self._journal.open("rb") as file:
                    file.seek(max(0, size - _LAST_EVENT))
                    last = file.read().splitlines()[-1:]
                try:
                    event = decode_event(last[0]) if last else None
                    return isinstance(event, RunEnded) and event.final
                except msgspec.DecodeError:
                    return False  # it is being written
        except OSError:
            return False  # storage does not answer now
        if time.monotonic() - self._asked < ASK_SLURM_S:
            return False
        self._asked = time.monotonic()
        try:
            return self._slurm.job(self._job_id).is_finished
        except JobNotFound:
            return True
        except (SlurmError, OSError) as error:
            if not self._reported:
                self._reported = True
                text = f"Slurm does not answer ({error}); still following, Ctrl-C ends this"
                print(f"srobust: {one_line(text)}", file=sys.stderr, flush=True)
            return False
