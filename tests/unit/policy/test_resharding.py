"""How many slots a run has, and which checkpoints of another layout it can go on from."""

from __future__ import annotations

import pytest

from slurm_robust.model.layout import DoesNotDivide, ParallelLayout, replicas, replicated, source_rank
from slurm_robust.policy.resharding import Sizes, Way, fitting_nodes, refusal, sizes_of, way


def layout(world: int, nproc: int = 1, **sizes: int) -> ParallelLayout:
    every = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, **sizes}
    return ParallelLayout.fit(world, nproc, every, "tp-cp-ep-dp-pp")


def test_the_first_run_has_what_was_asked_for() -> None:
    assert sizes_of(5, nodes=None, spares=1, before=None, later_run=False) == Sizes(slots=4, spares=1)
    assert sizes_of(5, nodes=4, spares=1, before=None, later_run=False) == Sizes(slots=4, spares=1)
    assert sizes_of(5, nodes=2, spares=1, before=None, later_run=False) == Sizes(slots=2, spares=1)


@pytest.mark.parametrize("later_run", [False, True])
def test_slots_go_before_spares(later_run: bool) -> None:
    found = sizes_of(4, nodes=None, spares=1, before=4, later_run=later_run)
    assert (found.slots, found.spares) == (4, 0)
    assert found.text == "4 nodes: 4 slots and no standby instead of 1"
    found = sizes_of(5, nodes=4, spares=2, before=None, later_run=later_run)
    assert (found.slots, found.spares) == (4, 1)
    assert found.text == "5 nodes: 4 slots and 1 standby instead of 2"


def test_a_requeued_run_has_as_many_slots_as_before() -> None:
    assert sizes_of(5, nodes=None, spares=1, before=4, later_run=True) == Sizes(slots=4, spares=1)
    found = sizes_of(6, nodes=None, spares=1, before=4, later_run=True)
    assert (found.slots, found.spares) == (4, 2)
    assert "a requeued job keeps its slots: to train on 5 nodes, submit a new job" in found.text


def test_fewer_nodes_than_slots_are_all_slots() -> None:
    for later_run in (False, True):
        found = sizes_of(3, nodes=None, spares=1, before=4, later_run=later_run)
        assert (found.slots, found.spares) == (3, 0)
        assert f"the {'run' if later_run else 'job'} before had 4" in found.text


def test_a_new_job_has_more_slots_if_it_has_the_nodes() -> None:
    found = sizes_of(6, nodes=None, spares=1, before=4, later_run=False)
    assert (found.slots, found.spares) == (5, 1)
    assert found.text == "trains on 5 slots; the job before had 4"
    assert sizes_of(6, nodes=4, spares=1, before=4, later_run=False) == Sizes(slots=4, spares=1)


def test_nodes_that_do_not_suffice_are_for_the_caller_to_refuse() -> None:
    assert sizes_of(3, nodes=4, spares=0, before=4, later_run=True).slots == 4
    assert sizes_of(3, nodes=None, spares=3, before=None, later_run=False).slots == 0


def test_data_parallelism_may_change() -> None:
    assert way(layout(4).identity(), layout(4)) is Way.SAME
    assert way("", layout(4)) is Way.SAME
    assert way(layout(4).identity(), layout(3)) is Way.RESHARD
    assert way(layout(4, 1).identity(), layout(4, 2)) is Way.RESHARD
    assert way(layout(8, tp=2, pp=2).identity(), layout(12, tp=2, pp=2)) is Way.RESHARD
    assert way(layout(8, tp=2).identity(), layout(8, pp=2)) is Way.REFUSE
    assert way(replicated(3), layout(4)) is Way.RESHARD
    assert way(replicated(4), layout(4)) is Way.RESHARD, "each rank its own part, wherever it was"
    assert way(replicated(4), layout(4, tp=2)) is Way.REFUSE
    assert way("nonsense", layout(4)) is Way.REFUSE


def test_a_refusal_names_what_to_set() -> None:
    text, fix = refusal(layout(8, tp=2, pp=2).identity(), layout(8, pp=4))
    assert text == "it was taken with tp 2, pp 2, and this run has tp 1, pp 4"
    assert fix == "set parallel.tp: 2, parallel.pp: 2"
    turned = ParallelLayout.fit(8, 1, {"tp": 2, "cp": 1, "ep": 1, "pp": 2}, "pp-cp-ep-dp-tp")
    assert refusal(layout(8, tp=2, pp=2).identity(), turned)[1] == "set parallel.order: tp-cp-ep-dp-pp"


def test_a_rank_goes_on_with_the_part_of_its_own_place() -> None:
    assert [source_rank(r, layout(3), layout(4)) for r in range(4)] == [0, 1, 2, None]
    assert [source_rank(r, layout(4), layout(3)) for r in range(3)] == [0, 1, 2]
    old, new = layout(4, pp=2), layout(6, pp=2)  # ranks of stage 0 first: 0, 1 | 2, 3 and 0, 1, 2 | 3, 4, 5
    assert [source_rank(r, old, new) for r in range(6)] == [0, 1, None, 2, 3, None]
    assert replicas(5, old, new) == (2, 3)
    assert replicas(0, old, new) == (0, 1)
    with pytest.raises(DoesNotDivide):
        source_rank(0, layout(4, tp=2), new)


def test_numbers_of_nodes_that_fit() -> None:
    assert fitting_nodes(4, 1, near=3) == (4, 8)
    assert fitting_nodes(4, 2, near=3) == (2, 4, 6)
    assert fitting_nodes(2, 1, near=3) == (2, 4, 6)
