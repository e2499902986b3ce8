"""Whose silence is it?"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.silence import MAX_EXCUSED_S, HeldUp, Silence, excused_s, judge
from tests.there import there

DEAD_S, APART_S = 5.0, 1.5


def whose(
    silent_s: Mapping[str, float],
    own: str = "n1",
    switches: Mapping[str, str] | None = None,
    slurm_answers: bool | None = None,
) -> Silence | None:
    return judge(
        silent_s, own, dead_s=DEAD_S, apart_s=APART_S, switches=switches or {}, slurm_answers=slurm_answers
    )


def nodes(count: int, silent: int, silence: float = 5.5) -> dict[str, float]:
    """n1 is our own; the last ``silent`` of them are silent."""
    return {f"n{i}": silence if i > count - silent else 0.5 for i in range(1, count + 1)}


def test_nobody_is_silent() -> None:
    assert whose(nodes(4, 0)) is None
    assert whose(nodes(4, 3, silence=5.0)) is None


def test_one_silent_node_of_several_is_lost() -> None:
    assert whose(nodes(4, 1)) == Silence(nodes=("n4",))
    assert whose(nodes(3, 1)) == Silence(nodes=("n3",))
    assert whose(nodes(16, 2)) == Silence(nodes=("n15", "n16"))


def test_a_node_that_hears_no_other_may_be_cut_off_itself() -> None:
    found = there(whose(nodes(4, 3), slurm_answers=True))
    assert found.nodes == ("n2", "n3", "n4")
    assert "n1 hears no other node" in found.cause


def test_of_two_nodes_slurmctld_is_the_second_witness() -> None:
    for answers in (None, False):
        found = there(whose(nodes(2, 1), slurm_answers=answers))
        assert found.cause
    assert whose(nodes(2, 1), slurm_answers=True) == Silence(nodes=("n2",))


def test_many_at_once_have_a_common_cause() -> None:
    found = there(whose(nodes(6, 3)))
    assert found.cause == "n4, n5, n6 fell silent together: probably the network"


def test_nodes_that_fall_silent_within_a_heartbeat_do_so_together() -> None:
    found = there(whose({"n1": 0.0, "n2": 0.1, "n3": 5.1, "n4": 4.2}))
    assert found.nodes == ("n3", "n4")
    assert found.cause


def test_all_nodes_of_a_switch_have_a_common_cause() -> None:
    silent_s = nodes(16, 2)
    leaves = {node: "leaf1" if node in ("n15", "n16") else "leaf0" for node in silent_s}
    found = there(whose(silent_s, switches=leaves))
    assert "behind switch leaf1" in found.cause
    leaves["n14"] = "leaf1"  # it is heard, so the switch is well
    assert whose(silent_s, switches=leaves) == Silence(nodes=("n15", "n16"))


def test_where_our_own_agent_is_silent_too_it_is_no_network() -> None:
    assert whose({"n1": 6.0, "n2": 6.1, "n3": 5.5}) == Silence(nodes=("n1", "n2", "n3"))


def test_our_own_agent_alone_is_silent() -> None:
    assert whose({"n1": 6.0, "n2": 0.1, "n3": 0.2}) == Silence(nodes=("n1",))
    assert whose({"n1": 6.0}) == Silence(nodes=("n1",))


@given(
    silent_s=st.dictionaries(st.sampled_from([f"n{i}" for i in range(1, 9)]), st.floats(0, 20), min_size=1),
    answers=st.sampled_from([None, True, False]),
)
def test_a_node_heard_lately_is_never_named(silent_s: dict[str, float], answers: bool | None) -> None:
    found = whose(silent_s, slurm_answers=answers)
    assert (found is None) == all(s <= DEAD_S for s in silent_s.values())
    if found is not None:
        assert found.nodes
        assert all(silent_s[node] > DEAD_S - APART_S for node in found.nodes)
    others = {node: s for node, s in silent_s.items() if node != "n1"}
    hears_own = silent_s.get("n1", 0.0) <= DEAD_S - APART_S
    if found is not None and hears_own and len(others) > 1 and all(s > DEAD_S for s in others.values()):
        assert found.cause


@given(
    turns=st.lists(st.tuples(st.floats(10, 600), st.floats(6, 600)), min_size=1, max_size=20),
    stands=st.booleans(),
)
def test_training_that_does_not_move_is_not_excused_again_and_again(
    turns: list[tuple[float, float]], stands: bool
) -> None:
    """``stands``: the clock stands still while training is held up."""
    held, now, awake_s, held_s = HeldUp(), 1000.0, 0.0, 0.0
    held.see(moved_at=1000.0)
    for seconds, then in turns:
        now += 0.0 if stands else seconds
        held.add(seconds, now, passed_s=0.0 if stands else seconds)
        held_s += seconds
        held.see(moved_at=1000.0 - (held_s if stands else 0.0))
        assert held.since_moved_s == pytest.approx(held_s)
        now, awake_s = now + then, awake_s + then
        assert not held.is_excused(now) or awake_s <= MAX_EXCUSED_S + 1e-6
        assert held.is_excused(now) or awake_s >= excused_s(turns[0][0]) - 0.001


def test_training_that_has_moved_is_excused_anew() -> None:
    held = HeldUp()
    for begin in range(0, 6000, 60):
        held.add(30.0, begin + 30.0, passed_s=30.0)
        held.see(moved_at=begin - 1.0)
        assert held.since_moved_s == 30.0
        assert held.is_excused(begin + 59.0)
        held.see(moved_at=begin + 31.0)
        assert held.since_moved_s == 0.0
    held.add(30.0, 6100.0, passed_s=30.0)
    held.see(moved_at=6090.0)
    assert held.since_moved_s == 10.0, "it moved while the controller stood still alone"
