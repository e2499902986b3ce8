"""``srobust classify``: what a log says about the cause, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.analysis.logs import (
    Reading,
    RuleSet,
    first_causes,
    of_all,
    read,
    read_merged,
    with_site_rules,
)
from slurm_robust.analysis.logs.rule import UNKNOWN_SYMPTOM
from slurm_robust.analysis.logs.text import HEAD, TAIL
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Cause, Remedy
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.terminal.console import ScreenTable, show, track

STDIN = "-"

_RANK = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
_CHUNK = 1024 * 1024

BLAMES = {
    Cause.INFRASTRUCTURE: "the infrastructure: a node, its devices, a network or a file system",
    Cause.USER_CODE: "the user's code",
    Cause.USER_CONFIG: "how the job was set up: its options, environment, data or limits",
    Cause.TRANSIENT: "a transient fault: it may not occur again",
    Cause.SECONDARY: "another rank or node that failed first; look there",
    Cause.NONE: "none: the log shows nothing wrong",
    Cause.UNKNOWN: "unknown: the log does not tell",
}
ACTIONS = {
    Remedy.RESTART: "restart on the same nodes",
    Remedy.EVICT: "restart without the node, and have the node tested",
    Remedy.ROLLBACK_OR_FIX: "fix the program, or return to the previous release or checkpoint",
    Remedy.RECONFIGURE: "change the settings that are named, then restart",
    Remedy.NONE: "nothing",
}

_UNKNOWN_ACTION = "read the log: below are the last lines that look like failures"
_NO_TROUBLE = (
    "no line looks like a failure: if something failed, see the other files of its ranks and the job's log"
)
_EMPTY = "the log is empty: see the other files of its ranks and the job's log"


class NoLog(SrobustError):
    """A log, or a file of them, cannot be read or written."""

    exit_code = ExitCode.NO_INPUT


class LogOfRank(Record):
    """One entry of ``ranks`` of a record."""

    rank: str | int
    text: str


class LogRecord(Record):
    """A line of the input of ``--jsonl``; other fields are passed over."""

    id: str
    stream: str = "program"
    text: str | None = None
    """Text of a single log,"""
    ranks: tuple[LogOfRank, ...] | None = None
    """or the logs of several ranks."""


class ClassifiedLog(Record):
    """A line of the output of ``--jsonl``."""

    id: str
    symptom: str
    symptoms: tuple[str, ...]
    blame: Cause
    action: Remedy
    root_ranks: tuple[str | int, ...]
    line: str
    rule: str


def main(files: Sequence[str], *, stream: str, rules: Sequence[Path], json: bool) -> int:
    """Explain one log, or those of several ranks. Raises :class:`NoLog`, ``InvalidSettings``."""
    known = with_site_rules(rules)
    texts = dict(_ranked(files))
    readings, roots = _read(texts, stream, known)
    empty = [rank for rank, text in texts.items() if not text.strip()]
    show(
        {
            "verdict": of_all(readings, roots).verdict,
            "root_ranks": roots,
            "ranks": {str(rank): _reading(reading) for rank, reading in readings.items()},
        },
        lambda _: render(readings, roots, empty),
        json=json,
    )
    return ExitCode.SUCCESS


def _read(
    texts: Mapping[int, str], stream: str, rules: RuleSet
) -> tuple[Mapping[int, Reading], tuple[int, ...]]:
    """Return what each log says, and who failed first. Several ranks may have written a single one."""
    if len(texts) == 1:
        ((rank, text),) = texts.items()
        reading, roots = read_merged(text, stream, rules)
        return {rank: reading}, roots or first_causes({rank: reading})
    readings = {rank: read(text, stream, rules) for rank, text in texts.items()}
    return readings, first_causes(readings)


def answer_file(source: str, out: Path, *, rules: Sequence[Path]) -> int:
    """Classify each record of a file of JSON lines. Raises :class:`NoLog`, ``InvalidSettings``."""
    known = with_site_rules(rules)
    records = track(list(_records(source)), "classifying", "records")
    answers = [msgspec.json.encode(answer(record, known)) for record in records]
    try:
        out.write_bytes(b"".join(line + b"\n" for line in answers))
    except OSError as error:
        raise NoLog(
            f"{out} cannot be written: {error.strerror}", fix="give --out a file in a folder of yours"
        ) from error
    print(f"{len(answers)} records classified: {out}")
    return ExitCode.SUCCESS


def answer(record: LogRecord, rules: RuleSet) -> ClassifiedLog:
    """Return the verdict on one record."""
    logs = {log.rank: log.text for log in record.ranks or ()}
    roots: tuple[str | int, ...] = ()
    if logs:
        readings = {rank: read(text, record.stream, rules) for rank, text in logs.items()}
        roots = first_causes(readings)
        verdict = of_all(readings, roots).verdict
    else:
        reading, roots = read_merged(record.text or "", record.stream, rules)
        verdict = reading.verdict
    return ClassifiedLog(
        id=record.id,
        symptom=verdict.symptom,
        symptoms=verdict.symptoms,
        blame=verdict.blame,
        action=verdict.action,
        root_ranks=roots,
        line=verdict.line,
        rule=verdict.rule,
    )


def _records(source: str) -> Iterator[LogRecord]:
    decoder = msgspec.json.Decoder(LogRecord)
    try:
        lines = Path(source).read_bytes().splitlines() if source != STDIN else sys.stdin.buffer.readlines()
    except OSError as error:
        raise NoLog(f"{source} cannot be read: {error.strerror}", fix="give a file of JSON lines") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decoder.decode(line)
        except UNREADABLE as error:
            raise NoLog(
                f"{source}, line {number}: not a record: {error}",
                fix='write {"id": ..., "text": ...} or {"id": ..., "ranks": [{"rank": ..., "text": ...}]}',
            ) from error


def _ranked(files: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield texts by rank: from the files' names if all have one, else in the given order."""
    found = [_RANK.search(os.path.basename(name)) for name in files]
    named = [int(match[1]) for match in found if match]
    ranks = named if len(named) == len(files) else list(range(len(files)))
    texts: dict[int, list[str]] = {}
    for rank, name in zip(ranks, files, strict=True):
        texts.setdefault(rank, []).append(_text(name))
    for rank, parts in texts.items():
        yield rank, "\n".join(parts)


