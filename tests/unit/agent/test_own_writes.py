"""Ranks without room in memory put a step on storage themselves: when a node has all of its parts there."""

from __future__ import annotations

from slurm_robust.agent.copies.own_writes import OwnWrites
from slurm_robust.wire.messages import Progress


def wrote(rank: int, step: int) -> Progress:
    return Progress(rank=rank, step=step, reported=True, age_s=0.0, checkpoint=step)


def test_a_node_whose_ranks_all_write_has_a_step_when_the_last_of_them_has_written_it() -> None:
    writes = OwnWrites((0, 1))
    writes.ask(7, (0, 1))
    assert writes.are_all
    writes.see([wrote(0, 7), wrote(1, 5)])
    assert writes.flushed(-1) == -1
    writes.see([wrote(0, 8), wrote(1, 7)])
    assert writes.flushed(-1) == 7


def test_a_node_has_a_step_when_its_agent_and_the_ranks_without_room_have_written_it() -> None:
    writes = OwnWrites((0, 1))
    writes.ask(7, (1,))
    assert not writes.are_all
    assert writes.flushed(7) == -1
    assert writes.flushed(3) == 3
    writes.see([wrote(0, -1), wrote(1, 7)])
    assert writes.flushed(3) == 3
    assert writes.flushed(7) == 7


def test_an_order_that_is_repeated_asks_the_same_ranks() -> None:
    writes = OwnWrites((0, 1))
    writes.ask(7, (1,))
    writes.ask(7, ())
    assert writes.keepless == {1}
    assert writes.flushed(7) == -1
    writes.ask(9, ())
    assert writes.flushed(9) == 9


def test_where_all_ranks_have_room_only_the_agent_writes() -> None:
    writes = OwnWrites((0, 1))
    assert writes.flushed(-1) == -1
    writes.ask(7, ())
    assert not writes.are_all
    assert writes.flushed(7) == 7
