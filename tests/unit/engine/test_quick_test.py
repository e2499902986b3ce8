"""Standbys are too few for a group that is suspected: those of it that pass a quick test go on."""

from __future__ import annotations

from functools import partial

from slurm_robust.config.job import JobConfig, SlurmConfig
from slurm_robust.engine.core import Core
from slurm_robust.engine.transitions import ToDeciding, ToGathering
from slurm_robust.engine.units.giveback import _Return
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.findings import Outcome
from slurm_robust.model.journal import fold
from slurm_robust.model.stacks import Localisation
from tests.builders.state import changed
from tests.unit.engine.fake_job import Job

CONFIG = JobConfig(slurm=SlurmConfig(give_back=False))
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
GROUP = ("n2", "n3", "n4")
BEFORE = inc.StackLocation(symptom=inc.Symptom.HANG, step=2, ranks=(0,), nodes=GROUP)


def suspect(job: Job) -> Core:
    """The generation has ended by a hang that stacks place on the group, not for the first time."""
    core = job.core
    found = Localisation(ranks=(1, 2, 3), outliers=(2,), group="pp 1-3", reason="pp 1-3 waits")
    fault = inc.Fault(
        symptom=inc.Symptom.HANG, detail="hang", localisation=found, generation=core.world.generation,
        alive=NODES,
    )  # fmt: skip
    core.incidents.open(fault, job.now())
    core.record(
        ev.GenerationEnded(
            t=job.wall, generation=core.world.generation, exits=(), sealed_step=-1, reason="hang"
        )
    )
    core._state = changed(core.state, places=(BEFORE,))
    core._stage = core._table(ToDeciding(fault=fault))
    core._stage.enter(core, job.now())
    job.tick()
    return core


def group(**quick: Outcome | None) -> Job:
    job = Job(NODES, ("n7",))
    job.train_to(3)
    job.quick = dict(quick)
    return job


def test_one_standby_and_two_that_pass_replace_a_group_of_three() -> None:
    job = group()
    core = suspect(job)
    job.until(lambda: core.world.generation == 2)
    (test,) = job.tested
    assert (test.nodes, test.quick, test.budget_s) == (("n3", "n2", "n4"), True, 60.0)
    assert core.world.slots == ("n1", "n2", "n7", "n4", "n5", "n6")
    assert list(core.state.evicted) == ["n3"]
    (tested,) = job.events(ev.QuickTested)
    assert (tested.incident, tested.passed, tested.failed, tested.silent) == (1, ("n3", "n2", "n4"), {}, {})
    assert len(core.world.attempts) == 1
    assert job.requeued == []
    assert fold(job.journal).quick_tested == ("n3", "n2", "n4")


def test_who_fails_or_is_silent_is_not_used() -> None:
    job = group(n2=Outcome.FAIL, n4=None)
    core = suspect(job)
    job.until(lambda: bool(job.requeued))
    assert set(job.requeued[0]) == set(GROUP)
    (tested,) = job.events(ev.QuickTested)
    assert (tested.passed, list(tested.failed), list(tested.silent)) == (("n3",), ["n2"], ["n4"])
    assert any("n4 gave no answer" in text for text in job.said)
    assert core.state.quick_tested == ("n3", "n2"), "silence says nothing of a node"


def test_a_test_without_an_answer_is_waited_for_within_a_bound() -> None:
    job = group()
    job.diagnosis = None
    suspect(job)
    job.until(lambda: bool(job.requeued), limit=90)


def test_the_owner_ends_the_job_during_the_test() -> None:
    job = group()
    job.diagnosis = None
    suspect(job)
    assert job.stage == "Testing"
    job.act(job.core.on_leave("ordered to end by SIGTERM", job.now()))
    job.until(lambda: job.code is not None, limit=60)


def evicted_before(*, gone: bool) -> Job:
    """n9 was evicted by suspicion; the job holds it still, with an agent or without one."""
    job = Job(NODES, ("n9",))
    history = (
        *job.journal,
        ev.NodeEvicted(t=job.wall, node="n9", reason="suspected", incident=0, unproven=True),
    )
    job = Job(NODES, (), CONFIG, history=history, first=ToGathering(start=True))
    if not gone:
        job.join("n9")
    job.train_to(3)
    return job


def is_replaced(job: Job) -> bool:
    return job.core.world.slots[1] == "n9" and job.stage == "Running"


def test_a_node_that_was_evicted_by_suspicion_takes_the_slot_of_a_dead_one() -> None:
    for gone in (True, False):
        job = evicted_before(gone=gone)
        started = len(job.started)
        job.power_cut("n2")
        job.until(partial(is_replaced, job), limit=120)
        assert [test.nodes for test in job.tested] == [("n9",)]
        assert job.started[started:] == ([("n9",)] if gone else [])
        assert list(job.core.state.evicted) == ["n2"]


def test_a_node_on_its_way_back_to_slurm_is_not_used() -> None:
    job = evicted_before(gone=False)
    job.core.giving_back._returns["n9"] = _Return(ordered=job.mono)
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued), limit=120)
    (tested,) = job.events(ev.QuickTested)
    assert list(tested.silent) == ["n9"]
