"""Which faults of the code there are, what is right to follow, and what is wrong with what did."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import msgspec
import pytest
from rich.console import Console

from benchmarks.code_matrix import show
from benchmarks.code_matrix.cases import (
    CASES,
    EVERY_TIME,
    FAULTS,
    ONCE,
    REPORTED,
    STEPS,
    UNMODIFIED,
    Case,
    chosen,
    expected,
    with_undisturbed,
)
from benchmarks.code_matrix.outcomes import Outcome, complaints, lost_s, read
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Action, Blame, Diagnose, Evict, FaultKind, GiveUp, Restart, Signature
from tests.builders import incidents

CRASH = Case("crash", REPORTED, EVERY_TIME, 0.5)
ONE_CRASH = Case("crash", REPORTED, ONCE, 0.5)
UNDISTURBED = Outcome(CRASH.undisturbed, job=1, commit="c", code=0, attempts=1, took_s=20.0, weights="w")
SEGV = "rank 1: SIGSEGV on n2, the cause is unknown"


def launched(t: float, generation: int) -> ev.GenerationLaunched:
    return ev.GenerationLaunched(t=t, generation=generation, slots=("n1", "n2"), master="")


def decided(t: float, *actions: Action, reason: str = SEGV, carried_out: bool = True) -> ev.Decided:
    verdict = incidents.verdict(
        rung=6, blame=Blame.NOBODY, signature=Signature(kind=FaultKind.SILENT_END), reason=reason
    )
    return ev.Decided(
        t=t, incident=1, actions=actions, reason=reason, verdict=verdict, carried_out=carried_out
    )


def after(case: Case, *events: ev.AnyEvent, faults: Sequence[float] = (110.0,), weights: str = "") -> Outcome:
    found = read(case, 7, "c", events, now=400.0, faults=faults)
    return replace(found, weights=weights)


GAVE_UP = (
    launched(100, 1),
    decided(111, Restart()),
    launched(112, 2),
    decided(120, Diagnose(reason="")),
    decided(140, Restart()),
    launched(141, 3),
    decided(150, GiveUp(code=93, reason=SEGV)),
    ev.RunEnded(t=152, code=93, reason=SEGV),
)


def test_every_combination_is_a_case() -> None:
    assert len(set(CASES)) == len(CASES) == 72
    assert len({case.name for case in CASES}) == 72
    assert Case("nan", REPORTED, ONCE, 5.0, mode="observe").name == "nan reported once 5 observe"
    for step_s, (at, steps) in STEPS.items():
        assert 0 < at < steps
        assert steps * step_s < 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_what_comes_again_and_kills_may_end_a_training(case: Case) -> None:
    right = expected(case)
    lives_on = case.occurs == ONCE or case.fault in ("slow", "evaluation")
    assert right.weights is lives_on
    assert (0 if lives_on else 93) in right.codes
    assert right.attempts == (1 if case.fault == "slow" else 2 if lives_on else 3)
    assert bool(right.evidence) is not lives_on
    assert right.why


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_observe_mode_there_is_one_attempt(case: Case) -> None:
    right = expected(replace(case, mode="observe"))
    assert right.attempts == 1
    assert 93 not in right.codes
    assert right.weights is (case.fault in ("slow", "evaluation"))


def test_a_journal_says_how_it_went() -> None:
    found = after(CRASH, *GAVE_UP, faults=(110.0, 119.0, 149.0))
    assert (found.code, found.attempts, found.evicted, found.planted) == (93, 3, (), 3)
    assert found.actions == ("restart", "diagnose", "restart", "give up")
    assert (found.took_s, found.after_s) == (52.0, 42.0)
    assert found.words == SEGV
    assert complaints(found, UNDISTURBED) == ()
    assert lost_s(found, UNDISTURBED) == 42.0


def test_who_would_be_evicted_in_observe_mode_is_an_innocent_too() -> None:
    hang = Case("hang", REPORTED, EVERY_TIME, 0.5, mode="observe")
    would = (Evict(node="n2"), Restart())
    said = decided(115, *would, reason="rank 1 is stopped", carried_out=False)
    found = replace(after(hang, launched(100, 1), said), slurm="still RUNNING after 240 s")
    assert found.evicted == ("n2",)
    assert complaints(found, UNDISTURBED) == ("evicted n2",)
    assert complaints(replace(found, code=0, evicted=()), UNDISTURBED) == ("ended well instead of no end",)


def test_a_launch_that_is_repeated_is_the_same_attempt() -> None:
    assert after(CRASH, launched(100, 1), launched(101, 1)).attempts == 1


def test_nodes_are_given_up_by_evictions_and_by_requeues() -> None:
    evicted = ev.NodeEvicted(t=1, node="n2", reason="", incident=1)
    requeued = ev.RequeueStarted(t=2, exclude=("n2", "n3"), reason="", failure=True)
    found = after(CRASH, *GAVE_UP[:-1], evicted, requeued, GAVE_UP[-1])
    assert found.evicted == ("n2", "n3")
    assert complaints(found, UNDISTURBED) == ("evicted n2, n3",)


def test_a_training_that_goes_on_loses_what_it_takes_longer() -> None:
    events = (
        launched(100, 1),
        decided(111, Restart()),
        launched(112, 2),
        ev.RunEnded(t=127, code=0, reason=""),
    )
    found = after(ONE_CRASH, *events, weights="w")
    assert complaints(found, UNDISTURBED) == ()
    assert lost_s(found, UNDISTURBED) == 7.0
    assert complaints(replace(found, weights="x"), UNDISTURBED) == ("other weights than without the fault",)
    assert complaints(replace(found, planted=0), UNDISTURBED) == ("the fault never came",)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"attempts": 4}, "4 attempts instead of 3"),
        ({"code": 0}, "ended well instead of 93 or 139"),
        (
            {"code": None, "slurm": "still RUNNING after 360 s"},
            "still running after 360 s instead of 93 or 139",
        ),
        ({"code": None}, "gone instead of 93 or 139"),
        ({"words": "nobody knows"}, "no evidence in 'nobody knows'"),
    ],
)
def test_what_is_wrong_with_a_training_is_said(change: dict[str, object], wrong: str) -> None:
    found = replace(after(CRASH, *GAVE_UP), **change)  # type: ignore[arg-type]
    assert complaints(found, UNDISTURBED) == (wrong,)


def test_a_script_may_end_by_its_own_code() -> None:
    assert complaints(replace(after(CRASH, *GAVE_UP), code=139), UNDISTURBED) == ()


def test_a_training_that_has_not_ended_loses_all_since_the_fault() -> None:
    found = after(CRASH, *GAVE_UP[:3])
    assert (found.code, found.took_s, lost_s(found, UNDISTURBED)) == (None, 300.0, 290.0)
    assert after(CRASH, faults=()).after_s is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("hang", 12), ("hang once", 6), ("NaN always 5, nan once 0.05", 4), ("slow, slow 5", 12)],
)
def test_words_choose_cases(text: str, count: int) -> None:
    assert len(chosen(text)) == count


def test_a_word_that_no_case_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no case 'hung'; the words are: exception, nan, hang"):
        chosen("nan, hung")


def test_each_case_comes_with_what_it_is_compared_with() -> None:
    found = with_undisturbed(chosen("crash 0.05, crash reported 5"))
    assert [case.name for case in found[:3]] == [
        "none reported 5",
        "crash reported once 5",
        "crash reported always 5",
    ]
    assert sum(case.fault not in FAULTS for case in found) == 3
    assert len(with_undisturbed(CASES)) == 78
    assert not expected(UNDISTURBED.case).evidence
    assert complaints(UNDISTURBED, UNDISTURBED) == ()


def test_what_was_kept_is_read_again() -> None:
    found = after(CRASH, *GAVE_UP)
    assert msgspec.convert(json.loads(json.dumps(asdict(found))), Outcome) == found


def test_the_table_is_markdown_and_names_what_is_wrong() -> None:
    evicted = replace(after(CRASH, *GAVE_UP), evicted=("n2",))
    without_comparison = replace(evicted, case=Case("hang", UNMODIFIED, ONCE, 5.0))
    file = io.StringIO()
    show.print_mode(
        Console(file=file, width=160), "act", {o.case: o for o in (UNDISTURBED, evicted, without_comparison)}
    )
    text = file.getvalue()
    assert "| crash | reported | always |" in text
    assert "**wrong** code 93, 3 attempts, 1 evicted, 42 s" in text
    assert "0 of 1 right; innocents evicted: 1" in text
    assert f"restart, diagnose, restart, give up: {SEGV}" in text
    assert "hang" not in text


def test_one_line_tells_one_training() -> None:
    found = after(CRASH, *GAVE_UP)
    assert show.in_short(found, None) == "crash reported always 0.5: code 93, attempts: 3, 52 s"
    assert show.in_short(found, UNDISTURBED).endswith(": right")
    late = replace(found, attempts=5)
    assert show.in_short(late, UNDISTURBED).endswith(": WRONG: 5 attempts instead of 3")
