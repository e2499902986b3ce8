"""The same code at the same place gives the same text, wherever it runs; another place gives another."""

from __future__ import annotations

import pytest

from slurm_robust.analysis.stacks import fingerprint
from slurm_robust.analysis.stacks.activity import Activity
from slurm_robust.analysis.stacks.ranks import doing, read_call
from slurm_robust.model.stacks import Frame, ProcessKind, ProcessStacks, RankStacks, ThreadStack
from tests.unit.analysis.stacks.sample_stacks import (
    ALL_REDUCE,
    BACKWARD,
    BUSY_LOADER,
    C10D,
    COMPUTE,
    DATA,
    IDLE_LOADER,
    TORCH,
    TRAIN,
    Frames,
    process,
    rank,
)

THREADING = "/usr/lib/python3.11/threading.py"
BEGIN = (
    Frame(function="Thread.run", file=THREADING, line=982),
    Frame(function="Thread._bootstrap_inner", file=THREADING, line=1045),
)
FEEDER = (
    Frame(function="Condition.wait", file=THREADING, line=327),
    Frame(function="Queue._feed", file="/usr/lib/python3.11/multiprocessing/queues.py", line=231),
    *BEGIN,
)
JOIN = (Frame(function="Thread.join", file=THREADING, line=1112), *TRAIN)


def native(*functions: str, library: str = "libtorch_cpu.so") -> Frames:
    return tuple(Frame(function=name, file=f"{TORCH}/lib/{library}") for name in functions)


