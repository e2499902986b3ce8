from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_robust.agent.stacks import recorder
from slurm_robust.agent.stacks.recorder import Recorded
from slurm_robust.model.stacks import Collective
from tests.unit.agent.stacks.hanging_workers import RECORDS_GLOO
from tests.unit.agent.stacks.recorder_server import Recorders, dump, entry, served, serving

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


def test_where_each_group_stands() -> None:
    assert recorder.parse(GLOO.encode(), "gloo").collectives == (
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
    assert recorder.parse(NCCL.encode(), "nccl") == Recorded(collectives=(scatter, receive))


def told(*entries: dict[str, object]) -> list[tuple[str, int, str, str, int]]:
    found = recorder.parse(dump(entries), "nccl").collectives
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
    assert recorder.parse(json.dumps(retired).encode(), "nccl").collectives[0].state == "started"


@pytest.mark.parametrize(
    "text", [b"", b"Handler not found", b"[]", GLOO[:300].encode(), b'{"entries": 1}', b'{"version": "\xff"}']
)
def test_anything_else_has_no_collectives(text: bytes) -> None:
    assert recorder.parse(text, "nccl") == Recorded()


def test_of_a_kernel_of_several_sends_and_receives_the_peers_are_told() -> None:
    names = ("nccl:send 1->2", "nccl:recv 1<-2", "nccl:send 1->0", "nccl:coalesced")
    batch = [entry(3, "scheduled", name=name, p2p=True) for name in names]
    (found,) = recorder.parse(dump(batch, {"0": ("", (4, 5, 6))}), "nccl").collectives
    assert (found.operation, found.ranks, found.peers) == ("nccl:coalesced", (4, 5, 6), (0, 2))
    (alone,) = recorder.parse(dump(batch[:1]), "nccl").collectives
    assert (alone.operation, alone.peers) == ("nccl:send 1->2", ())


def test_sends_and_receives_of_which_no_kernel_is_shown_may_be_one() -> None:
    """The hooks of the newer backends record each by itself, and no kernel."""
    names = ("nccl2:recv 1<-3", "nccl2:send 1->2", "nccl2:recv 1<-0")
    states = ("completed", "scheduled", "scheduled")
    given = [
        entry(n, state, name=name, p2p=True)
        for n, (name, state) in enumerate(zip(names, states, strict=True), 1)
    ]
    (found,) = recorder.parse(dump(given), "nccl2").collectives
    assert (found.operation, found.sequence, found.peers) == ("nccl2:send 1->2", 2, (0, 2))
    (alone,) = recorder.parse(dump(given[:2]), "nccl2").collectives
    assert alone.peers == ()


def test_of_a_backend_that_does_not_tell_what_has_ended_nothing_is_known() -> None:
    """Its entries are retired as they are made; those that the older backend retires timed out."""
    given = [entry(4, "scheduled", name="nccl-lazy:all_reduce", retired=True)]
    assert recorder.parse(dump(given, {"0": ("", (0, 1))}), "nccl-lazy") == Recorded()
    assert recorder.parse(dump(given, {"0": ("", (0, 1))}), "nccl").collectives[0].state == "scheduled"


def test_a_group_in_which_nothing_is_open_is_idle() -> None:
    groups = {"0": ("default_pg", (0, 1)), "7": ("mesh_pp", (0, 1)), "8": ("mesh_dp", (0, 1))}
    given = [
        entry(4, "scheduled", group="0", description="default_pg", name="nccl2:all_reduce"),
        entry(9, "completed", group="7", description="mesh_pp", name="nccl2:send 0->1", p2p=True),
    ]
    assert recorder.parse(dump(given, groups), "nccl2").idle == ("nccl2:7:mesh_pp", "nccl2:8:mesh_dp")
    given += [entry(10, "scheduled", group="7", description="mesh_pp", name="nccl2:send 0->1", p2p=True)]
    assert recorder.parse(dump(given, groups), "nccl2").idle == ("nccl2:8:mesh_dp",)


WAITS, ENDED = entry(5, "started"), entry(4, "completed")
GATHERS, GATHERED = (
    entry(number, "scheduled", name="gloo:all_gather", retired=number == 2) for number in (3, 2)
)
NEWER = {
    library: [
        entry(8, "completed", name=f"{library}:all_reduce"),
        entry(9, "scheduled", name=f"{library}:all_reduce"),
    ]
    for library in ("nccl2", "nccl-lazy")
}
WORLD = {"0": ("", (0, 1))}
PROCESS = Recorders({"nccl": [ENDED, WAITS], "gloo": [GATHERED, GATHERS], **NEWER}, WORLD)
GATHER, REDUCE, REDUCE2, REDUCE_LAZY = (
    "gloo:all_gather",
    "nccl:all_reduce",
    "nccl2:all_reduce",
    "nccl-lazy:all_reduce",
)


@pytest.mark.parametrize(
    ("release", "shown"),
    [
        ((2, 4), []),
        ((2, 5), [(REDUCE, 5)]),
        ((2, 13), [(GATHER, 3), (REDUCE, 5)]),
        ((2, 14), [(GATHER, 3), (REDUCE, 5)]),
        ((2, 15), [(GATHER, 3), (REDUCE2, 9), (REDUCE_LAZY, 9), (REDUCE, 5)]),
    ],
)
def test_of_each_release_all_recorders_are_read_and_none_twice(
    release: tuple[int, int], shown: list[tuple[str, int]], tmp_path: Path
) -> None:
    with serving(tmp_path / "sock", release, PROCESS):
        found = recorder.take(tmp_path / "sock", time.monotonic() + 5)
    assert [(c.operation, c.sequence) for c in found.collectives] == shown
    assert found.idle == ()


@pytest.mark.parametrize(
    ("library", "release"), [("nccl2", (2, 15)), ("nccl-lazy", (2, 15)), ("nccl", (2, 13))]
)
def test_a_rank_that_has_ended_all_it_enqueued_says_so(
    library: str, release: tuple[int, int], tmp_path: Path
) -> None:
    """The newer recorders leave out what has ended, and with it the numbers."""
    done = Recorders({library: [entry(8, "completed", name=f"{library}:all_reduce")]}, WORLD)
    with serving(tmp_path / "sock", release, done):
        found = recorder.take(tmp_path / "sock", time.monotonic() + 5)
    if library == "nccl":
        assert [(c.sequence, c.state) for c in found.collectives] == [(8, "completed")]
        assert found.idle == ()
    else:
        assert found == Recorded(idle=(f"{library}:0:",))


def test_a_release_that_records_nothing_of_a_backend_is_not_taken_for_a_rank_that_is_through(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "sock", (2, 14), Recorders({"nccl2": NEWER["nccl2"]}, WORLD)):
        assert recorder.take(tmp_path / "sock", time.monotonic() + 5) == Recorded()


def test_a_driver_that_hangs_takes_the_recorder_of_nccl_only(tmp_path: Path) -> None:
    """It is asked at the end: what the others say is there by then."""
    with serving(tmp_path / "sock", (2, 15), PROCESS, hangs=("nccl",)):
        found = recorder.take(tmp_path / "sock", time.monotonic() + 0.5)
    assert [c.operation for c in found.collectives] == [GATHER, REDUCE2, REDUCE_LAZY]


def test_a_handler_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "sock", lambda path: (404, GLOO.encode())):
        assert recorder.take(tmp_path / "sock", time.monotonic() + 5) == Recorded()


