"""Lives by the policy alone: they are reproducible, they end, and the ledger reads them like real jobs."""

from __future__ import annotations

import msgspec
import pytest

from slurm_robust.config.job import CheckpointConfig, JobConfig, Limits
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Swap
from slurm_robust.model.journal import fold
from slurm_robust.model.state import REPAIRED_S
from slurm_robust.simulator.figures import account_of, figures_of
from slurm_robust.simulator.life import PolicyLife, SimulatedLife
from slurm_robust.simulator.spec import (
    FaultOf,
    FaultSource,
    Owner,
    Phases,
    SimulatedCheckpoints,
    SimulatedCluster,
    SimulatedJob,
    Spec,
)

DAY_S = 86400.0


def source(kind: FaultOf, rate: str, **more: object) -> FaultSource:
    return msgspec.structs.replace(FaultSource(kind=kind, rate=rate), **more)


def played(
    seed: int = 1,
    *,
    nodes: int = 16,
    spares: int = 2,
    time: str = "10 days",
    faults: tuple[FaultSource, ...] = (),
    **more: object,
) -> SimulatedLife:
    spec = Spec(
        job=SimulatedJob(nodes=nodes, spares=spares),
        time=time,
        cluster=SimulatedCluster(free=8),
        faults=faults,
    )
    return PolicyLife(msgspec.structs.replace(spec, **more), seed).play()


MIXED = tuple(
    source(kind, "1 / day", at_node=0.5, persists=0.5, code_persists=0.3, lasts="2 min", detect="15 s")
    for kind in FaultOf
)


def test_a_job_without_faults_trains_all_the_time_but_its_start() -> None:
    found = figures_of(played())
    assert found.incidents == found.evicted_wrong == 0
    assert found.ettr > 0.9999


def test_the_same_seed_is_the_same_life_and_another_is_another() -> None:
    one, same, other = (played(seed, faults=MIXED) for seed in (3, 3, 4))
    assert one == same
    assert one.journals != other.journals


@pytest.mark.parametrize("kind", list(FaultOf))
def test_each_kind_of_fault_has_incidents_and_training_goes_on(kind: FaultOf) -> None:
    faults = (source(kind, "2 / day", at_node=1.0 if kind is not FaultOf.EXCEPTION else 0.0, detect="15 s"),)
    life = played(faults=faults)
    found = figures_of(life)
    assert life.struck > 5
    assert found.incidents > 0
    assert 0.5 < found.ettr < 1.0


