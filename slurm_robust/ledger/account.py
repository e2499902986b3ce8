"""The account: spans of time that follow each other without gap or overlap, in whole milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from slurm_robust.ledger.classes import EFFECTIVE, TimeClass
from slurm_robust.model.record import Record

MIN_MERGED_MS = 10_000
"""Spans of training are at least this long while nothing changes: a line of progress comes so often."""

Kind = tuple[TimeClass, str]
"""A class, and what it was within that: a start phase, or a phase of the script; "" for nothing more."""

PRODUCTIVE: Kind = (TimeClass.PRODUCTIVE, "")
SUSPENDED: Kind = (TimeClass.SUSPENDED, "")


class ClassShare(Record):
    """How much of a span belongs to one class."""

    time: TimeClass
    ms: int
    detail: str = ""
    """A start phase (:mod:`slurm_robust.model.startup`), a phase of the script, or "" for nothing more."""


class Span(Record):
    """One piece of a job's life. Its parts add up to its length; in what order they came is not known."""

    begin_ms: int
    """Since the job's first moment."""
    end_ms: int
    parts: tuple[ClassShare, ...]
    run: int
    """Number of the Slurm job's run, from 0."""
    generation: int
    incident: int
    """The incident to which this time belongs: from its fault until the first new step. 0 for none."""
    nodes: int
    """How many the job holds."""
    gpus: int
    """How many the job holds."""
    step: int
    """The newest step at its end that all ranks had ever completed, -1 before the first."""

    @property
    def effective_ms(self) -> int:
        """In which steps were done for the first time, at whatever speed."""
        return sum(part.ms for part in self.parts if part.time in EFFECTIVE)


class Situation(Record):
    """What spans have in common as long as it does not change."""

    run: int = 0
    generation: int = 0
    incident: int = 0
    nodes: int = 0
    gpus: int = 0


class Account:
    """Writes spans one after the other. The pen only moves forward, so they always add up to the whole."""

    def __init__(self, merged_ms: int = MIN_MERGED_MS) -> None:
        """Merge neighbouring pieces of one training into one span up to ``merged_ms``."""
        self.at_ms = 0
        """The pen's position, in milliseconds since the job's first moment."""
        self.step = -1
        self.situation = Situation()
        self._merged_ms = merged_ms
        self._still: list[tuple[int, int]] = []
        self._done: list[Span] = []
        self._begin_ms = 0
        self._parts: dict[Kind, int] = {}
        self._written = self.situation
        self._is_training = False

    def stand_still(self, begin_ms: int, end_ms: int) -> None:
        """Note that the job was suspended then, whatever is written over it. Call it in order of time."""
        self._still.append((begin_ms, end_ms))

    def stood_still_ms(self, until_ms: int) -> int:
        """Return how long it stood still from the pen until then, which :meth:`write` forgets with this."""
        known = self._still
        self._still = [(max(begin, until_ms), end) for begin, end in known if end > until_ms]
        return sum(max(0, min(end, until_ms) - max(begin, self.at_ms)) for begin, end in known)

    def write(self, until_ms: int, kind: Kind) -> None:
        """Write all time until then as one kind, but for the time in which the job stood still.

        Nothing happens if the pen is there already.
        """
        while self._still and self._still[0][0] < until_ms:
            begin, end = self._still.pop(0)
            self._write(begin, kind)
            self._suspend(min(end, until_ms))
            if end > until_ms:
                self._still.insert(0, (until_ms, end))
        self._write(until_ms, kind)

    def _suspend(self, until_ms: int) -> None:
        """Write suspended time, which no incident costs."""
        own = self.situation
        self.situation = structs.replace(own, incident=0)
        self._write(until_ms, SUSPENDED)
        self.situation = own

    def _write(self, until_ms: int, kind: Kind) -> None:
        length = until_ms - self.at_ms
        if length <= 0:
            return
        if self._is_training or self._written is not self.situation or list(self._parts) != [kind]:
            self._begin(is_training=False)
        self._parts[kind] = self._parts.get(kind, 0) + length
        self.at_ms = until_ms

    def train(self, until_ms: int, parts: Sequence[tuple[Kind, int]]) -> None:
        """Write training until then: ``parts`` in milliseconds, and the rest is productive."""
        rest = until_ms - self.at_ms
        if rest <= 0:
            return
        if (
            not self._is_training
            or self._written is not self.situation
            or self.at_ms - self._begin_ms >= self._merged_ms
        ):
            self._begin(is_training=True)
        known = self._parts
        for kind, ms in parts:
            ms = min(ms, rest)
            if ms > 0:
                known[kind] = known.get(kind, 0) + ms
                rest -= ms
        if rest:
            known[PRODUCTIVE] = known.get(PRODUCTIVE, 0) + rest
        self.at_ms = until_ms

    def spans(self) -> tuple[Span, ...]:
        """Return all that was written."""
        self._begin(is_training=False)
        return tuple(self._done)

    def _begin(self, *, is_training: bool) -> None:
        """Complete the span at the pen and begin another one."""
        if self._parts:
            written = self._written
            self._done.append(
                Span(
                    begin_ms=self._begin_ms,
                    end_ms=self.at_ms,
                    parts=tuple(ClassShare(time=t, detail=d, ms=ms) for (t, d), ms in self._parts.items()),
                    run=written.run,
                    generation=written.generation,
                    incident=written.incident,
                    nodes=written.nodes,
                    gpus=written.gpus,
                    step=self.step,
                )
            )
            self._parts = {}
        self._begin_ms, self._written, self._is_training = self.at_ms, self.situation, is_training
