"""The rules that match a log, and signs of trouble and of life in one that no rule knows. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from functools import cache, cached_property
from itertools import accumulate, islice
from typing import NamedTuple

from slurm_robust.analysis.logs import curve, frames, quoted, survival
from slurm_robust.analysis.logs.guesses import is_guess, without_guess
from slurm_robust.analysis.logs.patterns import compiled, literals_of
from slurm_robust.analysis.logs.rule import Curve, EvidenceTier, LogRule, RuleSet, Trigger
from slurm_robust.analysis.logs.survival import Sighting
from slurm_robust.analysis.logs.text import Line, canonical
from slurm_robust.kernel import shapes, xid
from slurm_robust.kernel.kmsg import KernelEvent

MAX_LINES = 400
"""At most this many lines with one literal are read, half of them the first and half the last ones."""

MAX_TROUBLE = 5
"""Number of last lines that are shown of a log that no rule knows."""

# What dmesg, journalctl and syslog write in front of the kernel's own text.
_BEFORE_KERNEL = re.compile(
    r"(?:.{0,60}?\bkernel: ?|kern *:\w+ *: *)?(?:<\d>)?(?:\[[^\]]{1,40}\] ?)?(?:T\d+\] )?", re.IGNORECASE
)

# Health checks, device plugins and people repeat the driver's codes in other forms.
_XID = re.compile(
    r"\bXid(?:[ _-]?(?:error|code|event)s?)?\W{1,3}(?:\(?PCI[:\w.]{1,20}\)?\W{1,3})?(\d{1,3})\b",
    re.IGNORECASE,
)

# How the driver tells what a GPU needs, and the times that may stand in front of it.
_NEEDS = "GPU recovery action changed"
_TIMES = re.compile(r"\d+(?:[-:/.,T ]\d+)+")

_NUMBER = re.compile(r"[0-9]+")

# Too little for a verdict, and enough to tell a healthy run from a log that no rule understands.
_TROUBLE = re.compile(
    r"(?<![\w-])(?:[\w.]*(?:error|exception)s?|traceback|fatal|fail(?:s|ed|ures?)?|abort(?:ed|ing)?|panic"
    r"|seg(?:mentation )?fault|core dumped|killed|crash(?:ed)?|died|lost|unreachable|denied|refused|rejected"
    r"|cannot|can't|could(?: not|n't)|unable to|no such|not found|timed out|timeout (?:after|expired)"
    r"|out of memory|corrupt(?:ed)?|illegal|invalid)(?![\w-])"
)
"""Lines that look like a failure. For lines in lower case, with 0 for each number."""

_HARMLESS = re.compile(
    r"\b(?:no|0|without) (?:[a-z]+ )?(?:errors?|failures?|failed|exceptions?)\b|error[ _]rates?"
    r"|(?:errors?|fail\w*|exceptions?)['\"]?\W{1,3}(?:0(?:\.\d+)?|none|false)(?![\d.])",
    re.IGNORECASE,
)
"""Lines that only count or configure something. For lines as they are."""

_LIFE = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch)s?\b\W{0,4}0|(?:loss|norm)\w*['\"]?\W{0,4}[-+]?0|\b0%\|"
    r"|0 ?(?:it|s|step|sample|token)s?/(?:s|sec|it)\b|\bsuccess(?:ful(?:ly)?)?\b|\bcompleted\b"
    r"|\b(?:training|run|job|epoch|worker group|validation|evaluation)\b.{0,40}"
    r"\b(?:finished|complete|done|ended)\b"
)
"""A run that goes on, or that has ended well. For lines in lower case, with 0 for each number."""

_IDLE = re.compile(r"\b(?:heartbeats?|waiting|keep-?alives?|still (?:alive|waiting|running)|idle)\b")
"""A process that lives and gets on with nothing. For lines in lower case."""

MIN_IDLE = 3
"""So many such lines, and no other ones, at the end of a log tell that nothing goes on."""


class Sightings(NamedTuple):
    """The matches in a log."""

    decided: list[Sighting]
    """All that count, the deciding one first. Only without any there is more:"""
    trouble: tuple[Line, ...] = ()
    """The last lines that look like failures and that no rule knows as harmless."""
    is_well: bool = False
    """No such line, but one that shows a run that goes on or ended well, or one that a rule knows. A log
    that is not a program's own reports failures only, so without one it is well.
    """
    taken_back: tuple[Line, ...] = ()
    """What looked like failures and was survived."""


def sightings(lines: Sequence[Line], rules: RuleSet, stream: str) -> Sightings:
    """Match a log against the rules. If several match a line, only those of the highest weight count."""
    log = _Log(lines)
    harmless = {at for span in frames.ignored(lines, log.having) for at in span}
    caught = frames.caught(lines, log.having)
    harmless |= {at for span in caught if log.progress.goes_on(span[-1], len(lines)) for at in span}
    seen = _seen(log, rules, stream, harmless)
    raised = [at for at in frames.raised(lines, log.having) if at not in harmless]
    in_reports = survival.in_reports(lines, seen, log.having)
    harmless |= in_reports | {each.at for each in seen if each.rule.is_harmless}
    counting = [each for each in seen if each.at not in in_reports]
    decided, back = survival.split(
        [each for each in counting if each.rule.tier is not EvidenceTier.NOISE],
        raised=raised,
        progress=log.progress,
        ended=log.ended,
        count=len(lines),
    )
    harmless |= back
    survived = tuple(lines[at] for at in sorted(back))
    if decided:
        return Sightings(survival.causes_first(decided), taken_back=survived)
    trouble = log.trouble(harmless)
    is_well = bool(harmless) or log.has(_LIFE) or (stream != "program" and bool(lines[0].text))
    return Sightings([], trouble, is_well and not trouble and not log.idles, survived)


def _seen(log: _Log, rules: RuleSet, stream: str, ignored: Set[int]) -> list[Sighting]:
    """Return what is left of the matching rules when each line has been given to those that count for it."""
    lines = log.lines
    found: dict[int, dict[str, LogRule]] = defaultdict(dict)
    for literal, triggers in rules.triggers.items():
        for at in log.having(literal):
            if at in ignored:
                continue
            for rule in _matching(triggers, log.text(at), stream):
                found[at][rule.name] = rule
    for rule, at in log.curved(rules.curves):
        found[at][rule.name] = rule
    for at in frames.explained(lines, found):
        del found[at]
    times = Counter(name for there in found.values() for name in there)
    return [
        Sighting(rule, at, lines[at])
        for at, there in found.items()
        for rule in _heard(
            [rule for rule in there.values() if times[rule.name] >= rule.times and log.allows(rule)]
        )
    ]


def _matching(triggers: Sequence[Trigger], text: str, stream: str) -> Iterator[LogRule]:
    for rule, pattern in triggers:
        if rule.streams and stream not in rule.streams:
            continue
        hit = compiled(pattern).search(text) if pattern is not None else _is_kernels(rule, text)
        if hit and not any(compiled(other).search(text) for other in rule.unless):
            yield rule


def _heard(rules: Sequence[LogRule]) -> list[LogRule]:
    """Return the rules that count for a line: a site's first, then by weight; noise hides others."""
    known = [rule for rule in rules if rule.site] or list(rules)
    most = max((rule.weight for rule in known), default=0)
    heard = [rule for rule in known if rule.weight == most]
    return [rule for rule in heard if rule.is_harmless] or heard


