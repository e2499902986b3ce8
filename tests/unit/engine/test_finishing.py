"""A rank that aborts after its work costs the job nothing; the note says so."""

from __future__ import annotations

from signal import SIGABRT

from slurm_robust.model import events as ev
from slurm_robust.model.progress import RETURNED
from slurm_robust.policy.finishing import WAIT_S
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import gets_on, opened, trained


def test_a_rank_that_aborts_after_its_script_ends_the_job_well() -> None:
    sim = trained(3)
    sim.rank(1).phase = RETURNED
    sim.kill_rank(1, SIGABRT)
    sim.run(WAIT_S + 2.0)  # the others have something left to do
    assert sim.stage == "Running"
    sim.exit_rank(0, code=0)
    sim.exit_rank(2, code=0)
    assert (sim.run_to_end(within_s=60.0), opened(sim)) == (0, [])
    (ended,) = sim.events(ev.RunEnded)
    assert "SIGABRT ended rank 1 on n2 after its work" in ended.reason
    assert any(ended.reason in text for text in sim.said)


def aborts_late() -> Sim:
    """A job in which rank 0 has ended well, and rank 2 has aborted."""
    sim = trained(3)
    sim.run(1.0)  # all have told of their newest step
    sim.exit_rank(0, code=0)
    sim.kill_rank(2, SIGABRT)
    return sim


def test_an_abort_in_the_script_is_no_fault_if_all_other_ranks_end_soon() -> None:
    sim = aborts_late()
    sim.run(WAIT_S - 1.0)
    assert opened(sim) == []
    sim.exit_rank(1, code=0)
    assert (sim.run_to_end(within_s=60.0), opened(sim)) == (0, [])


def test_an_abort_in_the_script_is_a_fault_if_another_rank_never_ends() -> None:
    sim = aborts_late()
    sim.run(WAIT_S + 2.0)
    assert len(opened(sim)) == 1


def test_an_abort_while_others_train_is_a_fault_immediately() -> None:
    sim = trained(3)
    sim.kill_rank(2, SIGABRT)
    sim.run(1.0)
    assert [event.detail for event in sim.events(ev.IncidentOpened)] == [
        "rank 2: SIGABRT on n3 (generation 1)"
    ]


def test_a_script_that_answers_term_by_code_0_has_not_done_its_work() -> None:
    sim = trained(2)
    sim.nodes["n2"].dying_s = 5.0
    sim.kill_rank(0)
    sim.run_until(lambda: sim.stage == "Stopping", within_s=5.0)
    sim.exit_rank(1, code=0)
    gets_on(sim, 2)
    assert sim.events(ev.RunEnded) == []
