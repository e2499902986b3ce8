"""Repairs on a real cluster: a node is rebooted by Slurm, tested again, and returned."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.sandbox import Sandbox
from tests.cluster import checked_nodes
from tests.cluster.checked_nodes import CheckedNodes
from tests.cluster.test_drain import Jobs, reservations
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
# A node of a sandbox does not boot by itself: the test does what the power supply does.
REBOOT = """#!/bin/sh
: > HERE/reboot/$(hostname -s)
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="srobust-repair-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        checked_nodes.install(folder)
        (folder / "reboot").mkdir()
        program = folder / "reboot.sh"
        program.write_text(REBOOT.replace("HERE", name))
        program.chmod(0o755)
        yield folder


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox], installed: Path) -> CheckedNodes:
    checked_nodes.configure(installed)
    config = installed / "config.yaml"
    text = config.read_text().replace("site.core: {suggestion: reset}", "site.core: {suggestion: reboot}")
    config.write_text(f"{text}repair: {{mode: act, reboot_s: 150}}\n")
    sandbox = sandboxes(
        nodes=4,
        accounting=False,
        slurmd_timeout_s=60,
        cred_expire_s=5,
        binds=(str(installed),),
        slurm_conf_lines=(*checked_nodes.slurm_conf(installed), f"RebootProgram={installed}/reboot.sh"),
    )
    cluster = CheckedNodes(sandbox)
    cluster.clean()
    return cluster


def repair(cluster: CheckedNodes, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = ["srobust", "admin", "repair", "--json", f"--config={folder}/config.yaml", *words]
    return cluster.sandbox.popen(command, user="root", stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def results(process: subprocess.Popen[bytes]) -> dict[str, dict[str, Any]]:
    out, errors = process.communicate(timeout=240)
    assert out, errors
    return {result["node"]: result for result in json.loads(out)}


@pytest.mark.releases
def test_a_node_is_rebooted_tested_and_returned_and_others_are_not_touched(
    cluster: CheckedNodes, installed: Path
) -> None:
    for node in ("n1", "n2"):
        cluster.hurt(node, "core")
        Jobs(cluster).run(node, "good")
    cluster.wait_drained("n1", "n2")
    changed = f"{cluster.drained()['n2']}; NHC: check_hw_gpu"
    cluster.sandbox.exec(["scontrol", "update", "nodename=n2", f"reason={changed}"], user="root")
    assert set(results(repair(cluster, installed, "--dry-run"))) == {"n1", "n2"}
    process = repair(cluster, installed)
    asked = installed / "reboot"
    try:
        wait_for(lambda: (asked / "n1").exists() or process.poll() is not None, 120, "n1 is to reboot")
        assert process.poll() is None, results(process)
        cluster.sandbox.fault.power_cut("n1")
        cluster.sandbox.fault.boot("n1")
        found = results(process)
    finally:
        process.kill()
    assert {node: result["returned"] for node, result in found.items()} == {"n1": True, "n2": False}, found
    assert [path.name for path in asked.iterdir()] == ["n1"]
    assert cluster.drained() == {"n2": changed}
    assert "srobust-quarantine" not in reservations(cluster)
