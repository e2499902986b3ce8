"""Shared spares on a real Slurm: who gets them, what Slurm replaces, what stands in the way of removal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import wait_for

if TYPE_CHECKING:
    from slurm_robust.sandbox import Sandbox

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
NAME = "srobust_spares"


class Site:
    """A cluster and its administrator. alice may use the spares, bob may not."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def spares(self, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return self.sandbox.exec(["srobust", "spares", *words], user=user, check=False)

    def create(self, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return self.spares("create", "--count=2", "--users=alice", "--partition=main", *words, user=user)

    def status(self) -> dict[str, Any]:
        done = self.spares("status", "--rate=0.0012", "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def states(self) -> dict[str, str]:
        return {spare["node"]: spare["state"] for spare in self.status()["spares"]}

    def sbatch(self, user: str, *words: str) -> subprocess.CompletedProcess[str]:
        options = ["--parsable", "--output=/dev/null", "--exclusive", *words, "--wrap=sleep 300"]
        return self.sandbox.exec(["sbatch", *options], user=user, check=False)

    def scontrol(self, *words: str) -> str:
        return self.sandbox.exec(["scontrol", *words], user="root").stdout


@pytest.fixture
def site(sandboxes: Callable[..., Sandbox]) -> Site:
    return Site(sandboxes(nodes=5, slurmd_timeout_s=20, cred_expire_s=5))


@pytest.mark.releases
def test_spares_are_for_those_for_whom_they_were_made(site: Site) -> None:
    shown = site.create()
    assert "Nothing was done" in shown.stdout
    assert site.spares("status").returncode == 66
    done = site.create("--apply")
    assert done.returncode == 0, done.stderr
    assert len(site.states()) == 2
    assert set(site.states().values()) == {"ready"}

    refused = site.sbatch("bob", f"--reservation={NAME}")
    assert refused.returncode != 0
    assert "Access denied to requested reservation" in refused.stderr
    job = int(site.sbatch("alice", f"--reservation={NAME}").stdout)
    wait_for(lambda: "in use" in site.states().values(), PATIENCE_S, "alice has a spare")
    found = site.status()
    assert (found["ready"], found["usable"], found["size"]) == (1, 2, 2)
    assert [(s["job_id"], s["user"]) for s in found["spares"] if s["job_id"]] == [(job, "alice")]

    again = site.create("--apply")
    assert again.returncode != 0
    assert "there is a reservation srobust_spares already" in again.stderr


@pytest.mark.releases
def test_a_spare_that_goes_down_is_replaced(site: Site) -> None:
    site.create("--apply")
    bad, good = site.states()
    site.scontrol("update", f"nodename={bad}", "state=down", "reason=test")
    wait_for(lambda: bad not in site.states(), PATIENCE_S, f"{bad} is replaced")
    assert good in site.states()
    assert site.status()["ready"] == 2
    # All others are busy or gone: then the bad one stays, and is told.
    for node in {"n1", "n2", "n3", "n4", "n5"} - {good}:
        site.scontrol("update", f"nodename={node}", "state=drain", "reason=test")
    wait_for(lambda: site.status()["usable"] == 1, PATIENCE_S, "a spare is missing")
    assert "drained" in site.states().values()
    assert site.spares("status", "--rate=0.0012").returncode == 1


@pytest.mark.releases
def test_of_many_who_create_at_once_one_makes_the_spares(site: Site) -> None:
    orders = ["create", "--count=2", "--users=alice", "--partition=main", "--apply"]
    command = [*site.sandbox.enter_command(user="root"), "srobust", "spares", *orders]
    racers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    done = [(*racer.communicate(timeout=PATIENCE_S), racer.returncode) for racer in racers]
    assert [code for _, _, code in done].count(0) == 1, done
    losers = [err for _, err, code in done if code]
    assert all("already" in err or "another user was faster" in err for err in losers), losers
    assert len(site.states()) == 2


@pytest.mark.releases
def test_removal_waits_for_jobs_or_ends_them(site: Site) -> None:
    site.create("--apply")
    job = int(site.sbatch("alice", f"--reservation={NAME}").stdout)
    other = int(site.sbatch("bob").stdout)
    wait_for(lambda: "in use" in site.states().values(), PATIENCE_S, "alice has a spare")
    assert "--force cancels them" in site.spares("remove").stdout
    refused = site.spares("remove", "--apply")
    assert refused.returncode != 0
    assert f"srobust_spares is in use: job {job} of alice" in refused.stderr
    denied = site.spares("remove", "--apply", "--force", user="bob")
    assert denied.returncode != 0
    assert len(site.states()) == 2

    forced = site.spares("remove", "--apply", "--force")
    assert forced.returncode == 0, forced.stderr
    assert NAME not in site.scontrol("show", "reservation")
    jobs = site.sandbox.exec(["squeue", "--noheader", "--states=running", "--format=%i"]).stdout.split()
    assert jobs == [str(other)]
    again = site.spares("remove", "--apply")
    assert (again.returncode, "nothing to remove" in again.stdout) == (0, True)


def test_deleted_by_somebody_else(site: Site) -> None:
    site.create("--apply")
    site.scontrol("delete", f"reservationname={NAME}")
    gone = site.spares("status")
    assert gone.returncode == 66
    assert "there is no reservation srobust_spares" in gone.stderr
    assert site.spares("remove", "--apply").returncode == 0
    assert site.create("--apply").returncode == 0


@pytest.mark.releases
@pytest.mark.parametrize(
    ("user", "words", "text"),
    [
        ("bob", (), "only root and operators of Slurm may make reservations"),
        ("root", ("--users=zoe",), "Slurm does not know the user zoe"),
        ("root", ("--accounts=zoe",), "Slurm does not know the account zoe"),
        ("root", ("--accounts=root",), "the account root does not have the user alice"),
        ("root", ("--partition=nope",), "there is no partition nope; there are: main"),
        ("root", ("--count=6",), "partition main has 5 nodes, and 6 are asked for"),
    ],
)
def test_refusals_say_what_is_wrong(site: Site, user: str, words: tuple[str, ...], text: str) -> None:
    refused = site.create("--apply", *words, user=user)
    assert refused.returncode != 0
    assert text in refused.stderr
    assert NAME not in site.scontrol("show", "reservation")


def test_nodes_on_which_jobs_run(site: Site) -> None:
    """Refused, or with --ignore-jobs spares when the jobs end."""
    job = int(site.sbatch("bob", "--nodes=5").stdout)
    wait_for(lambda: "ALLOCATED" in site.scontrol("show", "node", "n1"), PATIENCE_S, "the job runs")
    refused = site.create("--apply")
    assert "5 are in service and in no other reservation, and 0 of these are idle" in refused.stderr
    assert site.create("--apply", "--ignore-jobs").returncode == 0
    assert set(site.states().values()) == {"busy"}
    site.sandbox.exec(["scancel", str(job)], user="bob")
    wait_for(lambda: set(site.states().values()) == {"ready"}, PATIENCE_S, "the nodes are spares")


@pytest.mark.parametrize("silence", ["dead", "stopped"])
def test_a_slurmctld_that_does_not_answer_ends_the_wait(site: Site, silence: str) -> None:
    pid = site.sandbox.fault.daemon_pid("head", "slurmctld")
    assert pid
    if silence == "dead":
        site.sandbox.fault.kill_slurmctld()
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        refused = site.create("--apply")
    finally:
        if silence == "dead":
            site.sandbox.fault.start_slurmctld()
        else:
            os.kill(pid, signal.SIGCONT)
    assert refused.returncode == 69
    assert "scontrol" in refused.stderr
