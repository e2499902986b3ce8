"""What is tried first for a job's next node fails: that is told, and the next fallback follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Borrow, Requeue
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "srobust_spares"
TINY = "tiny.py --out OUT --steps 60 --step-s"


class Site:
    """Six nodes, and limits that are enforced."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def root(self, *words: str) -> str:
        return self.sandbox.exec([*words], user="root", check=True, timeout_s=60.0).stdout

    def reserve(self, nodes: str) -> None:
        made = ["starttime=now", "duration=UNLIMITED", f"users={USER}", f"nodes={nodes}"]
        self.root("scontrol", "create", "reservation", f"reservationname={NAME}", *made)

    def limit_jobs(self, most: int) -> None:
        """That each user may have submitted, by the QOS; -1 for any."""
        self.root("sacctmgr", "--immediate", "modify", "qos", "normal", "set", f"MaxSubmitJobsPerUser={most}")

    def submit(self, companions: str, step_s: float) -> ProtectedJob:
        """Two nodes, and these settings of companions."""
        home = self.sandbox.home(USER)
        (home / "fallbacks.yaml").write_text(f"companions: {{{companions}}}\n")
        options = f"--config fallbacks.yaml --nproc-per-node 1 {TINY} {step_s}"
        return ProtectedJob(self.sandbox, options, nodes=2)

    def companions(self) -> list[str]:
        found = self.root("squeue", "--noheader", "--format=%j")
        return [line for line in found.splitlines() if line.startswith("srobust-companion-")]


@pytest.fixture
def site(sandboxes: Callable[..., Sandbox]) -> Iterator[Site]:
    enforced = ("AccountingStorageEnforce=associations,limits,qos",)
    found = Site(sandboxes(nodes=6, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=enforced))
    yield found
    found.limit_jobs(-1)


def refusals(job: ProtectedJob) -> list[tuple[str, str]]:
    return [(str(event.source), event.reason) for event in job.events(ev.NotLent)]


def report(job: ProtectedJob, incident: int) -> str:
    command = ["srobust", "incident", str(job.id), str(incident)]
    return job.sandbox.exec(command, user=USER, timeout_s=30.0, check=True).stdout


def test_a_reservation_that_goes_while_its_node_is_lent_then_limits_then_a_requeue(site: Site) -> None:
    site.reserve("n5,n6")
    job = site.submit(f"reservation: {NAME}, partition: true, wait_s: 20", 0.3)
    job.wait_step(5)
    site.sandbox.fault.power_cut(job.state.world.slots[1])
    job.wait_recovered(1)
    (lent,) = job.state.lenders
    assert lent in ("n5", "n6")

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
    assert job.out.read_text() == undisturbed(2, f"{TINY} 0")
    limited = [why for source, why in refusals(job) if source == "the partition"]
    assert limited
    assert "QOS" in limited[-1], limited
    actions = [action for decided in job.events(ev.Decided) for action in decided.actions]
    assert [type(a) for a in actions if isinstance(a, Borrow | Requeue)] == [Borrow, Borrow, Borrow, Requeue]
    assert "no node from the partition" in report(job, 3)
    wait_for(lambda: not site.companions(), 90, "all companions have ended")
