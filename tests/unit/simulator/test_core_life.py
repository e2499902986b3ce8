"""Lives by the controller's real core: they are reproducible, and agree with those by the policy."""

from __future__ import annotations

from statistics import mean
from typing import Any

import msgspec
import pytest

from slurm_robust.config.job import JobConfig, Timings
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.incident import RollBack
from slurm_robust.simulator.core_life import CoreLife
from slurm_robust.simulator.figures import LifeFigures, figures_of
from slurm_robust.simulator.life import PolicyLife, SimulatedLife
from slurm_robust.simulator.runs import played
from slurm_robust.simulator.spec import FaultOf, FaultSource, Owner, SimulatedCluster, SimulatedJob, Spec


def source(kind: FaultOf, rate: str | None = None, **more: object) -> FaultSource:
    at_node = 0.0 if kind in (FaultOf.EXCEPTION, FaultOf.OUT_OF_MEMORY) else 1.0
    common = {"at_node": at_node, "detect": "5 s", "lasts": "2 min"}
    return msgspec.structs.replace(FaultSource(kind=kind, rate=rate), **(common | more))


def spec_of(
    *faults: FaultSource, nodes: int = 16, spares: int = 2, time: str = "5 days", **more: object
) -> Spec:
    spec = Spec(
        job=SimulatedJob(nodes=nodes, spares=spares),
        time=time,
        cluster=SimulatedCluster(free=8, rack=8),
        faults=faults,
        fidelity="core",
    )
    return msgspec.structs.replace(spec, **more)


def life_of(*faults: FaultSource, seed: int = 1, **more: Any) -> SimulatedLife:
    return played(spec_of(*faults, **more), seed)


def events(life: SimulatedLife, kind: type[ev.AnyEvent]) -> list[ev.AnyEvent]:
    return [event for journal in life.journals for event in journal if isinstance(event, kind)]


def test_a_job_without_faults_trains_all_the_time_but_its_start() -> None:
    life = life_of()
    found = figures_of(life)
    assert found.incidents == 0
    assert found.ettr > 0.9998
    assert {event.stage.value for event in events(life, ev.StandbyChanged)} >= {"testing", "rehearsed"}


def test_the_same_seed_is_the_same_life_and_another_is_another() -> None:
    fault = source(FaultOf.NODE, "1 / day")
    one, same, other = (life_of(fault, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert one.journals != other.journals


@pytest.mark.parametrize("kind", list(FaultOf))
def test_training_goes_on_after_each_kind_of_fault(kind: FaultOf) -> None:
    persists = 1.0 if kind in (FaultOf.NODE, FaultOf.GPU, FaultOf.NETWORK) else 0.0
    faults = (source(kind, after=after, persists=persists) for after in ("2 h", "4 h"))
    life = life_of(*faults, nodes=8, time="8 h")
    found = figures_of(life)
    assert life.struck == 2
    assert found.ettr > 0.9
    assert found.given_up == 0
    assert life.evicted_wrong <= (1 if kind in (FaultOf.HANG, FaultOf.CRASH, FaultOf.AGENT) else 0)
    if kind is not FaultOf.SLOW:  # which is reported when it goes on
        assert found.incidents > 0


@pytest.mark.parametrize(
    "kind", [FaultOf.NODE, FaultOf.GPU, FaultOf.NETWORK, FaultOf.EXCEPTION, FaultOf.AGENT]
)
def test_both_fidelities_agree(kind: FaultOf) -> None:
    spec = spec_of(source(kind, "1 / day"), time="8 days")
    core, policy = (
        [figures_of(play(spec, seed).play()) for seed in (1, 2, 3)] for play in (CoreLife, PolicyLife)
    )

    def both(name: str) -> tuple[float, float]:
        of: list[float] = [mean(getattr(one, name) for one in lives) for lives in (core, policy)]
        return of[0], of[1]

    assert both("ettr")[0] == pytest.approx(both("ettr")[1], abs=0.001)
    assert both("incidents")[0] == pytest.approx(both("incidents")[1], rel=0.1, abs=0.7)
    assert both("evicted_right")[0] == pytest.approx(both("evicted_right")[1], rel=0.1, abs=0.7)
    assert both("evicted_wrong")[0] == pytest.approx(both("evicted_wrong")[1], abs=0.7)
    assert both("mttr_s")[0] == pytest.approx(both("mttr_s")[1], rel=0.25)


def test_a_dead_node_is_known_by_its_beacons_or_else_by_its_silence() -> None:
    fault = source(FaultOf.NODE, "1 / day")
    beacons = life_of(fault, time="1 day", nodes=32)
    silent = life_of(
        fault, time="1 day", nodes=32, policy=JobConfig(timings=Timings(verdict_s=0, node_dead_s=5))
    )
    (first, *_), (later, *_) = (events(life, ev.IncidentOpened) for life in (beacons, silent))
    assert first.detect_s < 1.5 < 5 < later.detect_s


def test_another_node_takes_over_from_the_controllers_and_training_goes_on() -> None:
    life = life_of(source(FaultOf.NODE, "6 / day"), nodes=2, spares=2, time="1 day")
    assert any(event.taken_from for event in events(life, ev.ControllerStarted))
    assert figures_of(life).ettr > 0.9


def test_a_checkpoint_is_on_storage_when_memory_has_none() -> None:
    life = life_of(source(FaultOf.SWITCH, "3 / day", lasts="1 h"), nodes=12, time="2 days")
    restored = [event for event in events(life, ev.GenerationLaunched) if event.restore is not None]
    assert any(Tier.STORAGE.value in event.tiers for event in restored)
    found = figures_of(life)
    assert found.repeated * 5 / 3600 < found.incidents  # less than an hour each


def test_a_hang_is_noticed_later_each_time_that_none_was_proven() -> None:
    """The policy alone takes the time of the spec; the core doubts hangs that only the clock shows."""
    life = life_of(source(FaultOf.HANG, "1 / h", at_node=0.0), time="6 h", nodes=8)
    bounds = [event.detect_s for event in events(life, ev.IncidentOpened)]
    assert bounds[0] < 20 < 50 < bounds[1]


def test_the_owner_updates_the_code_and_a_bad_release_is_rolled_back() -> None:
    owner = Owner(updates="2 / day", bad_updates=0.5)
    life = life_of(source(FaultOf.EXCEPTION, "0 / day", again="1 min"), owner=owner, time="4 days")
    assert events(life, ev.UpdateApplied)
    decided = [action for event in events(life, ev.Decided) for action in event.actions]
    assert any(isinstance(action, RollBack) for action in decided)
    assert figures_of(life).ettr > 0.97


def test_steps_that_are_done_end_the_life() -> None:
    life = life_of(steps=1000)
    assert life.is_done
    assert life.end - 1.7e9 < 3 * 3600


def test_a_time_limit_ends_a_run_and_the_next_one_goes_on() -> None:
    life = life_of(time="2 days", job=SimulatedJob(nodes=4, time_limit="12 h"))
    found: LifeFigures = figures_of(life)
    assert found.runs >= 4
    assert found.repeated < 100
    assert found.ettr > 0.99
