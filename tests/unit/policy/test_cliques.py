"""Which node takes the place of which, by NVLink cliques and Slurm's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.config.job import CompanionConfig
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.incident import Borrow, Fault, FaultKind, Replace, Restart, Swap, Symptom
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy.cliques import domains, segments, shares_cliques, short_of_standbys, spread
from slurm_robust.policy.replacement import assign, move_ranks, replace_nodes
from slurm_robust.policy.rules import Rules, convict
from slurm_robust.policy.standbys import pair
from tests.builders.events import allocation_taken
from tests.builders.rules import rules

FAULT = Fault(symptom=Symptom.NODE_LOST, detail="dead")


def rack(letter: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{letter}{number:02}" for number in range(first, last + 1))


def known(slots: Sequence[str], spares: Sequence[str] = (), *more: ev.AnyEvent, segment: int = 0) -> JobState:
    """A job whose nodes are of the clique that their first letter names."""
    nodes = (*slots, *spares)
    events = [ev.FabricSeen(t=2.0, node=node, clique=f"{node[0]}/1") for node in nodes]
    taken = allocation_taken(tuple(slots), tuple(spares), segment=segment)
    return reduce(lambda state, event: apply(event, state), (taken, *events, *more), JobState())


def replaced(state: JobState, *lost: str) -> tuple[dict[str, str], str]:
    verdict = convict(lost, rules(), rung=1, reason="dead", kind=FaultKind.NODE)
    actions, how = replace_nodes(state, verdict, FAULT, rules())
    assert isinstance(actions[-1], Restart), how
    return {a.node: a.standby for a in actions if isinstance(a, Replace)}, how


def test_a_spare_of_the_same_clique_comes_before_one_that_has_rehearsed() -> None:
    ready = ev.StandbyChanged(t=3.0, node="b17", stage=StandbyStage.REHEARSED)
    state = known((*rack("a", 1, 16), *rack("b", 1, 16)), ("b17", "a17"), ready)
    assert pair(state, ("a03",), ("b17", "a17"), {}) == [("a03", "a17")]
    assert pair(state, ("a03", "b02"), ("b17", "a17"), {}) == [("a03", "a17"), ("b02", "b17")]


def test_one_that_failed_its_rehearsal_or_is_silent_comes_after_one_of_another_clique() -> None:
    slots = (*rack("a", 1, 16), *rack("b", 1, 16))
    failed = ev.StandbyChanged(t=3.0, node="a17", stage=StandbyStage.REHEARSAL_FAILED, reason="SIGSEGV")
    silent = ev.SpareSetAside(t=3.0, node="a17", reason="silent", usable=True)
    for event in (failed, silent):
        assert pair(known(slots, ("a17", "b17"), event), ("a03",), ("a17", "b17"), {}) == [("a03", "b17")]


def test_one_whose_imex_daemon_is_not_ready_comes_last() -> None:
    slots = (*rack("a", 1, 4), *rack("b", 1, 4))
    stuck = ev.FabricSeen(t=3.0, node="a05", clique="a/1", imex="WAITING_FOR_PEERS")
    assert pair(known(slots, ("a05", "b05"), stuck), ("a03",), ("a05", "b05"), {}) == [("a03", "b05")]
    ready = ev.FabricSeen(t=4.0, node="a05", clique="a/1", imex="READY")
    assert pair(known(slots, ("a05", "b05"), stuck, ready), ("a03",), ("a05", "b05"), {}) == [("a03", "a05")]
    alone = known(("a01", "b01"), ("a05", "c05"), stuck)
    assert pair(alone, ("a01",), ("a05", "c05"), {}) == [("a01", "a05")], "no node needs IMEX"


def test_without_one_of_the_same_clique_a_rack_that_trains_keeps_its_spares() -> None:
    slots = (*rack("a", 1, 4), *rack("b", 1, 4))
    state = known(slots, ("b05", "c01", "c02"))
    assert pair(state, ("a01",), ("b05", "c01", "c02"), {}) == [("a01", "c01")]
    assert replaced(state, "a01")[1] == (
        "c01 takes the slot of a01, which is of another NVLink clique (a/1, not c/1): its groups go over the "
        "network"
    )


def test_a_segment_moves_as_a_whole_to_a_rack_that_has_room_for_it() -> None:
    """No standby of rack a is left: 15 nodes go along, and stand by from now on."""
    state = known(rack("a", 1, 16), (*rack("b", 1, 17), "c01"))
    taken, how = replaced(state, "a03")
    assert taken == dict(zip(rack("a", 1, 16), rack("b", 1, 16), strict=True))
    assert how == (
        "b[01-16] take the slots of a[01-16] as a whole: their NVLink clique has 0 standbys for a03"
    )


def test_no_segment_moves_to_a_rack_whose_imex_daemons_are_stuck() -> None:
    stuck = (ev.FabricSeen(t=3.0, node=node, clique="b/1", imex="INITIALIZING") for node in rack("b", 1, 4))
    state = known(rack("a", 1, 4), (*rack("b", 1, 4), *rack("c", 1, 4)), *stuck)
    assert replaced(state, "a03")[0] == dict(zip(rack("a", 1, 4), rack("c", 1, 4), strict=True))


def test_only_the_segment_of_the_lost_node_moves() -> None:
    state = known(rack("a", 1, 16), rack("b", 1, 9), segment=8)
    assert replaced(state, "a10")[0] == dict(zip(rack("a", 9, 16), rack("b", 1, 8), strict=True))
    assert [len(unit) for unit in segments(state, domains(state))] == [8, 8]


def test_no_segment_moves_if_that_takes_the_spares_of_other_lost_nodes() -> None:
    state = known((*rack("a", 1, 4), *rack("b", 1, 4)), rack("c", 1, 4))
    taken, _ = replaced(state, "a01", "b01")
    assert set(taken) == {"a01", "b01"}, "one of c for each, since c has no room for both segments"


def test_the_nodes_of_a_lost_rack_go_to_one_rack_together() -> None:
    slots = (*rack("a", 1, 4), *rack("b", 1, 4))
    state = known(slots, ("b05", "c01", "c02", *rack("d", 1, 4)))
    taken, _ = replaced(state, *rack("a", 1, 4))
    assert set(taken.values()) == set(rack("d", 1, 4))


def test_where_no_agent_tells_a_clique_everything_is_as_it_was() -> None:
    taken = allocation_taken(rack("a", 1, 4), ("b01", "a05"))
    state = apply(taken, JobState())
    assert domains(state, {"a01": "leaf"}) == {}
    assert replaced(state, "a01") == ({"a01": "b01"}, "b01 takes the slot of a01")
    assert not shares_cliques(state)


def test_a_node_whose_agent_tells_no_clique_is_of_that_of_its_block() -> None:
    told = ev.FabricSeen(t=3.0, node="x", block="rack a")
    of_clique = ev.FabricSeen(t=3.0, node="a01", clique="a/1", block="rack a")
    state = known(("a01", "a02"), ("x",), told, of_clique)
    assert domains(state)["x"] == "a/1"
    assert domains(state, leaves={"a01": "leaf", "y": "leaf"}).get("y") is None, "a01 tells its block"
    assert domains(state, leaves={"a02": "leaf", "y": "leaf"})["y"] == "a/1"
    split = ev.FabricSeen(t=3.0, node="a02", clique="b/1", block="rack a")
    assert domains(known(("a01", "a02"), ("x",), told, of_clique, split))["x"] == "block rack a"


def test_ranks_change_places_within_their_clique_before_they_leave_it() -> None:
    state = known((*rack("b", 1, 2), *rack("a", 1, 2)), ("b03",))
    actions, _ = move_ranks(state, ("a01",), rules())
    assert actions == (Swap(first="a01", second="a02"), Restart())
    actions, _ = move_ranks(state, ("b01",), rules())
    assert actions == (Replace(node="b01", standby="b03"), Restart())


def by_letter(nodes: Sequence[str]) -> Mapping[str, str]:
    return {node: node[0] for node in nodes}


def test_each_rack_keeps_spares_when_slots_are_handed_out() -> None:
    nodes = tuple(node for letter in "abcd" for node in rack(letter, 1, 18))
    slots, spares = assign(nodes, 64, (), (), by_letter(nodes))
    assert slots == tuple(node for letter in "abcd" for node in rack(letter, 1, 16))
    assert spares == tuple(node for letter in "abcd" for node in rack(letter, 17, 18))
    assert assign(nodes, 64, (), ())[1] == rack("d", 11, 18), "without a topology the last ones stand by"


def test_segments_of_the_owner_are_whole_when_slots_are_handed_out() -> None:
    nodes = tuple(node for letter in "abc" for node in rack(letter, 1, 18))
    assert spread(nodes, 36, by_letter(nodes), 18) == nodes[:36], "the third rack stands by as a whole"
    assert spread(nodes, 40, by_letter(nodes), 8)[14:18] == ("a15", "a16", "b01", "b02")
    assert spread(nodes, 53, by_letter(nodes)) == nodes[:53], "53 nodes are of no equal segments"
    assert spread(nodes, 48, {**by_letter(nodes[1:])}) == nodes[:48], "the block of a01 is not known"


def test_after_a_requeue_a_node_of_the_same_rack_gets_the_slot_of_one_that_is_gone() -> None:
    before = (*rack("a", 1, 3), *rack("b", 1, 3))
    nodes = ("a02", "a03", "b01", "b02", "b03", "b04", "a04")
    slots, spares = assign(nodes, 6, {"a01": "dead"}, before, by_letter((*before, *nodes)))
    assert (slots, spares) == (("a04", *before[1:]), ("b04",))


RACKS = st.lists(st.tuples(st.integers(2, 6), st.integers(0, 4)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(racks=RACKS, data=st.data(), segment=st.integers(0, 3))
def test_a_spare_of_the_same_clique_is_never_passed_over(
    racks: list[tuple[int, int]], data: st.DataObject, segment: int
) -> None:
    slots = tuple(n for i, (used, _) in enumerate(racks) for n in rack("abcde"[i], 1, used))
    spares = tuple(n for i, (used, more) in enumerate(racks) for n in rack("abcde"[i], used + 1, used + more))
    spares = tuple(data.draw(st.permutations(spares)))
    lost = data.draw(st.lists(st.sampled_from(slots), min_size=1, max_size=max(1, len(spares)), unique=True))
    if len(lost) > len(spares):
        return
    state = known(slots, spares, segment=segment)
    taken, _ = replaced(state, *lost)
    assert set(lost) <= set(taken), "every lost node is replaced"
    assert len(set(taken.values())) == len(taken), "each spare once"
    left = set(spares) - set(taken.values())
    for unit in segments(state, domains(state)):
        to = {taken[node][0] for node in unit if node in taken}
        has_moved = len(unit) > 1 and len(to) == 1 and set(unit) <= set(taken)
        own = {spare for spare in left if spare[0] == unit[0][0]}
        assert to <= {unit[0][0]} or not own or has_moved, (unit, taken, left)
        assert set(unit) & set(taken) <= set(lost) or has_moved, "nodes that are well move with all or not"


def reserved(**more: object) -> Rules:
    return rules(companions=CompanionConfig(reservation="spares", **more))  # type: ignore[arg-type]


def asked(state: JobState, lost: str, by: Rules) -> Borrow:
    verdict = convict((lost,), by, rung=1, reason="dead", kind=FaultKind.NODE)
    (action,) = replace_nodes(state, verdict, FAULT, by)[0]
    assert isinstance(action, Borrow)
    return action


def test_a_lent_node_must_be_of_the_clique_of_the_lost_one_unless_the_owner_allows_others() -> None:
    assert asked(known(rack("a", 1, 4)), "a02", reserved()).near == ("a02",)
    assert asked(known(rack("a", 1, 4)), "a02", reserved(without_nvlink=True)).near == ()
    alone = known(("a01", "b01", "c01"))
    assert asked(alone, "b01", reserved()).near == (), "no node reaches another one over NVLink anyway"


def test_a_standby_that_another_job_lends_does_not_leave_its_clique() -> None:
    lent = (
        ev.CompanionSubmitted(t=3.0, job_id=9, source=CompanionPool(reservation="spares")),
        ev.CompanionStarted(t=4.0, job_id=9, node="b05"),
        ev.FabricSeen(t=5.0, node="b05", clique="b/1"),
    )
    state = known((*rack("a", 1, 4), *rack("b", 1, 4)), (), *lent)
    assert asked(state, "a02", reserved()).near == ("a02",)
    assert replaced(state, "b02")[0] == {"b02": "b05"}
    verdict = convict(("a02",), rules(), rung=1, reason="dead", kind=FaultKind.NODE)
    allowed = replace_nodes(state, verdict, FAULT, reserved(without_nvlink=True))[0]
    assert Replace(node="a02", standby="b05") in allowed


def test_of_two_lost_nodes_the_one_whose_clique_has_a_standby_gets_it() -> None:
    state = known((*rack("a", 1, 4), *rack("b", 1, 4)), ("b05",))
    verdict = convict(("a02", "b02"), reserved(), rung=1, reason="dead", kind=FaultKind.NODE)
    (action,) = replace_nodes(state, verdict, FAULT, reserved())[0]
    assert isinstance(action, Borrow)
    assert (action.nodes, action.near) == (1, ("a02",))


def test_standbys_are_replaced_in_the_cliques_that_have_the_fewest() -> None:
    state = known((*rack("a", 1, 4), *rack("b", 1, 4)), ("a05",))
    assert [node[0] for node in short_of_standbys(state, reserved(), 3)] == ["b", "a", "b"]
    assert short_of_standbys(state, reserved(without_nvlink=True), 3) == ()
