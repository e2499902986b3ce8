"""A network that is cut convicts nobody, and when it heals all is as before, on a real Slurm."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob, find_process
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 120
TINY = f"tiny.py --out OUT --steps {STEPS} --step-s 0.3"


@pytest.fixture
def patient(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    """A cluster that gives nodes up as late as Slurm does by default."""
    return sandboxes(nodes=4, slurmd_timeout_s=300)


def cut(sandbox: Sandbox, nodes: tuple[str, ...], seconds: float) -> None:
    for node in nodes:
        sandbox.fault.cut_network(node)
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, seconds + 5, "the cut")
    for node in nodes:
        sandbox.fault.heal_network(node)


def has_gone_on(job: ProtectedJob) -> None:
    """The job ends well in its first run, without a restart and without an innocent."""
    assert job.wait_end(300) == 0
    assert not job.events(ev.NodeEvicted)
    assert not job.events(ev.RequeueStarted)
    assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1]


def heard_again(job: ProtectedJob) -> int:
    """How often the log says that nodes are heard again."""
    return len(re.findall(r"(?:is|are) heard again", job.log))


@pytest.mark.parametrize(
    "seconds", [15, pytest.param(45, marks=pytest.mark.soak), pytest.param(120, marks=pytest.mark.soak)]
)
def test_cuts_of_the_batch_host_and_of_half_the_nodes(patient: Sandbox, seconds: int) -> None:
    """Without a takeover by another node; ``test_takeover.py`` has those."""
    job = ProtectedJob(patient, f"--set timings.takeover_s=0 {TINY}", nodes=4)
    job.wait_step(5)
    cut(patient, (job.state.own_node,), seconds)
    job.wait(lambda: heard_again(job), 60, "the end of the first cut is told")
    job.wait_step(job.step() + 5)
    before = heard_again(job)
    cut(patient, job.state.world.slots[2:], seconds)
    job.wait(lambda: heard_again(job) > before, 60, "the end of the second cut is told")
    has_gone_on(job)


@pytest.mark.soak
def test_a_cut_of_all_but_one(patient: Sandbox) -> None:
    job = ProtectedJob(patient, TINY, nodes=4)
    job.wait_step(5)
    cut(patient, tuple(n for n in job.state.world.slots if n != job.state.own_node), 45)
    job.wait(lambda: heard_again(job), 60, "the end of the cut is told")
    has_gone_on(job)


def test_a_short_cut_of_the_batch_host_and_an_agent_that_is_stopped_cost_nothing(patient: Sandbox) -> None:
    job = ProtectedJob(patient, f"--spares 1 {TINY}", nodes=4)
    job.wait_step(5)
    cut(patient, (job.state.own_node,), 8)  # well below timings.takeover_s: to heal takes its time, too
    job.wait_step(job.step() + 5)
    before = len(job.events(ev.IncidentOpened))
    agent = find_process(patient, job.state.world.slots[-1], "-m", "slurm_robust.agent")
    os.kill(agent, signal.SIGSTOP)
    until = time.monotonic() + 10
    wait_for(lambda: time.monotonic() >= until, 15, "ten seconds")
    os.kill(agent, signal.SIGCONT)
    has_gone_on(job)
    assert len(job.events(ev.IncidentOpened)) == before
    assert "is silent, but" in job.log
