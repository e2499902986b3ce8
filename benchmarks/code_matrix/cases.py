"""The matrix: every fault of the code, and what is right to follow from it, whatever follows today. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from slurm_robust.model.exitcodes import ExitCode

NONE = "none"
FAULTS = ("exception", "nan", "hang", "crash", "slow", "evaluation")
REPORTED, UNMODIFIED = SCRIPTS = ("reported", "unmodified")
ONCE, EVERY_TIME = OCCURRENCES = ("once", "always")
STEPS: dict[float, tuple[int, int]] = {0.05: (130, 200), 0.5: (12, 24), 5.0: (4, 8)}
"""By seconds per step: the step of the fault, and how many there are.

Of short steps so many that a script without reports has made what counts as progress, a hundred, before.
"""

EVALUATION_S = 30.0
"""Twice what is allowed between two steps of these trainings."""

LIVE_ON = ("slow", "evaluation")
OWN_CODES = {"exception": (1,), "nan": (1,), "hang": (), "crash": (128 + 11,)}
"""Exit codes of a script that ends by the fault and is not restarted."""

EVIDENCE = {
    "exception": r"ValueError.*has no label",
    "nan": r"\bnan\b|not finite|exit code 1\b",
    "hang": r"\brank 1\b",
    "crash": r"SIGSEGV",
}


@dataclass(frozen=True)
class Case:
    """One training. ``fault`` comes ``once`` or ``always``, at the same step; steps take ``step_s``."""

    fault: str
    script: str
    occurs: str
    step_s: float

    @property
    def name(self) -> str:
        """Its words, as ``--only`` knows them."""
        words = (self.fault, self.script, self.occurs, f"{self.step_s:g}")
        return " ".join(word for word in words if word)

    @property
    def undisturbed(self) -> Case:
        """The same training without a fault."""
        return Case(NONE, self.script, "", self.step_s)


@dataclass(frozen=True)
class Expected:
    """What is right. ``codes``: exit codes of the job, any of them. ``attempts``: most generations.

    ``evidence``: a regular expression that the last decision's words match. Nobody is ever to be evicted.
    """

    codes: tuple[int, ...]
    attempts: int
    why: str
    evidence: str = ""

    @property
    def ends_well(self) -> bool:
        """Whether training is to be completed."""
        return self.codes == (0,)


CASES = tuple(Case(*words) for words in itertools.product(FAULTS, SCRIPTS, OCCURRENCES, STEPS))


def expected(case: Case) -> Expected:
    """What is right to follow."""
    if case.fault == NONE:
        return Expected((0,), attempts=1, why="nothing is wrong")
    if case.fault == "slow":
        return Expected((0,), attempts=1, why="steps are made, on any node as slowly")
    if case.fault == "evaluation":
        return Expected((0,), attempts=2, why="what looked like a hang once is known from then on")
    if case.occurs == ONCE:
        return Expected((0,), attempts=2, why="it does not come again")
    codes = (int(ExitCode.DO_NOT_REQUEUE), *OWN_CODES[case.fault])
    why = "the same at the same step on the same rank is the code's"
    return Expected(codes, attempts=3, why=why, evidence=EVIDENCE[case.fault])


def chosen(text: str) -> tuple[Case, ...]:
    """Cases that have all words of one of the parts of ``text``, which commas separate.

    Raises ``ValueError`` with the words that there are for a part that no case has.
    """
    found: set[Case] = set()
    for part in text.lower().split(","):
        cases = {case for case in CASES if set(part.split()) <= set(case.name.split())}
        if not cases:
            words = (*FAULTS, *SCRIPTS, *OCCURRENCES, *(f"{s:g}" for s in STEPS))
            raise ValueError(f"no case {part.strip()!r}; the words are: {', '.join(words)}")
        found |= cases
    return tuple(case for case in CASES if case in found)


def with_undisturbed(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The longest first, each with what it is compared with."""
    needed = dict.fromkeys(case.undisturbed for case in cases)
    return tuple(sorted((*needed, *cases), key=lambda case: -case.step_s))
