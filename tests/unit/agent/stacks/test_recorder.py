from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_robust.agent.stacks import recorder
from slurm_robust.model.stacks import Collective

# Of torch 2.13.0 with gloo, shortened: rank 0 of two waits in the third operation of the default group.
GLOO = """{"comm_lib_version": "", "entries": [
 {"collective_seq_id": 1, "input_dtypes": ["Float"], "input_sizes": [[10]], "is_p2p": false, "op_id": 1,
  "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce",
  "record_id": 0, "retired": true, "state": "scheduled", "thread_name": "python", "timeout_ms": 1800000},
 {"collective_seq_id": 1, "is_p2p": false, "op_id": 1, "pg_id": 1, "process_group": ["1", "undefined"],
  "profiling_name": "gloo:broadcast", "record_id": 2, "retired": true, "state": "scheduled"},
 {"collective_seq_id": 2, "is_p2p": false, "op_id": 2, "pg_id": 0, "process_group": ["0", "default_pg"],
  "profiling_name": "gloo:all_gather", "record_id": 3, "retired": false, "state": "scheduled"}],
 "nccl_comm_state": {}, "pg_config": {"": {"desc": "", "name": "", "ranks": "[]"}},
 "pg_status": {"0": {"last_completed_collective": "1", "last_enqueued_collective": "2"}},
 "version": "2.10"}"""

# As the fields of NCCL's are named in torch 2.13.0's FlightRecorder.hpp; written by hand.
NCCL = """{"comm_lib_version": "2.27.5", "entries": [
 {"collective_seq_id": 7, "is_p2p": false, "op_id": 9, "pg_id": 3, "process_group": ["17", "mesh_dp"],
  "profiling_name": "nccl:_reduce_scatter_base", "retired": false, "state": "started"},
 {"collective_seq_id": 7, "p2p_seq_id": 3, "is_p2p": true, "op_id": 12, "process_group": ["17", "mesh_dp"],
  "profiling_name": "nccl:send 2->1", "retired": true, "state": "completed"},
 {"collective_seq_id": 7, "p2p_seq_id": 4, "is_p2p": true, "op_id": 13, "process_group": ["17", "mesh_dp"],
  "profiling_name": "nccl:recv 2<-1", "retired": false, "state": "started"},
 {"collective_seq_id": 7, "p2p_seq_id": 5, "is_p2p": true, "op_id": 14, "process_group": ["17", "mesh_dp"],
  "profiling_name": "nccl:coalesced", "retired": false, "state": "scheduled"}],
 "pg_config": {"17": {"desc": "mesh_dp", "name": "17", "ranks": "[0, 8, 16, 24]"}}, "version": "2.10"}"""

Entry = dict[str, object]


