"""First-cause election: which of several ranks failed for a reason of its own. Pure.

When one rank dies, the others fail too: their collectives break. Clocks alone do not tell who was first,
because a rank killed by a signal is seen within a millisecond while an exception needs tens of milliseconds
to unwind. So ranks are ordered by what they say first, and by time second.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

from slurm_robust.analysis.logs.named import in_another_collective
from slurm_robust.analysis.logs.rule import EvidenceTier, RuleSet
from slurm_robust.analysis.logs.verdict import HEALTHY, UNKNOWN, Reading, read_exit, without_conviction
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import Cause, NodeExit, Remedy

Key = TypeVar("Key")

_TIME = re.compile(r"\b([01]\d|2[0-3]):([0-5]\d):([0-5]\d(?:[.,]\d{1,9})?)\b")
_COLLECTIVE = re.compile(r"(?:SeqNum|SequenceNumber)\W{1,3}(\d{1,12})|last completed NCCL work: (\d{1,12})")
_OPERATION = re.compile(r"OpType=(\w{1,40})")
_ROOTS = (
    EvidenceTier.CAUSE,
    EvidenceTier.FAILURE,
    EvidenceTier.SUMMARY,
    EvidenceTier.EFFECT,
    EvidenceTier.NOISE,
)

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)

TOGETHER_S = 2.0
"""Log lines of ranks within this many seconds count as simultaneous: clocks differ."""

_WAITING = ("nccl_timeout", "secondary", "network_error", "job_hang", "infiniband_error")

_DEVICES = (
    "gpu_memory_error",
    "gpu_unavailable",
    "nvlink_error",
    "driver_error",
    "os_kernel_panic_or_soft_lockup",
)

_OF_OTHERS = ("secondary", "network_error")

_COMPLAINS = 2
"""The distance of a worker that complains about a peer from the cause."""

_MAX_NAMING = 64
"""The most workers of which is read whom they name: each takes milliseconds."""

# The signals by which Slurm and people end a whole job.
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def of_all(readings: Mapping[Key, Reading], roots: Sequence[Key]) -> Reading:
    """Return what holds for all ranks: that of the first root; else what is unknown; else all is well.

    A root that says nothing itself is known from the ranks that wait for it, so theirs holds.
    """
    failed = [key for key in (*roots, *readings) if readings[key].tier is not None]
    if failed:
        own = [key for key in roots if readings[key].tier is not None][:1]
        # A rank that is behind may only have heard from the others that they wait.
        only_heard = any(readings[key].verdict.blame is Cause.SECONDARY for key in own)
        told = [key for key in failed if own and (only_heard or _tells_of_another(key, readings))]
        first = min((*own, *told) or failed, key=lambda key: _strength(readings[key]))
        return without_conviction(readings[first]) if len(readings) > 1 else readings[first]
    well = [reading for reading in readings.values() if reading.verdict == HEALTHY]
    unclear = [reading for reading in readings.values() if reading.context and reading.verdict == UNKNOWN]
    return next(iter((*unclear, *well)), Reading(verdict=UNKNOWN))


def first_causes(readings: Mapping[Key, Reading]) -> tuple[Key, ...]:
    """Return whose failure explains that of the others; empty if no rank failed, or all alike.

    Blame follows from evidence, the strongest first:

    1. lines of a device or of the kernel;
    2. a cause of a rank's own, by its tier (``_ROOTS``) and weight;
    3. if the ranks only wait, or tell the error of another one or the end of another host: the few that
       have begun fewer collectives than most, the ranks that their messages name, those on hosts that they
       name, then those that say nothing;
    4. the rank that is behind in the collectives, then the earliest failure, if all logs show it;
    5. the only one that failed, or the first as they are given, unless it only waits for an unknown rank;
    6. none.

    Several ranks are roots if each names the same cause of its own at about the same time.
    """
    failed = {key: reading for key, reading in readings.items() if reading.tier is not None}
    if not failed:
        return ()
    strength = {key: _strength(failed[key], of_another=_tells_of_another(key, readings)) for key in failed}
    best = [key for key in failed if strength[key] == min(strength.values())]
    lines = {key: failed[key].verdict.line for key in best}
    if (apart := _apart(lines, readings)) is not None:
        return (apart,)
    if late := _late(failed, strength):
        return late
    if absent := _absent({key: failed[key] for key in best}, readings):
        return absent
    if all(_tells_of_another(key, readings) for key in best):
        return ()
    behind, times = _where_all(lines, _collective), _where_all(lines, _time)
    first = min(best, key=lambda key: (behind[key], times[key]))
    until, same = times[first] + TOGETHER_S, failed[first].verdict.rule
    together = [key for key in best if times[key] <= until and behind[key] == behind[first]]
    if failed[first].tier is EvidenceTier.CAUSE:
        return tuple(key for key in best if failed[key].verdict.rule == same and times[key] <= until)
    alone = len(failed) == 1 < len(readings) and failed[first].verdict.blame is Cause.UNKNOWN
    if _waits(failed[first]) and (alone or 1 < len(together) == len(readings)):
        return ()
    return (first,)


def _apart(lines: Mapping[Key, str], readings: Iterable[Key]) -> Key | None:
    """Return the rank in another collective than all others: most name it, or it alone says so itself."""
    # Ranks are compared in order, so the one that differs names rank 0, and all others name it.
    names = Counter(other for line in lines.values() if (other := in_another_collective(line)))
    (first, times), (_, next_times), *_ = [*names.most_common(2), ("", 0), ("", 0)]
    if times > next_times and (first, times) != ("0", 1):
        return next((key for key in readings if str(key) == first), None)
    operations = {key: found[1] for key, line in lines.items() if (found := _OPERATION.search(line))}
    counts = Counter(operations.values())
    if len(operations) < max(3, len(lines)) or len(counts) != 2 or min(counts.values()) != 1:
        return None
    return next(key for key, operation in operations.items() if counts[operation] == 1)


def _late(failed: Mapping[Key, Reading], strength: Mapping[Key, tuple[int, int]]) -> tuple[Key, ...]:
    """Return the few ranks that have begun fewer collectives of a process group than most, if all tell it."""
    if min(strength.values())[0] < _ROOTS.index(EvidenceTier.EFFECT):
        return ()  # a cause tells more
    shared = set.intersection(*(set(reading.enqueued) for reading in failed.values()))
    for group in sorted(shared):
        numbers = {key: reading.enqueued[group] for key, reading in failed.items()}
        late = tuple(key for key, number in numbers.items() if number < max(numbers.values()))
        if late and 2 * len(late) < len(failed):
            return late
    return ()


def _absent(best: Mapping[Key, Reading], readings: Mapping[Key, Reading]) -> tuple[Key, ...]:
    """Return the ranks for which the others wait: those that are named, else those that say nothing."""
    named = {str(rank) for reading in best.values() for rank in reading.named or reading.told_of}
    gone = {host for reading in best.values() for host in reading.gone}
    found = tuple(key for key in readings if str(key) in named or _is_on(key, readings[key], gone))
    if found and len(found) < len(readings) and not set(found) >= set(best):
        return found
    waiting = [key for key in readings if _waits(readings[key]) or _tells_of_another(key, readings)]
    silent = tuple(key for key, reading in readings.items() if reading.tier is None)
    return silent if len(waiting) == len(readings) - len(silent) >= len(silent) > 0 else ()


def _tells_of_another(key: Key, readings: Mapping[Key, Reading]) -> bool:
    """Return whether a rank prints the error of another one that is known, or the end of another host."""
    reading = readings[key]
    told_of = set(map(str, reading.told_of))
    if reading.gone and not _is_on(key, reading, reading.gone):
        return True
    return str(key) not in told_of and not told_of.isdisjoint(map(str, readings))


def _is_on(key: Key, reading: Reading, hosts: Container[str]) -> bool:
    """Return whether a log is that of a rank on one of these hosts, or of the host itself."""
    return reading.host in hosts or str(key) in hosts


def _waits(reading: Reading) -> bool:
    """Return whether a rank only lost others, or waited for them in vain."""
    return reading.tier is EvidenceTier.EFFECT and not set(_WAITING).isdisjoint(reading.verdict.symptoms)


def _where_all(lines: Mapping[Key, str], read: Callable[[str], float | None]) -> dict[Key, float]:
    """Return the value in each line; nothing counts unless all lines have one."""
    values = {key: value for key, line in lines.items() if (value := read(line)) is not None}
    return values if len(values) == len(lines) else dict.fromkeys(lines, 0.0)


def _strength(reading: Reading, *, of_another: bool = False) -> tuple[int, int]:
    """Return the strength: the least is the root. A rank that only ended precedes one that blames a peer."""
    if of_another:
        return max(
            _ROOTS.index(EvidenceTier.EFFECT), _ROOTS.index(reading.tier or EvidenceTier.NOISE)
        ), -reading.weight
    if _shows_device(reading):
        return -1, -reading.weight
    if reading.tier is EvidenceTier.SUMMARY and reading.verdict.action is Remedy.NONE:
        return len(_ROOTS), -reading.weight  # ended together with the others
    return _ROOTS.index(reading.tier or EvidenceTier.NOISE), -reading.weight


def _collective(line: str) -> float | None:
    """Return the number of the collective in a line. A rank in a later one waits for the others."""
    found = _COLLECTIVE.search(line)
    return float(found[1] or found[2]) if found else None


def _time(line: str) -> float | None:
    """Return the seconds of the day that a line begins with, roughly."""
    found = _TIME.search(line[:200])
    if found is None:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3].replace(",", "."))


def blames_peer(exit: WorkerExit, rules: RuleSet | None = None) -> bool:
    """Return whether this worker failed because another one, or the network to it, had gone."""
    return _may_complain(exit) and _complains(exit, read_exit(exit, rules))


def _may_complain(exit: WorkerExit) -> bool:
    # A library that gives up on a peer aborts; any other signal came from outside.
    return exit.failed and (exit.error is not None or exit.signal in (None, signal.SIGABRT))


def _complains(exit: WorkerExit, found: Reading) -> bool:
    return _may_complain(exit) and (found.tier is EvidenceTier.EFFECT or found.verdict.symptom in _OF_OTHERS)


def _shows_device(reading: Reading) -> bool:
    return reading.tier is EvidenceTier.CAUSE and reading.verdict.symptom in _DEVICES


def root_exit(exits: Iterable[NodeExit], rules: RuleSet | None = None) -> NodeExit | None:
    """Return the failed exit that explains the others; None when no worker failed.

    The order is that of :func:`first_causes`: who shows a failure of a device comes first, then a worker
    killed by a signal or stopped by an exception of its own, one that was asked to end, one that waited in
    vain for a peer, and those whose connection to a peer was lost. Among workers that only complain about
    peers, the one that most of their messages name comes first. Among equals the earliest (largest ``age_s``)
    wins.
    """
    failed = sorted((e for e in exits if e.exit.failed), key=lambda e: (-e.exit.age_s, e.exit.rank))
    if len(failed) < 2:
        return next(iter(failed), None)
    # Reading a log takes milliseconds: of those that say the same but for numbers the earliest is read.
    earliest: dict[object, NodeExit] = {}
    for each in failed:
        earliest.setdefault(_said(each.exit), each)
    readings = {said: read_exit(each.exit, rules) for said, each in earliest.items()}
    distance = {said: _distance(each.exit, readings[said]) for said, each in earliest.items()}
    nearest = min(distance, key=lambda said: distance[said])
    named = None
    if distance[nearest] >= _COMPLAINS:
        naming = [e for e in failed if (found := readings[_said(e.exit)]).named or found.told_of]
        named = _named_by_most(failed, naming[:_MAX_NAMING], rules)
    return named or earliest[nearest]


def _named_by_most(
    failed: Sequence[NodeExit], naming: Iterable[NodeExit], rules: RuleSet | None
) -> NodeExit | None:
    """Return the worker that most messages of others name; None if they contradict each other."""
    ranks = {each.exit.rank for each in failed}
    counts: Counter[int] = Counter()
    for each in naming:
        reading = read_exit(each.exit, rules)
        counts.update({*reading.named, *reading.told_of} & ranks - {each.exit.rank})
    (first, times), (_, next_times), *_ = [*counts.most_common(2), (-1, 0), (-1, 0)]
    return next((e for e in failed if e.exit.rank == first), None) if times > next_times else None


def _said(exit: WorkerExit) -> object:
    error = exit.error
    text = "\n".join((error.type, error.message, *exit.tail) if error is not None else exit.tail)
    return exit.code, exit.signal, _NUMBER.sub("0", text)


def _distance(exit: WorkerExit, reading: Reading) -> int:
    if _complains(exit, reading):
        # A connection is closed by the end of a peer; who gave up waiting for one may be that peer.
        return _COMPLAINS + (reading.verdict.symptom in _OF_OTHERS)
    if _shows_device(reading):
        return -1
    return 1 if exit.signal in _ASKED_TO_END else 0
