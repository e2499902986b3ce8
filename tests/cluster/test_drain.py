"""Drains on a real Slurm: with evidence, undone after a test, bounded, and never somebody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster import checked_nodes
from tests.cluster.checked_nodes import PATIENCE_S, CheckedNodes
from tests.cluster.protected_job import USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

BROKEN = "srobust: fan fan is broken"
# What a controller leaves when it gives a node up, and the tricks of a user who has learnt of it.
JOB = """#!/bin/bash
folder=srobust-jobs/$SLURM_JOB_ID/suspects
mkdir -p "$folder"
hint="$folder/$SLURMD_NODENAME.json"
good='{"node":"'$SLURMD_NODENAME'","job_id":'$SLURM_JOB_ID',"t":'$(date +%s)',"reason":"silent for 3 s"}'
case $1 in
    good) echo "$good" > "$hint" ;;
    link) echo "$good" > mine.json; ln -s "$PWD/mine.json" "$hint" ;;
    folder)
        mkdir real && echo "$good" > "real/$SLURMD_NODENAME.json"
        rmdir "$folder" && ln -s "$PWD/real" "$folder"
        ;;
    pipe) mkfifo "$hint" ;;
    twice) echo "$good" > "$hint"; ln "$hint" again.json ;;
    huge) echo "$good" > "$hint"; truncate -s 1T "$hint" ;;
    other) echo "${good/$SLURMD_NODENAME/n9}" > "$hint" ;;
    escape) printf '%s\\033]0;x\\007' "$good" > "$hint" ;;