def _is_kernels(rule: LogRule, text: str) -> bool:
    message = _BEFORE_KERNEL.sub("", xid.without_prefix(text), count=1)
    if rule.xids:
        return _code(message) in rule.xids
    if rule.kinds:
        return _kind(message) in rule.kinds
    known = shapes.recognise(message)
    return known is not None and known[0].name in rule.shapes


def _code(message: str) -> int | None:
    found = _event(message)
    return (found.cause or found.code) if found is not None else None


def _kind(message: str) -> str:
    """Return what one of NVIDIA's codes means for the node."""
    found = _event(message)
    if found is None:
        return ""
    # If the event follows from another code, only that code counts; its line said how severe it was.
    return (xid.rule(found.cause) if found.cause else xid.rule(found.code, found.severity)).kind


def _event(message: str) -> KernelEvent | None:
    """Return the code in a message of the driver, or in one of a program that repeats it."""
    retold = None if message.startswith("NVRM: ") else _XID.search(message)
    if retold is None:
        return xid.parse(message)
    return xid.parse(f"NVRM: Xid (0000:00:00): {retold[1]}, {message[retold.end() :].lstrip(' ,:')}")


def _needs(text: str) -> tuple[str, str]:
    """Return the GPU of XID 154, with all but times in front of it, and what it needs; "" for none."""
    message = xid.without_prefix(text)
    found = xid.parse(message)
    if found is None or found.code != xid.RECOVERY_ACTION:
        return "", xid.XidSeverity.PLAIN.value
    # Hosts give their GPUs the same addresses.
    before = _TIMES.sub("", text[: len(text) - len(message)])
    return f"{''.join(before.split())} {found.subject}", found.severity


def _shape(text: str) -> str:
    """Return the shape: in lower case, each number is 0. A literal in a line is also in the line's shape."""
    return _NUMBER.sub("0", text.lower())


# One of the same few hundred for every log, as is the next.
_shape_of_literal = cache(_shape)


@cache
def _longest_word(shape: str) -> str:
    return max(shape.split(), key=len, default="")


class _Shapes:
    """Shapes of lines in one text, which is searched far faster than each by itself."""

    def __init__(self, shapes: Sequence[str]) -> None:
        self._shapes = shapes
        self.whole = "\n".join(shapes)
        self._starts = list(accumulate((len(shape) + 1 for shape in shapes), initial=0))

    def having(self, literal: str) -> Iterator[str]:
        """Yield those with ``literal``, in order."""
        place = self.whole.find(literal)
        while place >= 0:
            index = bisect_right(self._starts, place) - 1
            yield self._shapes[index]
            place = self.whole.find(literal, self._starts[index + 1])


