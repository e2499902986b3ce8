"""Hooks on a real Slurm: what is bad gets no job, and what hangs holds up nobody."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster.installed_hooks import ROOT, installed
from tests.cluster.protected_job import USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases, pytest.mark.timeout(600)]

FAULT = "/run/srobust-fault"  # each node has its own /run
LOG, ALLOCATIONS = "/run/srobust-events.jsonl", "/run/slurmctld/srobust-events.jsonl"
HOOKS = {"prolog": "prolog.sh", "epilog": "epilog.sh", "periodic": "healthcheck.sh"}
PROLOG_S = EPILOG_S = PERIODIC_S = 6.0
LONG_S = 20.0  # for the same, where a hook has to find something that takes seconds
# A check of the site: bad, hanging or good as the node's file says.
FAN = f"""#!/bin/sh
read -r fault < {FAULT} 2>/dev/null
case $fault in
    bad) echo "stands still"; exit 2 ;;
    hang) sleep 600 ;;
esac
echo "turns"
"""
CONFIG = f"""
drain: {{mode: act, max_share: 1.0, max_per_hour: 100, most_per_day: 100}}
hooks: {{prolog_s: {PROLOG_S}, epilog_s: {EPILOG_S}, periodic_s: {PERIODIC_S}, slurm_s: 2}}
paths: {{state: /run/srobust-state, log: {LOG}, syslog: false}}
site_checks:
  - name: fan
    command: [HERE/fan]
    timeout_s: 1.5
    contexts: [prolog, epilog, periodic]
    suggestion: replace
checks:
  "*": {{suggestion: monitor}}
  site.fan: {{suggestion: replace}}
  mounts.answer: {{suggestion: reset}}
"""


class Cluster:
    """A sandbox with the hooks, and what its jobs and nodes do."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.configure()
        sandbox.exec(["scontrol", "update", "nodename=ALL", "state=resume"], check=False)
        for node in sandbox.config.node_names:
            self.root(node, f"rm -rf {FAULT} {LOG} /run/srobust-state")
        sandbox.wait_idle()

    def configure(self, more: str = "", budget_s: float = PROLOG_S) -> None:
        config = CONFIG.replace("HERE", str(self.folder)).replace(f"_s: {PROLOG_S}", f"_s: {budget_s}")
        (self.folder / "config.yaml").write_text(config + more)

    def root(self, node: str, script: str) -> str:
        return self.sandbox.exec(["sh", "-c", script], node=node, user="root", timeout_s=60.0).stdout

    def break_fan(self, node: str, how: str) -> None:
        self.root(node, f"echo {how} > {FAULT}")

    def submit(self, *options: str) -> int:
        command = ["sbatch", "--parsable", "--requeue", "--output=/dev/null", *options, "--wrap", "srun true"]
        return int(self.sandbox.exec(command, user=USER, timeout_s=30.0).stdout.partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        done = self.sandbox.exec(["scontrol", "-o", "show", "job", str(job)], timeout_s=30.0)
        return dict(re.findall(r"(\S+?)=(\S*)", done.stdout))

    def wait_done(self, job: int) -> dict[str, str]:
        try:
            wait_for(lambda: self.job(job)["JobState"] == "COMPLETED", 90)
        except AssertionError:
            nodes = "\n".join(self.node(node) for node in self.sandbox.config.node_names)
            raise AssertionError(f"{self.job(job)}\n{nodes}\n{self.events('n1')}") from None
        return self.job(job)

    def node(self, name: str) -> str:
        return self.sandbox.exec(["sinfo", "-h", "-N", "-n", name, "-o", "%T %E"]).stdout.strip()

    def events(self, node: str, kind: str = "run") -> list[dict[str, Any]]:
        text = self.root(node, f"cat {LOG} 2>/dev/null || true")
        return [event for event in map(json.loads, text.splitlines()) if event["event"] == kind]

    def hook(self, name: str, node: str = "n1") -> tuple[int, float]:
        """Run a hook as slurmd would; its code, and the seconds that it took."""
        environ = f"SLURM_JOB_ID=999 SLURM_JOB_UID=10001 SLURMD_NODENAME={node}"
        begun = time.monotonic()
        done = self.sandbox.exec(
            ["env", "-i", "sh", "-c", f"{environ} exec {self.folder}/{HOOKS[name]}"],
            node=node,
            user="root",
            timeout_s=60.0,
            check=False,
        )
        return done.returncode, time.monotonic() - begun

    @contextmanager
    def dead_mount(self, node: str) -> Iterator[None]:
        words = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.stand_ins.dead_mount", "/run/dead"]
        self.root(node, "mkdir -p /run/dead")
        holder = self.sandbox.popen(words, node=node, user="root", stdin=subprocess.PIPE)
        try:
            wait_for(lambda: " /run/dead fuse" in self.root(node, "cat /proc/mounts"), 20)
            yield
        finally:
            holder.communicate(timeout=30)
            self.root(node, "rmdir /run/dead")

    @contextmanager
    def slurmctld_stopped(self) -> Iterator[None]:
        pid = self.sandbox.fault.daemon_pid("head", "slurmctld")
        assert pid is not None
        kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def hooks() -> Iterator[Path]:
    with installed(CONFIG, fan=FAN) as folder:
        yield folder


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox], hooks: Path) -> Cluster:
    sandbox = sandboxes(
        nodes=3,
        accounting=False,
        slurmd_timeout_s=60,
        cred_expire_s=5,
        slurm_conf_lines=(
            f"Prolog={hooks}/prolog.sh",
            f"Epilog={hooks}/epilog.sh",
            f"PrologSlurmctld={hooks}/prolog_slurmctld.sh",
            f"EpilogSlurmctld={hooks}/epilog_slurmctld.sh",
            "PrologFlags=Alloc",
            "PrologEpilogTimeout=60",
            "SchedulerParameters=nohold_on_prolog_fail",
        ),
    )
    return Cluster(sandbox, hooks)


