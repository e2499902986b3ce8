"""Copies of snapshots on another node: real sockets and real shared memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_robust.agent.copies.sender import RateLimit
from slurm_robust.checkpoint.image import read_header
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from tests.unit.agent.copy_nodes import MIB, MakeNode, check, fill, with_peer
from tests.unit.agent.local_job import pause
from tests.waiting import HANG_S, wait_for


def test_the_newest_two_snapshots_are_on_the_peer_bit_by_bit(make: MakeNode) -> None:
    a, b = with_peer(make)
    for step in range(4):
        a.snapshot(0, step)
        wait_for(lambda step=step: (1, step) in b.peer_steps(0))
    assert b.peer_steps(0) == {(1, 2), (1, 3)}
    for path in b.folder.path.glob("peer-00000.*"):
        header = read_header(path)
        assert header is not None
        check(path, 0, header.step)
    assert {(c.rank, c.step, c.tier) for c in b.service.news().copies} == {
        (0, 2, Tier.PEER),
        (0, 3, Tier.PEER),
    }
    wait_for(lambda: a.service.news().lag_s > 0)
    assert a.service.news().lag_s < HANG_S
    assert a.service.notes() == b.service.notes() == []


def test_only_multiples_of_the_stride_and_no_shared_part_are_sent(make: MakeNode) -> None:
    a, b = with_peer(make, stride=4)
    fill(a.folder.own(SHARED, 0), SHARED, 4, 1, MIB)
    for step in (3, 4, 5):
        a.snapshot(0, step)
    wait_for(lambda: b.peer_steps(0) == {(1, 4)})
    a.service.set_stride(2)
    a.snapshot(0, 6)
    wait_for(lambda: b.peer_steps(0) == {(1, 4), (1, 6)})
    assert {c.rank for c in b.service.inventory()} == {0}


def test_what_was_restored_is_copied_again_and_dead_steps_give_way_first(make: MakeNode) -> None:
    """Peers hold steps 5 and 7 of generation 1; all go on from 5, so 7 is worth nothing any more."""
    a, b = make("a"), make("b")
    fill(a.folder.own(0, 2), 0, 5, 1, MIB)
    for number, step in enumerate((5, 7)):
        fill(b.folder.peer(0, number), 0, step, 1, MIB)
    restore = CheckpointId(generation=1, step=5)
    b.launch(2, (1,), restore=restore)
    a.launch(2, (0,), restore=restore, peers=(b.peer(0),), stride=2)
    fill(a.folder.own(0, 0), 0, 6, 2, MIB)
    wait_for(lambda: b.peer_steps(0) == {(1, 5), (2, 6)})
    fresh = make("c")
    fresh.launch(3, (1,), restore=restore)
    a.launch(3, (0,), restore=restore, peers=(fresh.peer(0),), stride=1024)
    wait_for(lambda: fresh.peer_steps(0) == {(1, 5)})


def test_a_peer_that_is_not_there_yet_is_tried_again_and_noted_once(make: MakeNode, shm: Path) -> None:
    a, b = make("a"), make("b")
    a.launch(1, (0,), peers=(b.peer(0),))
    a.snapshot(0, 0)
    pause(0.3)
    assert b.peer_steps(0) == set()  # its launch has not come yet
    b.launch(1, (1,))
    wait_for(lambda: b.peer_steps(0) == {(1, 0)})
    b.close(remove=False)
    a.snapshot(0, 1)
    (note,) = wait_for(a.service.notes)
    assert "copies of rank 0 do not reach b" in note
    for step in (2, 3):
        a.snapshot(0, step)
        pause(0.15)
    assert a.service.notes() == []


@pytest.mark.slow
def test_snapshots_that_come_too_fast_are_passed_over_and_reported(make: MakeNode) -> None:
    a, b = make("a", peer_bytes_s=4.0 * MIB), make("b")
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),))
    for step in range(100):
        a.snapshot(0, step)
        pause(0.02)
    wait_for(lambda: any(step > 90 for _, step in b.peer_steps(0)))  # while a buffer is refilled, neither is
    (note,) = [n for n in a.service.notes() if "fall behind" in n]
    assert "of rank 0 before step" in note
    wait_for(lambda: len(b.peer_steps(0)) == 2)  # the one before is kept while the last one comes in


@pytest.mark.slow
def test_the_limit_of_the_bandwidth_is_kept(make: MakeNode) -> None:
    a, b = make("a", peer_bytes_s=8.0 * MIB), make("b")
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),))
    began = time.monotonic()
    a.snapshot(0, 0, size=16 * MIB)
    wait_for(lambda: b.peer_steps(0) == {(1, 0)})
    took = time.monotonic() - began
    assert took > 1.8  # 16 MiB at 8 MiB per second


def test_a_pace_shares_its_limit() -> None:
    pace = RateLimit(1000.0)
    assert pace.reserve(500) == 0
    assert pace.reserve(500) == pytest.approx(0.5, abs=0.1)
    assert pace.reserve(500) == pytest.approx(1.0, abs=0.1)
    assert RateLimit(0).reserve(10**12) == 0
    assert RateLimit(1e6).piece == 50_000