def test_a_server_that_does_not_answer_costs_the_budget_only(tmp_path: Path) -> None:
    began = time.monotonic()
    with served(tmp_path / "sock", lambda path: None):
        assert recorder.take(tmp_path / "sock", began + 0.1) == Recorded()
        assert time.monotonic() - began < 60


def test_where_there_is_no_server_there_are_no_collectives(tmp_path: Path) -> None:
    assert recorder.take(tmp_path / "sock", time.monotonic() + 5) == Recorded()


REAL = """
import os, sys, torch
from torch import distributed as dist
from torch._C._distributed_c10d import _WorkerServer
server = _WorkerServer(sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.barrier()
print(flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.slow
def test_the_server_of_this_torch_takes_the_parameter_and_its_one_recorder_is_read_once(
    tmp_path: Path,
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", REAL, str(tmp_path / "sock")],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        deadline = time.monotonic() + 60
        answers = {
            library: recorder.ask(tmp_path / "sock", handler, deadline)
            for library, handler in recorder.HANDLERS.items()
        }
        found = recorder.take(tmp_path / "sock", deadline)
        worker.stdin.close()
    if not RECORDS_GLOO:
        pytest.skip("this torch does not record gloo's operations")
    assert all(answers[library] for library in ("gloo", "nccl2", "nccl-lazy"))
    assert [(c.group, c.operation, c.sequence, c.state) for c in found.collectives] == [
        ("0:default_pg", "gloo:barrier", 2, "completed")
    ]
