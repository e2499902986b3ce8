"""Standbys get ready, are found to be bad, die when they are woken, and are replaced, on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.job import JobDirectory
from slurm_robust.sandbox import Sandbox
from tests.cluster import network_link
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "srobust_spares"
SHARED = ("n5", "n6")
OPTIONS = "--out OUT --steps 5000 --step-s 0.2"
# A module that nothing else imports; whether the zygote had it already is in the rank's output.
SCRIPT = "import sys; print('imported before:', 'xmlrpc.client' in sys.modules); import xmlrpc.client, tiny"


@pytest.fixture
def site(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    """Six nodes, of which alice shares n5 and n6 with nobody."""
    sandbox = sandboxes(nodes=6, slurmd_timeout_s=20, cred_expire_s=5)
    made = ["starttime=now", "duration=UNLIMITED", f"users={USER}", f"nodes={','.join(SHARED)}"]
    command = ["scontrol", "create", "reservation", f"reservationname={NAME}", *made]
    sandbox.exec(command, user="root", check=True)
    return sandbox


def submit(site: Sandbox, options: str, *, nodes: int, preparations: bool = False) -> ProtectedJob:
    """A job that may use the reservation."""
    (site.home(USER) / "imports.py").write_text(SCRIPT)
    (site.home(USER) / "standbys.yaml").write_text(
        f"companions: {{reservation: {NAME}}}\n"
        "standby: {rehearse: false, test_s: 240}\n"  # nodes that share two processors are slow
        "detect: {inspect: false, hang: false}\n"  # else the inspection is faster than the quick test
    )
    words = f"--config standbys.yaml --nproc-per-node 1 {options}"
    return ProtectedJob(site, words, nodes=nodes, preparations=preparations)


def end(job: ProtectedJob) -> None:
    job.sandbox.exec(["scancel", str(job.id)], user=USER, timeout_s=30.0)
    job.wait_left()


def outcomes(job: ProtectedJob) -> dict[str, Outcome]:
    return {event.node: event.outcome for event in job.events(ev.StandbyTested)}


def test_a_bad_standby_and_a_used_one_are_replaced_before_they_are_needed(site: Sandbox) -> None:
    job = submit(site, f"--spares 1 imports.py {OPTIONS}", nodes=3, preparations=True)
    job.wait(lambda: job.state.spares, 60, "the allocation")
    (bad,) = job.state.spares
    network_link.configure(site, bad)  # it names an interface that is not there
    job.wait(lambda: bad in job.state.evicted, 300, "end of the bad standby")
    assert "health: srobust: rail0 the interface is gone" in job.state.evicted[bad]
    assert outcomes(job) == {bad: Outcome.FAIL}
    assert job.events(ev.IncidentOpened) == []
    job.wait(lambda: job.state.spares, 60, "another standby")
    (lent,) = job.state.spares
    assert lent in SHARED
    job.wait(lambda: lent in outcomes(job), 300, "its quick test")
    assert outcomes(job)[lent] is Outcome.PASS
    learned = job.state.learned
    assert learned is not None
    assert "xmlrpc.client" in learned.modules
    assert "tiny" not in learned.modules
    job.wait(lambda: job.state.standbys[lent].loaded == learned.number, 60, "its imports")
    shown = site.exec(["srobust", "status", str(job.id)], user=USER, check=True).stdout
    assert f"{lent} tested, with the job's imports" in " ".join(shown.split())
    slot = 1
    site.fault.power_cut(job.state.world.slots[slot])
    job.wait_recovered(1)
    assert job.state.world.slots[slot] == lent
    log = JobDirectory(job.folder).worker_log(job.state.world.generation, slot, "out")
    assert "imported before: True" in log.read_text()
    job.wait(lambda: job.state.spares, 60, "a standby for the used one")
    assert set(job.state.spares) | {lent} == set(SHARED)
    assert job.events(ev.RequeueStarted) == []
    end(job)


@pytest.mark.soak
def test_a_standby_that_dies_while_it_is_woken_is_replaced_in_its_turn(site: Sandbox) -> None:
    job = submit(site, f"--spares 2 tiny.py {OPTIONS}", nodes=4)
    job.wait_step(5)
    dead, spares = job.state.world.slots[1], job.state.spares
    site.fault.power_cut(dead)
    job.wait(lambda: dead not in job.state.world.slots, 60, "the decision")
    woken = job.state.world.slots[1]
    site.fault.power_cut(woken)
    job.wait(lambda: woken in job.state.evicted, 120, "the next decision")
    job.wait(lambda: job.state.world.incident is None and job.state.world.running, 120, "training")
    assert job.state.world.slots[1] in (*spares, *SHARED)
    assert job.state.world.slots[1] != woken
    assert job.events(ev.RequeueStarted) == []
    end(job)


def test_two_nodes_are_lost_at_once_with_one_standby(site: Sandbox) -> None:
    """The standby replaces one of them, a shared spare the other."""
    job = submit(site, f"--spares 1 tiny.py {OPTIONS}", nodes=4)
    job.wait_step(5)
    host, *lost = job.state.world.slots
    (spare,) = job.state.spares
    for node in lost:
        site.fault.power_cut(node)
    job.wait(lambda: job.state.world.generation > 1 and job.state.world.running, 200, "the next generation")
    assert job.state.world.slots[0] == host
    assert spare in job.state.world.slots
    assert len(set(SHARED) & set(job.state.world.slots)) == 1
    assert job.events(ev.RequeueStarted) == []
    end(job)
