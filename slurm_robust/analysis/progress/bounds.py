"""How long no step may come before that is a hang, and why so long. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from slurm_robust.config.job import DetectConfig
from slurm_robust.model.progress import FINISHED, RESTORE, RETURNED, UPDATE, PaceHistory
from slurm_robust.model.record import Record

WINDOW = 1000


class StepTimes:
    """The newest 1000 measured times, in seconds."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._ordered: list[float] | None = None
        self.steps = 0
        """How many were ever measured."""
        self.longest = 0.0
        """The longest of all that were ever measured."""

    def add(self, seconds: float, steps: int = 1) -> None:
        """Add one measurement, over ``steps`` steps that took ``seconds`` each, or at least one of them."""
        self._window.append(seconds)
        self._ordered = None
        self.steps += steps
        self.longest = max(self.longest, seconds)

    def __len__(self) -> int:
        return len(self._window)

    def quantile(self, share: float) -> float:
        """Return the least measured time that ``share`` of all do not exceed; 0 without any."""
        if self._ordered is None:
            self._ordered = sorted(self._window)
        if not self._ordered:
            return 0.0
        return self._ordered[max(0, math.ceil(share * len(self._ordered)) - 1)]


FEW_STEPS = 20
"""Fewer step times say nothing about their 99th percentile."""

MANY_STEPS = 1000
"""After this many steps those of earlier generations no longer count."""

LEARNED_FACTOR = 3.0
"""A rare event may take this many times as long as the longest so far."""

COLD_FACTOR = 4.0
"""The first step is allowed this many floors: on a new node every file is read from storage again."""

DOUBT_FACTOR = 4.0
"""After each hang that may have been slow work the next bound is this many times longer."""

UNLEARNED = (RESTORE, FINISHED, RETURNED, UPDATE)
"""How long these take says nothing of the next time: it depends on the place of the copy, on the script, and
on the controller.
"""


class Bound(Record):
    """``seconds`` without a step are allowed."""

    seconds: float
    why: str
    """How that was derived."""


HUNG_HERE = "detect.phase_s: it seemed to hang after this very step before, maybe in a phase not announced"

OFF = Bound(seconds=math.inf, why="hangs are not detected (detect.hang)")
SILENT = Bound(
    seconds=math.inf,
    why="the script has shown no step: without Checkpointer and torch optimizer, silence says nothing",
)


def first_step(config: DetectConfig, longest_s: float, *, hung_here: bool = False) -> Bound:
    """Return the bound from the launch until the first step, which took ``longest_s`` at most (0: unknown).

    ``hung_here``: training resumes at the very step after which it was taken for hanging before.
    """
    if hung_here and config.phase_s > LEARNED_FACTOR * longest_s:
        return Bound(seconds=config.phase_s, why=HUNG_HERE)
    if not longest_s:
        return Bound(seconds=config.first_step_s, why="first step: detect.first_step_s, none was seen yet")
    floor = COLD_FACTOR * config.hang_floor_s
    text = f"{LEARNED_FACTOR:g} x {span(longest_s)}, the longest first step so far"
    return _limited(text, LEARNED_FACTOR * longest_s, floor, config.first_step_s, "detect.first_step_s")


def in_phases(config: DetectConfig, names: Mapping[str, float], longest: Mapping[str, float]) -> Bound:
    """Return the bound while ranks are in phases ``names``: their longest. ``longest``: what they took."""
    return max((_in_phase(config, name, longest.get(name, 0.0)) for name in names), key=lambda b: b.seconds)


def _in_phase(config: DetectConfig, name: str, longest_s: float) -> Bound:
    if name in UNLEARNED:
        return Bound(seconds=config.phase_s, why=f"{name}: detect.phase_s, since it may take any time")
    if not longest_s:
        return Bound(seconds=config.phase_s, why=f"{name}: detect.phase_s, none was seen to end yet")
    text = f"{LEARNED_FACTOR:g} x {span(longest_s)}, the longest {name} so far"
    return _limited(text, LEARNED_FACTOR * longest_s, config.hang_floor_s, config.phase_s, "detect.phase_s")


def between_steps(
    config: DetectConfig, own: StepTimes, past: PaceHistory, *, hung_here: bool = False
) -> Bound:
    """Return the bound between two steps, from the times of this generation and of the job's ``past``.

    ``hung_here``: after this very step training was taken for hanging before.
    """
    found = usual(config, own, past) if own.steps >= FEW_STEPS else _begun(config, own, past)
    pause_s = min(LEARNED_FACTOR * past.pause_s, config.phase_s)
    if pause_s > found.seconds:
        text = f"{LEARNED_FACTOR:g} x {span(past.pause_s)}, the longest pause that ended by itself"
        found = Bound(seconds=pause_s, why=f"{text}; a phase that is announced would have its own bound")
    doubted_s = min(DOUBT_FACTOR**past.doubts * found.seconds, config.phase_s)
    if doubted_s > found.seconds:
        text = f"more than {found.why}, since it seemed to hang {past.doubts} times within hours"
        found = Bound(seconds=doubted_s, why=text)
    if hung_here and config.phase_s > found.seconds:
        # A fault seldom strikes twice at one step; a long evaluation that is not announced does.
        found = Bound(seconds=config.phase_s, why=HUNG_HERE)
    return found


def usual(config: DetectConfig, own: StepTimes, past: PaceHistory) -> Bound:
    """Return the bound by the 99th percentile of step times, of the past too if the generation is young."""
    p99 = own.quantile(0.99) if own.steps >= FEW_STEPS else 0.0
    if own.steps < MANY_STEPS:
        p99 = max(p99, past.p99_s)
    text = f"{config.hang_factor:g} x {span(p99)}, the 99th percentile of step times"
    return _at_least(text, config.hang_factor * p99, config.hang_floor_s)


def _begun(config: DetectConfig, own: StepTimes, past: PaceHistory) -> Bound:
    """Return the bound in the first steps, which compile and allocate: by the longest, or the first."""
    factor = config.hang_factor
    longest = max(own.longest, past.longest_s, past.p99_s)
    text = "the longest step so far"
    if past.steps < FEW_STEPS and past.first_step_s > longest:
        longest = max(longest, min(past.first_step_s, config.first_step_s / factor))
        text = "the longest so far with the first step"
    if not longest:
        return Bound(seconds=config.first_step_s, why="detect.first_step_s: no step time is known yet")
    text = f"{factor:g} x {span(longest)}, {text}: this generation has made only few"
    return _at_least(text, factor * longest, config.hang_floor_s)


def _limited(text: str, seconds: float, floor: float, limit: float, setting: str) -> Bound:
    if max(seconds, floor) > limit:
        return Bound(seconds=limit, why=f"{setting}; {text}, would be more")
    return _at_least(text, seconds, floor)


def _at_least(text: str, seconds: float, floor: float) -> Bound:
    if seconds < floor:
        return Bound(seconds=floor, why=f"the minimum; {text}, would be less")
    return Bound(seconds=seconds, why=text)


def span(seconds: float) -> str:
    """Return the seconds for people, in two digits, so that the words change only when it matters."""
    return f"{float(f'{seconds:.2g}'):g} s"
