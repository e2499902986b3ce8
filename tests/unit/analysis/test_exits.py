from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import blames_peer, root_exit
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import NodeExit

# Messages as torch 2.13 (gloo, NCCL) prints them.
PEER = [
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.11]:33220",
    "[../gloo/transport/tcp/pair.cc:534] Read error [10.77.0.12]:5512: Connection reset by peer",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv",
    "Gloo connectFullMesh failed with [...] Connection refused",
    "NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error",
]


@pytest.mark.parametrize("message", PEER)
def test_broken_collectives_blame_a_peer(message: str) -> None:
    assert blames_peer(WorkerExit(rank=0, code=1, error=WorkerError(type="RuntimeError", message=message)))


@pytest.mark.parametrize("message", PEER[:2])
def test_a_traceback_does_not_hide_that_a_peer_was_lost(message: str) -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/home/alice/train.py", line 157, in train\n'
        "    loss.backward()\n"
        f"RuntimeError: {message}\n"
    )
    error = WorkerError(type="RuntimeError", message=message, traceback=traceback)
    assert blames_peer(WorkerExit(rank=0, code=1, error=error))


@pytest.mark.parametrize("message", ["CUDA out of memory", "shape mismatch", "No space left on device"])
def test_own_faults_blame_nobody_else(message: str) -> None:
    assert not blames_peer(
        WorkerExit(rank=0, code=1, error=WorkerError(type="RuntimeError", message=message))
    )


def test_the_killed_rank_is_the_root_even_if_seen_later() -> None:
    killed = NodeExit(node="n2", exit=WorkerExit(rank=2, signal=9, age_s=0.01))
    victim = NodeExit(
        node="n1",
        exit=WorkerExit(rank=0, code=1, age_s=0.5, error=WorkerError(type="RuntimeError", message=PEER[0])),
    )
    assert root_exit([victim, killed]) == killed


def test_among_equals_the_earliest_is_the_root() -> None:
    early = NodeExit(node="n1", exit=WorkerExit(rank=5, signal=11, age_s=2.0))
    late = NodeExit(node="n2", exit=WorkerExit(rank=1, signal=11, age_s=1.0))
    assert root_exit([late, early]) == early


def test_ranks_that_ended_well_are_no_failure() -> None:
    assert root_exit([NodeExit(node="n1", exit=WorkerExit(rank=0, code=0))]) is None
