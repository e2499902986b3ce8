"""A job comes back on as many nodes as it needs: it does not wait for a spare, and for no dead node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps 100"
OPTIONS = f"--nproc-per-node 1 --spares 1 {TINY} --step-s 0.3"


@pytest.fixture
def six(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    """Slurm's own begin time is two minutes away, and it gives no node up meanwhile."""
    return sandboxes(nodes=6, accounting=False)


def asked(job: ProtectedJob) -> dict[str, str]:
    """What Slurm has of the job."""
    done = job.sandbox.exec(["scontrol", "-o", "show", "job", str(job.id)], user=USER, check=True)
    return dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)


def comes_back_at_once(job: ProtectedJob) -> None:
    job.wait(lambda: job.events(ev.RequeueStarted), 120, "requeue")
    begun = len(job.events(ev.FirstStep))
    job.wait(lambda: job.state.restart_count == 1, 60, "next run of the job")
    assert len(job.state.world.slots) == 4, job.log
    job.wait(lambda: len(job.events(ev.FirstStep)) > begun, 120, "a new step")


@pytest.mark.soak
def test_one_dead_and_one_left_out_of_six_and_then_another_power_cut(six: Sandbox) -> None:
    """The last one leaves too few: then it says what it waits for, and goes on when a node is back."""
    job = ProtectedJob(six, f"--set detect.hang_floor_s=5 {OPTIONS}", nodes=5)
    job.wait_step(5)
    dead = job.state.world.slots[1]
    six.fault.power_cut(dead)
    job.wait_recovered(1)
    suspect = job.state.world.slots[1]
    six.fault.stop_rank(job.id, 1)
    comes_back_at_once(job)
    assert not {dead, suspect} & {*job.state.world.slots, *job.state.spares}, job.log
    seen = asked(job)
    assert (seen["NumNodes"], seen["ExcNodeList"].count("n")) == ("4", 1)

    # The suspect would do if nobody else were left.
    drain = ["scontrol", "update", f"nodename={suspect}", "state=drain", "reason=suspect"]
    six.exec(drain, user="root", check=True)
    six.fault.power_cut(job.state.world.slots[3])
    job.wait(lambda: len(job.events(ev.RequeueStarted)) == 2, 120, "second requeue")
    job.wait(lambda: job.slurm_state() == "PENDING", 60, "it waits")
    status = ["srobust", "status", str(job.id)]

    def said() -> str:
        return six.exec(status, user=USER, timeout_s=30, check=True).stdout

    wait_for(lambda: "dead" in said() and "needs 4 to 5 nodes" in said(), 60, "what it waits for")
    six.fault.boot(dead)
    six.exec(["scontrol", "update", f"nodename={dead}", "state=resume"], user="root")
    job.wait(lambda: job.state.restart_count == 2, 240, "third run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(4, TINY)


def test_a_node_that_is_dead_when_the_agents_start(six: Sandbox) -> None:
    """Its srun ends with it, on all of its nodes: they are started again without it."""
    job = ProtectedJob(six, OPTIONS, nodes=5, before="until [ -e begin ]; do sleep 0.1; done")
    job.wait(lambda: job.slurm_state() == "RUNNING", 60, "start of the job")
    six.fault.power_cut("n3")
    (job.home / "begin").touch()
    job.wait_step(5)
    assert job.state.restart_count == 0
    assert job.state.world.slots == ("n1", "n2", "n5", "n4"), job.log
    assert [*job.state.evicted] == ["n3"], job.log
    assert job.wait_end() == 0
    assert job.out.read_text() == undisturbed(4, TINY)
