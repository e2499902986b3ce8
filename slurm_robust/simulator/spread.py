"""Times and rates as people write them in a spec, each with its unit. Pure.

====================================  ==========================================================
``90 s``, ``10 min``, ``2 h``         always this time
``5 s to 15 s``                       any time in between is equally likely
``3 h mean``                          exponential
``0.7 days median, 6.5 days mean``    lognormal: a few take much longer than most
``one of 4 s, 9 s, 9.5 s``            each of these is equally likely: times that were measured
``6.5 / 1000 node-days``              a rate; also by ``node-day``, ``GPU-year``, ``h``, ``90 days``
====================================  ==========================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from statistics import NormalDist

from slurm_robust.model.record import Record

UNITS = {
    "s": 1.0,
    "second": 1.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 7 * 86400.0,
    "year": 365.25 * 86400.0,
}
"""Seconds of each unit, which may have a plural s."""

EXAMPLE = "90 s, 5 s to 15 s, 3 h mean, or 0.7 days median, 6.5 days mean"
RATE_EXAMPLE = "6.5 / 1000 node-days, 0.2 / GPU-year or 175 / 90 days"

MAX_S = 1000 * UNITS["year"]
"""Longer than anything that is simulated."""

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
_TIME = re.compile(rf"{_NUMBER}\s*([A-Za-z]*)")
_RATE = re.compile(rf"{_NUMBER}\s*(?:/|per)\s*(?:{_NUMBER}\s*)?(?:(node|GPU|gpu)[- ])?([A-Za-z]+)")
_NORMAL = NormalDist()
_ONE_OF = "one of "


class Spread(Record):
    """How long something takes: a time, or a distribution of times. All are in seconds.

    ``sigma``: of a lognormal distribution with ``median_s``; ``low_s`` to ``high_s``: of a uniform one.
    """

    kind: str
    """``fixed``, ``uniform``, ``exponential``, ``lognormal`` or ``measured``."""
    mean_s: float
    low_s: float = 0.0
    high_s: float = 0.0
    median_s: float = 0.0
    sigma: float = 0.0
    values_s: tuple[float, ...] = ()
    """Of a measured one, the shortest first."""

    def draw(self, chance: Random) -> float:
        """Draw one time."""
        match self.kind:
            case "uniform":
                return chance.uniform(self.low_s, self.high_s)
            case "exponential":
                return chance.expovariate(1 / self.mean_s) if self.mean_s else 0.0
            case "lognormal":
                return chance.lognormvariate(math.log(self.median_s), self.sigma)
            case "measured":
                return chance.choice(self.values_s)
        return self.mean_s

    def quantile(self, share: float) -> float:
        """Return the time that ``share`` (above 0, below 1) of all stay below."""
        match self.kind:
            case "uniform":
                return self.low_s + share * (self.high_s - self.low_s)
            case "exponential":
                return -self.mean_s * math.log1p(-share)
            case "lognormal":
                return self.median_s * math.exp(self.sigma * _NORMAL.inv_cdf(share))
            case "measured":
                return self.values_s[int(share * len(self.values_s))]
        return self.mean_s


class Rate(Record):
    """How often something happens: ``per_s`` for each of ``what``."""

    per_s: float
    what: str = "job"
    """``job``, ``node`` or ``GPU``."""

    def of_job(self, nodes: int, gpus: int) -> float:
        """Return the rate per second of a job with this number of nodes and of GPUs."""
        return self.per_s * {"job": 1, "node": nodes, "GPU": gpus}[self.what]


def seconds(text: str) -> float:
    """Return the seconds of ``10 min``. Raises ``ValueError``, which says what is wrong."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no time of 0 or more; write for example 90 s, 10 min, 2 h or 3 days")
    value = float(found[1]) * _unit(text, found[2])
    if value > MAX_S:
        raise ValueError(f"{text!r} is longer than 1000 years")
    return value


def _unit(text: str, unit: str) -> float:
    if not unit:
        raise ValueError(f"{text!r} has no unit; add s, min, h or days")
    known = UNITS.get(unit) or UNITS.get(unit.removesuffix("s"))
    if known is None:
        raise ValueError(f"{text!r}: {unit} is no unit of time; write s, min, h, days, weeks or years")
    return known


@lru_cache(maxsize=1024)
def parse(text: str) -> Spread:
    """Return the spread that ``text`` says. Raises ``ValueError``, which says what is wrong."""
    if text.startswith(_ONE_OF):
        return measured([seconds(part) for part in text.removeprefix(_ONE_OF).split(",")])
    low, to, high = text.partition(" to ")
    if to:
        begin, end = seconds(low), seconds(high)
        if begin > end:
            raise ValueError(f"{text!r}: {low.strip()} is longer than {high.strip()}; exchange them")
        return Spread(kind="uniform", mean_s=(begin + end) / 2, low_s=begin, high_s=end)
    parts = [part.strip() for part in text.split(",")]
    named = {part.rpartition(" ")[2]: part.rpartition(" ")[0] for part in parts}
    if len(parts) == 2 and named.keys() == {"median", "mean"}:
        return lognormal(seconds(named["median"]), seconds(named["mean"]))
    if len(parts) == 1 and named.keys() == {"mean"}:
        return Spread(kind="exponential", mean_s=seconds(named["mean"]))
    if len(parts) > 1 or named.keys() == {"median"}:
        raise ValueError(f"{text!r} is no distribution; write for example {EXAMPLE}")
    return Spread(kind="fixed", mean_s=seconds(text))


def measured(values_s: Sequence[float]) -> Spread:
    """Return the distribution of these times, of which there must be one at least."""
    return Spread(kind="measured", mean_s=sum(values_s) / len(values_s), values_s=tuple(sorted(values_s)))


def text_of(values_s: Sequence[float]) -> str:
    """Return the text for :func:`parse` of these times, of which there must be one at least."""
    texts = [f"{value:.6g} s" for value in values_s]
    return texts[0] if len(set(texts)) == 1 else _ONE_OF + ", ".join(texts)


def lognormal(median_s: float, mean_s: float) -> Spread:
    """Return the lognormal distribution with this median and mean. Raises ``ValueError``."""
    if not 0 < median_s <= mean_s:
        raise ValueError(
            f"a median of {median_s:g} s and a mean of {mean_s:g} s: the median must be above 0, "
            "and the mean not below it"
        )
    sigma = math.sqrt(2 * math.log(mean_s / median_s))
    return Spread(kind="lognormal", mean_s=mean_s, median_s=median_s, sigma=sigma)


def rate(text: str) -> Rate:
    """Return the rate that ``text`` says. Raises ``ValueError``, which says what is wrong."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no rate; write for example {RATE_EXAMPLE}")
    over = float(found[2] or 1) * _unit(text, found[4])
    if over <= 0:
        raise ValueError(f"{text!r}: no time to divide by; write for example {RATE_EXAMPLE}")
    what = {"node": "node", "gpu": "GPU", None: "job"}[found[3].lower() if found[3] else None]
    return Rate(per_s=float(found[1]) / over, what=what)
