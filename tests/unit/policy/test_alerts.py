"""Who is evicted for what the inspection has seen, and what is only waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.model.findings import Alert, Effect, Party, Suggestion
from slurm_robust.model.incident import Symptom
from slurm_robust.policy import Rules
from slurm_robust.policy import alerts as policy

CONFIG = DetectConfig()


class Judged(NamedTuple):
    """Nodes to evict with the reason: at once, and for their links; and why others are not."""

    evict: dict[str, str] = {}
    network: dict[str, str] = {}
    waits: tuple[str, ...] = ()


NOBODY = Judged()


def lost_gpu(age_s: float = 1.0, **more: object) -> Alert:
    fields = {
        "number": 1,
        "check": "gpu.lost",
        "subject": "gpu3",
        "text": "lost, fell off the bus",
        "blame": Party.NODE,
        "suggestion": Suggestion.REBOOT,
        "age_s": age_s,
    }
    return Alert(**fields | more)  # type: ignore[arg-type]


def flap(age_s: float, **more: object) -> Alert:
    """A link that was lost and is back."""
    fields = {
        "check": "infiniband.flaps",
        "subject": "mlx5_0/1",
        "text": "link was lost once within an hour",
        "blame": Party.FABRIC,
        "suggestion": Suggestion.MONITOR,
    }
    return lost_gpu(age_s, **fields | more)


def down(age_s: float, **more: object) -> Alert:
    """A link that is down."""
    fields = {"check": "infiniband.state", "text": "link is DOWN", "suggestion": Suggestion.RESET}
    fields["effect"] = Effect.LINK_DOWN
    return flap(age_s, **fields | more)


def judge(
    alerts: Mapping[str, Sequence[Alert]], leaves: Mapping[str, str], config: DetectConfig, *, nodes: int
) -> Judged:
    faults, waits = policy.judge(alerts, Rules(config=JobConfig(detect=config), leaves=leaves), nodes=nodes)
    named = {fault.symptom: fault.named for fault in faults}
    assert all(named.values()), "a fault without a node is no fault"
    return Judged(named.pop(Symptom.NODE_FAULT, {}), named.pop(Symptom.NETWORK, {}), waits)


def judged(alerts: dict[str, list[Alert]], leaves: dict[str, str] | None = None, nodes: int = 16) -> Judged:
    return judge(alerts, leaves or {}, CONFIG, nodes=nodes)


def test_a_lost_gpu_evicts_its_node_at_once() -> None:
    assert judged({"n1": [lost_gpu(0.0)], "n2": []}) == Judged(
        evict={"n1": "gpu3 lost, fell off the bus (gpu.lost)"}
    )


def test_the_worst_fault_is_the_reason() -> None:
    disk = lost_gpu(number=2, check="kernel.filesystem", subject="nvme0", suggestion=Suggestion.REPLACE)
    assert judged({"n1": [lost_gpu(), disk]}).evict == {
        "n1": "nvme0 lost, fell off the bus (kernel.filesystem) (+1)"
    }


def test_a_fault_that_is_over_evicts_nobody() -> None:
    assert judged({"n1": [lost_gpu(60.0, ended_s=1.0)]}) == NOBODY


@pytest.mark.parametrize("blame", [Party.SITE, Party.STORAGE, Party.JOB])
def test_a_cause_outside_of_the_node_evicts_nobody_and_is_reported(blame: Party) -> None:
    found = judged({"n1": [lost_gpu(blame=blame)]})
    assert (found.evict, found.network) == ({}, {})
    assert found.waits == (
        f"n1: gpu3 lost, fell off the bus (gpu.lost): blames the {blame.value}, not the node",
    )


def test_heat_is_left_to_the_pace_of_the_training() -> None:
    found = judged(
        {
            "n1": [
                lost_gpu(
                    check="gpu.throttle",
                    effect=Effect.SLOW,
                    text="power brake",
                    suggestion=Suggestion.REPLACE,
                )
            ]
        }
    )
    assert found.evict == {}
    assert found.waits == (
        "n1: gpu3 power brake (gpu.throttle): the pace of the training shows whether it matters",
    )


def test_the_same_fault_on_much_of_the_job_at_once_is_no_fault_of_the_nodes() -> None:
    found = judged({f"n{n}": [lost_gpu(n)] for n in range(6)}, nodes=16)
    assert found.evict == {}
    assert found.waits == ("gpu.lost fails on n0, n1, n2, n3, n4, n5 together: no fault of the nodes",)
    # Two of four nodes may break, and five of sixteen too.
    assert len(judged({f"n{n}": [lost_gpu(n)] for n in range(2)}, nodes=4).evict) == 2
    assert len(judged({f"n{n}": [lost_gpu(n)] for n in range(5)}, nodes=16).evict) == 5
    # One after the other they do as well.
    assert len(judged({f"n{n}": [lost_gpu(100.0 * n)] for n in range(6)}, nodes=16).evict) == 6


def test_one_flap_is_waited_for_and_the_second_within_the_window_evicts() -> None:
    once = judged({"n1": [flap(10.0)]})
    assert (once.evict, once.network) == ({}, {})
    assert once.waits == (
        "n1: mlx5_0/1 link was lost once within an hour (infiniband.flaps): "
        "1 network alert within 300 s, evicted at 2",
    )
    twice = judged({"n1": [flap(200.0, ended_s=150.0), flap(10.0, number=2)]})
    assert twice.network == {
        "n1": "2 network alerts within 300 s: mlx5_0/1 link was lost once within an hour (infiniband.flaps)"
    }
    assert twice.waits == ()
    assert judged({"n1": [flap(301.0), flap(10.0)]}).network == {}


def test_what_several_checks_notice_of_one_loss_counts_once() -> None:
    assert judged({"n1": [down(12.0, ended_s=2.0), flap(12.0), flap(2.0, subject="mlx5_1/1")]}).network == {}


def test_a_link_that_stays_down_counts_twice() -> None:
    assert judged({"n1": [down(19.0)]}).network == {}
    assert judged({"n1": [down(20.0)]}).network.keys() == {"n1"}
    assert judged({"n1": [down(40.0, ended_s=30.0)]}).network == {}
    assert judged({"n1": [flap(200.0)]}).network == {}, "a flap stands for an hour, though the link is back"


def test_nodes_behind_one_leaf_are_an_event_of_the_switch() -> None:
    leaves = {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2"}
    found = judged({"n1": [down(40.0)], "n2": [down(32.0)]}, leaves)
    assert (found.evict, found.network) == ({}, {})
    assert found.waits == ("links of n1, n2 fail together: an event of leaf1, no node is evicted for it",)
    # Behind two leaves it is a coincidence, unless it is much of the job.
    assert judged({"n1": [down(40.0)], "n3": [down(32.0)]}, leaves).network.keys() == {"n1", "n3"}
    assert judged({"n1": [down(40.0)], "n3": [down(32.0)]}, leaves, nodes=4).network == {}
    # In a job of one leaf it is still that leaf's.
    assert "an event of leaf1" in judged({"n1": [down(40.0)], "n2": [down(32.0)]}, leaves, nodes=2).waits[0]
    # Minutes apart each speaks for itself.
    assert judged({"n1": [down(140.0)], "n2": [down(32.0)]}, leaves).network.keys() == {"n1", "n2"}


def test_without_known_leaves_more_than_a_third_of_the_job_is_one_event() -> None:
    alerts = {f"n{n}": [down(30.0 + n)] for n in range(3)}
    assert judged(alerts, nodes=9).network.keys() == {"n0", "n1", "n2"}
    found = judged(alerts, nodes=8)
    assert found.network == {}
    assert found.waits == (
        "links of n0, n1, n2 fail together: an event of the fabric, no node is evicted for it",
    )
    assert judged({"n0": [down(30.0)]}, nodes=1).network.keys() == {"n0"}


def test_a_link_that_is_down_is_named_before_its_loss() -> None:
    lost = [down(30.0, number=1), flap(30.0, number=2)]
    assert judged({"n1": lost}).network["n1"].endswith("mlx5_0/1 link is DOWN (infiniband.state)")
    healed = [down(30.0, number=1, ended_s=1.0), flap(30.0, number=2)]
    assert judged({"n1": healed}).network["n1"].endswith("(infiniband.flaps)")


def test_a_shared_event_does_not_count_against_a_node() -> None:
    leaves = {"n1": "leaf1", "n2": "leaf1"}
    found = judged({"n1": [flap(200.0), flap(20.0, number=2)], "n2": [flap(201.0)]}, leaves)
    assert found.network == {}
    assert len(found.waits) == 2


def test_nobody_is_evicted_for_the_network_where_that_is_switched_off() -> None:
    found = judge({"n1": [down(200.0)]}, {}, DetectConfig(network_alerts=0), nodes=4)
    assert found.network == {}
    assert found.waits[0].endswith("no node is evicted for it")


@pytest.mark.parametrize("suggestion", Suggestion)
def test_memory_that_runs_out_never_evicts(suggestion: Suggestion) -> None:
    full = lost_gpu(check="memory.pressure", subject="job_7", blame=Party.JOB, suggestion=suggestion)
    found = judged({"n1": [full]})
    assert (found.evict, found.network) == ({}, {})


alert = st.builds(
    Alert,
    number=st.integers(1, 99),
    check=st.sampled_from(["gpu.lost", "gpu.throttle", "kernel.xid", "infiniband.state", "infiniband.flaps"]),
    subject=st.sampled_from(["gpu0", "mlx5_0/1"]),
    text=st.just("bad"),
    blame=st.sampled_from(Party),
    suggestion=st.sampled_from(Suggestion),
    age_s=st.floats(0, 1000),
    ended_s=st.none() | st.floats(0, 600),
    effect=st.sampled_from(Effect),
)
nodes = [f"n{n}" for n in range(8)]
seen = st.dictionaries(st.sampled_from(nodes), st.lists(alert, max_size=4))
leaf = st.dictionaries(st.sampled_from(nodes), st.sampled_from(["leaf1", "leaf2"]))


@settings(max_examples=50)
@given(seen, leaf, st.integers(8, 64))
def test_only_nodes_with_alerts_of_their_own_are_evicted(
    alerts: dict[str, list[Alert]], leaves: dict[str, str], size: int
) -> None:
    found = judge(alerts, leaves, CONFIG, nodes=size)
    for node in found.evict:
        assert any(
            a.blame is Party.NODE and a.suggestion.keeps_jobs_away and a.ended_s is None for a in alerts[node]
        )
    for node in found.network:
        assert any(a.is_link and a.age_s <= CONFIG.network_window_s for a in alerts[node])
    assert not found.evict.keys() & found.network.keys()
    assert all(found.evict.values())
    assert all(found.network.values())


@settings(max_examples=50)
@given(seen, leaf, st.integers(8, 64))
def test_the_order_of_nodes_and_alerts_does_not_matter(
    alerts: dict[str, list[Alert]], leaves: dict[str, str], size: int
) -> None:
    turned = {node: list(reversed(alerts[node])) for node in reversed(alerts)}
    first, second = judge(alerts, leaves, CONFIG, nodes=size), judge(turned, leaves, CONFIG, nodes=size)
    assert (first.evict.keys(), first.network.keys()) == (second.evict.keys(), second.network.keys())


@settings(max_examples=50)
@given(seen, leaf)
def test_all_links_of_the_job_at_once_evict_nobody(
    alerts: dict[str, list[Alert]], leaves: dict[str, str]
) -> None:
    everywhere = {node: [down(100.0 + n)] for n, node in enumerate(nodes)}
    assert judge(everywhere, leaves, CONFIG, nodes=len(nodes)).network == {}


@given(st.integers(1, 4), st.floats(0, 280))
def test_as_many_alerts_as_configured_evict(limit: int, newest_s: float) -> None:
    config = DetectConfig(network_alerts=limit)
    ages = [newest_s + 16.0 * n for n in range(limit)]
    window_s = config.network_window_s
    found = judge({"n1": [flap(age) for age in ages]}, {}, config, nodes=8)
    assert bool(found.network) is (max(ages) <= window_s)
    assert judge({"n1": [flap(age) for age in ages[1:]]}, {}, config, nodes=8).network == {}
