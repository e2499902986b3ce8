"""Nodes leave the allocation on a real Slurm: evicted ones to be tested, dead ones before a requeue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.boot import EXPEDITES, slurm_version
from tests.cluster.checked_nodes import CheckedNodes, install, slurm_conf
from tests.cluster.installed_hooks import ROOT
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"


@pytest.fixture
def checked(
    sandboxes: Callable[..., Sandbox], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckedNodes]:
    folder = ROOT / "build" / "test-giveback"
    folder.mkdir(parents=True, exist_ok=True)
    install(folder)
    sandbox = sandboxes(nodes=4, accounting=False, slurm_conf_lines=slurm_conf(folder))
    nodes = CheckedNodes(sandbox)
    nodes.clean()
    yield nodes
    nodes.clean()


def test_an_evicted_node_is_tested_and_drained_while_the_job_trains(checked: CheckedNodes) -> None:
    job = ProtectedJob(checked.sandbox, f"--spares 1 {TINY} 400 --step-s 0.2", nodes=3)
    job.wait_step(5)
    bad = job.state.world.slots[1]
    checked.hurt(bad, "core")
    checked.sandbox.fault.stop_rank(job.id, 1)
    job.wait_recovered(1)
    job.wait(lambda: job.events(ev.NodeGivenBack), 60, "return of the node to Slurm")
    checked.wait_drained(bad)
    assert job.slurm_state() == "RUNNING"
    assert bad in job.state.evicted
    assert bad not in job.state.held
    (event,) = job.events(ev.NodeGivenBack)
    assert event.how == "the epilog tests it"
    assert not list(job.home.glob("slurm_job_*_resize.*"))
    assert job.wait_end() == 0


def test_a_dead_node_holds_up_no_requeue(sandboxes: Callable[..., Sandbox]) -> None:
    """SlurmdTimeout is Slurm's default of 300 s."""
    expedites = slurm_version() >= EXPEDITES
    lines = ("SlurmctldParameters=enable_expedited_requeue",) if expedites else ()
    sandbox = sandboxes(nodes=4, accounting=False, slurm_conf_lines=lines)
    options = ("--requeue=expedite",) if expedites else ()
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=3, sbatch=options)
    job.wait_step(5)
    dead = job.state.world.slots[-1]
    sandbox.fault.power_cut(dead)
    job.wait(lambda: job.state.restart_count == 1, 400, "next run of the job")
    shrinks = [e for e in job.events(ev.StageDone) if e.what == "shrink"]
    assert shrinks[-1].ok, shrinks  # a first try may be over before Slurm knows that the node is dead
    assert job.events(ev.AllocationTaken)[1].t - job.events(ev.RequeueStarted)[0].t < 100
    assert job.wait_end() == 0
    assert len(job.events(ev.AgentJoined)) == 2 * 3, "nothing of the first run disturbs the second"
    assert dead not in job.state.world.slots
    assert len(job.state.world.slots) == 3, "it asks for as many nodes as before"
