"""What `srobust drill` is answered, with scripted agents and a clock of paper."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.wire.messages import Drill, DrillReply, Inject
from tests.unit.engine.fake_job import Job


def drill(job: Job, rank: int) -> DrillReply:
    reply, effects = job.core.on_drill(Drill(fault="kill-rank", rank=rank), job.now())
    job.act(effects)
    return reply


def notes(job: Job) -> list[str]:
    return [e.text for e in job.journal if isinstance(e, ev.Noted) and e.text.startswith("drill")]


def test_a_drill_goes_to_the_node_of_the_rank() -> None:
    job = Job(("n1", "n2"), ())
    job.train_to(5)
    assert drill(job, 1) == DrillReply(ok=True, text="drill: kill-rank on rank 1 (n2, generation 1)")
    assert ("n2", Inject(epoch=1, rank=1, signal=9)) in job.sent
    assert len(notes(job)) == 1


def test_a_drill_on_a_node_that_does_not_respond_is_refused_and_not_noted() -> None:
    """Else the note would stand beside the real cause of what follows."""
    job = Job(("n1", "n2"), ())
    job.train_to(5)
    job.cut.add("n2")
    job.pass_time(3.0)
    assert job.core.world.incident is None
    assert drill(job, 1) == DrillReply(ok=False, text="node n2 does not respond; nothing was done to rank 1")
    assert notes(job) == []
    assert drill(job, 0).ok


def test_a_drill_on_a_node_known_to_be_dead_is_refused_at_once() -> None:
    job = Job(("n1", "n2"), ())
    job.train_to(5)
    job.core.fleet.declare_dead("n2", "no probe is answered", job.mono)
    assert not drill(job, 1).ok