esac
"""
TRICKS = ("link", "folder", "pipe", "twice", "huge", "other", "escape")


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    # Not below /tmp, which is emptied on every node between tests.
    with tempfile.TemporaryDirectory(prefix="srobust-drain-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        checked_nodes.install(Path(name))
        yield Path(name)


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox], installed: Path) -> CheckedNodes:
    checked_nodes.configure(installed)
    sandbox = sandboxes(
        nodes=4,
        accounting=False,
        slurmd_timeout_s=60,
        cred_expire_s=5,
        binds=(str(installed),),
        slurm_conf_lines=checked_nodes.slurm_conf(installed),
    )
    cluster = CheckedNodes(sandbox)
    cluster.clean()
    return cluster


@pytest.mark.releases
def test_a_fault_drains_with_its_evidence_and_a_healed_node_returns(cluster: CheckedNodes) -> None:
    cluster.hurt("n1", "fan")
    cluster.wait_drained("n1", reason=BROKEN)
    runs = cluster.runs("n1")
    wait_for(lambda: cluster.runs("n1") > runs, PATIENCE_S, "another run")
    assert cluster.drained() == {"n1": BROKEN}
    cluster.heal("n1", "fan")
    # The state alone: without slurmdbd Slurm 24.11 keeps the reason of a node that was resumed.
    wait_for(lambda: cluster.states()["n1"][0] == "idle", PATIENCE_S, "n1 returned")
    assert [event["event"] for event in cluster.events("n1", "drained", "undrained")] == [
        "drained",
        "undrained",
    ]


def test_an_administrators_drain_is_not_touched(cluster: CheckedNodes) -> None:
    cluster.sandbox.exec(
        ["scontrol", "update", "nodename=n2", "state=drain", "reason=disk, alice"], user="root"
    )
    cluster.hurt("n2", "fan")
    wait_for(lambda: cluster.events("n2", "not_drained"), PATIENCE_S, "n2 is seen to be bad")
    assert cluster.drained() == {"n2": "disk, alice"}
    cluster.heal("n2", "fan")
    runs = cluster.runs("n2")
    wait_for(lambda: cluster.runs("n2") >= runs + 3, PATIENCE_S, "three good runs")
    assert cluster.drained() == {"n2": "disk, alice"}


def test_nodes_that_fail_at_once_leave_as_many_drained_as_may_be(
    cluster: CheckedNodes, installed: Path
) -> None:
    checked_nodes.configure(installed, max_share=0.1)
    log = cluster.sandbox.read_log("slurmctld")
    for node in ("n1", "n2", "n3"):
        cluster.hurt(node, "fan")
    told = ("drained", "not_drained")
    bad = ("n1", "n2", "n3")
    wait_for(lambda: all(cluster.events(node, *told) for node in bad), PATIENCE_S, "all have decided")
    wait_for(lambda: len(cluster.drained()) == 1, PATIENCE_S, "one is drained")
    runs = cluster.runs("n3")
    wait_for(lambda: cluster.runs("n3") >= runs + 2, PATIENCE_S, "two runs more")
    assert len(cluster.drained()) == 1
    # Nor was another one drained for a moment.
    told = cluster.sandbox.read_log("slurmctld").removeprefix(log)
    assert told.count("reason set to: srobust: ") == 1


class Jobs:
    """Jobs of a user that leave a hint."""

    def __init__(self, cluster: CheckedNodes) -> None:
        self.cluster = cluster
        self.home = cluster.sandbox.home(USER)
        (self.home / "hint.sh").write_text(JOB)

    def run(self, node: str, how: str) -> int:
        """Submit one; its id, when its epilog has told what it found."""
        command = ["sbatch", "--parsable", f"--nodelist={node}", "--output=/dev/null", "hint.sh", how]
        done = self.cluster.sandbox.exec(command, user=USER, timeout_s=30.0)
        job = int(done.stdout.partition(";")[0])
        wait_for(lambda: self.epilog(node, job), 60, f"epilog of job {job}")
        ran = os.path.lexists(self.home / f"srobust-jobs/{job}/suspects")
        assert ran, f"job {job} did not run"
        return job

    def epilog(self, node: str, job: int) -> list[dict[str, Any]]:
        events = self.cluster.events(node, "run")
        return [event for event in events if (event["hook"], event["job"]) == ("epilog", job)]


def test_a_suspect_is_tested_closely_and_drained_or_acquitted(cluster: CheckedNodes) -> None:
    jobs = Jobs(cluster)
    cluster.hurt("n1", "core")
    jobs.run("n1", "nothing")
    assert cluster.drained() == {}
    jobs.run("n1", "good")
    assert cluster.drained() == {"n1": "srobust: core core is broken"}
    job = jobs.run("n2", "good")
    (event,) = cluster.events("n2", "acquitted")
    assert (event["job"], event["suspected"]) == (job, "silent for 3 s")
    assert "n2" not in cluster.drained()
    # What only a close look shows to be bad, no quick one shows to be good.
    cluster.heal("n1", "core")
    runs = cluster.runs("n1")
    wait_for(lambda: cluster.runs("n1") >= runs + 3, PATIENCE_S, "three good runs")
    assert "n1" in cluster.drained()


def test_no_trick_of_a_user_gets_even_a_test(cluster: CheckedNodes) -> None:
    jobs = Jobs(cluster)
    cluster.hurt("n3", "core")  # so that a test would drain
    for trick in TRICKS:
        jobs.run("n3", trick)
    assert len(cluster.events("n3", "suspect_ignored")) == len(TRICKS)
    assert cluster.drained() == {}


def test_what_slurmctld_could_not_be_told_is_done_when_it_is_back(
    cluster: CheckedNodes, installed: Path
) -> None:
    cluster.sandbox.fault.kill_slurmctld()
    try:
        cluster.hurt("n1", "fan")
        cluster.root("n1", f"env -i SLURMD_NODENAME=n1 {installed}/healthcheck.sh")
        # Another run may have been under way and hold the lock; then that one says it.
        wait_for(lambda: cluster.events("n1", "slurm_unreachable"), PATIENCE_S, str(cluster.events("n1")))
    finally:
        cluster.sandbox.fault.start_slurmctld()
    cluster.wait_drained("n1", reason=BROKEN)


# -- quarantine -------------------------------------------------------------------------------------------


def quarantine(cluster: CheckedNodes, folder: Path) -> dict[str, dict[str, Any]]:
    command = ["srobust", "admin", "quarantine", "--once", "--json", f"--config={folder}/config.yaml"]
    done = cluster.sandbox.exec(command, user="root", timeout_s=180.0, check=False)
    assert done.stdout, done.stderr
    return {result["node"]: result for result in json.loads(done.stdout)}


def reservations(cluster: CheckedNodes) -> str:
    return cluster.sandbox.exec(["scontrol", "-o", "show", "reservation"], user="root").stdout


def test_quarantine_returns_a_good_node_and_keeps_a_bad_one(cluster: CheckedNodes, installed: Path) -> None:
    jobs = Jobs(cluster)
    for node in ("n1", "n2"):
        cluster.hurt(node, "core")
        jobs.run(node, "good")
    cluster.wait_drained("n1", "n2")
    cluster.heal("n1", "core")
    results: dict[str, dict[str, Any]] = {}

    def tested() -> bool:
        # A node that Slurm has not heard of lately, or whose test began too late, is left to the next one.
        results.update(quarantine(cluster, installed))
        print(json.dumps(results, indent=1))
        return all(results[node].get("tests") for node in ("n1", "n2"))

    wait_for(tested, PATIENCE_S, "both are tested")
    returned = {node: result["returned"] for node, result in results.items()}
    assert returned == {"n1": True, "n2": False}
    assert "site.core" in results["n2"]["checks"]
    assert results["n2"]["evidence"][0]["check"] == "site.core"
    assert cluster.drained() == {"n2": "srobust: quarantine: core core is broken"}
    assert "srobust-quarantine" not in reservations(cluster)


def test_a_killed_quarantine_lets_nothing_into_service_and_is_finished_by_the_next(
    cluster: CheckedNodes, installed: Path
) -> None:
    cluster.hurt("n1", "fan")
    cluster.wait_drained("n1", reason=BROKEN)
    cluster.hurt("n1", "core", "hang")
    command = ["srobust", "admin", "quarantine", f"--config={installed}/config.yaml"]
    process = cluster.sandbox.popen(
        command, user="root", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: "srobust-quarantine-n1" in reservations(cluster), PATIENCE_S, "the reservation")
    wait_for(lambda: not cluster.drained(), PATIENCE_S, "n1 resumed inside")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    done = cluster.sandbox.exec(
        ["srun", "--immediate=2", "-w", "n1", "true"], user=USER, timeout_s=30.0, check=False
    )
    assert done.returncode != 0  # nobody else gets in
    cluster.heal("n1", "core")
    cluster.heal("n1", "fan")
    seen: list[dict[str, Any]] = []

    def returned() -> bool:
        seen.append(quarantine(cluster, installed)["n1"])
        return bool(seen[-1]["returned"])

    try:
        wait_for(returned, 90, "n1 returned")
    except AssertionError as error:
        raise AssertionError(f"{error}: {json.dumps(seen, indent=1)}") from None
    assert "srobust-quarantine" not in reservations(cluster)
