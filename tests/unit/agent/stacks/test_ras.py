"""NCCL's RAS, by a server that speaks as ``ncclras`` hears it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from slurm_robust.agent.stacks import ras
from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.model.stacks import Absent

# As src/ras/client_support.cc of NCCL 2.29 writes it: of four ranks one is stopped and one dead.
RANK = """{"rank": %d, "host": "10.0.0.1", "pid": %d, "cuda_dev": 0, "nvml_dev": 0,
  "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false,
             "abort_flag": false},
  "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 41}}"""
MISSING = """{"rank": %d, "host": "10.0.0.2", "pid": %d, "cuda_dev": 1, "nvml_dev": 1,
  "status": {"unresponsive": true, "considered_dead": %s}}"""
STATUS = f"""{{
  "nccl_version": "2.29.2", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
  "timestamp": "2026-01-01 10:00:00", "communicators_count": 2, "communicators": [
    {{"hash": "0x1", "secondary_hash": "0x2:0x3", "size": 4, "ranks_count": 2, "missing_ranks_count": 2,
      "ranks": [{RANK % (0, 11)}, {RANK % (1, 12)}],
      "missing_ranks": [{MISSING % (2, 13, "false")}, {MISSING % (3, 14, "true")}]}},
    {{"hash": "0x4", "secondary_hash": "0x5:0x6", "size": 2, "ranks_count": 2, "missing_ranks_count": 0,
      "ranks": [{RANK % (0, 11)}, {RANK % (1, 12)}], "missing_ranks": []}}],
  "ras": {{"collection_time_sec": 1.004, "timeouts_count": 1}}
}}
"""
MISSED = (Absent(rank=2, size=4), Absent(rank=3, size=4, dead=True))


class Ras:
    """Answers orders by ``replies``; what is not in them it does not answer at all."""

    def __init__(self, replies: dict[str, str]) -> None:
        self.orders: list[str] = []
        self._replies = replies
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.environ = {"NCCL_RAS_ADDR": f"127.0.0.1:{self._listener.getsockname()[1]}"}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("r") as orders:
                for line in orders:
                    order = line.strip()
                    self.orders.append(order)
                    client.sendall(self._replies.get(order, "").encode())
                    if order == "STATUS" and order in self._replies:
                        break


@contextmanager
def serving(**changed: str) -> Iterator[Ras]:
    replies = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "TIMEOUT 1": "OK\n", "SET FORMAT json": "OK\n"}
    server = Ras(
        replies | {"STATUS": STATUS} | {key.replace("_", " "): text for key, text in changed.items()}
    )
    try:
        yield server
    finally:
        server.close()


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_missing_processes_are_told_with_their_place() -> None:
    with serving() as server:
        assert ras.take(server.environ, soon()) == MISSED
    assert server.orders == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]


@pytest.mark.parametrize(
    "changed",
    [
        {"SET_FORMAT_json": "ERROR: Unknown command SET FORMAT json\n"},  # NCCL 2.24
        {"CLIENT_PROTOCOL_2": "SSH-2.0-OpenSSH_9.6\n"},
        {"STATUS": "Internal error\n"},
        {"STATUS": '{"communicators": [{"size": "x"}]}'},
        {"STATUS": STATUS[:700]},
        {"STATUS": "{}"},
    ],
)
def test_any_other_answer_counts_as_none(changed: dict[str, str]) -> None:
    with serving(**changed) as server:
        assert ras.take(server.environ, soon()) == ()


@pytest.mark.parametrize("order", ["CLIENT_PROTOCOL_2", "STATUS"])
def test_a_server_that_does_not_answer_costs_the_budget_only(order: str) -> None:
    begun = time.monotonic()
    replies = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "TIMEOUT 1": "OK\n", "SET FORMAT json": "OK\n"}
    replies.pop(order.replace("_", " "), None)
    with closing(Ras(replies)) as server:
        assert ras.take(server.environ, begun + 0.2) == ()
        assert time.monotonic() - begun < 60


def test_where_there_is_no_ras_or_it_is_switched_off_nothing_is_reported() -> None:
    with serving() as server:
        pass
    assert ras.take(server.environ, soon()) == ()
    assert ras.take({"NCCL_RAS_ADDR": "nowhere"}, soon()) == ()
    with serving() as server:
        assert ras.take({**server.environ, "NCCL_RAS_ENABLE": "0"}, soon()) == ()
    assert server.orders == []


def test_the_node_of_rank_0_asks_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.environ["NCCL_RAS_ADDR"])
        (first,) = StackTaker().take({0: os.getpid()}, node="n1", budget_s=5)
        asked = len(server.orders)
        (second,) = StackTaker().take({1: os.getpid()}, node="n2", budget_s=5)
        assert len(server.orders) == asked
    assert (first.absent, second.absent) == (MISSED, ())