class _Log:
    """Lines by their literals. Lines that differ only in numbers, as most do, are searched once."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self._alike: dict[str, list[int]] = defaultdict(list)
        for at, shape in enumerate(_shape("\n".join(line.text for line in lines)).split("\n")):
            self._alike[shape].append(at)
        self._by_first = _Shapes(list(self._alike))
        # Most literals are in no line, and a log has far fewer words than text.
        self._words = "\n".join(set(self._by_first.whole.split()))
        self._known: dict[str, bool] = {}
        self._texts: dict[int, str] = {}

    def text(self, at: int) -> str:
        """Return what rules read of a line: one spelling for all releases, no guess, nothing that is over."""
        if at not in self._texts:
            is_void = at in self._over or is_guess(self.lines, at) or self._is_quoted(at)
            self._texts[at] = "" if is_void else without_guess(canonical(self.lines[at].text))
        return self._texts[at]

    def _is_quoted(self, at: int) -> bool:
        """Return whether a program prints there what its model or its data say."""
        labelled = quoted.labelled(self.lines[at].text)
        if labelled is False:
            return False
        return bool(labelled and self.progress.begins(at)) or self.progress.goes_on(at, len(self.lines))

    @property
    def idles(self) -> bool:
        """Whether the log ends with processes that live and get on with nothing."""
        last = self.progress.last
        if last is None or self.ended is not None:
            return False
        rest = [line.text for line in self.lines[last + 1 :] if line.text]
        return len(rest) >= MIN_IDLE and all(_IDLE.search(text.lower()) for text in rest)

    @cached_property
    def _over(self) -> set[int]:
        """The lines with what a GPU needed until the driver said of the same one that it needs nothing."""
        found = [(at, _needs(self.lines[at].text)) for at in self.having(_NEEDS)]
        last = {gpu: at for at, (gpu, needs) in found if gpu and needs == xid.XidSeverity.NONE}
        return {at for at, (gpu, needs) in found if needs != xid.XidSeverity.NONE and at < last.get(gpu, -1)}

    @cached_property
    def _by_last(self) -> _Shapes:
        """The shapes in the opposite order of the last lines that have them."""
        return _Shapes(sorted(self._alike, key=lambda shape: -self._alike[shape][-1]))

    @cached_property
    def progress(self) -> survival.LogProgress:
        """The lines that tell how far training is."""
        places = (at for shape, ats in self._alike.items() if survival.STEP.search(shape) for at in ats)
        return survival.LogProgress(self.lines, places)

    @cached_property
    def ended(self) -> int | None:
        """The first line that tells the end of training in good order."""
        ends = (ats[0] for shape, ats in self._alike.items() if survival.ENDED.search(shape))
        return min(ends, default=None)

    def having(self, literal: str) -> list[int]:
        """Return the first and the last lines that may have ``literal``."""
        shape = _shape_of_literal(literal)
        if _longest_word(shape) not in self._words:
            return []
        # Of more shapes none has a line among the first ones.
        found = [self._alike[alike] for alike in islice(self._by_first.having(shape), MAX_LINES + 1)]
        if sum(map(len, found)) <= MAX_LINES:
            return sorted(at for ats in found for at in ats)
        half = MAX_LINES // 2
        first = sorted(at for ats in found[:half] for at in ats[:half])
        if len(found) > MAX_LINES:
            found = [self._alike[alike] for alike in islice(self._by_last.having(shape), half)]
        return [*first[:half], *sorted(at for ats in found for at in ats[-half:])[-half:]]

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Return whether the shape of any line is like that."""
        return any(map(pattern.search, self._alike))

    def trouble(self, harmless: Set[int]) -> tuple[Line, ...]:
        """Return the last lines that look like failures, without ``harmless`` ones and the like."""
        alike = (ats for shape, ats in self._alike.items() if _TROUBLE.search(shape))
        suspicious = sorted(at for ats in alike if harmless.isdisjoint(ats) for at in ats)
        if suspicious and self.progress.goes_on(suspicious[-1], len(self.lines)):
            return ()
        lines = (self.lines[at] for at in reversed(suspicious) if not self._is_quoted(at))
        return tuple(islice((line for line in lines if not _HARMLESS.search(line.text)), MAX_TROUBLE))[::-1]

    def curved(self, rules: Sequence[LogRule]) -> Iterator[tuple[LogRule, int]]:
        """Yield the lines at which losses and gradient norms do what rules name."""
        chosen = sorted({at for literal in curve.LITERALS for at in self.having(literal)}) if rules else []
        lines = [self.lines[at] for at in chosen]
        for rule in rules:
            at = (curve.jump if rule.curve is Curve.JUMP else curve.non_finite)(lines)
            if at is not None:
                yield rule, chosen[at]

    def allows(self, rule: LogRule) -> bool:
        """Return whether the rest of the log is as the rule wants it."""
        return all(map(self._holds, rule.all)) and not any(map(self._holds, rule.without))

    def _holds(self, pattern: str) -> bool:
        if pattern not in self._known:
            search = compiled(pattern).search
            places = {at for literal in literals_of(pattern) for at in self.having(literal)}
            self._known[pattern] = any(search(self.text(at)) for at in places)
        return self._known[pattern]
