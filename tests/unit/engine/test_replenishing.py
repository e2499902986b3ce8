"""Standbys that were used or went bad are replaced from the reservation, while training goes on."""

from __future__ import annotations

import pytest

from slurm_robust.config.job import CompanionConfig, JobConfig, StandbyConfig
from slurm_robust.engine.transitions import ToReconnecting
from slurm_robust.model import events as ev
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.findings import Outcome
from slurm_robust.policy.standbys import SETTLED_S
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_standby import train

SPARES = CompanionPool(reservation="spares")


def settings(replenish: str = "reservation", *, partition: bool = False) -> JobConfig:
    return JobConfig(
        companions=CompanionConfig(reservation="spares", partition=partition, wait_s=20.0),
        standby=StandbyConfig(rehearse=False, test_s=60.0, replenish=replenish),  # type: ignore[arg-type]
    )


def job_with(*lendable: str, config: JobConfig | None = None) -> Job:
    job = Job(config=config or settings())
    job.lendable = lendable
    train(job, 3)
    return job


def use_the_standby(job: Job) -> None:
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    train(job, 3)


def test_a_used_standby_is_replaced_while_training_goes_on() -> None:
    job = job_with("n5")
    assert job.borrowed == []
    use_the_standby(job)
    (order,) = job.borrowed
    assert (order.sources, order.missing, order.exclude, order.some) == ((SPARES,), 1, ("n2",), True)
    train(job, 2)
    assert job.core.state.spares == ("n5",)
    assert job.started[-1] == ("n5",)
    assert job.core.world.generation == 2
    assert job.core.world.incident is None
    train(job, SETTLED_S + 5)
    assert [effect.nodes[0] for effect in job.standby_tests] == ["n5"], "it goes through the same stages"
    job.power_cut("n3")
    job.until(lambda: job.core.world.generation == 3)
    assert job.core.world.slots == ("n1", "n5")
    job.finish()
    job.until(lambda: job.code is not None or bool(job.ended))
    assert job.ended == [105]


def test_a_standby_that_fails_its_quick_test_is_replaced() -> None:
    job = job_with("n5")
    job.quick = {"n3": Outcome.FAIL}
    train(job, SETTLED_S + 5)
    assert list(job.core.state.evicted) == ["n3"]
    assert job.core.state.spares == ("n5",)
    train(job, SETTLED_S)
    assert job.core.state.standby_tests["n5"].outcome is Outcome.PASS


def test_where_no_node_is_free_it_is_asked_again_later_and_later() -> None:
    job = job_with()
    use_the_standby(job)
    train(job, 600)
    begun = job.events(ev.ReplenishBegun)
    assert [event.attempt for event in begun] == [1, 2, 3, 4]
    assert sum("asking for" in text for text in job.said) == 1
    assert job.core.state.companions == {}
    job.lendable = ("n5",)
    train(job, 500)
    assert job.core.state.spares == ("n5",)


@pytest.mark.parametrize(
    ("config", "sources"),
    [
        (settings("none"), None),
        (settings(partition=True), (SPARES,)),
        (settings("partition", partition=True), (SPARES, CompanionPool())),
        (JobConfig(), None),
    ],
)
def test_the_partition_gives_standbys_only_where_that_is_configured(
    config: JobConfig, sources: tuple[CompanionPool, ...] | None
) -> None:
    job = job_with(config=config)
    use_the_standby(job)
    asked = [order.sources for order in job.borrowed]
    assert asked == ([] if sources is None else [sources])


def test_a_fault_waits_for_the_node_that_is_on_its_way() -> None:
    job = job_with("n5")
    job.lends = False
    use_the_standby(job)
    assert len(job.unlent) == 1
    job.power_cut("n3")
    job.until(lambda: job.stage == "Borrowing")
    job.pass_time(2)
    assert len(job.borrowed) == 1, "asked once"
    job.unlent[0]()
    job.until(lambda: job.core.world.generation == 3)
    assert job.core.world.slots == ("n1", "n5")
    assert len(job.borrowed) == 1


def test_a_fault_asks_itself_where_none_came() -> None:
    job = job_with()
    job.lends = False
    use_the_standby(job)
    job.power_cut("n3")
    job.until(lambda: job.stage == "Borrowing")
    job.lendable, job.lends = ("n6",), True
    job.unlent[0]()
    job.until(lambda: job.core.world.generation == 3)
    assert job.core.world.slots == ("n1", "n6")


def test_slurm_that_never_answers_is_waited_for_within_a_bound() -> None:
    job = job_with("n5", "n6")
    job.lends = False
    use_the_standby(job)
    train(job, 400)
    assert job.core.companions.fetching is None or len(job.borrowed) > 1
    job.unlent[0]()
    assert 105 in job.ended, "too late, it is given back"
    assert "n5" not in job.core.state.spares


def test_the_next_controller_does_not_ask_twice() -> None:
    job = job_with("n5")
    use_the_standby(job)
    train(job, 2)
    history = (*job.journal, ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=2))
    again = Job(history=history, config=settings(), first=ToReconnecting(), clock=(job.mono, job.wall))
    again.heartbeats = dict(job.heartbeats)
    again.lendable = ("n6",)
    again.until(lambda: again.stage == "Running")
    train(again, 100)
    assert again.borrowed == []
    assert again.core.state.spares == ("n5",)


def test_a_takeover_while_a_companion_waits_gives_it_back_and_asks_anew() -> None:
    job = job_with("n5")
    job.lends = False
    use_the_standby(job)
    history = (*job.journal, ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=2))
    again = Job(history=history, config=settings(), first=ToReconnecting(), clock=(job.mono, job.wall))
    again.heartbeats = dict(job.heartbeats)
    again.lendable = ("n6",)
    again.until(lambda: again.stage == "Running")
    train(again, 100)
    assert [event.attempt for event in again.events(ev.ReplenishBegun)] == [1, 2]
    assert again.core.state.lenders == {"n6": 106}


def test_observing_nothing_is_borrowed() -> None:
    job = job_with("n5", config=JobConfig(mode="observe", companions=CompanionConfig(reservation="spares")))
    job.core.evict("n3", "test", job.now())
    train(job, 60)
    assert job.borrowed == []
