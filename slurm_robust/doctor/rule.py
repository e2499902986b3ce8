"""Hazard rules: declarations, and what they make of the facts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Literal

from slurm_robust.doctor.facts import Facts, Unseen
from slurm_robust.home import with_addresses
from slurm_robust.model.record import Record
from slurm_robust.slurm.errors import SlurmError

Need = Literal[
    "configured",
    "refused",
    "hears",
    "shape",
    "run",
    "missing",
    "slurm",
    "clock_s",
    "job",
    "options",
    "environ",
    "software",
    "node",
    "gpus",
    "nodes",
    "ranks",
    "state_bytes",
]
"""The facts beside the job's settings, as :class:`~slurm_robust.doctor.facts.Facts` names them."""


class Level(str, Enum):
    """What a rule made of the facts, worst first."""

    BAD = "bad"
    """A recovery will fail, or lose work or nodes."""

    NOTE = "note"
    """A recovery takes longer, or shows less of its cause."""

    GOOD = "good"
    UNKNOWN = "unknown"


def nothing(facts: Facts) -> str:
    """Say nothing."""
    return ""


class HazardRule(Record, kw_only=True):
    """One hazard.

    ``judge`` returns what was found, "" for nothing; it may ask for anything, and what it asks for in vain
    makes the hazard unknown. It is not called unless all ``needs`` are there.
    """

    name: str
    level: Literal[Level.BAD, Level.NOTE]
    needs: tuple[Need, ...] = ()
    why: str
    """What it does to a recovery."""

    fix: str
    """What to do; begins with the administrator if users cannot do it."""

    source: str
    """The source of that: a manual page, release notes, a measurement."""

    judge: Callable[[Facts], str]
    exactly: Callable[[Facts], str] = nothing
    """What to do in the case at hand instead of ``fix``, "" if no more is known."""

    sbatch: str = ""
    """The option of sbatch that mends it."""


bad = partial(HazardRule, level=Level.BAD)
note = partial(HazardRule, level=Level.NOTE)


class Hazard(Record):
    """One rule applied. ``text`` says what was found, or what was not seen."""

    rule: str
    level: Level
    text: str = ""
    why: str = ""
    fix: str = ""
    source: str = ""
    script_line: int | None = None
    """The number of the line of the batch script that it is about."""

    sbatch: str = ""
    """The option of sbatch that mends it."""

    def line(self) -> str:
        """Return it in one line, as a warning."""
        return f"{self.text}: {self.why}; fix: {self.fix}"


def apply(rule: HazardRule, facts: Facts) -> Hazard:
    """Return what ``rule`` makes of the facts; nothing is raised."""
    missing: list[str] = [need for need in rule.needs if getattr(facts, need) is None]
    try:
        text = "" if missing else rule.judge(facts)
    except (Unseen, SlurmError) as error:
        missing = [str(error)]
    if missing:
        return Hazard(rule=rule.name, level=Level.UNKNOWN, text=f"not seen: {', '.join(missing)}")
    if not text:
        return Hazard(rule=rule.name, level=Level.GOOD)
    return Hazard(
        rule=rule.name,
        level=rule.level,
        text=text,
        why=rule.why,
        fix=rule.exactly(facts) or rule.fix,
        script_line=facts.line_of(text),
        sbatch=rule.sbatch,
        source=with_addresses(rule.source),
    )


def apply_all(rules: Iterable[HazardRule], facts: Facts) -> tuple[Hazard, ...]:
    """Return all hazards, the worst first."""
    order = list(Level)
    return tuple(sorted((apply(rule, facts) for rule in rules), key=lambda found: order.index(found.level)))
