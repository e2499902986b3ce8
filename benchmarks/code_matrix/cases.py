"""The matrix: every fault of the code, and what is right to follow from it, whatever follows today. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.fault_matrix.outcomes import OBSERVE
from slurm_robust.model.errors import ExitCode

ACT = "act"
NONE = "none"
FAULTS = ("exception", "nan", "hang", "crash", "slow", "evaluation")
REPORTED, UNMODIFIED = SCRIPTS = ("reported", "unmodified")
ONCE, EVERY_TIME = OCCURRENCES = ("once", "always")
STEPS: dict[float, tuple[int, int]] = {0.05: (130, 200), 0.5: (12, 24), 5.0: (4, 8)}
"""By seconds per step: the step of the fault, and how many steps the training has."""

EVALUATION_S = 30.0
"""Twice what is allowed between two steps of these trainings."""

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
    """One training. ``fault`` comes ``once`` or ``always``, at the same step; steps take ``step_s``.

    In the mode ``observe`` nothing is done about it.
    """

    fault: str
    script: str
    occurs: str
    step_s: float
    mode: str = ACT

    @property
    def name(self) -> str:
        """Its words, as ``--only`` knows them."""
        words = (self.fault, self.script, self.occurs, f"{self.step_s:g}", self.mode)
        return " ".join(word for word in words if word not in ("", ACT))

    @property
    def undisturbed(self) -> Case:
        """The same training without a fault."""
        return replace(self, fault=NONE, occurs="")


@dataclass(frozen=True)
class Expected:
    """What is right. ``codes``: exit codes of the job, any of them; None where it does not end by itself.

    ``attempts``: most generations. ``weights``: they end as those of the training without a fault.
    ``evidence``: a regular expression that the last decision's words match. Nobody is ever to be evicted.
    """

    codes: tuple[int | None, ...]
    attempts: int
    why: str
    weights: bool = False
    evidence: str = ""


CASES = tuple(Case(*words) for words in itertools.product(FAULTS, SCRIPTS, OCCURRENCES, STEPS))


def expected(case: Case) -> Expected:
    """What is right to follow."""
    if case.fault == NONE:
        return _ends_well(1, "nothing is wrong")
    if case.fault == "slow":
        return _ends_well(1, "steps are made, on any node as slowly")
    if case.mode == OBSERVE:
        return _observed(case)
    if case.fault == "evaluation":
        return _ends_well(2, "what looked like a hang once is known from then on")
    if case.occurs == ONCE:
        return _ends_well(2, "it does not come again")
    codes = (int(ExitCode.DO_NOT_REQUEUE), *OWN_CODES[case.fault])
    why = "the same at the same step on the same rank is the code's"
    return Expected(codes, attempts=3, why=why, evidence=EVIDENCE[case.fault])


def _ends_well(attempts: int, why: str) -> Expected:
    return Expected((0,), attempts, why, weights=True)


def _observed(case: Case) -> Expected:
    if case.fault == "evaluation":
        return _ends_well(1, "the others wait, and it ends")
    if case.fault == "hang":
        return Expected((None,), 1, why="nobody ends it", evidence=EVIDENCE["hang"])
    if (case.fault, case.script) == ("nan", REPORTED):
        return Expected((0,), 1, why="it goes on without numbers", evidence=EVIDENCE["nan"])
    return Expected(OWN_CODES[case.fault], 1, why="it is the end", evidence=EVIDENCE[case.fault])


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


def with_undisturbed(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The longest first, with all that they are compared with."""
    cases = tuple(cases)
    needed = dict.fromkeys(case.undisturbed for case in cases)
    return tuple(sorted((*needed, *cases), key=lambda case: -case.step_s))
