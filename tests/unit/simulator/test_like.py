"""Real jobs that are played again: they come out as they were, and other settings make the difference."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.job import CheckpointConfig, CompanionConfig, JobConfig, Limits
from slurm_robust.model import events as ev
from slurm_robust.model.journal import parse
from slurm_robust.simulator.figures import LifeFigures, figures_of
from slurm_robust.simulator.life import PolicyLife
from slurm_robust.simulator.like import NothingToReplay, like
from slurm_robust.simulator.spec import FaultOf, Spec
from slurm_robust.simulator.spread import seconds
from slurm_robust.simulator.what_if import variations

JOURNALS = Path("tests/data/journals/0.2.0")
JOBS = Path("tests/data/simulator/jobs")
LENDING = JobConfig(companions=CompanionConfig(reservation="srobust_spares"))


def journal(name: str) -> list[ev.AnyEvent]:
    return parse((JOURNALS / name / "journal.jsonl").read_bytes())[0]


def lives(spec: Spec, seeds: int = 10) -> list[LifeFigures]:
    return [figures_of(PolicyLife(spec, seed).play()) for seed in range(seeds)]


def ettr(spec: Spec) -> float:
    played = lives(spec)
    return sum(one.ettr for one in played) / len(played)


@pytest.mark.parametrize(
    ("name", "config", "points"),
    [
        ("companions", LENDING, 0.03),
        ("hang", None, 0.03),
        ("killed-rank-and-dead-node", None, 0.03),
        ("requeue", None, 0.03),
        ("standbys", LENDING, 0.03),
        ("takeover", None, 0.03),
        ("updates", None, 0.03),
    ],
)
def test_under_its_own_settings_a_job_comes_out_as_it_was(
    name: str, config: JobConfig | None, points: float
) -> None:
    found = like(journal(name), config)
    assert ettr(found.spec) == pytest.approx(found.real.ettr, abs=points)


@pytest.mark.parametrize("path", sorted(JOBS.glob("*-*.jsonl")), ids=lambda path: path.stem)
def test_jobs_with_faults_of_their_code_come_out_as_they_were(path: Path) -> None:
    found = like(parse(path.read_bytes())[0], None)
    assert ettr(found.spec) == pytest.approx(found.real.ettr, abs=0.03)


def test_a_job_in_a_storm_of_twenty_faults_comes_out_as_it_was() -> None:
    unlimited = Limits(per_hour=100_000, total=100_000)
    config = JobConfig(limits=unlimited, checkpoint=CheckpointConfig(every_s=20))
    found = like(parse((JOBS / "storm.jsonl").read_bytes())[0], config)
    assert len(found.spec.faults) == 9  # three struck the controller alone, and others no rank
    assert ettr(found.spec) == pytest.approx(found.real.ettr, abs=0.03)


def test_faults_are_played_in_their_order_at_their_nodes_and_are_detected_as_fast() -> None:
    crash, loss = like(journal("killed-rank-and-dead-node"), None).spec.faults
    assert (crash.kind, crash.slots, crash.at_node) == (FaultOf.CRASH, (1,), 0.0)
    assert (loss.kind, loss.slots, loss.at_node) == (FaultOf.NODE, (1,), 1.0)
    assert (seconds(crash.detect), seconds(loss.detect)) == pytest.approx((0.006, 0.809), abs=0.001)
    assert seconds(crash.after or "") == pytest.approx(1.45, abs=0.01)


def test_a_hang_that_came_again_at_each_start_does_so_again_until_the_job_gives_up() -> None:
    found = like(journal("hang"), None)
    assert [one.starting for one in found.spec.faults] == [False, True, True]
    assert {one.given_up for one in lives(found.spec)} == {1}


def test_a_standby_that_failed_its_test_fails_again() -> None:
    found = like(journal("standbys"), LENDING)
    assert [(one.kind, one.slots) for one in found.spec.faults] == [
        (FaultOf.GPU, (2,)),
        (FaultOf.NODE, (1,)),
    ]


def test_without_its_standby_the_job_would_have_been_requeued() -> None:
    found = like(journal("killed-rank-and-dead-node"), None)
    (without,) = variations(found.spec, ["spares=0"])
    assert {one.requeues for one in lives(found.spec)} == {0}
    assert {one.requeues for one in lives(without.spec)} == {1}
    assert ettr(without.spec) < found.real.ettr - 0.1


def test_a_node_that_was_evicted_in_time_does_not_fail_again() -> None:
    found = like(journal("killed-rank-and-dead-node"), None)
    loss = found.spec.faults[1]
    again = msgspec.structs.replace(loss, after="5 s")
    (spec,) = (msgspec.structs.replace(found.spec, faults=(loss, again)),)
    assert {one.evicted_right for one in lives(spec)} == {1}
    other = msgspec.structs.replace(again, same="another node in that slot")
    spec = msgspec.structs.replace(spec, faults=(loss, other))
    assert {one.evicted_right for one in lives(spec)} == {2}


def test_a_job_that_no_incident_stopped_teaches_nothing() -> None:
    with pytest.raises(NothingToReplay, match="no incident of this job stopped training"):
        like(journal("every-event"), None)


def test_a_job_without_incidents_teaches_nothing() -> None:
    with pytest.raises(NothingToReplay, match="nothing went wrong") as caught:
        like(journal("time-limit"), None)
    assert "srobust incidents" in caught.value.fix


@pytest.mark.parametrize("name", sorted(path.name for path in JOURNALS.iterdir()))
def test_a_journal_that_ends_anywhere_is_played_or_refused_with_the_reason(name: str) -> None:
    events = journal(name)
    for end in range(1, len(events) + 1):
        with contextlib.suppress(NothingToReplay):
            check_faults(events[:end])


def check_faults(events: list[ev.AnyEvent]) -> None:
    signs = sum(isinstance(event, ev.IncidentOpened | ev.SymptomAdded) for event in events)
    standbys = sum(
        isinstance(event, ev.SpareSetAside) or (isinstance(event, ev.NodeEvicted) and not event.incident)
        for event in events
    )
    assert len(like(events, None).spec.faults) <= signs + standbys


def test_a_fault_of_which_nobody_knows_how_it_went_on_is_not_invented() -> None:
    events = journal("killed-rank-and-dead-node")
    opened = [place for place, event in enumerate(events) if isinstance(event, ev.IncidentOpened)]
    assert len(like(events[: opened[1] + 1], None).spec.faults) == 1


def test_an_update_and_a_preemption_are_played_after_as_many_steps() -> None:
    updated = like(journal("updates"), None).spec
    (after,) = updated.owner.updates_after
    assert seconds(after) / seconds(updated.job.step) == pytest.approx(201, abs=1)
    found = like(journal("requeue"), None).spec
    spec = msgspec.structs.replace(
        found,
        faults=(),
        cluster=msgspec.structs.replace(found.cluster, preempted_after=("3 s", "6 s")),
    )
    played = lives(spec, 3)
    assert {one.runs for one in played} == {3}
    assert {one.requeues for one in played} == {0}  # for no fault
    assert all(one.is_done for one in played)