def _text(name: str) -> str:
    if name == STDIN:
        return bounded(sys.stdin.buffer)
    try:
        # A named pipe that no process writes is not waited for; one of a shell's <(command) is read to its
        # end.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise OSError(errno.EINVAL, "it is neither a regular file nor a pipe")
            os.set_blocking(descriptor, True)
            return bounded(file)
    except OSError as error:
        raise NoLog(
            f"{name} cannot be read: {error.strerror}", fix="give log files, or - for the standard input"
        ) from error


def bounded(stream: BinaryIO) -> str:
    """Return head and tail of a log of any length. Lines in between are empty, to keep line numbers."""
    head = stream.read(HEAD)
    tail, skipped = b"", 0
    while chunk := stream.read(_CHUNK):
        tail += chunk
        if len(tail) > 2 * TAIL:
            skipped += tail.count(b"\n", 0, len(tail) - TAIL)
            tail = tail[-TAIL:]
    return (head + b"\n" * skipped + tail).decode(errors="replace")


def _reading(reading: Reading) -> dict[str, object]:
    lines = [{"number": number, "line": line.strip()} for number, line in reading.context]
    return {**msgspec.to_builtins(reading.verdict), "number": reading.number, "lines": lines}


def render(readings: Mapping[int, Reading], roots: Sequence[int], empty: Collection[int]) -> RenderableType:
    """Return the whole screen. Log text is Text, since it may contain what rich takes for markup."""
    parts: list[RenderableType] = [_explained(of_all(readings, roots), len(empty) == len(readings))]
    if len(readings) > 1:
        ranks = ", ".join(map(str, roots))
        is_failed = any(reading.tier is not None for reading in readings.values())
        nobody = "no rank is known to have failed first" if is_failed else "no rank shows a failure"
        title = f"root cause: rank {ranks}" if roots else nobody
        parts = [Text(title, style="bold"), *parts, _ranks(readings, empty)]
    return Group(*parts)


def _explained(reading: Reading, is_empty: bool) -> RenderableType:
    verdict = reading.verdict
    table = ScreenTable(head=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    also = ", ".join(name for name in verdict.symptoms if name != verdict.symptom)
    table.add_row("symptom", Text(verdict.symptom + (f" (also {also})" if also else "")))
    is_unknown = verdict.symptom == UNKNOWN_SYMPTOM
    blame = "unknown: no rule knows this log" if is_unknown else BLAMES[verdict.blame]
    table.add_row("to blame", Text("unknown: there is nothing to read" if is_empty else blame))
    table.add_row("do", Text(_unknown_action(reading, is_empty) if is_unknown else ACTIONS[verdict.action]))
    if reading.advice:
        table.add_row("hint", Text(reading.advice))
    if verdict.suspects:
        table.add_row("suspect", Text(", ".join(verdict.suspects)))
    if verdict.place:
        table.add_row("place", Text(verdict.place))
    if verdict.rule:
        table.add_row("rule", Text(verdict.rule))
    if reading.context:
        table.add_row("log", _context(reading))
    return table


def _unknown_action(reading: Reading, is_empty: bool) -> str:
    if is_empty:
        return _EMPTY
    return _UNKNOWN_ACTION if reading.context else _NO_TROUBLE


def _context(reading: Reading) -> Text:
    shown = Text()
    for number, line in reading.context:
        deciding = number == reading.number and line.strip() == reading.verdict.line
        shown.append(f"{number:>6} {line}\n", style="bold red" if deciding else "dim")
    shown.rstrip()
    return shown


def _ranks(readings: Mapping[int, Reading], empty: Collection[int]) -> ScreenTable:
    table = ScreenTable()
    for name in ("rank", "symptom", "line"):
        table.add_column(name, overflow="fold")
    for rank, reading in sorted(readings.items()):
        number = f"{reading.number}: " if reading.number else ""
        line = "(empty)" if rank in empty else number + reading.verdict.line
        table.add_row(str(rank), Text(reading.verdict.symptom), Text(line))
    return table