@pytest.mark.parametrize("seed", range(20))
def test_the_time_of_a_life_is_accounted_for_and_its_journal_folds(seed: int) -> None:
    life = played(seed, faults=MIXED)
    books, summary = account_of(life)
    assert sum(summary.classes.values()) == books.wall_ms
    has_ended = isinstance(life.journals[-1][-1], ev.RunEnded)  # the owner has not submitted it again yet
    assert books.wall_ms / 1000 == pytest.approx(10 * DAY_S, abs=1800.0 if has_ended else 1.0)
    for journal in life.journals:
        times = [event.t for event in journal]
        assert times == sorted(times)
        numbers = [event.incident for event in journal if isinstance(event, ev.IncidentOpened)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert set(fold(journal).world.slots) <= {f"n{number + 1}" for number in range(26)}


@pytest.mark.parametrize("seed", range(20))
def test_no_node_has_two_places_and_no_evicted_node_trains(seed: int) -> None:
    life = played(seed, faults=MIXED)
    for journal in life.journals:
        evicted: dict[str, float] = {}
        for event in journal:
            if isinstance(event, ev.AllocationTaken):
                assert len({*event.slots, *event.spares}) == len(event.slots) + len(event.spares)
                evicted.clear()
            elif isinstance(event, ev.NodeEvicted):
                evicted[event.node] = event.t
            elif isinstance(event, ev.CompanionStarted) and event.node in evicted:
                assert event.t - evicted.pop(event.node) >= REPAIRED_S
            elif isinstance(event, ev.QuickTested):
                evicted = {node: t for node, t in evicted.items() if node not in event.passed}
            elif isinstance(event, ev.GenerationLaunched):
                assert len(set(event.slots)) == len(event.slots)
                assert not evicted.keys() & set(event.slots)


def test_a_node_that_a_check_names_is_evicted_and_its_standby_takes_its_place() -> None:
    life = played(faults=(source(FaultOf.GPU, "1 / 2 days"),), time="20 days")
    found = figures_of(life)
    assert found.evicted_right >= 3
    assert found.evicted_wrong == 0
    assert found.standbys_used >= 2


def test_without_spares_and_free_nodes_the_job_waits_for_the_repair() -> None:
    life = played(
        nodes=4,
        spares=0,
        time="20 days",
        faults=(source(FaultOf.NODE, "1 / 4 days"),),
        cluster=SimulatedCluster(repair="12 h"),
    )
    found = figures_of(life)
    assert found.requeues > 0
    assert found.ettr < 0.95
    assert found.classes["requeue delay"] > 6


def test_one_fault_a_second_ends_the_job_at_its_bounds() -> None:
    life = played(
        time="1 h", faults=(source(FaultOf.CRASH, "1 / s", at_node=0.0),), owner=Owner(stops_after=0)
    )
    (journal,) = life.journals
    end = journal[-1]
    assert isinstance(end, ev.RunEnded)
    assert end.code == 93
    assert sum(isinstance(event, ev.IncidentOpened) for event in journal) < 12


def test_a_rate_of_zero_is_no_fault() -> None:
    assert played(faults=(source(FaultOf.NODE, "0 / node-day"),)).struck == 0


@pytest.mark.parametrize("step", ["5 s", "5.01 s", "0.3 s"])
def test_a_job_that_is_done_has_made_all_of_its_steps(step: str) -> None:
    for steps in (1, 8, 1000):
        job = SimulatedJob(nodes=4, spares=0, step=step)
        assert figures_of(played(steps=steps, job=job)).steps == steps


def test_steps_that_are_done_end_the_life() -> None:
    life = played(steps=1000)
    assert life.is_done
    assert life.end - 1.7e9 < 3 * 3600


def test_a_fault_of_several_nodes_evicts_them_all_at_once() -> None:
    life = played(spares=4, faults=(source(FaultOf.GPU, "1 / 2 days", nodes=3),))
    evicted = [event for journal in life.journals for event in journal if isinstance(event, ev.NodeEvicted)]
    first = [event.node for event in evicted if event.incident == 1]
    assert len(first) == 3
    assert life.evicted_wrong == 0


def test_training_waits_for_a_checkpoint_that_goes_straight_to_storage() -> None:
    policy = JobConfig(checkpoint=CheckpointConfig(memory=False, every_s=600))
    found = figures_of(played(policy=policy, checkpoints=SimulatedCheckpoints(write="60 s")))
    assert found.ettr == pytest.approx(600 / 660, abs=0.002)
    assert found.classes["checkpoint-blocked"] == pytest.approx(240 * 60 / 660, rel=0.01)


def test_a_free_node_that_a_check_names_is_repaired_before_the_job_gets_it() -> None:
    faults = (source(FaultOf.GPU, "1 / 5 node-days"),)
    life = played(nodes=2, spares=0, faults=faults, time="40 days", cluster=SimulatedCluster(free=6))
    named = [e for j in life.journals for e in j if isinstance(e, ev.IncidentOpened)]
    assert len(named) < 2 * 40 / 5 * 1.6  # not for those of free nodes, too


def test_what_ended_each_incident_is_counted() -> None:
    faults = (source(FaultOf.GPU, "1 / day"), source(FaultOf.CRASH, "1 / day", at_node=0.0))
    found = figures_of(played(faults=faults, owner=Owner(updates="1 / 2 days", manual_restarts="1 / 4 days")))
    assert set(found.resolved) >= {"nodes evicted", "restarted", "release updated", "job submitted again"}
    updates_and_restarts = found.resolved["release updated"] + found.jobs - 1
    assert sum(found.resolved.values()) == found.incidents + updates_and_restarts


def test_a_time_limit_that_is_shorter_than_the_start_ends_the_job_after_three_runs() -> None:
    spec = Spec(
        job=SimulatedJob(nodes=4, time_limit="5 min"),
        phases=Phases(first_start="10 min"),
        owner=Owner(stops_after=0),
    )
    (journal,) = PolicyLife(spec, 0).play().journals
    assert not [event for event in journal if isinstance(event, ev.FirstStep)]
    assert sum(isinstance(event, ev.AllocationTaken) for event in journal) == 3
    end = journal[-1]
    assert isinstance(end, ev.RunEnded)
    assert end.code == 93
    assert "too short" in end.reason


def test_storage_that_answers_before_the_hang_is_detected_costs_time_alone() -> None:
    storage = source(FaultOf.STORAGE, "1 / 2 days", lasts="10 min", detect="15 min")
    found = figures_of(played(faults=(storage,)))
    assert found.incidents == 0
    assert found.steps < 10 * DAY_S / 5 - 2 * 600 / 5


def test_a_start_waits_for_the_storage() -> None:
    faults = (source(FaultOf.STORAGE, "1 / 2 days", lasts="2 h", detect="15 min"),)
    (journal,) = played(faults=faults).journals
    opened = [event.t for event in journal if isinstance(event, ev.IncidentOpened)]
    firsts = [event.t for event in journal if isinstance(event, ev.FirstStep)][1:]
    assert opened
    assert all(first - t >= 6300.0 for t, first in zip(opened, firsts, strict=True))


def test_two_nodes_that_exchange_their_slots_keep_what_is_in_memory() -> None:
    slow = source(FaultOf.SLOW, "1 / 2 days", at_node=0.0, detect="1 min")
    (journal,) = played(nodes=3, spares=0, faults=(slow,)).journals
    launched = [event for event in journal if isinstance(event, ev.GenerationLaunched)]
    assert any(isinstance(a, Swap) for e in journal if isinstance(e, ev.Decided) for a in e.actions)
    assert {"storage"} not in [set(event.tiers) for event in launched]


BAD_RELEASES = Owner(updates="1 / day", bad_updates=1.0)
BUG = source(FaultOf.EXCEPTION, "0 / day", again="2 min", at_node=0.0)


def test_a_rollback_goes_back_to_the_step_at_which_the_release_took_over() -> None:
    (journal,) = played(faults=(BUG,), owner=BAD_RELEASES).journals
    step, seen = -1, 0
    for event in journal:
        if isinstance(event, ev.UpdateApplied):
            assert event.checkpoint is not None
            step = event.checkpoint.step
        elif isinstance(event, ev.GenerationLaunched) and step >= 0:
            assert event.restore_step <= step + (event.generation == 1)
            seen += 1
    assert seen > 5


def test_a_release_that_has_made_its_steps_is_good() -> None:
    (journal,) = played(owner=Owner(updates="1 / day")).journals
    proven = [event.release for event in journal if isinstance(event, ev.ReleaseProven)]
    applied = [event.release for event in journal if isinstance(event, ev.UpdateApplied)]
    assert applied
    assert set(applied[:-1]) <= set(proven)


def test_a_free_node_that_dies_is_repaired() -> None:
    faults = (source(FaultOf.NODE, "1 / 10 node-days"),)
    cluster = SimulatedCluster(free=8, repair="1 h")
    life = played(nodes=2, spares=0, time="90 days", faults=faults, cluster=cluster)
    assert life.astray == ()
    assert figures_of(life).ettr > 0.98


def test_what_fails_while_ranks_are_stopped_is_no_fault_of_the_next_launch() -> None:
    crash = source(FaultOf.CRASH, "3 / h", at_node=0.0)
    policy = JobConfig(limits=Limits(per_signature=100, per_hour=100, per_day=1000))
    (journal,) = played(time="2 days", faults=(crash,), phases=Phases(stop="20 min"), policy=policy).journals
    launched = sum(isinstance(event, ev.GenerationLaunched) for event in journal)
    assert sum(isinstance(event, ev.FirstStep) for event in journal) >= launched - 5
    assert launched > 30


def test_as_many_starts_may_fail_in_a_row_as_the_bounds_allow() -> None:
    crash = source(FaultOf.CRASH, "1 / s", at_node=0.0)
    policy = JobConfig(limits=Limits(per_signature=400, per_hour=400, per_day=400))
    owner = Owner(stops_after=0)
    (journal,) = played(faults=(crash,), phases=Phases(stop="0.1 s"), policy=policy, owner=owner).journals
    assert sum(isinstance(event, ev.GenerationLaunched) for event in journal) == 401


def test_a_node_that_crashes_again_and_again_with_progress_in_between_loses_its_ranks() -> None:
    crash = source(FaultOf.CRASH, "1 / 10 days", persists=1.0, named=0.0, again="20 min mean")
    life = played(nodes=64, faults=(crash,), time="60 days")
    found = figures_of(life)
    strikes = 6
    assert (found.jobs, found.evicted_wrong) == (1, 0)
    assert found.resolved["ranks moved"] >= 3
    assert found.incidents < 8 * strikes, "72 a day, were it only restarted"
