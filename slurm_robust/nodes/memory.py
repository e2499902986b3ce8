"""What a node remembers from one run of the checks to the next: facts, counts of failures, its baseline.

All of it can be lost without harm: a run then measures anew, judges without a past and counts from one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.nodes.check import HISTORY, AnySource, Source, View
from slurm_robust.util.isolate import MAX_BYTES, call

F = TypeVar("F", bound=Record)

SAVE_S = 2.0
"""How long the disk may take to keep what a run found; then it is lost."""

IN_A_ROW = 8
"""So many runs are remembered however closely they follow each other."""

_FORMAT = 1
_FACTS, _BASELINE = "facts.msgpack", "baseline.json"


class Stored(Record):
    """Facts as they are kept."""

    at: float
    boot_id: str
    facts: bytes
    """MessagePack of the source's record."""


class _Contents(Record):
    format: int = _FORMAT
    facts: dict[str, list[Stored]] = {}
    failing: dict[str, int] = {}
    away: dict[str, int] = {}


class Memory:
    """The files in ``paths.state``. Reading never fails: what cannot be read was never there.

    ``remember`` and ``count`` collect; ``save`` writes once, below a lock and on top of what other hooks
    have written meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = _read(folder)
        self._new: dict[str, tuple[AnySource, Stored]] = {}
        self._failed: dict[str, bool] = {}
        self._away: set[str] = set()
        self._ran: set[str] = set()

    def before(self, source: AnySource, now: float) -> tuple[View[Any], ...]:
        """Return earlier facts of a source that keeps a history, oldest first."""
        kept = self._contents.facts.get(source.name, ()) if source.history_s else ()
        samples = (_sample(source, stored) for stored in kept if now - source.history_s <= stored.at < now)
        return tuple(sample for sample in samples if sample is not None)

    def fresh(self, source: AnySource, now: float, boot_id: str) -> View[Any] | None:
        """Return the newest facts, unless too old, of another boot, or of a clock that was put back."""
        kept = self._contents.facts.get(source.name)
        if not kept or kept[-1].boot_id != boot_id or not 0 <= now - kept[-1].at <= source.fresh_s:
            return None
        return _sample(source, kept[-1])

    def newest(self, source: Source[F], now: float, boot_id: str) -> View[F] | None:
        """Return what this run has gathered, or has used again; None for neither."""
        new = self._new.get(source.name)
        return _sample(source, new[1]) if new else self.fresh(source, now, boot_id)

    def baseline(self, source: AnySource) -> Any:
        """Return the site's baseline of this source; None if there is none."""
        try:
            return msgspec.json.decode(self._baselines[source.name], type=source.facts)
        except (KeyError, msgspec.MsgspecError):
            return None

    @cached_property
    def _baselines(self) -> dict[str, msgspec.Raw]:
        try:
            data = (self._folder / _BASELINE).read_bytes()
            return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (OSError, msgspec.MsgspecError):
            return {}

    def remember(self, source: AnySource, sample: View[Any]) -> None:
        """Keep the facts that a run has gathered."""
        packed = msgspec.msgpack.encode(sample.facts)
        self._new[source.name] = (source, Stored(at=sample.at, boot_id=sample.boot_id, facts=packed))

    def count(self, failed: Mapping[str, bool], away: Iterable[str], ran: Iterable[str]) -> None:
        """Add a periodic run: whether each subject (``gpu.ecc gpu3``) has failed, and which keep jobs away.

        ``ran`` are the checks that could tell: of those, a subject that is not in ``failed`` is no more, and
        begins anew. All counts of other checks stay.
        """
        self._failed |= failed
        self._away |= set(away)
        self._ran |= set(ran)

    def keeping_away(self, name: str) -> int:
        """Return in how many periodic runs the subject has failed so that it keeps jobs away, since it last
        passed, the one just counted included.
        """
        return self._counted(self._contents.away, self._away, self._passed).get(name, 0)

    @property
    def _passed(self) -> set[str]:
        return {name for name, failed in self._failed.items() if not failed}

    @property
    def _failing(self) -> set[str]:
        return {name for name, failed in self._failed.items() if failed}

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the subjects that fail since the run just counted, and those that do so no longer."""
        before = self._contents.failing.keys()
        now = self._counted(self._contents.failing, self._failing, self._passed).keys()
        return sorted(now - before), sorted(before - now)

    def save(self) -> bool:
        """Write. False when the disk did not take it in time; nothing is raised."""
        if not self._new and not self._ran and not self._failed:
            return True
        return call({"save": self._save}, {"save": SAVE_S}, SAVE_S)["save"].value is not None

    def _save(self) -> bytes:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            # A user who can open it can lock it, so that nothing would be remembered any more.
            os.fchmod(lock.fileno(), 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            merged = self._merged(_read(self._folder))
            packed = msgspec.msgpack.encode(merged)
            if len(packed) > MAX_BYTES:
                newest = {name: kept[-1:] for name, kept in merged.facts.items()}
                packed = msgspec.msgpack.encode(msgspec.structs.replace(merged, facts=newest))
            _replace(self._folder / _FACTS, packed, 0o600, durable=False)  # with lines of the kernel's log
        return b"saved"

    def _merged(self, contents: _Contents) -> _Contents:
        facts = dict(contents.facts)
        for name, (source, stored) in self._new.items():
            facts[name] = joined(facts.get(name, []), stored, source.history_s)
        return _Contents(
            facts=facts,
            failing=self._counted(contents.failing, self._failing, self._passed),
            away=self._counted(contents.away, self._away, self._passed),
        )

    def _counted(self, before: Mapping[str, int], now: set[str], over: set[str]) -> dict[str, int]:
        """Count ``now`` once more; ``over`` and what is no more begin anew."""
        gone = {name for name in before if name.partition(" ")[0] in self._ran and name not in self._failed}
        more = {name: before.get(name, 0) + 1 for name in now}
        return {name: count for name, count in (dict(before) | more).items() if name not in over | gone}


class ProcessMemory(Memory):
    """The node's baseline, and what one process remembers for as long as it lives; nothing is written.

    For a process that checks again and again but is not root, or is not to be counted with the node's hooks.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._contents = _Contents()

    def save(self) -> bool:
        """Keep what the run has found. :meth:`failing` then has its counts."""
        self._contents = self._merged(self._contents)
        self._new, self._failed, self._away, self._ran = {}, {}, set(), set()
        return True


