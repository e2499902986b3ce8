"""Nothing goes that a running or later job needs, unless a person insists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.layout import Placement
from slurm_robust.policy.removal import Stock, needed, prunable, removal
from slurm_robust.policy.restore import choose
from tests.builders.checkpoints import ref

FOUR = (ref(1, 10), ref(1, 20), ref(2, 30), ref(2, 40))


def test_a_later_job_needs_the_newest_and_what_is_kept_beside_it() -> None:
    why = needed(Stock(complete=FOUR, sealed={1: 20, 2: 40}))
    assert set(why) == {ref(2, 40), ref(2, 30)}
    assert why[ref(2, 40)] == "a later job would go on from it"
    assert "one of the newest 2" in why[ref(2, 30)]
    assert set(needed(Stock(complete=FOUR, sealed={1: 20, 2: 40}, keep=3))) == set(FOUR[1:])


def test_what_was_rejected_is_not_what_a_later_job_needs() -> None:
    stock = Stock(complete=FOUR, sealed={1: 20, 2: 40}, banned=(ref(2, 40),), keep=1)
    assert set(needed(stock)) == {ref(2, 30)}
    unsealed = Stock(complete=FOUR, sealed={1: 20, 2: 30}, keep=1)
    assert set(needed(unsealed)) == {ref(2, 30)}


def test_the_newest_checkpoint_stays_if_none_counts() -> None:
    stock = Stock(complete=FOUR, sealed={1: 5, 2: 5}, keep=1)
    assert set(needed(stock)) == {ref(2, 40)}


def test_a_running_job_needs_what_it_began_with() -> None:
    stock = Stock(complete=FOUR, holder="12", generation=3, restored=ref(1, 10), keep=1)
    why = needed(stock)
    assert set(why) == {ref(2, 40), ref(1, 10)}
    assert why[ref(2, 40)] == "job 12 would go on from it"
    assert why[ref(1, 10)] == "job 12 goes on from it"


def test_a_running_job_needs_its_own_newest_after_a_rollback() -> None:
    stock = Stock(complete=(*FOUR, ref(3, 15)), holder="12", generation=3, keep=1)
    assert "written it last" in needed(stock)[ref(3, 15)]


def test_a_training_that_ended_well_keeps_its_last_checkpoint_until_told_otherwise() -> None:
    stock = Stock(complete=FOUR, sealed={1: 20, 2: 40}, finished=True)
    assert needed(stock) == {ref(2, 40): "it is the last one of a training that has ended well"}
    assert removal(stock, FOUR, force=False).remove == FOUR[:3]
    assert removal(stock, FOUR, force=True).remove == FOUR


def test_a_refused_removal_has_its_reason_and_force_overrides_it() -> None:
    stock = Stock(complete=FOUR, sealed={1: 20, 2: 40}, waiting="13")
    asked = removal(stock, FOUR, force=False)
    assert asked.remove == FOUR[:2]
    assert asked.refused[ref(2, 40)] == "job 13 would go on from it"
    assert removal(stock, FOUR, force=True).refused == {}


@pytest.mark.parametrize("force", [False, True])
def test_nobody_removes_what_is_being_written(force: bool) -> None:
    stock = Stock(complete=FOUR, incomplete=(ref(2, 5), ref(3, 50)), holder="12", generation=3)
    asked = removal(stock, stock.incomplete, force=force)
    assert asked.remove == (ref(2, 5),)
    assert asked.refused == {ref(3, 50): "job 12 may still be writing it"}


def test_pruning_takes_old_ones_and_leftovers() -> None:
    stock = Stock(complete=FOUR, incomplete=(ref(1, 15), ref(2, 50)), sealed={1: 20, 2: 40})
    assert prunable(stock, 2) == (ref(1, 10), ref(1, 15), ref(1, 20), ref(2, 50))
    assert prunable(stock, 4) == (ref(1, 15), ref(2, 50))
    assert prunable(stock, 9) == (ref(1, 15), ref(2, 50))


def test_pruning_keeps_what_is_kept_for_ever_and_what_others_need() -> None:
    stock = Stock(complete=(ref(1, 9), *FOUR), keep_every=10, others={ref(1, 20): "job 9 goes on from it"})
    assert prunable(stock, 1) == (ref(1, 10), ref(2, 30))


def test_pruning_keeps_rejected_ones_that_are_newer_than_what_is_kept() -> None:
    stock = Stock(complete=FOUR, banned=(ref(2, 40),), sealed={1: 20, 2: 40})
    assert prunable(stock, 1) == FOUR[:2]


ids = st.builds(CheckpointId, generation=st.integers(1, 4), step=st.integers(0, 8))
stocks = st.builds(
    Stock,
    complete=st.frozensets(ids, max_size=8).map(lambda found: tuple(sorted(found))),
    sealed=st.dictionaries(st.integers(1, 4), st.integers(0, 8)),
    banned=st.frozensets(ids, max_size=3),
    keep=st.integers(1, 3),
    holder=st.sampled_from(["", "12"]),
    generation=st.integers(1, 5),
    restored=st.none() | ids,
    finished=st.booleans(),
)


@given(stocks, st.integers(1, 4), st.frozensets(ids, max_size=8))
def test_a_later_job_finds_the_same_checkpoint_as_before(
    stock: Stock, keep: int, wanted: frozenset[CheckpointId]
) -> None:
    def found(left: set[CheckpointId]) -> object:
        sealed = {generation: stock.sealed.get(generation, 99) for generation in range(1, 9)}
        placement = Placement(slots=("n1",), nproc_per_node=1)
        stored = dict.fromkeys(left, Tier.STORAGE)
        return choose(sealed, [], stored, placement, banned=stock.banned)

    every = set(stock.complete)
    asked = removal(stock, wanted & every, force=False)
    for gone in (prunable(stock, keep), asked.remove):
        assert found(every - set(gone)) == found(every)
        assert stock.restored not in gone or not stock.holder or stock.restored not in every
    assert len(every) == 0 or every - set(prunable(stock, keep))
