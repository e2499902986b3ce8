"""What the training script wrote down, and the seconds from its death to its next new step. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Milestones of a rank on its way back, in their order.
MILESTONES = ("python", "imported", "group", "ready", "step")


@dataclass(frozen=True)
class Mark:
    """One line of a run's events: ``t`` is ``time.time()``, ``step`` -1 where it means nothing."""

    t: float
    name: str
    rank: int
    step: int
    run: int
    pid: int


@dataclass(frozen=True)
class Recovery:
    """Times of the slowest rank (``respawn``: of the fastest), seconds after the kill.

    ``resumed_at`` is the first step of the new run; equal to the killed one when no step was lost.
    """

    killed_at: float
    restarts: int
    resumed_at: int
    respawn: float
    python: float
    imported: float
    group: float
    ready: float
    step: float


@dataclass(frozen=True)
class NeverRecovered:
    """No run after the kill did the step: how many tried, and when the last of them was heard of."""

    restarts: int
    last_sign_s: float


def parse(text: str) -> list[Mark]:
    """Marks in the order of their lines; a torn last line is left out."""
    marks = []
    for line in text.splitlines():
        try:
            raw = json.loads(line)
        except json.JSONDecodeError:
            continue
        marks.append(Mark(raw["t"], raw["name"], raw["rank"], raw["step"], raw["run"], raw["pid"]))
    return marks


def read(path: Path) -> list[Mark]:
    """The marks in a file; none when it does not exist yet."""
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return []


def recovery(marks: Sequence[Mark], step: int, ranks: int) -> Recovery | NeverRecovered | None:
    """From the kill until the first run in which all ``ranks`` did ``step``; None without a kill."""
    kill = next((m.t for m in marks if m.name == "kill"), None)
    if kill is None:
        return None
    after = [m for m in marks if m.t > kill]
    runs = sorted({m.run for m in after if m.name == "python"})
    for run in runs:
        own = [m for m in after if m.run == run]
        if len([m for m in own if m.name == "step" and m.step == step]) == ranks:
            return _recovery(own, kill, step, runs.index(run) + 1)
    return NeverRecovered(len(runs), max((m.t for m in after), default=kill) - kill)


def _recovery(own: Sequence[Mark], kill: float, step: int, restarts: int) -> Recovery:
    def times(name: str) -> list[float]:
        return [m.t - kill for m in own if m.name == name and (name != "step" or m.step == step)]

    return Recovery(
        killed_at=kill,
        restarts=restarts,
        resumed_at=next(m.step for m in own if m.name == "ready"),
        respawn=min(times("python")),
        python=max(times("python")),
        imported=max(times("imported")),
        group=max(times("group")),
        ready=max(times("ready")),
        step=max(times("step")),
    )
