"""Whether loss and gradient norm, as scripts report them, are still healthy. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median, median_low

from slurm_robust.config.job import DetectConfig
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import Progress
from slurm_robust.model.record import Record
from slurm_robust.util.text import named_ranks

WINDOW = 50
"""Accepted values of which the rolling median is made."""

FEW_VALUES = 20
"""Fewer make no median."""

_NOISE = 6.0
# The standard deviation of normally distributed numbers in terms of their median absolute deviation.
_SIGMA = 1.4826


class Series:
    """Values in their order, each a finite number.

    A value is a jump if it is ``factor`` times the median of the last 50 accepted ones or more, but only
    beyond all of them and beyond six standard deviations of their logarithms: a series that is noisy by
    nature, or has two levels, has such values every now and then. Multiples mean something for positive
    numbers only, so while one of the last 50 was zero or negative, nothing is a jump. Jumps are not accepted,
    until there were 50 of them in a row: then the level has changed.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._accepted: deque[float] = deque(maxlen=WINDOW)
        self._refused: list[float] = []
        self.median = 0.0

    @property
    def has_jumped(self) -> bool:
        """Whether the newest value was a jump."""
        return bool(self._refused)

    def add(self, value: float, *, judge: bool = True) -> None:
        """Add the next value; with ``judge`` False it is accepted whatever it is."""
        if judge and self._is_jump(value):
            self._refused.append(value)
            if len(self._refused) < WINDOW:
                return
            self._accepted.extend(self._refused)
        else:
            self._accepted.append(value)
        self._refused.clear()

    def _is_jump(self, value: float) -> bool:
        """Keeps the median for the report."""
        if len(self._accepted) < FEW_VALUES or min(self._accepted) <= 0 or value <= max(self._accepted):
            return False
        self.median = median_low(self._accepted)  # one of them, so that nothing overflows
        middle = math.log(self.median)
        spread = _SIGMA * median(abs(math.log(accepted) - middle) for accepted in self._accepted)
        return math.log(value) - middle >= max(math.log(self._factor), _NOISE * spread)


_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}
# A scaled training in half precision skips single steps whose gradients overflow.
_GRADIENTS_IN_A_ROW = 2


class MetricVerdict(Record):
    """A metric is not finite or has jumped."""

    symptom: Symptom
    """Non-finite, or a spike."""
    rank: int
    """The first that shows it."""
    step: int
    text: str
    """What it means."""
    age_s: float
    """Seconds since ``step``."""
    ranks: tuple[int, ...]
    """All that show it."""
    good_step: int = -1
    """The newest step before at which all ranks reported finite numbers, -1 if none in this generation."""