def with_threads(main: Frames, *others: Frames) -> RankStacks:
    threads = (ThreadStack(frames=main, is_main=True), *(ThreadStack(frames=f) for f in others))
    worker = ProcessStacks(pid=1, kind=ProcessKind.WORKER, state="S", threads=threads)
    return RankStacks(rank=0, node="n0", processes=(worker,))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (
            Frame(function="all_reduce", file=C10D, line=3252),
            "all_reduce torch/distributed/distributed_c10d.py",
        ),
        (Frame(function="a.<locals>.wrapper", file=C10D), "wrapper torch/distributed/distributed_c10d.py"),
        (Frame(function="train", file="/scratch/job7/n001/train.py", line=90), "train train.py:90"),
        (Frame(function="Condition.wait", file=THREADING, line=327), "wait threading.py"),
        (Frame(function="forward", file="<eval_with_key>.17", line=5), "forward <eval_with_key>."),
        (Frame(function="call", file="/tmp/torchinductor_eve/xy/cxyz.py", line=5), "call <inductor>"),
        (
            Frame(function="c10d::Reducer::run+123", file="/x/libtorch_cpu.so"),
            "c10d::Reducer::run libtorch_cpu",
        ),
        (Frame(function="0x7fbe06aa3f16", file="/lib/libc.so.6"), " libc"),
        (Frame(function="irecv"), "irecv"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_calls_are_normalised(frame: Frame, text: str) -> None:
    assert read_call(frame).text == text


def test_the_same_place_on_another_node_has_the_same_fingerprint() -> None:
    def elsewhere(frame: Frame) -> Frame:
        file = frame.file.replace("/opt/venv/lib/python3.11", "/scratch/n2/env/lib64/../lib/python3.11")
        line = frame.line + 1 if "site-packages" in file else frame.line
        return Frame(function=frame.function, file=file.replace("/home/alice", "/local/77"), line=line)

    for frames in (ALL_REDUCE, DATA, COMPUTE, BACKWARD):
        there = tuple(elsewhere(frame) for frame in frames)
        assert there != frames
        assert fingerprint(rank(0, frames)) == fingerprint(rank(9, there, state="R"))


def test_another_place_has_another_fingerprint() -> None:
    later = (ALL_REDUCE[0], Frame(function="train", file="/home/alice/train.py", line=91), *TRAIN[1:])
    places = [ALL_REDUCE, DATA, COMPUTE, BACKWARD, later]
    assert len({fingerprint(rank(0, frames)) for frames in places}) == len(places)


def test_what_lies_below_a_wait_depends_on_the_moment() -> None:
    pythons = ALL_REDUCE
    polls = native("poll", "gloo::transport::tcp::Loop::run", "c10d::AsyncWork::wait")
    sleeps = native("0x7f12", "std::condition_variable::wait", "c10d::AsyncWork::wait")
    assert fingerprint(rank(0, polls + pythons)) == fingerprint(rank(0, sleeps + pythons))


def test_idle_threads_and_idle_loaders_do_not_show() -> None:
    plain = fingerprint(with_threads(DATA))
    assert fingerprint(with_threads(DATA, FEEDER)) == plain
    idle = [process(IDLE_LOADER, ProcessKind.LOADER, pid=pid) for pid in (7, 8)]
    assert fingerprint(rank(0, DATA, helpers=idle)) == plain
    busy = process(BUSY_LOADER, ProcessKind.LOADER)
    assert fingerprint(rank(0, DATA, helpers=[*idle, busy])) != plain


def test_a_writer_shows_only_while_it_writes() -> None:
    save = (Frame(function="save", file=f"{TORCH}/serialization.py"), *TRAIN)
    plain = fingerprint(rank(0, save))
    assert fingerprint(rank(0, save, helpers=[process(FEEDER, ProcessKind.WRITER)])) == plain
    busy = fingerprint(rank(0, save, helpers=[process(COMPUTE, ProcessKind.WRITER)]))
    assert busy.endswith("its checkpoint writer is in forward model.py:12")


def test_threads_show_only_where_the_main_thread_waits_for_them() -> None:
    worker = (*COMPUTE, *BEGIN)
    assert fingerprint(with_threads(ALL_REDUCE, worker)) == fingerprint(with_threads(ALL_REDUCE))
    assert fingerprint(with_threads(JOIN, worker)) != fingerprint(with_threads(JOIN, FEEDER))
    assert fingerprint(with_threads(JOIN, FEEDER)) == fingerprint(with_threads(JOIN))


def test_backward_shows_what_autograds_own_thread_does() -> None:
    hook = (
        Frame(function="all_reduce", file=C10D),
        Frame(function="hook", file="/home/alice/ddp.py", line=3),
    )
    assert fingerprint(with_threads(BACKWARD, hook)).startswith(Activity.PEERS.value)
    logger = (Frame(function="flush", file="/home/alice/log.py", line=3), *BEGIN)
    assert fingerprint(with_threads(BACKWARD, logger)) == fingerprint(with_threads(BACKWARD))


@pytest.mark.parametrize(
    ("frames", "activity"),
    [
        (ALL_REDUCE, Activity.PEERS),
        ((Frame(function="is_initialized", file=C10D), *TRAIN), Activity.COMPUTE),
        (native("pthread_cond_wait", "c10d::Reducer::finalize_backward") + BACKWARD, Activity.PEERS),
        (native("poll", "ncclGroupEnd", library="libnccl.so.2") + COMPUTE, Activity.PEERS),
        ((Frame(function="_communicate", file="/mg/p2p_communication.py"), *TRAIN), Activity.PEERS),
        ((Frame(function="_store_based_barrier"), *TRAIN), Activity.COMPUTE),
        ((Frame(function="reduce_scatter_grads", file="/home/eve/opt.py"), *TRAIN), Activity.PEERS),
        ((Frame(function="wait_stream", file=f"{TORCH}/cuda/streams.py"), *TRAIN), Activity.DEVICE),
        (native("sched_yield", "cudaStreamSynchronize", "at::native::item") + COMPUTE, Activity.DEVICE),
        (
            native("cuMemcpyDtoHAsync_v2", "cudaMemcpyAsync", library="libcuda.so.1") + COMPUTE,
            Activity.DEVICE,
        ),
        (native("cudaLaunchKernel", library="libcudart.so.12") + COMPUTE, Activity.DEVICE),
        (native("cublasGemmEx", library="libcublas.so.12") + COMPUTE, Activity.COMPUTE),
        (BACKWARD, Activity.DEVICE),
        (native("sgemm_kernel", "at::native::mm", "torch::autograd::Engine") + BACKWARD, Activity.COMPUTE),
        (native("clock_nanosleep", "ffi_call", library="libffi.so.8") + COMPUTE, Activity.COMPUTE),
        (DATA, Activity.DATA),
        (COMPUTE[:1] + DATA[2:], Activity.DATA),
        ((Frame(function="__libc_read", file="/lib/libc.so.6"), *COMPUTE), Activity.IO),
        ((Frame(function="copyfileobj", file="/usr/lib/python3.11/shutil.py"), *TRAIN), Activity.IO),
        (
            (
                Frame(function="write", file="/lib/libc.so.6"),
                Frame(function="save", file="torch/serialization.py"),
            ),
            Activity.CHECKPOINT,
        ),
        (
            (Frame(function="_write", file=f"{TORCH}/distributed/checkpoint/fs.py"), *TRAIN),
            Activity.CHECKPOINT,
        ),
        (JOIN, Activity.HELPER),
        (FEEDER, Activity.HELPER),
    ],
)
def test_the_innermost_call_that_tells_decides(frames: Frames, activity: Activity) -> None:
    assert doing(frames).activity is activity


def test_a_forked_loader_does_not_show_what_forked_it() -> None:
    boot = Frame(function="BaseProcess._bootstrap", file="/usr/lib/python3.11/multiprocessing/process.py")
    assert doing((*BUSY_LOADER, boot, *COMPUTE)).form == doing((*BUSY_LOADER, boot)).form
    assert "model.py" not in doing((*BUSY_LOADER, boot, *COMPUTE)).form
