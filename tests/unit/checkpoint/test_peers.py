"""Peers: nothing that fails together holds both copies, wherever that can be had at all."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.model.layout import ParallelLayout
from slurm_robust.policy.peers import Links, peer_slots

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-tp-cp-ep")
PAPER = ParallelLayout.fit(16, 2, {"tp": 2, "cp": 1, "ep": 1, "pp": 4}, "tp-cp-ep-dp-pp")


def failures(layout: ParallelLayout) -> list[set[int]]:
    """Sets of slots that may go at once: each alone, and all that have ranks of one parallel group."""
    nproc = layout.nproc_per_node
    single = [{slot} for slot in range(layout.world_size // nproc)]
    groups = [group for name, size in layout.sizes if size > 1 for group in layout.groups(name)]
    return single + [{rank // nproc for rank in group} for group in groups]


def survives(source: int, peer: int, losses: list[set[int]]) -> bool:
    return not any({source, peer} <= loss for loss in losses)


def all_layouts(world: int) -> list[ParallelLayout]:
    found = []
    divisors = [n for n in range(1, world + 1) if world % n == 0]
    for nproc in divisors:
        for tp in divisors:
            for pp in divisors:
                for cp in (1, 2):
                    for ep in (1, 2):
                        sizes = {"tp": tp, "cp": cp, "ep": ep, "pp": pp}
                        if world % (tp * pp * cp * ep) == 0:
                            found += [ParallelLayout.fit(world, nproc, sizes, order) for order in ORDERS]
    return found


def test_the_papers_example() -> None:
    """TP=2, PP=4, DP=2 on 8 nodes of 2 ranks: ranks 8, 9 and 2, 3 may keep each other's copies."""
    losses = failures(PAPER)
    assert survives(4, 1, losses)
    assert survives(1, 4, losses)
    peers = peer_slots(PAPER)
    assert sorted(peers) == list(range(8))
    assert all(survives(slot, peer, losses) for slot, peer in enumerate(peers))


@pytest.mark.parametrize("world", range(1, 25))
def test_no_group_and_no_node_takes_both_copies_wherever_that_can_be_had(world: int) -> None:
    for layout in all_layouts(world):
        slots = world // layout.nproc_per_node
        peers = peer_slots(layout)
        assert len(peers) == (slots if slots > 1 else 0), layout
        losses = failures(layout)
        for source, peer in enumerate(peers):
            assert peer != source
            possible = any(survives(source, other, losses) for other in range(slots))
            assert survives(source, peer, losses) or not possible, (layout, source, peer)


@pytest.mark.parametrize("world", range(2, 8))
def test_the_load_is_spread_as_evenly_as_the_best_peers_allow(world: int) -> None:
    for layout in all_layouts(world):
        peers = peer_slots(layout)
        if not peers:
            continue
        links = Links(layout)
        counts = [[links.between(s, o) for o in range(len(peers))] for s in range(len(peers))]
        assert all(
            counts[s][p] == min(counts[s][o] for o in range(len(peers)) if o != s)
            for s, p in enumerate(peers)
        )
        one_each = any(
            all(s != p and counts[s][p] == counts[s][peers[s]] for s, p in enumerate(other))
            for other in permutations(range(len(peers)))
        )
        assert not one_each or sorted(peers) == list(range(len(peers))), layout


@settings(max_examples=60, deadline=None)
@given(
    nproc=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2, 4, 8]),
    dp=st.integers(1, 6),
    order=st.sampled_from(ORDERS),
)
def test_in_larger_worlds_the_peer_survives_what_the_source_does_not(
    nproc: int, tp: int, cp: int, pp: int, dp: int, order: str
) -> None:
    world = tp * cp * pp * dp
    if world % nproc or world // nproc < 2:
        return
    layout = ParallelLayout.fit(world, nproc, {"tp": tp, "cp": cp, "ep": 1, "pp": pp}, order)
    peers = peer_slots(layout)
    losses = failures(layout)
    slots = world // nproc
    for source, peer in enumerate(peers):
        assert peer != source
        if not survives(source, peer, losses):
            assert not any(survives(source, other, losses) for other in range(slots))
    # Where groups begin and end in the middle of nodes, nodes differ, and two may share their best peer.
    assert max(Counter(peers).values()) <= (1 if dp & (dp - 1) == 0 else 2)


def test_data_parallelism_alone_goes_to_another_node_and_switch() -> None:
    layout = ParallelLayout.fit(8, 2, {"tp": 1, "cp": 1, "ep": 1, "pp": 1}, "tp-cp-ep-dp-pp")
    assert peer_slots(layout) == (2, 3, 0, 1)
    switches = ("a", "b", "a", "b")
    peers = peer_slots(layout, switches)
    assert all(switches[s] != switches[p] for s, p in enumerate(peers))
    assert sorted(peers) == [0, 1, 2, 3]
    assert sorted(peer_slots(layout, ("a",) * 4)) == [0, 1, 2, 3]  # no other switch: another node still


def test_a_world_on_one_node_has_no_peers() -> None:
    layout = ParallelLayout.fit(8, 8, {"tp": 2, "cp": 1, "ep": 1, "pp": 2}, "tp-cp-ep-dp-pp")
    assert peer_slots(layout) == ()


def test_ten_thousand_nodes_have_their_peers_at_once() -> None:
    """To compare each with each other would take longer than a launch may."""
    layout = ParallelLayout.fit(80_000, 8, {"tp": 8, "cp": 1, "ep": 1, "pp": 8}, "tp-cp-ep-dp-pp")
    peers = peer_slots(layout, tuple(f"leaf{slot // 16}" for slot in range(10_000)))
    assert sorted(peers) == list(range(10_000))
    links = Links(layout)
    assert all(links.between(slot, peer) == 0 for slot, peer in enumerate(peers))
    assert all(slot // 16 != peer // 16 for slot, peer in enumerate(peers))
