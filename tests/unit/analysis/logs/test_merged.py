"""In a text of several ranks their labels tell who failed first."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.logs import read_merged

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CLOSED = "RuntimeError: Connection closed by peer [10.0.0.1]:51"
REMOTE = "NCCL error: remote process exited or there was a network error"
TIMEOUT = "[E x.cpp:6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"
LOCKUP = "n5 kernel: watchdog: BUG: soft lockup - CPU#4 stuck for 112s! [x:8]"


@pytest.mark.parametrize(
    ("lines", "symptom", "roots"),
    [
        (["0: step 1", f"0: [rank0]: {REMOTE}", "1: [rank1]: ValueError: bad"], "code_error", (1,)),
        ([f"[rank3]: {CLOSED}", "srun: error: n3: task 7: Segmentation fault"], "killed_signal", (7,)),
        ([f"12: {OOM}", f"13: {CLOSED}"], "gpu_oom", (12,)),
        ([f"[default0]:[rank4]: {CLOSED}", f"[default1]:[rank5]: {OOM}"], "gpu_oom", (5,)),
        (["0: [rank8]: KeyError: 'x'", f"1: [rank9]: {CLOSED}"], "code_error", (8,)),
        (["[rank0]: RuntimeError: Rank 6 failed to pass monitoredBarrier in 9 ms"], "nccl_timeout", (6,)),
        (
            [LOCKUP, f"11: [rank11]: {TIMEOUT}", "srun: error: n1: task 11: Aborted"],
            "os_kernel_panic_or_soft_lockup",
            (),
        ),
        (["12: step 3 | loss 2", "13: step 3 | loss 2"], "healthy_noise", ()),
        (["1: one", "2: two", "ValueError: bad"], "code_error", ()),
        (["12:00:09 step 3", f"12:00:10 {OOM}"], "gpu_oom", ()),  # these are times
        (["srun: error: n[1-2]: tasks 0-7: Killed"], "killed_signal", ()),
        (
            [f"[rank0]: {OOM}", "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED DUE TO PREEMPTION ***"],
            "gpu_oom",
            (0,),
        ),
        (
            ["4: Received SIGTERM", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED DUE TO TIME LIMIT ***"],
            "preemption_or_time_limit",
            (),
        ),
    ],
)
def test_the_first_causes_in_a_merged_log(lines: list[str], symptom: str, roots: tuple[int, ...]) -> None:
    reading, found = read_merged("\n".join(lines))
    assert (reading.verdict.symptom, found) == (symptom, roots)


def test_ranks_that_all_lost_a_peer_evict_nobody() -> None:
    one, roots = read_merged(f"[rank0]: {REMOTE}")
    assert (one.verdict.action.value, roots) == ("evict", ())
    all_of_them, roots = read_merged(f"[rank0]: {REMOTE}\n[rank1]: {REMOTE}")
    assert (all_of_them.verdict.blame.value, all_of_them.verdict.action.value) == ("unknown", "restart")
    assert roots == ()


def test_of_thousands_of_ranks_the_one_that_differs_is_read() -> None:
    lines = [f"[rank{rank}]: {OOM if rank == 1234 else REMOTE}" for rank in range(2000)]
    reading, roots = read_merged("\n".join(lines))
    assert (reading.verdict.symptom, roots) == ("gpu_oom", (1234,))
