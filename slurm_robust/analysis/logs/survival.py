"""Failures that the same log takes back: what follows them shows that they were survived. Pure.

A line counts as noise if one of these holds:

* a later line of the tier ``recovery`` says that the same thing works again (``rules/recovery.yaml``);
* it belongs to a report of the firmware of which another line says that nothing needs to be done;
* steps go on after it (``SURVIVABLE``, and before anything that ended a process);
* training had ended in good order before it (``AT_EXIT``).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

from slurm_robust.analysis.logs.rule import EvidenceTier, LogRule
from slurm_robust.analysis.logs.text import Line

SURVIVABLE = frozenset({
    "infiniband_error", "network_error", "nccl_internal_or_remote_error", "nccl_timeout", "secondary",
    "external_service_error", "filesystem_error", "job_hang", "gpu_oom", "cpu_overload", "data_error",
    "checkpoint_save_error", "disk_full",
})  # fmt: skip
"""Symptoms after which training can go on. Damaged hardware, a process that was killed and numbers that are
wrong stay what they are, however many steps follow.
"""

AT_EXIT = frozenset({
    "killed_signal", "secondary", "network_error", "nccl_internal_or_remote_error", "nccl_timeout",
    "job_hang", "code_error", "external_service_error",
})  # fmt: skip
"""Symptoms that the end of processes itself can cause, after the work has ended."""

_ENDS = ("killed_signal", "cpu_oom", "preemption_or_time_limit", "code_error")

STEP = re.compile(r"\b(step|iter|epoch|batch)(?:ation)?s?\b\W{0,12}(\d{1,12})\b|(\|)\s{0,8}(\d{1,12})/\d+ \[")
"""A line that tells how far training is: its kind and its number. For lines in lower case."""

ENDED = re.compile(
    r"\b(?:training|trainer|run|job|fit)\b(?:(?!\bnot\b|fail|abort|killed|error).){0,30}"
    r"\b(?:finished|completed?|done|ended|successful(?:ly)?)\b"
    r"|\bmax_(?:steps|epochs|time)\W{0,3}0\W{0,2} ?reached|exiting program.{0,4}at iteration"
)
"""A line of training that has ended in good order. For lines in lower case."""

# What a line speaks of: adapters and their ports, PCI functions, addresses, Lustre's targets, interfaces.
_SUBJECT = re.compile(
    r"\bmlx\d_\w+(?::\d+)?|\b[0-9a-f]{2}:[0-9a-f]{2}\.\d\b|\b(?:\d{1,3}\.){3}\d{1,3}\b"
    r"|\b\w+-(?:OST|MDT)[0-9a-f]{4}\b"
    r"|\b(?:eth|ens|eno|enp|bond|ib)\d\w*\b|\bnvme\d+\b|\{\d+\}(?=\[Hardware Error\])",
    re.IGNORECASE,
)
_REPORT = re.compile(r"(?:\{\d+\})?\[Hardware Error\]")


class Sighting(NamedTuple):
    """A rule that matched."""

    rule: LogRule
    at: int
    """Counts the lines of the log as they were read."""
    line: Line

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """The least one decides."""
        return self.rule.tier.order, not self.rule.site, -self.rule.weight, self.at


class LogProgress:
    """How far the lines of a log say that training is."""

    def __init__(self, lines: Sequence[Line], places: Iterable[int]) -> None:
        """Take ``places``, those of the lines that :data:`STEP` matches."""
        self._lines = lines
        self._places = sorted(places)

    @property
    def last(self) -> int | None:
        """The last of these lines."""
        return self._places[-1] if self._places else None

    def begins(self, before: int) -> bool:
        """Return whether a step was done before this line."""
        return bool(self._places) and self._places[0] < before

    def goes_on(self, after: int, before: int) -> bool:
        """Return whether two more steps were done between these lines than before the first."""
        begin, end = bisect_left(self._places, after + 1), bisect_left(self._places, before)
        if end - begin < 2:
            return False
        first, last = self._at(begin), self._at(end - 1)
        earlier = self._at(begin - 1) if begin else {}
        return any(
            number > max(first.get(kind, number), earlier.get(kind, -1)) for kind, number in last.items()
        )

    def _at(self, index: int) -> dict[str, int]:
        found = STEP.finditer(self._lines[self._places[index]].text.lower())
        return {match[1] or match[3]: int(match[2] or match[4]) for match in found}


class _Repairs:
    """The last lines that say that something works again, by symptom and by what they speak of."""

    _ANY = ""

    def __init__(self, repairs: Iterable[Sighting]) -> None:
        self._last: dict[tuple[str, str | None], int] = {}
        self._symptoms: set[str] = set()
        for repair in repairs:
            self._symptoms.update(repair.rule.takes_back)
            subjects = _subjects(repair.line)
            for key in product(
                repair.rule.takes_back, {*subjects, self._ANY} if subjects else {None, self._ANY}
            ):
                self._last[key] = max(repair.at, self._last.get(key, -1))

    def take_back(self, failure: Sighting) -> bool:
        """Return whether one of them is later and speaks of the same thing, or either names none."""
        if failure.rule.symptom not in self._symptoms:
            return False
        subjects = _subjects(failure.line)
        names = (*subjects, None) if subjects else (self._ANY,)
        return any(self._last.get((failure.rule.symptom, name), -1) > failure.at for name in names)


def _subjects(line: Line) -> set[str]:
    return {subject.lower() for subject in _SUBJECT.findall(line.text)}


def split(
    seen: Sequence[Sighting],
    *,
    raised: Sequence[int],
    progress: LogProgress,
    ended: int | None,
    count: int,
) -> tuple[list[Sighting], set[int]]:
    """Return the sightings that stand, and the lines of those that are taken back.

    ``seen``: with those of the tier ``recovery``. ``raised``: the lines with the exceptions of tracebacks.
    ``ended``: the line that tells the end of training. ``count``: the number of all lines.
    """
    repairs = [sighting for sighting in seen if sighting.rule.tier is EvidenceTier.RECOVERY]
    failures = [sighting for sighting in seen if sighting.rule.tier is not EvidenceTier.RECOVERY]
    newest = _Repairs(repairs)
    standing = [each for each in failures if not newest.take_back(each)]
    ends = sorted({each.at for each in standing if _ends_process(each)} | set(raised))

    def is_survived(each: Sighting) -> bool:
        place = bisect_left(ends, each.at)
        return (
            each.rule.symptom in SURVIVABLE
            and not each.rule.site
            and (place == len(ends) or ends[place] != each.at)
            and progress.goes_on(each.at, ends[place] if place < len(ends) else count)
        )

    standing = [each for each in standing if not is_survived(each)]
    if ended is not None and all(each.at > ended and _is_of_exit(each.rule) for each in standing):
        standing = []
    stands = {each.at for each in standing}
    return standing, {each.at for each in failures} - stands


def causes_first(seen: Sequence[Sighting]) -> list[Sighting]:
    """Return the deciding one first; what an earlier line brings about comes after all else."""
    begins: dict[str, int] = {}
    for each in seen:
        for symptom in each.rule.brings:
            begins[symptom] = min(each.at, begins.get(symptom, each.at))

    def follows(each: Sighting) -> bool:
        return not each.rule.site and each.at > begins.get(each.rule.symptom, each.at)

    return sorted(seen, key=lambda each: (follows(each), each.order))


def in_reports(
    lines: Sequence[Line], seen: Iterable[Sighting], having: Callable[[str], list[int]]
) -> set[int]:
    """Return the lines of all reports of the firmware of which one says that nothing needs to be done."""
    marked = having("[hardware error]")
    done = {
        each.at: set(each.rule.takes_back)
        for each in seen
        if each.rule.tier is EvidenceTier.RECOVERY and _REPORT.search(lines[each.at].text)
    }
    if not done:
        return set()
    reports: dict[int, list[int]] = {}
    last, name = -2, ""
    for at in marked:
        found = _REPORT.search(lines[at].text)
        own = found[0] if found else ""
        if own != name or (at != last + 1 and not own.startswith("{")):
            begin = at
        reports.setdefault(begin, []).append(at)
        last, name = at, own
    return {at for places in reports.values() if not done.keys().isdisjoint(places) for at in places}


def _ends_process(sighting: Sighting) -> bool:
    return sighting.rule.tier is EvidenceTier.SUMMARY or sighting.rule.symptom in _ENDS


def _is_of_exit(rule: LogRule) -> bool:
    return rule.symptom in AT_EXIT and not rule.site
