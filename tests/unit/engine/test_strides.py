"""Steps that are shorter than their snapshots: only some are kept, the same on all ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.engine.units.strides import SETTLE_S, TELL_EVERY_S
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.journal import fold
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Launch, Pace
from tests.unit.engine.stories import PACE, begins, next_controller, orders, restored, sent

SHORT = structs.replace(PACE, step_s=0.1, copy_s=(0.05, 0.1))


def short(whole_s: float = 0.3, blocked_s: float = 0.004, *, nodes: int = 3, **more: object) -> Sim:
    """A job whose steps of 0.1 s are shorter than a snapshot takes."""
    sim = Sim(nodes, 1, **{"seed": 1, "steps": 100_000, "others": 1, "pace": SHORT} | more)  # type: ignore[arg-type]
    sim.training.whole_s, sim.training.blocked_s = whole_s, blocked_s
    return sim


def strides(sim: Sim) -> list[tuple[int, int]]:
    """The strides of peers and of the nodes themselves, one after the other."""
    return [(event.stride, event.local_stride) for event in sim.events(ev.StrideChanged)]


def local(sim: Sim) -> int:
    return sim.state.world.local_stride


def rises(sim: Sim, to: int, within_s: float = 30.0) -> float:
    """The local stride rises; seconds since the first step."""
    sim.run_until(lambda: sim.step >= 0, within_s=60.0)
    begun = sim.now
    sim.run_until(lambda: local(sim) == to, within_s=within_s)
    return sim.now - begun


def kept(sim: Sim, node: str) -> list[int]:
    generation = sim.state.world.generation
    copies = [c for c in sim.nodes[node].copies if c.tier is Tier.MEMORY and c.generation == generation]
    return sorted({c.step for c in copies})


def test_within_seconds_only_so_many_steps_are_kept_as_block_little() -> None:
    sim = short()
    assert rises(sim, 4) < 8.0
    sim.run(30.0)
    assert local(sim) == 4
    newest = [kept(sim, node)[-2:] for node in sim.state.world.slots]
    assert newest[0] == newest[1] == newest[2]
    assert all(step % 4 == 0 for step in newest[0])
    assert [line for line in sim.said if "snapshots in memory" in line] == [
        "snapshots in memory of steps that are multiples of 4 only, since one blocks training for 0.004 s "
        "and is whole after 0.3 s, and a step takes 0.1 s (checkpoint.max_blocked_share); a fault repeats up "
        "to 4 steps (0.4 s)"
    ]


def test_peers_get_no_more_than_is_taken() -> None:
    sim = short()
    rises(sim, 4)
    assert all(stride >= local for stride, local in strides(sim))
    assert orders(sim, Pace)["n1"].local_stride == 4


def test_very_short_steps_are_kept_far_apart_in_a_few_strides() -> None:
    sim = short(whole_s=0.5, blocked_s=0.08)  # 1 % of the time between two is 0.08 s with 80 steps
    assert rises(sim, 128, within_s=60.0) < 30.0
    raised = sorted({local for _, local in strides(sim)})
    assert len(raised) < 8
    sim.run(60.0)
    assert sum("snapshots in memory" in line for line in sim.said) == 2


def test_that_much_is_repeated_is_said_while_the_stride_rises_and_again_once_it_is_as_it_has_to_be() -> None:
    sim = short(whole_s=0.5, blocked_s=0.08)
    sim.run_until(lambda: sim.step >= 0, within_s=60.0)
    sim.run_until(lambda: any("snapshots in memory" in line for line in sim.said), within_s=12.0)
    assert sim.state.world.rising
    first = sim.said[-1]
    assert f"; a fault repeats up to {local(sim)} steps (" in first
    assert first.endswith(" so far, and more if this still rises")
    assert local(sim) < 128
    sim.run_until(lambda: local(sim) == 128, within_s=60.0)
    sim.run_until(lambda: not sim.state.world.rising, within_s=60.0)
    assert sim.said[-1].endswith("; a fault repeats up to 128 steps (13 s)")
    settled = sim.events(ev.StrideChanged)[-1]
    assert settled.snapshots is not None
    assert settled.snapshots.stride == settled.local_stride == 128


def test_while_the_stride_rises_for_long_there_is_a_line_every_half_minute_at_most() -> None:
    sim = short(whole_s=0.5, blocked_s=0.03)
    told, seen = [], 0
    for _ in range(120):
        sim.training.blocked_s *= 1.02  # more and more
        sim.run(1.0)
        told += [sim.now for line in sim.said[seen:] if line.endswith("if this still rises")]
        seen = len(sim.said)
    assert len(told) > 1
    assert min(after - before for before, after in pairwise(told)) >= TELL_EVERY_S - 1.0


def test_steps_that_are_long_enough_are_all_kept() -> None:
    sim = short(whole_s=0.07, blocked_s=0.0005)
    sim.run(60.0)
    assert {local for _, local in strides(sim)} <= {1}
    assert not any("snapshots in memory" in line for line in sim.said)


def test_a_rank_dies_and_no_more_steps_are_repeated_than_the_stride_and_the_incident_says_how_many() -> None:
    sim = short()
    rises(sim, 4)
    sim.run(10.0)
    sim.kill_rank(1)
    begins(sim, 2)
    step, tiers = restored(sim)
    assert step % 4 == 0
    assert tiers == {"memory": 3}
    assert orders(sim, Launch)["n1"].local_stride == 4
    assert orders(sim, Launch)["n1"].stride >= 4
    sim.run_until(lambda: sim.state.world.incident is None, within_s=60.0)
    (closed,) = sim.events(ev.IncidentClosed)
    opened = sim.events(ev.IncidentOpened)[0]
    assert 0 <= opened.best_step - step <= 4
    assert closed.step > opened.best_step


def test_a_node_dies_and_the_newest_step_that_peers_have_is_restored() -> None:
    sim = short()
    rises(sim, 4)
    sim.run(10.0)
    sim.node_dies("n2")
    begins(sim, 2)
    step, tiers = restored(sim)
    stride = sim.state.world.stride
    assert step % stride == 0
    assert tiers == {"memory": 2, "peer": 1}
    assert sim.events(ev.IncidentOpened)[0].best_step - step <= 2 * stride


def test_a_rank_that_is_told_late_has_a_step_in_common_with_the_others() -> None:
    """Its agent stands still from the moment at which all have shown the stride of peers."""
    sim = short()
    sim.run_until(lambda: bool(strides(sim)) and strides(sim)[-1][0] == 4, within_s=30.0)
    sim.run_until(lambda: all(r.stride == 4 for r in sim.ranks.values()), within_s=10.0)
    sim.run_until(lambda: local(sim) == 4 or any(r.local_stride == 4 for r in sim.ranks.values()), 20.0)
    late = next(rank for rank in sim.ranks.values() if rank.node == "n2")
    late.local_stride = 1  # as if it had not heard of it
    for _ in range(40):
        sim.run(0.1)
        late.local_stride = 1
        assert set(kept(sim, "n1")) & set(kept(sim, "n2")) & set(kept(sim, "n3"))


def test_an_agent_that_does_not_show_its_strides_leaves_all_steps_to_be_kept() -> None:
    sim = short()
    sim.nodes["n2"].shows_strides = False
    sim.run(60.0)
    assert {local for _, local in strides(sim)} <= {1}


def test_the_local_stride_falls_when_steps_become_longer_and_outlives_controllers() -> None:
    sim = short()
    rises(sim, 4)
    next_controller(sim)
    assert local(sim) == 4
    assert fold(sim.journal).world.local_stride == 4
    sim.training.step_s = 2.0
    sim.run_until(lambda: local(sim) == 1, within_s=60.0)
    assert [local for _, local in strides(sim)][-2:] == [2, 1]
    sim.run(TELL_EVERY_S + 10.0)
    assert orders(sim, Pace)["n1"].local_stride == 1
    assert "snapshots in memory of every step again, since one blocks" in sim.said[-1]


def test_a_stride_that_is_needed_again_is_lowered_less_and_less_often() -> None:
    sim = short()
    rises(sim, 4)
    for _ in range(4):  # what snapshots take says that half of it would do, until it is tried
        before = sim.now
        sim.training.whole_s = sim.training.blocked_s = 0.001
        sim.run_until(lambda: local(sim) == 2, within_s=600.0)
        waited_s = sim.now - before
        sim.training.whole_s = 0.3
        sim.run_until(lambda: local(sim) == 4, within_s=60.0)
    assert waited_s > 4 * SETTLE_S


def test_no_bound_keeps_every_step() -> None:
    sim = short(config=JobConfig(checkpoint=CheckpointConfig(max_blocked_share=None)))
    sim.run(60.0)
    assert {local for _, local in strides(sim)} <= {1}
    assert all(order.local_stride == 1 for _, order in sent(sim, Pace))


def test_the_local_stride_waits_for_an_agent_that_has_not_shown_the_stride_of_peers() -> None:
    sim = short()
    sim.run_until(lambda: bool(strides(sim)), within_s=60.0)
    agent = sim.nodes["n2"].agent
    assert agent is not None
    agent.stop()
    sim.run(2.5)
    assert local(sim) == 1
    assert sim.stage == "Running"
    agent.resume()
    sim.run_until(lambda: local(sim) == 4, within_s=10.0)


@pytest.mark.parametrize("seed", range(1, 7))
def test_when_the_local_stride_rises_all_ranks_hold_a_step_that_they_keep_since_they_know_it(
    seed: int,
) -> None:
    sim = short(seed=seed)
    sim.run_until(lambda: bool(strides(sim)), within_s=60.0)
    sim.run_until(lambda: all(rank.stride == sim.state.world.stride for rank in sim.ranks.values()), 10.0)
    known = sim.step
    sim.run_until(lambda: local(sim) > 1, within_s=30.0)
    held = [kept(sim, node) for node in sim.state.world.slots]
    common = set.intersection(*map(set, held))
    assert any(step > known and step % sim.state.world.stride == 0 for step in common), (known, held)


def test_a_training_that_ends_leaves_its_last_step_on_storage_whatever_the_local_stride() -> None:
    sim = short(steps=203)
    rises(sim, 4)
    sim.run_until(lambda: sim.code is not None, within_s=120.0)
    assert sim.code == 0
    assert max(ref.step for ref in sim.storage.complete()) == 202


def far_apart() -> Sim:
    """Steps of 1 s, of which every 64th is kept; half of these are over."""
    sim = short(blocked_s=0.6, pace=structs.replace(SHORT, step_s=1.0))
    sim.run_until(lambda: local(sim) == 64, within_s=600.0)
    sim.run_until(lambda: sim.training.newest % 64 == 32, within_s=100.0)
    return sim


def test_where_ctrl_c_leaves_ranks_alive_a_coming_step_is_kept_whatever_the_local_stride() -> None:
    sim = far_apart()
    ordered, begun = sim.training.newest, sim.now
    sim.order_to_end()
    sim.run_to_end(within_s=60.0)
    stored = max(ref.step for ref in sim.storage.complete())
    assert stored > ordered
    assert sim.training.newest - stored <= 4  # until its snapshot is seen and the ranks have ended
    text = f"step {stored} is kept first: otherwise snapshots are taken of multiples of 64 only"
    assert text in sim.said
    assert sim.now - begun < 15.0


def test_ranks_that_slurm_has_told_to_end_are_not_waited_for_and_what_is_lost_is_named() -> None:
    sim = far_apart()
    sim.term_agents()
    sim.term()
    sim.run_to_end(within_s=60.0)
    stored, newest = max(ref.step for ref in sim.storage.complete()), sim.training.newest
    assert stored % 64 == 0
    assert any(line.startswith(f"steps {stored + 1} to {newest} are lost: ") for line in sim.said)
    assert not sim.events(ev.IncidentOpened)


def test_a_step_that_does_not_come_is_not_waited_for_longer_than_the_end_can_spare() -> None:
    sim = far_apart()
    sim.hang_rank(1)
    begun = sim.now
    sim.order_to_end()
    sim.run_until(lambda: sim.stage != "Running", within_s=10.0)
    assert 2.0 < sim.now - begun < 6.0
    sim.run_to_end(within_s=60.0)
    assert any(" are lost: snapshots were taken of multiples of 64 only" in line for line in sim.said)


def test_a_second_order_ends_the_wait_for_a_step() -> None:
    sim = far_apart()
    sim.order_to_end()
    sim.run(1.2)
    assert sim.stage == "Running"
    sim.order_to_end()
    sim.run_until(lambda: sim.stage != "Running", within_s=1.0)


def test_an_order_to_end_stores_the_newest_step_that_is_kept_and_names_those_after_it_that_are_lost() -> None:
    sim = short()
    rises(sim, 4)
    sim.run_until(lambda: sim.training.newest % 4 == 1, within_s=5.0)
    sim.term()
    sim.run_to_end(within_s=60.0)
    stored, newest = max(ref.step for ref in sim.storage.complete()), sim.training.newest
    assert stored % 4 == 0
    assert newest > stored
    (told,) = [text for text in sim.said if " lost: " in text]
    steps = f"steps {stored + 1} to {newest} are" if newest > stored + 1 else f"step {newest} is"
    why = "snapshots were taken of multiples of 4 only (checkpoint.max_blocked_share)"
    assert told == f"{steps} lost: {why}"
    assert told in [event.text for event in sim.events(ev.Noted)]


def test_what_was_said_of_the_stride_is_not_said_again_in_the_next_generation() -> None:
    sim = short()
    rises(sim, 4)
    sim.run(10.0)
    said = [line for line in sim.said if "snapshots in memory" in line]
    assert len(said) == 1
    sim.training.whole_s = sim.training.blocked_s = 0.0001  # the next one tries every step again
    sim.kill_rank(0)
    sim.run_until(lambda: local(sim) == 1, within_s=120.0)
    sim.training.whole_s, sim.training.blocked_s = 0.3, 0.004
    sim.run_until(lambda: local(sim) == 4, within_s=120.0)
    sim.run(60.0)
    assert [line for line in sim.said if "snapshots in memory" in line] == said