def test_a_bad_node_refuses_the_job_which_runs_elsewhere_and_is_not_held(cluster: Cluster) -> None:
    cluster.break_fan("n1", "bad")
    job = cluster.wait_done(cluster.submit("--nodes=2"))
    assert job["NodeList"] == "n[2-3]"
    assert job["Restarts"] == "1"
    wait_for(lambda: cluster.node("n1").startswith("drained"), 20, cluster.node("n1"))
    assert cluster.node("n1") == "drained srobust: fan stands still"
    [refused] = [event for event in cluster.events("n1") if event["exit_code"]]
    assert (refused["hook"], refused["job"]) == ("prolog", int(job["JobId"]))
    heard = [
        event["event"] for event in map(json.loads, cluster.root("head", f"cat {ALLOCATIONS}").splitlines())
    ]
    assert heard.count("allocated") == 2
    wait_for(lambda: '"ended"' in cluster.root("head", f"cat {ALLOCATIONS}"), 20)


@pytest.mark.parametrize("closed", [False, True])
def test_a_check_that_hangs_costs_its_time_and_lets_jobs_start_or_not_as_configured(
    cluster: Cluster, closed: bool
) -> None:
    if closed:
        cluster.configure("  site.*: {suggestion: replace, on_unknown: closed}\n")
    cluster.break_fan("n1", "hang")
    job = cluster.wait_done(cluster.submit("--nodes=1", "--exclusive") if closed else cluster.submit("-wn1"))
    assert (job["NodeList"] == "n1") is not closed
    runs = [event for event in cluster.events("n1") if event["hook"] == "prolog"]
    assert all(event["wall_s"] < PROLOG_S for event in runs)
    assert runs[0]["exit_code"] == int(closed)
    if closed:
        assert "Prolog error" in cluster.node("n1")  # Slurm's own: what is unknown is no reason of ours


def test_a_mount_that_hangs_keeps_jobs_away_and_every_hook_in_time(cluster: Cluster) -> None:
    # On a busy machine the imports of a hook take seconds (measured: 3.3 s of 6 s at a load of 17), and what
    # is left is too little for a mount that does not answer for 2 s.
    cluster.configure(budget_s=LONG_S)
    with cluster.dead_mount("n1"):
        for name in HOOKS:
            code, took_s = cluster.hook(name)
            events = cluster.root("n1", f"cat {LOG}")
            assert (code, took_s < LONG_S) == (int(name == "prolog"), True), events
        job = cluster.wait_done(cluster.submit("--nodes=1"))
        assert job["NodeList"] != "n1"
    assert "/run/dead" in cluster.node("n1")


def test_every_hook_ends_in_time_while_slurmctld_is_stopped(cluster: Cluster) -> None:
    cluster.break_fan("n1", "bad")
    with cluster.slurmctld_stopped():
        for name in HOOKS:
            code, took_s = cluster.hook(name)
            assert (name, code) == (name, 0)  # without an answer a prolog lets the job start
            assert took_s < 9
        assert cluster.hook("prolog", "n2")[0] == 0
    assert cluster.events("n1", "slurm_unreachable")

    def drained() -> bool:
        cluster.hook("periodic")
        return cluster.node("n1") == "drained srobust: fan stands still"

    wait_for(drained, 90, cluster.node("n1"))
    assert cluster.hook("prolog")[0] == 1


def test_prologs_side_by_side_do_not_disturb_each_other(cluster: Cluster) -> None:
    jobs = [cluster.submit("-wn1", "--mem=100", "--ntasks=1") for _ in range(6)]
    for job in jobs:
        assert cluster.wait_done(job)["NodeList"] == "n1"
    prologs = [event for event in cluster.events("n1") if event["hook"] == "prolog"]
    assert {event["job"] for event in prologs} == set(jobs)
    assert all(event["fit"] and not event["errors"] for event in prologs)
