"""What is tried first for a job's next node fails: that is told, and the next fallback follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Borrow, Requeue
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "srobust_spares"
TINY = "tiny.py --out OUT --steps 60 --step-s"


class Site:
    """Seven nodes, and limits that are enforced."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def root(self, *words: str) -> str:
        return self.sandbox.exec([*words], user="root", check=True, timeout_s=60.0).stdout

    def reserve(self, nodes: str, user: str = USER) -> None:
        made = ["starttime=now", "duration=UNLIMITED", f"users={user}", f"nodes={nodes}"]
        self.root("scontrol", "create", "reservation", f"reservationname={NAME}", *made)

    def limit_jobs(self, most: int) -> None:
        """That each user may have submitted, by the QOS; -1 for any."""
        self.root("sacctmgr", "--immediate", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={most}")

    def submit(
        self, *, companions: str, spares: int = 0, nodes: int = 2, step_s: float = 0.3
    ) -> ProtectedJob:
        """``nodes`` slots and ``spares``."""
        home = self.sandbox.home(USER)
        (home / "fallbacks.yaml").write_text(f"companions: {{{companions}}}\n")
        options = f"--config fallbacks.yaml --nproc-per-node 1 --spares {spares} {TINY} {step_s}"
        return ProtectedJob(self.sandbox, options, nodes=nodes + spares)

    def companions(self) -> list[str]:
        found = self.root("squeue", "--noheader", "--format=%j")
        return [line for line in found.splitlines() if line.startswith("srobust-companion-")]


@pytest.fixture
def site(sandboxes: Callable[..., Sandbox]) -> Iterator[Site]:
    enforced = ("AccountingStorageEnforce=associations,limits,qos",)
    found = Site(sandboxes(nodes=7, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=enforced))
    yield found
    found.limit_jobs(-1)


@pytest.fixture(scope="module")
def references() -> dict[int, str]:
    return {}


def weights(site: Site, references: dict[int, str], nodes: int) -> str:
    """Hash of the weights after 60 steps of that many ranks without a fault."""
    if nodes not in references:
        job = site.submit(companions="partition: false", nodes=nodes, step_s=0)
        assert job.wait_end() == 0, job.log
        references[nodes] = job.out.read_text()
        job.wait_left()
    return references[nodes]


def refusals(job: ProtectedJob) -> list[tuple[str, str]]:
    return [(str(event.source), event.reason) for event in job.events(ev.NotLent)]


def report(job: ProtectedJob, incident: int) -> str:
    command = ["srobust", "incident", str(job.id), str(incident)]
    return job.sandbox.exec(command, user=USER, timeout_s=30.0, check=True).stdout


def test_a_reservation_that_goes_while_its_node_is_lent_then_limits_then_a_requeue(
    site: Site, references: dict[int, str]
) -> None:
    expected = weights(site, references, 2)
    site.reserve("n6,n7")
    job = site.submit(companions=f"reservation: {NAME}, partition: true, wait_s: 8")
    job.wait_step(5)
    site.sandbox.fault.power_cut(job.state.slots[1])
    job.wait_recovered(1)
    (lent,) = job.state.lenders
    assert lent in ("n6", "n7")

    # The administrator removes the spares, with the jobs that use them.
    site.root("srobust", "spares", "remove", "--apply", "--force")
    job.wait_recovered(2)
    assert job.state.restart_count == 0
    (second,) = job.state.lenders
    assert second != lent
    (gone,) = refusals(job)
    assert gone[0] == f"reservation {NAME}"
    assert "reservation is invalid" in gone[1]
    assert lent not in job.state.evicted, "it did nothing wrong"
    assert "Slurm has ended what lent" in report(job, 2)

    # The job and its companion are all that the user may submit.
    site.limit_jobs(2)
    site.sandbox.fault.power_cut(second)
    job.wait(lambda: job.state.restart_count == 1, 150, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    limited = [why for source, why in refusals(job) if source == "the partition"]
    assert limited
    assert "QOS" in limited[-1], limited
    actions = [action for decided in job.events(ev.Decided) for action in decided.actions]
    assert [type(a) for a in actions if isinstance(a, Borrow | Requeue)] == [Borrow, Borrow, Borrow, Requeue]
    assert "no node from the partition" in report(job, 3)
    wait_for(lambda: not site.companions(), 90, "all companions have ended")


def test_two_nodes_lost_at_once_with_one_standby_and_the_reservation_of_others(
    site: Site, references: dict[int, str]
) -> None:
    expected = weights(site, references, 3)
    site.reserve("n7", user="bob")
    job = site.submit(companions=f"reservation: {NAME}", nodes=3, spares=1)
    job.wait_step(5)
    lost = job.state.slots[1:]
    for node in lost:
        site.sandbox.fault.power_cut(node)
    job.wait(lambda: job.events(ev.RequeueStarted), 120, "requeue")
    site.root("scontrol", "delete", f"reservationname={NAME}")
    job.wait(lambda: job.state.restart_count == 1, 150, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    (refused,) = refusals(job)
    assert "Access denied to requested reservation" in refused[1]
    assert not set(lost) & {*job.state.slots, *job.state.spares}
    assert "Access denied to requested reservation" in report(job, 1)


def test_all_standbys_die_while_they_are_woken(site: Site, references: dict[int, str]) -> None:
    expected = weights(site, references, 2)
    job = site.submit(companions="partition: true", spares=2)
    job.wait_step(5)
    standbys = job.state.spares
    slot = job.state.slots[1]
    site.sandbox.fault.power_cut(slot)
    job.wait(lambda: job.state.slots[1] in standbys, 60, "a standby is to take the slot")
    for node in standbys:
        site.sandbox.fault.power_cut(node)
    job.wait(lambda: job.state.lenders and job.state.steps_here >= 0, 150, "steps with a lent node")
    (lent,) = job.state.lenders
    assert job.state.slots[1] == lent
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    assert job.state.restart_count == 0
    assert job.events(ev.RequeueStarted) == []
    assert slot in job.state.evicted
    assert set(job.state.evicted) <= {slot, *standbys}, "nobody else is to blame"
    wait_for(lambda: not site.companions(), 90, "all companions have ended")
