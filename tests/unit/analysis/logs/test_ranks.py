"""First-cause election: the rank that failed for its own reason, not those that lost it."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import (
    Reading,
    blames_peer,
    classify_exit,
    first_causes,
    of_all,
    read,
    root_exit,
)
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import NodeExit

TIMEOUT = (
    "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600001 milliseconds"
)
CLOSED = "RuntimeError: [pair.cc:547] Connection closed by peer [10.0.0.1]:3"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FAILED = "exitcode  : 1 (pid: 7)"


def readings(texts: dict[int, str]) -> dict[int, Reading]:
    return {rank: read(text) for rank, text in texts.items()}


def roots_of(texts: dict[int, str]) -> tuple[int, ...]:
    return first_causes(readings(texts))


@pytest.mark.parametrize(
    ("texts", "roots", "symptom"),
    [
        ({0: CLOSED, 1: OOM, 2: TIMEOUT.format(2)}, (1,), "gpu_oom"),
        ({0: CLOSED, 1: "ValueError: bad\n" + CLOSED}, (1,), "code_error"),
        ({0: FAILED, 1: "exitcode  : -11 (pid: 8)"}, (1,), "killed_signal"),
        ({0: FAILED, 1: "Sending process 9 closing signal SIGTERM"}, (0,), "code_error"),
        ({0: OOM, 1: OOM, 2: CLOSED}, (0, 1), "gpu_oom"),
        ({0: "all is well", 1: "step 3 done"}, (), "healthy_noise"),
        ({0: "all is well", 1: CLOSED}, (0,), "secondary"),
        ({0: "all is well", 1: CLOSED, 2: "all is well"}, (1,), "secondary"),
        ({0: "all is well", 1: "starting up"}, (), "unknown"),
        ({0: "step 3 done", 1: "fluxcap: FATAL, lost the beam"}, (), "unknown"),
        ({}, (), "unknown"),
    ],
)
def test_the_first_causes_among_the_outputs_of_ranks(
    texts: dict[int, str], roots: tuple[int, ...], symptom: str
) -> None:
    found = readings(texts)
    assert first_causes(found) == roots
    assert of_all(found, roots).verdict.symptom == symptom


ENQUEUED = "[rank{0}]:[E x.cpp:1] [PG ID {2} PG GUID 7 Rank {0}] {3}: last enqueued work: {1}, completed: 9"
CAUGHT, HEARD = (
    "failure detected by watchdog",
    "Received a dump signal due to a collective timeout from rank 0",
)


@pytest.mark.parametrize(
    ("ranks", "roots"),
    [
        ({0: (93, 0, CAUGHT), 1: (93, 0, CAUGHT), 2: (90, 0, HEARD)}, (2,)),
        ({0: (93, 0, CAUGHT), 1: (92, 0, CAUGHT), 2: (93, 0, CAUGHT)}, (1,)),
        ({0: (93, 0, CAUGHT), 1: (93, 0, CAUGHT), 2: (93, 0, CAUGHT)}, ()),
        ({0: (93, 0, CAUGHT), 1: (93, 0, CAUGHT), 2: (12, 4, CAUGHT)}, ()),  # of another process group
    ],
)
def test_the_few_that_have_begun_fewer_collectives_are_the_root(
    ranks: dict[int, tuple[int, int, str]], roots: tuple[int, ...]
) -> None:
    found = readings({rank: ENQUEUED.format(rank, *told) for rank, told in ranks.items()})
    assert first_causes(found) == roots
    verdict = of_all(found, roots).verdict
    assert (verdict.symptom, verdict.action.value) == ("nccl_timeout", "restart")
    assert first_causes(found | readings({9: OOM})) == (9,)


REMOTE = "[rank{}]: DistBackendError: NCCL error: remote process exited or there was a network error"
RETRIES = "n{}:1:2 [3] NCCL WARN NET/IB: Got completion from peer 10.0.0.3<41> with status=12"


@pytest.mark.parametrize("line", [REMOTE, RETRIES, REMOTE.replace("[rank{}]: ", "ncclRemoteError {} ")])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("more", [{}, {9: "step 4 loss 2.0"}], ids=["all", "one is silent"])
def test_ranks_that_all_lost_a_peer_evict_nobody(line: str, count: int, more: dict[int, str]) -> None:
    found = readings({rank: line.format(rank) for rank in range(count)} | more)
    verdict = of_all(found, first_causes(found)).verdict
    assert (verdict.blame.value, verdict.action.value) == ("unknown", "restart")
    assert more or first_causes(found) == ()


def test_a_worker_that_lost_its_peer_does_not_convict_its_node() -> None:
    found = classify_exit(WorkerExit(rank=3, code=1, tail=(REMOTE.format(3),)))
    assert (found.blame.value, found.action.value) == ("unknown", "restart")


def test_of_equal_causes_the_earliest_by_its_time_is_the_root() -> None:
    texts = {0: f"12:00:09.5 {OOM}", 1: f"[E129 12:00:01.25 x] {OOM}", 2: f"2026-01-01 12:00:02,9 {OOM}"}
    assert roots_of(texts) == (1, 2)


def test_of_ranks_in_a_timeout_the_one_that_is_behind_is_the_root() -> None:
    texts = {
        rank: TIMEOUT.format(rank).replace("=3", f"={number}") for rank, number in enumerate((63, 63, 62, 63))
    }
    assert roots_of(texts) == (2,)


def differs(own: str, other: int) -> str:
    print_of = "CollectiveFingerPrint(SequenceNumber=7, OpType="
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {own} is running collective: "
        f"{print_of}ALLREDUCE), but Rank {other} is running collective: {print_of}BROADCAST)."
    )


def test_who_is_in_another_collective_is_named_by_the_others() -> None:
    everybody = {0: differs("0", 2), 1: differs("1", 2), 2: differs("2", 0), 3: differs("3", 2)}
    assert roots_of(everybody) == (2,)
    quiet = {1: differs("1", 3), 3: "Traceback (most recent call last):", 0: "step 7 loss 2.1"}
    assert roots_of(quiet) == (3,)
    # Ranks are compared in order: who is alone in naming the first one differs itself.
    assert roots_of({2: differs("2", 0), 0: "step 7 loss 2.1"}) == (2,)


def waited(operation: str, number: int) -> str:
    work = f"WorkNCCL(SeqNum={number}, OpType={operation}, Timeout(ms)=600000)"
    return f"[E] Watchdog caught collective operation timeout: {work} ran for 600042 milliseconds"


def test_of_ranks_in_a_timeout_the_one_in_another_collective_is_the_root() -> None:
    texts = dict.fromkeys(range(4), waited("BROADCAST", 7)) | {2: waited("ALLREDUCE", 9)}
    assert roots_of(texts) == (2,)
    # Of two it could be either, so the one that is behind counts.
    assert roots_of({0: waited("BROADCAST", 9), 1: waited("ALLREDUCE", 7)}) == (1,)
    # Ranks of different groups wait in different collectives.
    halves = {rank: waited("SEND" if rank < 2 else "RECV", 7 - rank) for rank in range(4)}
    assert roots_of(halves) == (3,)


def test_times_count_only_where_all_contenders_have_one() -> None:
    assert roots_of({0: f"12:00:09 {OOM}", 1: OOM}) == (0, 1)


def exit_of(
    rank: int, *, age_s: float, message: str = "", code: int | None = 1, signal: int | None = None
) -> NodeExit:
    error = WorkerError(type="RuntimeError", message=message) if message else None
    code = None if signal else code
    return NodeExit(
        node=f"n{rank}", exit=WorkerExit(rank=rank, code=code, signal=signal, age_s=age_s, error=error)
    )


def test_an_exception_of_ones_own_comes_before_a_lost_peer_seen_earlier() -> None:
    peer, own = exit_of(0, age_s=2, message=CLOSED), exit_of(1, age_s=1, message="loss is wrong")
    assert root_exit([peer, own]) == own


def test_who_was_asked_to_end_comes_after_who_failed_and_before_who_lost_a_peer() -> None:
    asked, own = exit_of(0, age_s=3, signal=15), exit_of(1, age_s=1, signal=9)
    peer = exit_of(2, age_s=4, message=CLOSED)
    assert root_exit([asked, peer, own]) == own
    assert root_exit([asked, peer]) == asked


def test_an_abort_of_a_library_that_lost_a_peer_is_not_the_cause() -> None:
    exit = WorkerExit(rank=0, signal=6, age_s=9, tail=(TIMEOUT.format(0), "terminate called after throwing"))
    own = exit_of(1, age_s=1, message="loss is wrong")
    assert root_exit([NodeExit(node="n0", exit=exit), own]) == own
    unexplained = NodeExit(node="n0", exit=WorkerExit(rank=0, signal=6, age_s=9))
    assert root_exit([unexplained, own]) == unexplained


def test_who_gave_up_waiting_comes_before_those_whose_connections_that_closed() -> None:
    gave_up = NodeExit(node="n0", exit=WorkerExit(rank=0, signal=6, age_s=1, tail=(TIMEOUT.format(0),)))
    closed = exit_of(1, age_s=2, message=CLOSED)
    assert root_exit([closed, gave_up]) == gave_up


def test_age_and_then_rank_break_ties() -> None:
    late, early, other = (
        exit_of(0, age_s=1, signal=9),
        exit_of(2, age_s=2, signal=9),
        exit_of(1, age_s=2, signal=9),
    )
    assert root_exit([late, early, other]) == other


def test_nobody_is_elected_where_nobody_failed() -> None:
    assert root_exit([exit_of(0, age_s=1, code=0)]) is None
    assert root_exit([]) is None


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


def complaint(rank: int, *named: int, age_s: float = 1.0) -> NodeExit:
    gone = "".join(f", rank {other} is unreachable" for other in named)
    return exit_of(rank, age_s=age_s, message=f"{CLOSED}{gone}")


def test_of_workers_that_only_complain_the_one_that_is_named_is_the_root() -> None:
    first, named = complaint(0, 3, age_s=9), exit_of(3, age_s=1, message=CLOSED)
    assert root_exit([first, complaint(1, 3), named]) == named


@pytest.mark.parametrize("others", [(), (7,), (0,)], ids=["nobody", "a rank that did not fail", "itself"])
def test_without_a_failed_worker_that_is_named_the_first_in_time_counts(others: tuple[int, ...]) -> None:
    first, late = complaint(0, *others, age_s=9), exit_of(1, age_s=1, message=CLOSED)
    assert root_exit([late, first]) == first


def test_names_that_contradict_each_other_count_only_by_their_number() -> None:
    said = [complaint(0, 3, age_s=9), complaint(1, 4, age_s=8)]
    named = [exit_of(3, age_s=2, message=CLOSED), exit_of(4, age_s=1, message=CLOSED)]
    assert root_exit([*said, *named]) == said[0]
    assert root_exit([*said, *named, complaint(2, 4)]) == named[1]


def test_a_cause_of_ones_own_comes_before_a_named_peer_and_a_device_before_both() -> None:
    said = [complaint(0, 3, age_s=9), exit_of(3, age_s=5, message=CLOSED)]
    own = exit_of(1, age_s=4, message="loss is wrong")
    device = exit_of(2, age_s=1, message="CUDA error: uncorrectable ECC error encountered")
    assert root_exit([*said, own]) == own
    assert root_exit([*said, own, device]) == device
