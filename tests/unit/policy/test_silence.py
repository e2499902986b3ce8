"""Whose silence is it?"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.policy.silence import Silence, judge

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
    found = whose(nodes(4, 3), slurm_answers=True)
    assert found is not None
    assert found.nodes == ("n2", "n3", "n4")
    assert "n1 hears no other node" in found.cause


def test_of_two_nodes_slurmctld_is_the_second_witness() -> None:
    for answers in (None, False):
        found = whose(nodes(2, 1), slurm_answers=answers)
        assert found is not None
        assert found.cause
    assert whose(nodes(2, 1), slurm_answers=True) == Silence(nodes=("n2",))


def test_many_at_once_have_a_common_cause() -> None:
    found = whose(nodes(6, 3))
    assert found is not None
    assert found.cause == "n4, n5, n6 fell silent together: probably the network"


def test_nodes_that_fall_silent_within_a_heartbeat_do_so_together() -> None:
    found = whose({"n1": 0.0, "n2": 0.1, "n3": 5.1, "n4": 4.2})
    assert found is not None
    assert found.nodes == ("n3", "n4")
    assert found.cause


def test_all_nodes_of_a_switch_have_a_common_cause() -> None:
    silent_s = nodes(16, 2)
    leaves = {node: "leaf1" if node in ("n15", "n16") else "leaf0" for node in silent_s}
    found = whose(silent_s, switches=leaves)
    assert found is not None
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
