"""``srobust checkpoint plan``: what fits of a training that does not exist, and how long it takes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.budget import NODE, Room, plan
from slurm_robust.cli.main import main
from slurm_robust.inventory.planning import PlannedTraining, forecast
from slurm_robust.model.errors import ExitCode

GB, TIB = 10**9, 2**40
DOCS = Path(__file__).resolve().parents[3] / "docs"


def training(params: float = 70e9, nodes: int = 16, gpus: int = 8, **more: Any) -> PlannedTraining:
    memory = more.pop("node_memory", 2 * TIB)
    return PlannedTraining(
        params=params, nodes=nodes, gpus=gpus, node_memory=memory, shm=more.pop("shm", memory // 2), **more
    )


def said(capsys: pytest.CaptureFixture[str], options: str) -> tuple[int, str, str]:
    """The exit code of the command, what it prints, and its errors."""
    code = main(["checkpoint", "plan", *options.split()])
    return code, *capsys.readouterr()


def test_a_sharded_state_is_divided_by_all_ranks() -> None:
    found = forecast(training())
    assert (found.state_bytes, found.rank_bytes, found.node_bytes) == (
        840 * GB,
        6_562_500_000,
        52_500_000_000,
    )
    assert (found.own_buffers, found.peer_buffers, found.reason) == (5, 2, "")
    assert found.buffer_bytes == 7 * found.node_bytes
    assert found.registered_bytes == 5 * found.node_bytes  # peers' buffers belong to the agent, not to a GPU
    assert found.copy_s == pytest.approx(0.13, abs=0.01)
    assert found.sums_s == pytest.approx(0.97, abs=0.01)
    assert found.peer_s == pytest.approx(52.5 / (25 / 8 / 4))


@given(
    params=st.floats(1e6, 1e12),
    nodes=st.integers(1, 200),
    gpus=st.integers(1, 16),
    gigabytes=st.integers(1, 4000),
    share=st.floats(0.1, 1),
)
def test_a_job_would_plan_the_same(
    params: float, nodes: int, gpus: int, gigabytes: int, share: float
) -> None:
    memory = gigabytes * GB
    of = training(params, nodes, gpus, node_memory=memory, shm=int(share * memory))
    found = forecast(of)
    rooms = (
        Room(name="the file system of /dev/shm", total=of.shm, free=of.shm),
        Room(name=NODE, total=memory, free=memory),
    )
    made = plan(own=found.rank_bytes, shared=0, ranks=gpus, nodes=nodes, rooms=rooms)
    assert (found.own_buffers, found.peer_buffers) == (made.own_buffers, made.peer_buffers)
    assert found.reason.startswith(made.reason)
    assert found.buffer_bytes <= of.shm
    assert (found.peer_s is None) == (found.fetch_s is None) == (made.peer_buffers == 0)


def test_replicas_hold_more_each_and_a_node_keeps_once_what_all_ranks_share() -> None:
    hybrid = forecast(training(7e9, 2, 8, replicas=2))
    assert hybrid.node_bytes == hybrid.state_bytes == 84 * GB
    replicated = forecast(training(7e9, 2, 8, replicas=16))
    assert (replicated.rank_bytes, replicated.shared_bytes) == (0, 84 * GB)
    assert (replicated.node_bytes, replicated.buffer_bytes) == (84 * GB, 5 * 84 * GB)
    assert replicated.peer_s is None  # every node has it
    assert replicated.fetch_s is not None
    alone = forecast(training(1e9, 1, 1))
    assert (alone.rank_bytes, alone.shared_bytes, alone.peer_s) == (12 * GB, 0, None)


def test_a_plan_is_printed_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--params 70B --layout 16x8 --node-memory 2T --link 400G")
    assert code == 0
    assert out.startswith(
        "70e9 parameters x 12 bytes = 840 GB, on 16 nodes with 8 GPUs and 2.2 TB of memory each"
    )
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert {
        "snapshots kept 5 of each rank and 2 of each peer's",
        "memory for them on a node 368 GB",
        "a node's step to its peer 4.2 s (25% of 400 Gbit/s)",
        "registered with the driver 262 GB",
    } <= lines


def test_where_not_all_fit_the_reason_and_what_helps_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--params 70e9 --layout 2x8 --node-memory 2T --json")
    found = json.loads(out)
    assert (code, found["own_buffers"], found["peer_buffers"], found["peer_s"]) == (0, 2, 0, None)
    assert "the loss of a node costs a restore from storage" in found["reason"]
    assert said(capsys, "--params 70e9 --layout 2x8 --node-memory 2T --shm 1900G --json")[1].count('"reason"')


def test_killed_ranks_are_given_as_long_as_the_slowest_driver_that_is_known_took() -> None:
    """As docs/detection.md says. ``timings.kill_wait_s`` and ``UnkillableStepTimeout`` are set by it."""
    page = " ".join((DOCS / "detection.md").read_text().split())
    known = re.search(r"([0-9]+) GB took ([0-9.]+) s after SIGKILL", page)
    assert known is not None
    found = forecast(training())
    assert found.die_s == pytest.approx(
        found.registered_bytes * float(known[2]) / (float(known[1]) * GB), 0.01
    )


def test_where_no_snapshot_fits_only_what_holds_then_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--params 70e9 --layout 2x8 --node-memory 500G"
    code, out, _ = said(capsys, options)
    assert code == 1
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[2:5] == ["one step of a rank 52.5 GB", "one step of a node 420 GB", "snapshots kept none"]
    reason = " ".join(lines[5:]).strip()
    assert "a fault goes back to the newest checkpoint on storage" in reason
    assert reason.endswith("Give the node a larger /dev/shm, or take 4 nodes, on which one snapshot fits")
    code, out, _ = said(capsys, f"{options} --json")
    found = json.loads(out)
    assert code == 1
    times = ("copy_s", "sums_s", "sums_idle_s", "peer_s", "restore_s", "fetch_s")
    assert [found[name] for name in times] == [None] * 6


GOOD = {"--params": "7e9", "--layout": "2x8", "--node-memory": "2T"}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--params", "0", "70e9 or 70B"),
        ("--params", "-7e9", "70e9 or 70B"),
        ("--params", "seven", "70e9 or 70B"),
        ("--params", "nan", "70e9 or 70B"),
        ("--params", "7..5B", "70e9 or 70B"),
        ("--params", "7e99", "too large: 1000T parameters at most"),
        ("--params", "1e30", "too large"),
        ("--params", "70", "give the unit"),
        ("--layout", "16", "16x8"),
        ("--layout", "0x8", "16x8"),
        ("--layout", "2x", "16x8"),
        ("--layout", "2x8x4", "16x8"),
        ("--layout", "1000000x8", "too large: 99999 nodes of 999 GPUs at most"),
        ("--layout", "1x1000", "too large"),
        ("--layout", "two by eight", "16x8"),
        ("--node-memory", "0", "a size such as"),
        ("--node-memory", "-2T", "a size such as"),
        ("--node-memory", "2X", "a size such as"),
        ("--node-memory", "2", "give the unit"),
        ("--node-memory", "999999999T", "too large: less than 1048576T"),
        ("--node-memory", "much", "a size such as"),
        ("--shm", "half", "a size such as"),
        ("--bytes-per-param", "0", "from 0.1"),
        ("--bytes-per-param", "-1", "from 0.1"),
        ("--bytes-per-param", "1e6", "too large: 1,000 at most"),
        ("--replicas", "0", "from 1"),
        ("--replicas", "99999999999", "too large: 1,000,000,000 at most"),
        ("--replicas", "3", "does not divide the 16 ranks"),
        ("--link", "25", "25G"),
        ("--link", "25GB", "25G"),
        ("--link", "0G", "25G"),
        ("--link", "99999T", "too large"),
    ],
)
def test_what_makes_no_sense_is_one_line_with_its_fix(
    capsys: pytest.CaptureFixture[str], option: str, value: str, words: str
) -> None:
    argv = [f"{name}={given}" for name, given in (GOOD | {option: value}).items()]
    code = main(["checkpoint", "plan", *argv])
    out, error = capsys.readouterr()
    assert (code, out) == (ExitCode.USAGE, "")
    problem, fix = error.splitlines()
    assert words in problem
    assert fix.strip().startswith("fix: ")


@pytest.mark.parametrize("option", ["--params", "--node-memory", "--link"])
def test_a_negative_value_is_a_value_that_the_option_refuses(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    code, _, error = said(capsys, " ".join(f"{k} {v}" for k, v in (GOOD | {option: "-7e9"}).items()))
    assert code == ExitCode.USAGE
    assert f"{option}: '-7e9' is not a " in error


def test_a_state_larger_than_the_memory_names_the_nodes_that_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, error = said(capsys, "--params 70e9 --layout 2x8 --node-memory 300G --json")
    assert (code, error) == (1, "")
    assert json.loads(out)["reason"].endswith(
        "Give the node a larger /dev/shm and the job nodes with more memory, "
        "or take 6 nodes, on which one snapshot fits"
    )
    assert said(capsys, "--params 70e9 --layout 6x8 --node-memory 300G")[0] == 0
    assert said(capsys, "--params 70e9 --layout 5x8 --node-memory 300G")[0] == 1


@given(
    params=st.floats(1e6, 1e15),
    gpus=st.integers(1, 16),
    gigabytes=st.integers(1, 4000),
    replicas=st.integers(1, 12),
)
def test_one_snapshot_fits_on_the_number_of_nodes_that_is_named_and_on_none_smaller(
    params: float, gpus: int, gigabytes: int, replicas: int
) -> None:
    memory = gigabytes * GB
    found = forecast(training(params, replicas, gpus, node_memory=memory, replicas=replicas))
    if "take" not in found.reason:
        return
    nodes = int(found.reason.rpartition("take ")[2].split()[0])
    unit = replicas // math.gcd(replicas, gpus)
    assert forecast(training(params, nodes, gpus, node_memory=memory, replicas=replicas)).own_buffers
    if nodes - unit > replicas:
        fewer = training(1.001 * params, nodes - unit, gpus, node_memory=memory, replicas=replicas)
        assert not forecast(fewer).own_buffers


def test_no_number_of_nodes_is_named_that_no_layout_takes_or_that_would_not_do() -> None:
    assert "take" not in forecast(training(1e15, 2, 8, node_memory=64 * GB)).reason
    assert "take" not in forecast(training(70e9, 2, 8, node_memory=500 * GB, replicas=16)).reason


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--params 1e0", "1 parameters"),
        ("--params 350000", "350e3 parameters"),
        ("--params 1e15", "1e15 parameters"),
        ("--params 6.738B", "6.738e9 parameters"),
        ("--params 7B --link 1000T", "1 Pbit/s"),
        ("--params 7B --link 1.6T", "1.6 Tbit/s"),
        ("--params 7B --link 100M", "100 Mbit/s"),
        ("--params 7B --shm 3T", "/dev/shm (3.3 TB) is larger than the node's memory"),
    ],
)
def test_numbers_are_said_as_people_write_them(
    capsys: pytest.CaptureFixture[str], options: str, text: str
) -> None:
    assert text in said(capsys, f"{options} --layout 2x8 --node-memory 2T")[1]


@pytest.mark.parametrize(
    ("text", "bits"),
    [("25G", 25e9), ("1.6T", 1.6e12), ("400Gb", 400e9), ("100Gbit/s", 1e11), ("10Gbps", 1e10)],
)
def test_speeds_are_given_as_interfaces_have_them(
    capsys: pytest.CaptureFixture[str], text: str, bits: float
) -> None:
    _, out, _ = said(capsys, f"--params 7B --layout 2x8 --node-memory 2T --json --link {text}")
    assert json.loads(out)["training"]["link"] * 8 == bits
