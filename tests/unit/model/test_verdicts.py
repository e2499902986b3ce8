"""Another fault that comes before an incident is over does not change what its first one is blamed on."""

from __future__ import annotations

import pytest

from slurm_robust.model.incident import Blame, FaultKind, Signature, Verdict
from slurm_robust.model.verdicts import leading
from tests.builders import incidents


def verdict(
    blame: Blame, kind: FaultKind, *suspects: str, rung: int = 1, key: str = "", unproven: bool = False
) -> Verdict:
    signature = Signature.of_nodes(kind, suspects) if suspects else Signature(kind=kind, key=key)
    return incidents.verdict(
        rung=rung, blame=blame, signature=signature, reason="x", suspects=suspects, unproven=unproven
    )


N2 = verdict(Blame.NODE, FaultKind.NODE, "n2")
N3 = verdict(Blame.NODE, FaultKind.NODE, "n3")
BUG = verdict(Blame.CODE, FaultKind.EXCEPTION, rung=3, key="ValueError at train.py:3")
CRASH = verdict(Blame.NOBODY, FaultKind.EXIT, rung=6, key="SIGSEGV")
SUSPECTED = verdict(Blame.NODE, FaultKind.NODE, "n2", rung=4, unproven=True)
TESTED = verdict(Blame.NODE, FaultKind.NODE, "n3", rung=5)


@pytest.mark.parametrize("first", [N2, BUG])
@pytest.mark.parametrize("later", [N3, CRASH, TESTED])
def test_blame_that_has_evidence_stays(first: Verdict, later: Verdict) -> None:
    assert leading([first, later]) == (first, (later,))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (CRASH, N3),
        (CRASH, TESTED),
        (SUSPECTED, BUG),
        (SUSPECTED, N3),
        (N2, SUSPECTED),
        (BUG, BUG),
        (TESTED, N2),
    ],
)
def test_a_verdict_that_knows_more_of_the_same_fault_takes_its_place(first: Verdict, later: Verdict) -> None:
    assert leading([first, later]) == (later, ())


def test_of_several_verdicts_the_strongest_leads_and_the_first_of_equals() -> None:
    assert leading([]) == (None, ())
    assert leading([CRASH, N2, CRASH, N3]) == (N2, (CRASH, N3))