class MetricWatch:
    """Follows the metrics of one generation; ``best_step``: the newest step of the job before it, -1: none.

    Records are samples: of short steps most are never seen.
    """

    def __init__(self, config: DetectConfig, best_step: int) -> None:
        self._config = config
        self._is_resumed = best_step >= 0
        self._warm_until: int | None = None
        self._seen: dict[int, int] = {}  # newest step by rank
        self._bad_gradients: dict[int, int] = {}  # in a row, by rank
        self._series = {name: Series(config.spike_factor) for name in _NAMES}
        self._is_bad = False
        self._good_step = -1
        self._pending: list[MetricVerdict] = []
        self._healed: list[str] = []

    def see(self, records: Sequence[Progress]) -> None:
        """See the records of all ranks; only new steps count, and only of ranks that report them."""
        fresh = [r for r in records if r.reported and r.step > self._seen.get(r.rank, -1)]
        if not fresh:
            return
        self._seen.update((r.rank, r.step) for r in fresh)
        if self._warm_until is None:
            first = 0 if self._is_resumed else min(r.step for r in fresh)
            self._warm_until = first + self._config.spike_warmup_steps
        if self._config.non_finite:
            self._see_non_finite(records, fresh, self._warm_until)
        for name, series in self._series.items():
            self._see_jump(name, series, records, fresh, self._warm_until)

    def verdict(self) -> MetricVerdict | None:
        """Return the next thing that is wrong and was not reported yet; None if there is none."""
        return self._pending.pop(0) if self._pending else None

    def healed(self) -> tuple[str, ...]:
        """Return the texts about what has become normal again since the last call."""
        found, self._healed = tuple(self._healed), []
        return found

    def _see_non_finite(self, records: Sequence[Progress], fresh: list[Progress], warm_until: int) -> None:
        for record in fresh:
            bad = record.step >= warm_until and _is_bad(record.grad_norm)
            self._bad_gradients[record.rank] = self._bad_gradients.get(record.rank, 0) + 1 if bad else 0
        shown = [r for r in records if r.step >= 0 and self._is_wrong(r)]
        if shown and not self._is_bad:
            first = min(shown, key=_began)
            ranks = tuple(sorted(r.rank for r in shown))
            self._pending.append(
                MetricVerdict(
                    symptom=Symptom.NON_FINITE,
                    rank=first.rank,
                    step=_first_bad(first),
                    text=_non_finite(shown, records),
                    age_s=first.age_s,
                    ranks=ranks,
                    good_step=self._good(records),
                )
            )
        elif self._is_bad and not shown:
            self._healed.append("loss and gradient norm are finite again")
        self._is_bad = bool(shown)
        if not shown and all(r.reported for r in records):
            self._good_step = max(self._good_step, min(r.step for r in records))

    def _good(self, records: Sequence[Progress]) -> int:
        """Return the newest step that was good on all ranks: as they saw it, else as it was seen here."""
        bad = min((r.bad_step for r in records if r.bad_step >= 0), default=None)
        return self._good_step if bad is None else bad - 1

    def _is_wrong(self, record: Progress) -> bool:
        return _is_bad(record.loss) or self._bad_gradients.get(record.rank, 0) >= _GRADIENTS_IN_A_ROW

    def _see_jump(
        self, name: str, series: Series, records: Sequence[Progress], fresh: list[Progress], warm_until: int
    ) -> None:
        """See a jump on one rank, the lowest that reports: losses of different ranks differ."""
        of = min((r for r in records if getattr(r, name) is not None), key=lambda r: r.rank, default=None)
        if of is None or of not in fresh or not math.isfinite(value := getattr(of, name)):
            return
        before = series.has_jumped
        series.add(value, judge=of.step >= warm_until)
        if series.has_jumped and not before:
            text = (
                f"{_NAMES[name]} of rank {of.rank} is {value:.4g} at step {of.step}, "
                f"{value / series.median:.3g} times the median of the steps before ({series.median:.4g})"
            )
            self._pending.append(
                MetricVerdict(
                    symptom=Symptom.SPIKE,
                    rank=of.rank,
                    step=of.step,
                    text=text,
                    age_s=of.age_s,
                    ranks=(of.rank,),
                )
            )
        elif before and not series.has_jumped:
            self._healed.append(f"{_NAMES[name]} is {value:.4g} at step {of.step} again")


def _is_bad(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def where_it_began(records: Sequence[Progress]) -> str:
    """Return which ranks' loss is not finite, and on which one it began; "" if all are finite.

    The rank that was heard first may not be the one on which it began: each rank records its own first bad
    step.
    """
    shown = [r for r in records if _is_bad(r.loss)]
    return _non_finite(shown, records) if shown else ""


def _first_bad(record: Progress) -> int:
    """Return the step since which this rank's numbers are not finite; its newest one if that is not known."""
    return record.bad_step if record.bad_step >= 0 and _is_bad(record.loss) else record.step


def _began(record: Progress) -> tuple[int, float, int]:
    return _first_bad(record), -record.age_s, record.rank


def _non_finite(shown: list[Progress], records: Sequence[Progress]) -> str:
    """Say on which ranks; a loss is each rank's own, so one that is alone with it points to itself."""
    first, ranks = min(shown, key=_began), tuple(sorted(r.rank for r in shown))
    step = _first_bad(first)
    name = "loss" if _is_bad(first.loss) else "grad_norm"
    text = f"{_NAMES[name]} is {getattr(first, name)} at step {step} on rank {first.rank}"
    others = [r for r in records if r.rank not in ranks and r.loss is not None]
    later = [_first_bad(r) for r in shown if _first_bad(r) > step]
    if not others and later:
        firsts = named_ranks([r.rank for r in shown if _first_bad(r) == step])
        what = f"{_NAMES[name]} is {getattr(first, name)} at step {step} on {firsts} first"
        return f"{what}; on the others from step {min(later)} on"
    if not others:
        return f"{text}; on all ranks that report" if len(ranks) > 1 else text
    good = sum(r.step >= step for r in others)
    if not good:
        return f"{text}; {named_ranks(ranks)} of those that are so far show it"
    if len(ranks) == 1:
        return f"{text} and on no other; {good} report a finite one: its data or hardware are suspect"
    return f"{text} first; {named_ranks(ranks)} show it, {good} others report a finite one"
