"""Which standby is taken first."""

from __future__ import annotations

from functools import reduce

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Restart, StackLocation, Symptom
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy.replacement import fit_spares
from slurm_robust.policy.standbys import failed_alike, pair
from tests.builders.events import allocation_taken

LOADED, REHEARSED, FAILED = StandbyStage.LOADED, StandbyStage.REHEARSED, StandbyStage.REHEARSAL_FAILED
ALLOCATED = allocation_taken(("n1",), ("n2", "n3", "n4"))


def state(*events: ev.AnyEvent) -> JobState:
    return reduce(lambda state, event: apply(event, state), (ALLOCATED, *events), JobState())


def at(node: str, stage: StandbyStage, reason: str = "") -> ev.StandbyChanged:
    return ev.StandbyChanged(t=2.0, node=node, stage=stage, reason=reason)


def test_rehearsed_standbys_come_first_and_failed_ones_last() -> None:
    known = (at("n2", FAILED, "SIGSEGV"), at("n3", LOADED), at("n4", REHEARSED))
    assert fit_spares(state(*known)) == ("n4", "n3", "n2")


def test_a_standby_that_does_not_answer_comes_after_one_whose_rehearsal_failed() -> None:
    silent = ev.SpareSetAside(t=3.0, node="n3", reason="silent", usable=True)
    known = (at("n3", REHEARSED), at("n2", FAILED, "SIGSEGV"))
    assert fit_spares(state(*known, silent)) == ("n4", "n2", "n3")


def test_failures_that_are_alike_but_for_numbers_and_names_of_nodes_count_for_nothing() -> None:
    known = (at("n2", FAILED, "n2: port 17 is taken"), at("n3", FAILED, "n3: port 9 is taken"))
    assert failed_alike(state(*known))
    assert fit_spares(state(*known)) == ("n2", "n3", "n4")


def test_failures_that_differ_or_where_one_has_passed_count() -> None:
    differ = (at("n2", FAILED, "SIGSEGV"), at("n3", FAILED, "no module named wds"))
    assert fit_spares(state(*differ)) == ("n4", "n2", "n3")
    passed = (at("n2", FAILED, "SIGSEGV"), at("n3", FAILED, "SIGSEGV"), at("n4", REHEARSED))
    assert fit_spares(state(*passed)) == ("n4", "n2", "n3")


def test_a_standby_from_which_ranks_were_moved_comes_last() -> None:
    place = StackLocation(symptom=Symptom.HANG, step=1, ranks=(0,), nodes=("n2",))
    decided = ev.Decided(t=2.0, incident=1, actions=(Restart(),), reason="r", place=place)
    known = (decided, at("n2", REHEARSED), at("n3", FAILED, "SIGSEGV"))
    assert fit_spares(state(*known)) == ("n4", "n3", "n2")


def test_another_run_of_the_job_begins_anew() -> None:
    assert state(at("n2", FAILED), ALLOCATED).standbys == {}


def test_of_equal_ones_that_behind_the_same_leaf_switch_is_taken() -> None:
    spares = ("n2", "n3", "n4")
    leaves = {"n1": "b", "n2": "a", "n3": "a", "n4": "b", "n9": "a"}
    assert pair(state(), ("n1",), spares, leaves) == [("n1", "n4")]
    assert pair(state(), ("n9", "n1"), spares, leaves) == [("n9", "n2"), ("n1", "n4")]
    assert pair(state(), ("n1",), spares, {}) == [("n1", "n2")], "without a topology as they come"
    assert pair(state(), ("n7", "n8", "n9", "n1"), spares, leaves) == [
        ("n7", "n2"),
        ("n8", "n3"),
        ("n9", "n4"),
    ]


def test_a_standby_that_is_fit_comes_before_one_that_is_near() -> None:
    leaves = {"n1": "b", "n4": "b"}
    rehearsed = state(at("n2", REHEARSED))
    assert pair(rehearsed, ("n1",), fit_spares(rehearsed), leaves) == [("n1", "n2")]
    silent = state(ev.SpareSetAside(t=3.0, node="n4", reason="silent", usable=True))
    assert pair(silent, ("n1",), fit_spares(silent), leaves) == [("n1", "n2")]
