"""What is done with a node: every rule with both sides of its border, and what holds for any state at all."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.node import Drain
from slurm_robust.hooks.drain import HOUR_S, PartitionDrains, beyond_cap, decide, may_be_common, shares_of
from slurm_robust.hooks.record import DrainAction, DrainCause, OwnDrain
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.verdict import Report
from slurm_robust.slurm.records import SlurmNode
from tests.builders.records import node as slurm_node

NOW = 1_000_000.0
REASON = "srobust: gpu3 XID 79, fell off the bus"
HARMLESS_FLAGS = [
    "DRAIN",
    "COMPLETING",
    "NOT_RESPONDING",
    "RESERVED",
    "PLANNED",
    "BLOCKED",
    "PERFCTRS",
    "CLOUD",
]
FOREIGN_FLAGS = [
    *("FAIL", "MAINTENANCE", "INVALID_REG", "DYNAMIC_FUTURE", "UNDRAIN", "EXTERNAL", "A_FLAG_OF_2031"),
    *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "POWER_DRAIN"),
    *("REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCELED"),
]
FLAGS = [*HARMLESS_FLAGS, *FOREIGN_FLAGS]
BASES = ("IDLE", "ALLOCATED", "MIXED", "DOWN", "ERROR", "FUTURE", "UNKNOWN")
FIT = Report()
XID = Finding(check="gpu.xid", outcome=Outcome.FAIL, subject="gpu3", suggestion=Suggestion.REPLACE)
ECC = Finding(check="gpu.ecc", outcome=Outcome.FAIL, subject="gpu1", suggestion=Suggestion.RESET)
UNFIT = Report(reason=REASON, causes=(XID,))
OURS = OwnDrain(
    reason=REASON, since=NOW - 100, causes=(DrainCause(check="gpu.xid", subject="gpu3"),), passes=3
)


def node(*states: str, name: str = "n1", reason: str = "", user: str = "root", **more: object) -> SlurmNode:
    return slurm_node(*states, name=name, reason=reason, reason_user=user, **more)


def drained(*states: str, reason: str = REASON, **more: object) -> SlurmNode:
    return node(*(states or ("IDLE",)), "DRAIN", reason=reason, **more)


def act(
    seen: SlurmNode, said: Report, record: OwnDrain | None = None, *shares: PartitionDrains, **config: object
) -> DrainAction:
    settings = Drain(**config)  # type: ignore[arg-type]  # checked by the record
    return decide(seen, said, record or OwnDrain(), shares, settings, NOW).action


# -- any state at all ------------------------------------------------------------------------------------

states = st.builds(
    lambda base, flags: frozenset({base, *flags}), st.sampled_from(BASES), st.sets(st.sampled_from(FLAGS))
)
conclusions = st.sampled_from(
    [
        FIT,
        UNFIT,
        Report(reason=REASON, causes=(XID, ECC)),
        Report(reason="srobust: x", causes=(msgspec.structs.replace(XID, outcome="unknown"),)),
    ]
)
records = st.sampled_from([OwnDrain(), OURS, msgspec.structs.replace(OURS, passes=2)])
reasons = st.sampled_from(["", REASON, REASON + " RMA 12, bob", "srobust: other words", "Not responding"])


@given(states, conclusions, records, reasons, st.integers(0, 16))
def test_whatever_the_state_others_drains_and_unknown_results_change_nothing(
    given_states: frozenset[str], said: Report, record: OwnDrain, reason: str, cpus: int
) -> None:
    seen = node(*given_states, reason=reason, allocated_cpus=cpus)
    decision = decide(seen, said, record, (), Drain(), NOW)
    own = bool(record.reason) and reason == record.reason
    if decision.action is DrainAction.NOTHING:
        assert decision.why
        return
    assert given_states & {"IDLE", "ALLOCATED", "MIXED"}
    assert not given_states & {*FOREIGN_FLAGS, "DOWN", "ERROR", "FUTURE", "UNKNOWN"}
    assert own or "DRAIN" not in given_states
    if decision.action is DrainAction.UNDRAIN:
        assert said.fit
        assert record.passes >= 3
        assert not cpus
        assert not given_states & {"ALLOCATED", "MIXED", "COMPLETING", "NOT_RESPONDING"}
    else:
        assert any(cause.outcome is Outcome.FAIL for cause in said.causes)
        assert decision.reason.startswith("srobust: ")


@pytest.mark.parametrize("flag", FOREIGN_FLAGS)
@pytest.mark.parametrize("base", ["IDLE", "MIXED"])
def test_states_that_somebody_else_made_are_left_alone(base: str, flag: str) -> None:
    assert act(node(base, flag), UNFIT) is DrainAction.NOTHING
    assert act(drained(base, flag), FIT, OURS) is DrainAction.NOTHING


@pytest.mark.parametrize("base", ["DOWN", "ERROR", "FUTURE", "UNKNOWN"])
def test_nodes_that_slurm_gave_up_are_left_alone(base: str) -> None:
    assert act(node(base), UNFIT) is DrainAction.NOTHING


@pytest.mark.parametrize(
    "flag", ["NOT_RESPONDING", "RESERVED", "PLANNED", "BLOCKED", "COMPLETING", "CLOUD", "DYNAMIC_NORM"]
)
@pytest.mark.parametrize("base", ["IDLE", "MIXED", "ALLOCATED"])
def test_marks_of_the_scheduler_protect_no_bad_node(base: str, flag: str) -> None:
    assert act(node(base, flag), UNFIT) is DrainAction.DRAIN


# -- whose drain ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [REASON + " RMA 12, bob", "srobust: other words", "disk, alice", ""])
def test_a_reason_that_we_did_not_write_is_a_persons(reason: str) -> None:
    assert act(drained(reason=reason), FIT, OURS) is DrainAction.NOTHING
    assert act(drained(reason=reason), UNFIT, OURS) is DrainAction.NOTHING


def test_without_a_record_nothing_is_ours() -> None:
    assert act(drained(), FIT) is DrainAction.NOTHING
    assert act(drained(), UNFIT) is DrainAction.NOTHING


def test_an_old_reason_without_a_drain_belongs_to_nobody() -> None:
    assert act(node("IDLE", reason="disk, alice"), UNFIT) is DrainAction.DRAIN


# -- the reason -------------------------------------------------------------------------------------------


def test_a_second_fault_is_added_once() -> None:
    both = Report(reason="srobust: gpu3 XID 79 (+1)", causes=(XID, ECC))
    decision = decide(drained(), both, OURS, (), Drain(), NOW)
    assert (decision.action, decision.reason) == (DrainAction.UPDATE_REASON, both.reason)
    record = msgspec.structs.replace(OURS, causes=(*OURS.causes, DrainCause(check="gpu.ecc", subject="gpu1")))
    assert act(drained(), both, record) is DrainAction.NOTHING
    assert act(drained(), UNFIT, record) is DrainAction.NOTHING


# -- returning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "record", "config", "action"),
    [
        (drained(), OURS, {}, DrainAction.UNDRAIN),
        (drained("IDLE", "RESERVED"), OURS, {}, DrainAction.UNDRAIN),
        (drained(), OURS, {"pass_runs": 4}, DrainAction.NOTHING),
        (drained(), OURS, {"pass_runs": 3}, DrainAction.UNDRAIN),
        (drained(), OURS, {"undrain": False}, DrainAction.NOTHING),
        (drained(), msgspec.structs.replace(OURS, stays=True), {}, DrainAction.NOTHING),
        (drained("MIXED"), OURS, {}, DrainAction.NOTHING),
        (drained("ALLOCATED"), OURS, {}, DrainAction.NOTHING),
        (drained("IDLE", "COMPLETING"), OURS, {}, DrainAction.NOTHING),
        (drained("IDLE", "NOT_RESPONDING"), OURS, {}, DrainAction.NOTHING),
        (drained(allocated_cpus=1), OURS, {}, DrainAction.NOTHING),
    ],
)
def test_a_node_returns_when_it_is_proven_and_empty(
    seen: SlurmNode, record: OwnDrain, config: dict[str, object], action: DrainAction
) -> None:
    assert act(seen, FIT, record, **config) is action


# -- caps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "config", "action"),
    [
        (PartitionDrains(partition="p", nodes=4, drained=0), {}, DrainAction.DRAIN),
        (PartitionDrains(partition="p", nodes=4, drained=1), {}, DrainAction.NOTHING),
        (PartitionDrains(partition="p", nodes=100, drained=9), {}, DrainAction.DRAIN),
        (PartitionDrains(partition="p", nodes=100, drained=10), {}, DrainAction.NOTHING),
        (PartitionDrains(partition="p", nodes=100, drained=28), {"max_share": 0.29}, DrainAction.DRAIN),
        (PartitionDrains(partition="p", nodes=100, drained=29), {"max_share": 0.29}, DrainAction.NOTHING),
        (PartitionDrains(partition="p", nodes=100, drained=0), {"max_share": 0.0}, DrainAction.DRAIN),
        (PartitionDrains(partition="p", nodes=100, this_hour=3), {}, DrainAction.DRAIN),
        (PartitionDrains(partition="p", nodes=100, this_hour=4), {}, DrainAction.NOTHING),
        (PartitionDrains(partition="p", nodes=100, this_hour=0), {"max_per_hour": 0}, DrainAction.NOTHING),
    ],
)
def test_no_node_is_drained_beyond_the_share_of_its_partition(
    share: PartitionDrains, config: dict[str, object], action: DrainAction
) -> None:
    roomy = PartitionDrains(partition="other", nodes=1000)
    assert act(node(), UNFIT, None, roomy, share, **config) is action


def test_shares_count_our_drains_in_each_of_the_nodes_partitions() -> None:
    nodes = (
        node(name="n1", partitions=("a", "b")),
        drained(name="n2", partitions=("a",), reason_time=NOW - HOUR_S - 1),
        drained(name="n3", partitions=("b",), reason_time=NOW - 10),
        drained(name="n4", partitions=("b",), reason="disk, alice", reason_time=NOW - 10),
        node(name="n5", partitions=("a",), reason=REASON, reason_time=NOW - 10),
        drained(name="n6", partitions=("c",), reason_time=NOW - 10),
    )
    assert shares_of(nodes, "n1", NOW) == (
        PartitionDrains(partition="a", nodes=3, drained=1, this_hour=1),
        PartitionDrains(partition="b", nodes=3, drained=1, this_hour=1),
    )


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        (f"Epilog error; {REASON}", True),
        (f"{REASON} : Not responding", True),
        (f"Kill task failed & {REASON}", True),
        ("Kill task failed", False),
        ("k8s: cordon: node condition GpuXidError", False),
        ('see "srobust: gpu3" in the ticket', False),
    ],
)
def test_a_drain_counts_for_the_caps_if_a_part_of_it_is_ours_and_is_never_undone_for_that(
    reason: str, ours: bool
) -> None:
    nodes = [node(name="n1"), drained(name="n2", reason=reason, reason_time=NOW - 10)]
    (share,) = shares_of(nodes, "n1", NOW)
    assert (share.drained, share.this_hour) == (ours, ours)
    for said in (FIT, UNFIT):
        assert act(drained(reason=reason), said, OURS) is DrainAction.NOTHING


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    st.floats(0, 1),
    st.integers(1, 6),
)
def test_of_nodes_that_drain_at_once_just_as_many_stay_as_the_caps_allow(
    drains: list[tuple[int, bool]], max_share: float, max_per_hour: int
) -> None:
    """Nobody is sure of his, and one looks after the other. Who looks at the same time makes way as well."""
    config = Drain(max_share=max_share, max_per_hour=max_per_hour)
    nodes = [
        drained(name=f"n{i}", reason_time=NOW + second) if ours else node(name=f"n{i}")
        for i, (second, ours) in enumerate(drains)
    ]
    ours = [n.name for n in nodes if n.is_drained]
    most = min(max(1, int(max_share * len(nodes) + 1e-9)), max_per_hour)
    at_once = [name for name in ours if not beyond_cap(nodes, name, config)]
    assert at_once == (ours if len(ours) <= most else [])
    for i, one in enumerate(nodes):
        if one.name in ours and beyond_cap(nodes, one.name, config):
            nodes[i] = node(name=one.name)
    assert sum(n.is_drained for n in nodes) == min(most, len(ours))


@pytest.mark.parametrize(
    ("check", "blame", "common"),
    [
        ("gpu.xid", Party.NODE, False),
        ("mounts.answer", Party.STORAGE, True),
        ("services.munge", Party.SITE, True),
        ("infiniband.port", Party.FABRIC, True),
        ("site.fan", Party.NODE, True),
    ],
)
def test_what_other_nodes_are_likely_to_find_as_well(check: str, blame: Party, common: bool) -> None:
    cause = Finding(check=check, outcome=Outcome.FAIL, blame=blame, suggestion=Suggestion.RESET)
    assert may_be_common(Report(causes=(cause,))) is common
    assert may_be_common(Report(causes=(XID, cause))) is common


# -- flapping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drains", "stays"),
    [((), False), ((NOW - 86401, NOW - 5), False), ((NOW - 86399, NOW - 5), True), ((1.0, 2.0, 3.0), False)],
)
def test_the_third_drain_within_a_day_is_left_to_a_person(drains: tuple[float, ...], stays: bool) -> None:
    decision = decide(node(), UNFIT, OwnDrain(drains=drains), (), Drain(most_per_day=3), NOW)
    assert (decision.action, decision.stays) == (DrainAction.DRAIN, stays)
    assert ("3 times in 24 h" in decision.reason) is stays


def test_a_long_reason_still_says_that_the_node_stays() -> None:
    long = Report(reason="srobust: " + "x" * 191, causes=(XID,))
    decision = decide(node(), long, OwnDrain(drains=(NOW - 1,)), (), Drain(most_per_day=1), NOW)
    assert len(decision.reason) == 200
    assert decision.reason.endswith("(drained 2 times in 24 h, stays)")