@contextmanager
def server(address: Path, answer: bytes | None) -> Iterator[None]:
    """Answers every request with ``answer``; with None never."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    if answer is not None:
                        client.recv(4096)
                        client.sendall(answer)
                    else:
                        client.recv(4096)
                        client.recv(4096)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_where_each_group_stands() -> None:
    assert recorder.parse(GLOO.encode()) == (
        Collective(
            group="0:default_pg", sequence=2, operation="gloo:all_gather", state="scheduled", enqueued=2
        ),
        Collective(
            group="1:undefined", sequence=1, operation="gloo:broadcast", state="completed", enqueued=1
        ),
    )


def test_sends_and_receives_are_apart_and_the_oldest_is_what_waits() -> None:
    ranks = (0, 8, 16, 24)
    receive = Collective(
        group="17:mesh_dp:p2p",
        sequence=4,
        operation="nccl:recv 2<-1",
        state="started",
        ranks=ranks,
        enqueued=5,
    )
    scatter = Collective(
        group="17:mesh_dp",
        sequence=7,
        operation="nccl:_reduce_scatter_base",
        state="started",
        ranks=ranks,
        enqueued=7,
    )
    assert recorder.parse(NCCL.encode()) == (scatter, receive)


def entry(
    number: int, state: str, *, group: str = "0", name: str = "nccl:all_reduce", p2p: bool = False
) -> Entry:
    return {
        "process_group": [group, ""],
        "profiling_name": name,
        "state": state,
        "is_p2p": p2p,
        "collective_seq_id": 0 if p2p else number,
        "p2p_seq_id": number if p2p else 0,
    }


def told(*entries: Entry) -> list[tuple[str, int, str, str, int]]:
    found = recorder.parse(json.dumps({"entries": entries}).encode())
    return [(c.group, c.sequence, c.operation, c.state, c.enqueued) for c in found]


def test_of_a_host_that_ran_ahead_the_oldest_and_the_newest_are_reported() -> None:
    done, ahead = entry(9, "completed"), [entry(number, "scheduled") for number in range(11, 90)]
    assert told(done, entry(10, "started"), *ahead) == [("0:", 10, "nccl:all_reduce", "started", 89)]


def test_the_group_that_a_rank_waits_in_first_is_told_first() -> None:
    entries = (
        entry(1, "completed", group="a"),
        entry(4, "scheduled", group="b"),
        entry(2, "scheduled", group="a"),
        entry(7, "completed", group="c"),
    )
    assert [group for group, *_ in told(*entries)] == ["b:", "a:", "c:"]


def test_operations_in_one_kernel_have_the_state_of_the_kernel() -> None:
    """torch records them one by one, ``scheduled`` for ever, and behind them the kernel."""
    send, receive = "nccl:send 1->2", "nccl:recv 1<-0"
    batch = [entry(3, "scheduled", name=name, p2p=True) for name in (send, receive)]
    alone = entry(4, "scheduled", name=receive, p2p=True)
    one, two = (
        entry(number, state, name="nccl:coalesced", p2p=True)
        for number, state in ((3, "completed"), (4, "started"))
    )
    assert told(*batch, one) == []
    assert told(*batch, one, alone, two) == [("0::p2p", 4, receive, "started", 4)]
    gathers = [entry(5, "scheduled", name="nccl:_all_gather_base")] * 3
    kernel = entry(5, "completed", name="nccl:coalesced")
    assert told(*gathers, kernel) == [("0:", 5, "nccl:_all_gather_base", "completed", 5)]


def test_an_operation_of_nccl_that_timed_out_has_not_completed() -> None:
    retired = json.loads(NCCL)
    retired["entries"][0]["retired"] = True
    assert recorder.parse(json.dumps(retired).encode())[0].state == "started"


@pytest.mark.parametrize(
    "dump", [b"", b"Handler not found", b"[]", GLOO[:300].encode(), b'{"entries": 1}', b'{"version": "\xff"}']
)
def test_anything_else_has_no_collectives(dump: bytes) -> None:
    assert recorder.parse(dump) == ()


def test_both_recorders_of_a_process_are_asked(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + NCCL.encode()
    with server(tmp_path / "sock", answer):
        both = recorder.take(tmp_path / "sock", time.monotonic() + 5)
    assert both == len(recorder.HANDLERS) * recorder.parse(NCCL.encode())


def test_a_handler_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    with server(tmp_path / "sock", b"HTTP/1.1 404 Not Found\r\n\r\n" + GLOO.encode()):
        assert recorder.take(tmp_path / "sock", time.monotonic() + 5) == ()


def test_a_server_that_does_not_answer_costs_the_budget_only(tmp_path: Path) -> None:
    began = time.monotonic()
    with server(tmp_path / "sock", None):
        assert recorder.take(tmp_path / "sock", began + 0.1) == ()
        assert time.monotonic() - began < 60


def test_where_there_is_no_server_there_are_no_collectives(tmp_path: Path) -> None:
    assert recorder.take(tmp_path / "sock", time.monotonic() + 5) == ()
