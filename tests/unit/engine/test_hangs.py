"""A hang that moves with the rank is the code's, one that stays with the node is the node's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import DetectConfig, JobConfig, ParallelConfig, Timings
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.stacks import Collective, Frame, RankStacks
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from slurm_robust.testing.sim.training import doing, waiting
from slurm_robust.wire.messages import TakeStacks
from tests.unit.engine.stories import (
    comes_to,
    controller_of,
    evicted,
    gets_on,
    node_tests,
    notes,
    opened,
    sent,
    starts_again,
    stuck,
    trained,
    with_cpu,
)

HANG_STEP = 30
COARSE = SimulatedPace(step_s=2.0, turn_s=1.0, rest_s=0.2)


def job(spares: int = 1, *, reports: bool = True, **detect: Any) -> Sim:
    """Three nodes that have trained for a while."""
    sim = Sim(3, spares, seed=1, steps=4000, pace=COARSE, config=JobConfig(detect=DetectConfig(**detect)))
    sim.training.reports = reports
    comes_to(sim, HANG_STEP)
    return sim


def computes(sim: Sim, rank: int, line: str = "layer{}@model.py") -> None:
    """This rank computes, from second to second in that line, while the others wait for it."""
    node, begun = sim.rank(rank).node, sim.now

    def shows(order: TakeStacks) -> RankStacks:
        past = sim.now - begun
        return with_cpu(doing(rank, node, line.format(int(past)), "main@train.py"), 10 + 0.8 * past)

    sim.hang_rank(rank, shows=shows)


def verdicts(sim: Sim) -> list[inc.Blame]:
    return [d.verdict.blame for d in sim.events(ev.Decided) if d.verdict is not None]


def last_actions(sim: Sim) -> list[type]:
    return [type(action) for action in sim.events(ev.Decided)[-1].actions]


def rounds(sim: Sim) -> dict[int, tuple[int, ...]]:
    """The sample rounds, and of which ranks each shows the calls in libraries."""
    return {m.number: m.native for _, m in sent(sim, TakeStacks)}


# -- jobs that are suspended -------------------------------------------------------------------------


def test_a_job_that_was_suspended_has_not_hung() -> None:
    """Resumed after longer than any step takes, it trains on; if it does not, that is a hang."""
    sim = job()
    sim.hang_rank(1)
    sim.suspend(60.0)
    sim.run(20.0)
    assert opened(sim) == []
    sim.run_until(lambda: bool(opened(sim)), 200.0)
    assert opened(sim) == [inc.Symptom.HANG]


@pytest.mark.parametrize(("slice_s", "awake_s"), [(30.0, 30.0), (10.0, 50.0), (300.0, 30.0), (60.0, 10.0)])
def test_a_job_that_shares_its_nodes_in_turns_is_found_hanging(slice_s: float, awake_s: float) -> None:
    """Of the time that it has, a hang takes its bound of 14 s and at most 150 s."""
    sim = job()
    sim.hang_rank(1)
    had_s = 0.0
    while not opened(sim) and had_s < 200.0:
        sim.suspend(slice_s)
        sim.run(awake_s)
        had_s += awake_s
    assert had_s <= 14.0 + 150.0 + awake_s
    assert opened(sim) == [inc.Symptom.HANG]


@pytest.mark.parametrize(("step_s", "awake_s"), [(1, 30), (7, 10), (29, 30), (75, 30), (200, 30)])
def test_a_job_that_shares_its_nodes_in_turns_and_trains_has_never_hung(step_s: int, awake_s: int) -> None:
    """Its steps are shorter or longer than its turns."""
    pace = SimulatedPace(step_s=step_s, turn_s=1.0, rest_s=0.2)
    sim = Sim(2, seed=1, steps=4000, pace=pace, config=JobConfig(timings=Timings(heartbeat_s=2.0)))
    sim.run_until(lambda: sim.step >= 3, 1000.0)
    for _ in range(max(10, 3 * step_s // awake_s)):
        sim.run(awake_s)
        sim.suspend(30.0)
    assert sim.step >= 5
    assert (opened(sim), rounds(sim)) == ([], {})
    longest_s = controller_of(sim).core.monitor.pace.longest_s
    assert longest_s < 1.04 * step_s + 2, "a suspension is no part of a step"


def test_an_alert_that_was_decided_on_is_no_new_fault_after_a_suspension() -> None:
    sim = trained(3, 1, config=JobConfig(mode="observe"))
    sim.alert("n3", BAD_GPU)
    sim.run(2.0)
    assert len(sim.events(ev.Decided)) == 1
    for _ in range(3):
        sim.suspend(30.0)
        sim.run(7.0)
    assert len(sim.events(ev.Decided)) == 1


# -- the rank or the node ----------------------------------------------------------------------------


@pytest.mark.parametrize("reports", [True, False])
def test_a_rank_that_hangs_at_the_same_step_on_other_nodes_is_the_codes_fault(reports: bool) -> None:
    sim = job(reports=reports)
    nodes = []
    while sim.code is None:
        comes_to(sim, HANG_STEP)
        nodes.append(sim.rank(1).node)
        stuck(sim, 1)
        starts_again(sim)
    assert sim.code == 93
    assert nodes == ["n2", "n2", "n4"], "in place, then on the standby, then the end"
    assert evicted(sim) == set()
    assert verdicts(sim) == [inc.Blame.NOBODY, inc.Blame.NOBODY, inc.Blame.CODE]
    assert "it was the same on n2" in sim.events(ev.Decided)[-1].reason


def hangs_unheard(sim: Sim, rank: int) -> None:
    """No recorder of this rank answers; three others stand in an operation with it, four wait for those."""
    inside = (rank, *(n for n in range(4) if n != rank))[:4]
    place = {n: sim.rank(n).node for n in range(8)}

    def open_in(group: str, ranks: tuple[int, ...], state: str = "started") -> Collective:
        operation = "nccl:all_reduce"
        return Collective(group=group, sequence=9, operation=operation, state=state, ranks=ranks)

    for n in range(8):
        pair = (n % 4, n % 4 + 4)
        ahead = open_in(f"b{n % 4}", pair, "scheduled" if n in inside else "started")
        found = (open_in("a", tuple(sorted(inside))), ahead) if n in inside else (ahead,)
        stacks = with_cpu(doing(n, place[n], "main@train.py"), 5.0)
        shown = structs.replace(stacks, collectives=() if n == rank else found)
        sim.rank(n).shows = lambda _, shown=shown: shown
    sim.hang_rank(rank, shows=sim.rank(rank).shows)


def test_where_a_silent_recorder_moves_with_the_rank_the_nodes_are_tested_and_nobody_is_convicted() -> None:
    sim = trained(8, 1)
    nodes = []
    for step in (10, 10, 10):
        comes_to(sim, step)
        nodes.append(sim.rank(1).node)
        assert node_tests(sim) == []
        hangs_unheard(sim, 1)
        starts_again(sim)
    assert nodes == ["n2", "n2", "n9"], "in place, then on the standby"
    places = [d.place for d in sim.events(ev.Decided) if d.place is not None]
    assert [(place.ranks, place.silent) for place in places[:3]] == [((1,), True)] * 3
    assert len(node_tests(sim)) == 1
    assert (sim.code, evicted(sim)) == (None, set())
    assert set(verdicts(sim)) == {inc.Blame.NOBODY}


def test_two_nodes_exchange_their_slots_after_a_second_hang_without_a_standby() -> None:
    sim = job(spares=0)
    while sim.code is None:
        comes_to(sim, HANG_STEP)
        stuck(sim, 1)
        starts_again(sim)
    assert sim.state.world.slots == ("n2", "n1", "n3")
    assert (sim.code, evicted(sim), sim.state.world.generation) == (93, set(), 3)


def test_a_hang_that_stays_with_the_node_evicts_it() -> None:
    sim = job(spares=0)
    for step in (30, 40):
        comes_to(sim, step)
        stuck(sim, 1)  # n2
        starts_again(sim)
    comes_to(sim, 50)
    assert sim.rank(0).node == "n2"
    stuck(sim, 0, "other@train.py")
    sim.run_until(lambda: bool(evicted(sim)), 300.0)
    assert evicted(sim) == {"n2"}
    assert "it stays with the node" in sim.events(ev.Decided)[-1].reason


def test_the_node_that_two_hanging_groups_have_in_common_is_evicted() -> None:
    """One standby for a pair: the bad one of the two exchanges its slot, and is in another pair then."""
    sim = trained(8, 1, config=JobConfig(parallel=ParallelConfig(pp=2)))
    calls = ("recv@torch/distributed/distributed_c10d.py", "main@train.py")
    pairs = []
    for step in (10, 20, 30):
        comes_to(sim, step)
        slots = sim.state.world.slots
        pair = (slots.index("n6") % 4, slots.index("n6") % 4 + 4)
        pairs.append({slots[rank] for rank in pair})
        for rank in pair:
            stuck(sim, rank, *calls)
        starts_again(sim)
    assert pairs == [{"n2", "n6"}, {"n2", "n6"}, {"n5", "n6"}]
    assert evicted(sim) == {"n6"}
    assert "n6 is what both have in common" in sim.events(ev.Decided)[-1].reason
    assert sim.state.unproven == ("n6",), "suspicion alone speaks against it"
    assert "n2" in sim.state.world.slots, "the other one of the pair is used again"


def test_two_hanging_groups_that_share_a_rank_say_nothing_of_its_node() -> None:
    """It may be the code of that rank."""
    sim = trained(8, config=JobConfig(parallel=ParallelConfig(tp=2, pp=2)))
    calls = ("all_reduce@torch/distributed/distributed_c10d.py", "other@train.py", "main@train.py")
    for step, pair in ((10, (0, 1)), (20, (0, 4))):
        comes_to(sim, step)
        for rank in pair:
            stuck(sim, rank, *calls)
        starts_again(sim)
    assert [len(d.place.nodes) for d in sim.events(ev.Decided) if d.place] == [2, 2]
    assert evicted(sim) == set()


def test_a_second_hang_elsewhere_is_not_counted_with_the_first() -> None:
    sim = job()
    stuck(sim, 1)
    starts_again(sim)
    comes_to(sim, 60)
    stuck(sim, 2, "other@train.py")
    starts_again(sim)
    assert (last_actions(sim), evicted(sim)) == ([inc.Restart], set())


# -- what samples show -------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "costs"), [("T", {"n2"}), ("D", set())], ids=["stopped", "in the kernel"])
def test_a_stopped_process_speaks_against_its_node_and_one_in_the_kernel_does_not(
    state: str, costs: set[str]
) -> None:
    """One that is held in the kernel may wait for shared storage."""
    sim = job()
    stuck(sim, 1, "work@train.py", state=state)
    starts_again(sim)
    assert evicted(sim) == costs
    assert (last_actions(sim) == [inc.Restart]) is not bool(costs)


def test_the_second_sample_shows_the_calls_in_libraries_of_the_few_ranks_in_question() -> None:
    sim = job()
    stuck(sim, 1)
    starts_again(sim)
    assert list(rounds(sim).values()) == [(), (1,)]


def test_a_rank_that_spins_in_a_wait_for_its_gpu_gets_no_time_to_compute() -> None:
    """The recorder names it; that it waits for its own GPU is what the second sample shows."""
    sim = job()
    others = Collective(group="0", sequence=9, operation="nccl:all_reduce", state="started", ranks=(0, 1, 2))
    own = structs.replace(others, state="scheduled")
    libraries = Frame(function="cuStreamSynchronize", file="/usr/lib/libcuda.so.1")

    def spins(order: TakeStacks) -> RankStacks:
        stacks = with_cpu(doing(1, "n2", "item@train.py"), sim.now)
        (process,) = stacks.processes
        (thread,) = process.threads
        if 1 in order.native:
            thread = structs.replace(thread, frames=(libraries, *thread.frames))
        process = structs.replace(process, threads=(thread,))
        return structs.replace(stacks, processes=(process,), collectives=(own,), native=1 in order.native)

    for rank in (0, 2):
        stacks = structs.replace(waiting(rank, f"n{rank + 1}"), collectives=(others,))
        sim.rank(rank).shows = lambda _, shown=stacks: shown
    sim.hang_rank(1, shows=spins)
    starts_again(sim)
    assert len(rounds(sim)) == 2
    assert "rank 1 did not come to nccl:all_reduce 9" in sim.events(ev.Decided)[-1].reason


def test_no_process_is_paused_if_many_ranks_are_in_question() -> None:
    sim = trained(3, ranks_per_node=8)
    for rank in range(10):
        stuck(sim, rank)
    starts_again(sim)
    assert len(rounds(sim)) > 1
    assert set(rounds(sim).values()) == {()}


# -- an evaluation that no script announces -------------------------------------------------------------


def evaluate(sim: Sim, seconds: float) -> None:
    """Rank 0 computes for so long, now here and now there; nothing else happens."""
    computes(sim, 0)
    sim.run(seconds)
    sim.resume_rank(0)


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("seconds", [30.0, 300.0])
def test_an_evaluation_on_one_rank_costs_no_restart(seconds: float, reports: bool) -> None:
    sim = job(reports=reports)
    evaluate(sim, seconds)
    sim.run(70.0)
    assert (sim.state.world.generation, sim.state.world.incident, evicted(sim)) == (1, None, set())
    assert sim.state.world.pace.pause_s > seconds - 5
    before = rounds(sim)
    assert before
    evaluate(sim, seconds)
    assert rounds(sim) == before, "learned"


def test_the_step_after_an_evaluation_may_take_as_long_as_any() -> None:
    """While it is made, samples show another picture than before."""
    sim = job()
    computes(sim, 0)
    sim.run(100.0)
    sim.training.slow[0] = 6.0
    sim.resume_rank(0)
    sim.run(30.0)
    assert (sim.stage, sim.state.world.generation, sim.step > HANG_STEP) == ("Running", 1, True)


def test_a_pause_that_ends_by_itself_has_no_time_of_recovery() -> None:
    sim = job()
    stuck(sim, 1)
    sim.run_until(lambda: sim.stage == "Localising", 60.0)
    sim.resume_rank(1)
    sim.run_until(lambda: bool(sim.events(ev.IncidentClosed)), 60.0)
    (closed,) = sim.events(ev.IncidentClosed)
    assert closed.recover_s is None
    assert "incident 1: over, step 31 is done; training went on by itself" in sim.said
    assert not any("recover_s" in text for text in notes(sim))


def test_patience_with_a_rank_that_computes_has_an_end() -> None:
    sim = job(phase_s=100.0)
    computes(sim, 0)
    sim.run_until(lambda: sim.state.world.generation == 2, 180.0)
    assert evicted(sim) == set()


def test_a_rank_that_computes_always_at_the_same_place_is_restarted_once_and_then_gets_time() -> None:
    sim = job(phase_s=500.0)
    computes(sim, 0, "spin@train.py")
    starts_again(sim)
    comes_to(sim, HANG_STEP)
    computes(sim, 0, "spin@train.py")
    sim.run(400.0)
    assert sim.state.world.generation == 2, "after the same step it may take detect.phase_s"
    assert sim.state.world.pace.hung_after == HANG_STEP, "a verdict does not take back what was learned"


def test_a_node_fault_is_seen_while_an_evaluation_is_waited_for() -> None:
    sim = job()
    computes(sim, 0)
    sim.run(60.0)
    assert sim.stage == "Localising"
    sim.alert("n3", BAD_GPU)
    sim.run_until(lambda: sim.stage == "Stopping", 2.0)
    starts_again(sim, 10.0)
    assert evicted(sim) == {"n3"}


# -- a slowdown ----------------------------------------------------------------------------------------


def test_a_slowdown_that_moves_with_the_rank_is_let_be() -> None:
    """Stacks show it at work while the others wait."""
    sim = job(slow_samples=0)
    comes_to(sim, 60)
    sim.training.slow[1] = 2.0
    for node in ("n2", "n4"):
        rank = sim.rank(1)
        rank.shows = lambda _, at=node: doing(1, at, "wait@train.py", "main@train.py")
        assert rank.node == node
        if node == "n2":
            starts_again(sim, 300.0)
            gets_on(sim, 2)
    sim.run_until(lambda: any("it is the code, and goes on" in text for text in notes(sim)), 900.0)
    sim.run(60.0)
    assert (sim.state.world.generation, evicted(sim)) == (2, set())
