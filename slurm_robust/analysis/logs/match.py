"""Which rules see what in a log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import accumulate, islice
from typing import NamedTuple

from slurm_robust.analysis.logs import curve, frames, signs
from slurm_robust.analysis.logs.patterns import compiled, words_of
from slurm_robust.analysis.logs.rule import Curve, Rule, RuleSet, Tier, Trigger
from slurm_robust.analysis.logs.text import Line
from slurm_robust.nodes.kernel import shapes, xid

MOST_LINES = 400
"""So many lines with a word are looked at, half of them the first and half the last ones."""

MOST_TROUBLE = 5
"""So many of the last lines are shown of a log that no rule knows."""

# What dmesg, journalctl and syslog write in front of the kernel's own text.
_BEFORE_KERNEL = re.compile(
    r"(?:.{0,60}?\bkernel: ?)?(?:<\d>)?(?:\[[^\]]{1,40}\] ?)?(?:T\d+\] )?", re.IGNORECASE
)

# Health checks, device plugins and people retell the driver's codes in their own words.
_XID = re.compile(
    r"\bXid(?:[ _-]?(?:error|code|event)s?)?\W{1,3}(?:\(?PCI[:\w.]{1,20}\)?\W{1,3})?(\d{1,3})\b",
    re.IGNORECASE,
)

_NUMBER = re.compile(r"[0-9]+")


class Sighting(NamedTuple):
    """A rule that matched. ``at`` counts the lines of the log as they were read."""

    rule: Rule
    at: int
    line: Line

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """The least one decides."""
        return self.rule.tier.order, not self.rule.site, -self.rule.weight, self.at


class Sightings(NamedTuple):
    """What is seen in a log. ``decided``: all that the rules see, the deciding one first.

    Only where that is nothing there is more: ``trouble``, the last lines that look like failures and that no
    rule knows as harmless, and ``is_well``: no such line, but one that tells of a training that goes on or
    ended well, or one that a rule knows. What is not a program's own log tells of failures only, so that
    without one it is well.
    """

    decided: list[Sighting]
    trouble: tuple[Line, ...] = ()
    is_well: bool = False


def sightings(lines: Sequence[Line], rules: RuleSet, stream: str) -> Sightings:
    """Have the rules look at a log. Of the rules on one line only the weightiest speak."""
    log = _Log(lines)
    harmless = {at for span in frames.ignored(lines, log.having) for at in span}
    found: dict[int, dict[str, Rule]] = defaultdict(dict)
    for word, triggers in rules.triggers.items():
        for at in log.having(word):
            if at in harmless:
                continue
            for rule in _matching(triggers, lines[at].text, stream):
                found[at][rule.name] = rule
    for rule, at in log.curved(rules.curves):
        found[at][rule.name] = rule
    times = Counter(name for there in found.values() for name in there)
    decided: list[Sighting] = []
    for at, there in found.items():
        known = [rule for rule in there.values() if times[rule.name] >= rule.times and log.allows(rule)]
        heard = _heard(known)
        decided += (Sighting(rule, at, lines[at]) for rule in heard if rule.tier is not Tier.NOISE)
        harmless.update(at for rule in heard if rule.tier is Tier.NOISE)
    if decided:
        return Sightings(sorted(decided, key=lambda sighting: sighting.order))
    trouble = log.trouble(harmless)
    is_well = bool(harmless) or log.has(signs.LIFE) or (stream != "program" and bool(lines[0].text))
    return Sightings([], trouble, is_well and not trouble)


def _matching(triggers: Sequence[Trigger], text: str, stream: str) -> Iterator[Rule]:
    for rule, pattern in triggers:
        if rule.streams and stream not in rule.streams:
            continue
        hit = compiled(pattern).search(text) if pattern is not None else _is_kernels(rule, text)
        if hit and not any(compiled(other).search(text) for other in rule.unless):
            yield rule


def _heard(rules: Sequence[Rule]) -> list[Rule]:
    """Who speaks for a line: a site's rules before ours, then the weightiest; noise alone if one says so."""
    known = [rule for rule in rules if rule.site] or list(rules)
    most = max((rule.weight for rule in known), default=0)
    heard = [rule for rule in known if rule.weight == most]
    return [rule for rule in heard if rule.tier is Tier.NOISE] or heard


def _is_kernels(rule: Rule, text: str) -> bool:
    message = _BEFORE_KERNEL.sub("", xid.without_prefix(text), count=1)
    if rule.xids:
        return _code(message) in rule.xids
    known = shapes.recognise(message)
    return known is not None and known[0].name in rule.shapes


def _code(message: str) -> int | None:
    found = xid.parse(message)
    if found is not None:
        return found.cause or found.code
    retold = _XID.search(message)
    return int(retold[1]) if retold else None


def _shape(text: str) -> str:
    """In lower case, and each number is 0: a word in a line is also in the line's shape."""
    return _NUMBER.sub("0", text.lower())


class _Log:
    """Lines by their words. Lines that differ only in numbers, as most do, are searched once."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._alike: dict[str, list[int]] = defaultdict(list)
        for at, shape in enumerate(_shape("\n".join(line.text for line in lines)).split("\n")):
            self._alike[shape].append(at)
        self._shapes = list(self._alike)
        self._whole = "\n".join(self._shapes)
        self._starts = list(accumulate((len(shape) + 1 for shape in self._shapes), initial=0))
        self._known: dict[str, bool] = {}

    def having(self, word: str) -> list[int]:
        """The first and the last lines that may have ``word``."""
        found = sorted(at for shape in self._walk(_shape(word)) for at in self._alike[shape])
        half = MOST_LINES // 2
        return found if len(found) <= MOST_LINES else [*found[:half], *found[-half:]]

    def _walk(self, word: str) -> Iterator[str]:
        place = self._whole.find(word)
        while place >= 0:
            index = bisect_right(self._starts, place) - 1
            yield self._shapes[index]
            place = self._whole.find(word, self._starts[index + 1])

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Whether the shape of any line is like that."""
        return any(map(pattern.search, self._shapes))

    def trouble(self, harmless: Set[int]) -> tuple[Line, ...]:
        """The last lines that look like failures, without ``harmless`` ones and those that are like them."""
        alike = (ats for shape, ats in self._alike.items() if signs.TROUBLE.search(shape))
        suspicious = sorted(at for ats in alike if harmless.isdisjoint(ats) for at in ats)
        lines = (self._lines[at] for at in reversed(suspicious))
        return tuple(islice((line for line in lines if not signs.HARMLESS.search(line.text)), MOST_TROUBLE))[
            ::-1
        ]

    def curved(self, rules: Sequence[Rule]) -> Iterator[tuple[Rule, int]]:
        """Where losses and gradient norms do what rules name."""
        chosen = sorted({at for word in curve.WORDS for at in self.having(word)}) if rules else []
        lines = [self._lines[at] for at in chosen]
        for rule in rules:
            at = (curve.jump if rule.curve is Curve.JUMP else curve.non_finite)(lines)
            if at is not None:
                yield rule, chosen[at]

    def allows(self, rule: Rule) -> bool:
        """Whether the rest of the log is as the rule wants it."""
        return all(map(self._holds, rule.all)) and not any(map(self._holds, rule.without))

    def _holds(self, pattern: str) -> bool:
        if pattern not in self._known:
            search = compiled(pattern).search
            places = {at for word in words_of(pattern) for at in self.having(word)}
            self._known[pattern] = any(search(self._lines[at].text) for at in places)
        return self._known[pattern]
