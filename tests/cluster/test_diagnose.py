"""``srobust diagnose`` on a real Slurm whose nodes compute wrongly, hang, or have a bad link."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

FAULTY = Path(__file__).parents[1] / "unit" / "diagnostics" / "faulty"
FAULTS = "faults"  # in the user's home, which all nodes share
NODES = ("n1", "n2", "n3", "n4")
ENVIRONMENT = {
    "PYTHONPATH": str(FAULTY),
    "SROBUST_TEST_FAULTS": f"/home/{USER}/{FAULTS}",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def nodes(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The usual sandbox, without faults before and after."""
    (sandbox.home(USER) / FAULTS).mkdir(exist_ok=True)
    yield sandbox
    for file in (sandbox.home(USER) / FAULTS).iterdir():
        file.unlink()


def hurt(sandbox: Sandbox, node: str, fault: str) -> None:
    (sandbox.home(USER) / FAULTS / node).write_text(fault)


def command(*options: str) -> list[str]:
    job = ["salloc", "--quiet", f"--nodes={len(NODES)}", "--exclusive"]
    return [*job, "srobust", "diagnose", "--json", *options]


def diagnose(sandbox: Sandbox, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and diagnosis."""
    done = sandbox.exec(command(*options), user=USER, env=ENVIRONMENT, timeout_s=400.0, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(done.stderr)
    return done.returncode, found


def parts(sandbox: Sandbox, node: str) -> list[int]:
    """The machine's pids of the parts of tests on a node."""
    return [pid for pid in sandbox.host_pids(node) if b"slurm_robust.diagnostics" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.soak
def test_good_nodes_pass_everything(nodes: Sandbox) -> None:
    code, found = diagnose(nodes, "--bitwise", "--storage", f"/home/{USER}", "--budget", "390")
    assert (code, found["suspects"]) == (0, []), found["reason"]
    tests = ("gemm", "memory", "all_to_all", "storage", "reference", "all_gather")
    assert found["reason"] == f"all 4 nodes passed {', '.join(tests)}"
    assert found["left_out"] == {"dcgm": "not every node has GPUs"}
    pairs = {frozenset(r["peers"]) for r in found["results"] if r["test"] == "all_gather"}
    assert pairs == {frozenset(p) for p in (("n1", "n2"), ("n2", "n3"), ("n3", "n4"), ("n4", "n1"))}


def test_the_node_that_flips_bits_is_named(nodes: Sandbox) -> None:
    hurt(nodes, "n2", "arithmetic")
    code, found = diagnose(nodes, "--tests", "reference", "--budget", "120")
    assert (code, found["suspects"]) == (1, ["n2"]), found["reason"]
    assert "reference" in found["reason"]
    code, found = diagnose(nodes, "--tests", "gemm", "--budget", "120")
    assert (code, found["suspects"]) == (1, ["n2"]), found["reason"]


def test_a_node_that_hangs_is_named_in_time_and_nothing_of_it_is_left(nodes: Sandbox) -> None:
    hurt(nodes, "n3", "stop")
    begun = time.monotonic()
    code, found = diagnose(nodes, "--tests", "memory,all_gather", "--budget", "90")
    # The second look at n3 uses up what is left; salloc and clearing away come on top.
    assert time.monotonic() - begun < 90 + 40
    assert (code, found["suspects"]) == (3, []), found["reason"]
    assert "unknown on n3: memory (no answer)" in found["reason"]
    assert {r["node"] for r in found["results"] if r["outcome"] == "pass"} == {"n1", "n2", "n4"}
    wait_for(lambda: not parts(nodes, "n3"), 30.0, "the stopped part is gone")


@pytest.mark.soak
def test_a_node_with_a_slow_link_fails_with_both_neighbours(nodes: Sandbox) -> None:
    slow = "tc qdisc add dev eth0 root tbf rate 40mbit burst 32kb latency 50ms"
    nodes.exec(slow.split(), node="n4", user="root")
    try:
        code, found = diagnose(nodes, "--tests", "all_gather", "--budget", "180")
    finally:
        nodes.exec(["tc", "qdisc", "del", "dev", "eth0", "root"], node="n4", user="root")
    assert (code, found["suspects"]) == (1, ["n4"]), found["reason"]
    assert "all_gather with n1" in found["reason"]
    assert "all_gather with n3" in found["reason"]


def test_interrupted_it_ends_its_steps(nodes: Sandbox) -> None:
    for node in NODES:
        hurt(nodes, node, "stop")
    process = nodes.popen(command("--tests", "memory", "--budget", "300"), user=USER, env=ENVIRONMENT)
    try:
        wait_for(lambda: all(parts(nodes, node) for node in NODES), 60.0, "parts on all nodes")
        nodes.exec(["pkill", "-INT", "-f", "bin/srobust diagnose"], user="root")
        _, errors = process.communicate(timeout=60.0)
        assert "interrupted" in errors
        wait_for(lambda: not any(parts(nodes, node) for node in NODES), 30.0, "no part is left")
    finally:
        process.kill()
        process.communicate()


def test_nodes_that_the_job_does_not_hold(nodes: Sandbox) -> None:
    done = nodes.exec(
        ["salloc", "--quiet", "--nodelist=n1", "srobust", "diagnose", "--nodes", "n[1-2]"],
        user=USER,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert "does not hold n2" in done.stderr