def record_baseline(folder: Path, facts: Mapping[str, Record]) -> None:
    """Make these facts, by name of their source, what the node is compared with. Raises ``OSError``."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(folder / _BASELINE, msgspec.json.format(msgspec.json.encode(facts)) + b"\n", 0o644)


def _read(folder: Path) -> _Contents:
    try:
        contents = msgspec.msgpack.decode((folder / _FACTS).read_bytes(), type=_Contents)
    except (OSError, msgspec.MsgspecError):
        return _Contents()
    return contents if contents.format == _FORMAT else _Contents()


def _replace(path: Path, data: bytes, mode: int, *, durable: bool = True) -> None:
    """Replace the file. ``durable``: wait for the disk; what may be lost in a power cut does not."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def _sample(source: AnySource, stored: Stored) -> View[Any] | None:
    """Return the sample; None for facts of another version of the source."""
    try:
        facts = msgspec.msgpack.decode(stored.facts, type=source.facts)
    except msgspec.MsgspecError:
        return None
    return View(at=stored.at, boot_id=stored.boot_id, facts=facts)


def joined(kept: list[Stored], new: Stored, history_s: float) -> list[Stored]:
    """Return all in the order of time. What is of the future was written before the clock was put back.

    The newest few are all kept: they tell what came in a row. Among those before, one gives way if runs
    follow each other so closely that the places would not last for ``history_s``.
    """
    earlier = [stored for stored in kept if new.at - history_s <= stored.at < new.at]
    apart_s = history_s / (HISTORY - IN_A_ROW - 1)
    if len(earlier) > IN_A_ROW and earlier[-IN_A_ROW].at - earlier[-IN_A_ROW - 1].at < apart_s:
        del earlier[-IN_A_ROW]
    return [*earlier[-(HISTORY - 1) :], new]
