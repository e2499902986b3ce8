"""A job with an expedited requeue is not left held when its run ends for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.controller.requeue import PATIENCE_S, Requeuer, ending_for_good, forbid_requeue
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.slurm.fence import fenced
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.records import Switch
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.requeues import watch_until_running


def started(slurm: FakeSlurm, *options: str) -> int:
    return slurm.submit(SubmitRequest(command=("train.sh",), nodes=2, options=options))


def end_badly(slurm: FakeSlurm, job_id: int) -> frozenset[str]:
    slurm.cluster.finish(job_id, "FAILED")
    slurm.cluster.clock.advance(5)
    return slurm.job(job_id).states


def test_a_job_that_gives_up_ends_as_failed() -> None:
    slurm = FakeSlurm()
    job_id = started(slurm, "--requeue=expedite")
    forbid_requeue(slurm, slurm.allocation(job_id), slurm.cluster.clock)
    assert end_badly(slurm, job_id) == {"FAILED"}


def test_a_job_that_gives_up_and_may_requeue_would_be_held_for_ever() -> None:
    slurm = FakeSlurm()
    job_id = started(slurm, "--requeue=expedite")
    end_badly(slurm, job_id)
    assert slurm.job(job_id).held


def test_any_other_job_may_still_be_requeued_by_hand() -> None:
    slurm = FakeSlurm()
    job_id = started(slurm)
    forbid_requeue(slurm, slurm.allocation(job_id), slurm.cluster.clock)
    assert slurm.job(job_id).requeue


def test_a_run_that_is_requeued_already_is_left_alone() -> None:
    slurm = FakeSlurm()
    job_id = started(slurm, "--requeue=expedite")
    allocation = slurm.allocation(job_id)
    slurm.requeue(job_id)
    forbid_requeue(slurm, allocation, slurm.cluster.clock)
    assert slurm.job(job_id).requeue


def test_a_silent_slurm_is_asked_for_a_while(capfd: pytest.CaptureFixture[str]) -> None:
    slurm = FakeSlurm()
    job_id = started(slurm, "--requeue=expedite")
    allocation, clock = slurm.allocation(job_id), slurm.cluster.clock
    begun = clock.now
    slurm.cluster.unreachable = True
    clock.on_advance.append(lambda now: setattr(slurm.cluster, "unreachable", now < begun + 30))
    forbid_requeue(slurm, allocation, clock)
    assert not slurm.job(job_id).requeue
    assert capfd.readouterr().out == ""


def test_a_silent_slurm_is_not_asked_for_ever(capfd: pytest.CaptureFixture[str]) -> None:
    slurm = FakeSlurm()
    job_id = started(slurm, "--requeue=expedite")
    allocation, clock = slurm.allocation(job_id), slurm.cluster.clock
    slurm.cluster.unreachable = True
    begun = clock.now
    forbid_requeue(slurm, allocation, clock)
    assert clock.now - begun <= PATIENCE_S + 5
    assert f"scancel {job_id}" in capfd.readouterr().out


def test_outside_of_slurm_nothing_is_asked() -> None:
    assert ending_for_good(lambda: 64, environ={}) == 64
    with pytest.raises(ValueError, match="broken"):
        ending_for_good(lambda: int("broken"), environ={})


def test_a_controller_that_was_overtaken_requeues_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    answers: list[SlurmAnswer] = []
    job_id = started(slurm)
    requeuer = Requeuer(fenced(slurm, lambda: False), job_id, 0, tmp_path / "log", start_now=False)
    requeuer.ask(("n1",), lambda what, ok, detail: None, answers.append)
    (answer,) = answers
    assert answer.said is RequeueStatus.NOTHING
    assert "taken over" in answer.detail
    assert slurm.job(job_id).restart_count == 0


@pytest.mark.parametrize(("slurmdbd", "stages"), [(True, ["requeue", "exclude nodes"]), (False, ["requeue"])])
def test_without_slurmdbd_the_watcher_excludes_nodes_of_a_resized_job(
    slurmdbd: bool, stages: list[str], tmp_path: Path
) -> None:
    slurm = FakeSlurm()
    slurm.cluster.slurmdbd = slurmdbd
    job_id = started(slurm)
    slurm.shrink(job_id, ["n1"])
    said: list[tuple[str, bool]] = []
    requeuer = Requeuer(slurm, job_id, 0, tmp_path / "log", nodes=("n1", "n2"), start_now=False)
    requeuer.ask(("n2",), lambda what, ok, detail: said.append((what, ok)), lambda answer: None)
    assert said == [(stage, True) for stage in stages]
    clock = slurm.cluster.clock
    assert watch_until_running(slurm, job_id, exclude=["n2"], clock=clock).ok
    assert slurm.job(job_id).excluded_nodes == ("n2",)


def test_the_jobs_log_names_a_node_that_is_not_excluded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm()
    job_id = started(slurm)
    nodes = tuple(node.name for node in slurm.nodes())
    need = Need(least=4, most=5)
    requeuer = Requeuer(slurm, job_id, 0, tmp_path / "log", need=need, start_now=False)
    requeuer.ask(nodes[:1], lambda what, ok, detail: None, lambda answer: None)
    assert f"requeue: {nodes[0]} is not excluded: there would be too few nodes" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        (("n1", "n3"), "requeue: n1 is not excluded: there would be no room for its segments of 2 nodes"),
        ((), ""),
    ],
)
def test_a_job_with_segments_says_what_they_cost(
    exclude: tuple[str, ...], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm(FakeCluster(["n1", "n2", "n3", "n4", "n5"]))
    slurm.cluster.switches = (
        Switch(name="a", level=0, nodes=("n1", "n2"), is_block=True),
        Switch(name="b", level=0, nodes=("n3", "n4", "n5"), is_block=True),
    )
    job_id = slurm.submit(SubmitRequest(command=("x",), nodes=4, options=("--segment=2",)))
    need = Need(least=4, most=4)
    requeuer = Requeuer(slurm, job_id, 0, tmp_path / "log", need=need, start_now=False)
    requeuer.ask(exclude, lambda what, ok, detail: None, lambda answer: None)
    out = capfd.readouterr().out
    assert said in out
    assert slurm.job(job_id).segment == 2
    assert slurm.job(job_id).excluded_nodes == (("n3",) if exclude else ())


def test_segments_that_have_no_room_any_more_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm(FakeCluster(["n1", "n2", "n3"]))
    slurm.cluster.switches = (Switch(name="a", level=0, nodes=("n1", "n2", "n3"), is_block=True),)
    job_id = started(slurm, "--segment=2")
    slurm.drain(["n2", "n3"], "broken")
    requeuer = Requeuer(slurm, job_id, 0, tmp_path / "log", need=Need(least=2, most=2), start_now=False)
    requeuer.ask((), lambda what, ok, detail: None, lambda answer: None)
    assert (
        "requeue: 0 of its 1 segments of 2 nodes (--segment=2) fit on the nodes that respond and are not "
        "excluded: it waits until nodes come back; fix: submit it with a smaller --segment"
    ) in capfd.readouterr().out
