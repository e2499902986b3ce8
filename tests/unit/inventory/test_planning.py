"""``srobust checkpoint plan``: what fits of a training that does not exist, and how long it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.budget import NODE, Room, plan
from slurm_robust.cli.main import main
from slurm_robust.inventory import planning
from slurm_robust.inventory.planning import PlannedTraining, forecast
from slurm_robust.model.errors import ExitCode

GB, TIB = 10**9, 2**40


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
    try:
        found = forecast(of)
    except planning.DoesNotFit:
        assert params * of.bytes_per_param / nodes > 0.99 * memory
        return
    rooms = (
        Room(name="the file system of /dev/shm", total=of.shm, free=of.shm),
        Room(name=NODE, total=memory, free=memory),
    )
    made = plan(own=found.rank_bytes, shared=0, ranks=gpus, nodes=nodes, rooms=rooms)
    assert (found.own_buffers, found.peer_buffers, found.reason) == (
        made.own_buffers,
        made.peer_buffers,
        made.reason,
    )
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
    code, out, _ = said(capsys, "--params 70e9 --layout 2x8 --node-memory 500G")
    assert code == 1
    assert "snapshots kept none" in " ".join(out.split())
    assert "every checkpoint goes to storage while training waits" in " ".join(out.split())


GOOD = {"--params": "7e9", "--layout": "2x8", "--node-memory": "2T"}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--params", "0", "70e9 or 70B"),
        ("--params", "-7e9", "70e9 or 70B"),
        ("--params", "seven", "70e9 or 70B"),
        ("--params", "nan", "70e9 or 70B"),
        ("--params", "7..5B", "70e9 or 70B"),
        ("--params", "7e99", "70e9 or 70B"),
        ("--layout", "16", "16x8"),
        ("--layout", "0x8", "16x8"),
        ("--layout", "2x", "16x8"),
        ("--layout", "2x8x4", "16x8"),
        ("--layout", "two by eight", "16x8"),
        ("--node-memory", "0", "a size such as"),
        ("--node-memory", "-2T", "a size such as"),
        ("--node-memory", "2X", "a size such as"),
        ("--node-memory", "much", "a size such as"),
        ("--shm", "half", "a size such as"),
        ("--bytes-per-param", "0", "above 0"),
        ("--bytes-per-param", "-1", "above 0"),
        ("--replicas", "0", "from 1"),
        ("--replicas", "3", "does not divide the 16 ranks"),
        ("--link", "25", "25G"),
        ("--link", "25GB", "25G"),
        ("--link", "0G", "25G"),
        ("--node-memory", "30G", "of memory"),
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


def test_a_state_larger_than_the_memory_names_the_nodes_that_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, error = said(capsys, "--params 70e9 --layout 2x8 --node-memory 300G")
    assert code == ExitCode.USAGE
    assert "420 GB in each step, and a node has 322 GB" in error
    assert "or 6 nodes, on which one snapshot fits" in error
    assert said(capsys, "--params 70e9 --layout 6x8 --node-memory 300G")[0] == 0
    assert said(capsys, "--params 70e9 --layout 5x8 --node-memory 300G")[0] == 1


@pytest.mark.parametrize(
    ("text", "bits"),
    [("25G", 25e9), ("1.6T", 1.6e12), ("400Gb", 400e9), ("100Gbit/s", 1e11), ("10Gbps", 1e10)],
)
def test_speeds_are_given_as_interfaces_have_them(
    capsys: pytest.CaptureFixture[str], text: str, bits: float
) -> None:
    _, out, _ = said(capsys, f"--params 7B --layout 2x8 --node-memory 2T --json --link {text}")
    assert json.loads(out)["training"]["link"] * 8 == bits
