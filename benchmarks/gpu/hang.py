"""A rank whose GPU does not come back: what can be seen of it from outside, by the agent's own means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import common
from benchmarks.gpu.bench import Bench, LeftOut
from slurm_robust.agent.stacks import handler, pyspy
from slurm_robust.agent.stacks import recorder as server
from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.analysis.stacks.ranks import Reader, view
from slurm_robust.model.stacks import Collective
from slurm_robust.util import proc
from slurm_robust.worker.dump import RECORDER_SUFFIX, STACKS_SUFFIX
from slurm_robust.worker.torchrun import prepare_inherited, torch_release

_STARTED_S = 30.0
_ANSWER_S = 5.0
_TIMING = "TORCH_NCCL_ENABLE_TIMING"
_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def recorder(bench: Bench) -> None:
    """Ask PyTorch's server: without any variable, with timing, as our workers have it, and of gloo."""
    _while_the_lock_is_held(bench)
    bare = {name: value for name, value in os.environ.items() if name not in (_TIMING, *_BUFFERS)}
    inherited = dict(bare)
    prepare_inherited(inherited, torch_release())
    cases: dict[str, tuple[str, Mapping[str, str]]] = {"gloo": ("gloo", inherited)}
    if not bench.cpu:
        cases = {
            "nccl, as our workers have it": ("nccl", inherited),
            "nccl, nothing set": ("nccl", bare),
            "nccl, timing": ("nccl", {**bare, _TIMING: "1"}),
            **cases,
        }
    for name, (backend, environ) in cases.items():
        with hanging(bench.place, backend, environ) as (_, record):
            _ask(bench, name, record.with_suffix(RECORDER_SUFFIX))


def stacks(bench: Bench) -> None:
    """Take them by py-spy as the agent does, with native calls, by the signal; then read them."""
    program = pyspy.find_pyspy()
    if not program:
        raise LeftOut("needs py-spy beside this Python or in PATH")
    with hanging(bench.place, "gloo" if bench.cpu else "nccl", os.environ) as (pid, record):
        process = proc.read_process(pid)
        bench.tell("process", threads=len(os.listdir(f"/proc/{pid}/task")), state=process and process.state)
        for native in (False, True):
            for _ in range(3):
                begun = time.monotonic()
                try:
                    threads = pyspy.take(program, pid, begun + 10.0, native=native)
                except pyspy.CannotTake as error:
                    bench.tell("py-spy", native=native, seconds=time.monotonic() - begun, error=str(error))
                    continue
                took = time.monotonic() - begun
                frames = next((thread.frames for thread in threads if thread.is_main), ())
                main = [f"{frame.function[:60]} {Path(frame.file).name}:{frame.line}" for frame in frames[:8]]
                bench.tell("py-spy", native=native, seconds=took, threads=len(threads), main=main)
        begun = time.monotonic()
        try:
            answered = handler.take(pid, record.with_suffix(STACKS_SUFFIX), begun + _ANSWER_S)
            bench.tell("signal", seconds=time.monotonic() - begun, threads=len(answered))
        except pyspy.CannotTake as error:
            bench.tell("signal", seconds=time.monotonic() - begun, error=str(error))
        begun = time.monotonic()
        taken = StackTaker(program=program).take({0: pid}, node="here", budget_s=_ANSWER_S)[0]
        took, seen = time.monotonic() - begun, view(taken, Reader())
        bench.tell(
            "agent's look",
            seconds=took,
            source=taken.source,
            activity=seen.activity.value,
            form=seen.form.splitlines()[:3],
            collectives=[_line(one) for one in taken.collectives],
        )
        _look_at_stopped(bench, program, pid, record.with_suffix(RECORDER_SUFFIX))


def _look_at_stopped(bench: Bench, program: str, pid: int, address: Path) -> None:
    """What is left to see of a process that a signal has stopped, which has its GPU all the same."""
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    try:
        found: dict[str, object] = {"threads": len(pyspy.take(program, pid, begun + _ANSWER_S))}
    except pyspy.CannotTake as error:
        found = {"error": str(error)}
    bench.tell("stopped: py-spy", seconds=time.monotonic() - begun, **found)
    begun = time.monotonic()
    recorded = server.take(address, begun + 1.0)
    took = time.monotonic() - begun
    bench.tell("stopped: recorder", seconds=took, collectives=len(recorded.collectives))


@contextmanager
def hanging(place: Path, backend: str, environ: Mapping[str, str]) -> Iterator[tuple[int, Path]]:
    """Have a group of ``backend`` hang; gives rank 0's pid and step record."""
    name = f"{time.monotonic_ns()}"
    mark, record = place / f"{name}.mark", place / f"{name}.rec"
    words = [sys.executable, "-m", "benchmarks.gpu.hanging", "--backend", backend]
    words += ["--meet", str(place / f"{name}.meet"), "--mark", str(mark)]
    ranks = 2 if backend == "gloo" else 1
    group: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            own = [
                "--rank",
                str(rank),
                "--ranks",
                str(ranks),
                "--record",
                str(record.with_stem(f"{name}-{rank}")),
            ]
            group.append(subprocess.Popen([*words, *own], cwd=common.ROOT, env=environ, stdout=sys.stderr))
        common.wait_for(
            lambda: mark.exists() or any(one.poll() is not None for one in group),
            _STARTED_S,
            f"the ranks of {backend} do not get there",
        )
        if not mark.exists():
            raise common.BenchmarkFailed(f"a rank of {backend} ended: its error is above")
        time.sleep(0.5)  # from the mark into the wait
        yield group[0].pid, record.with_stem(f"{name}-0")
    finally:
        for one in group:
            one.kill()
        for one in group:
            one.wait(30)


def _ask(bench: Bench, case: str, address: Path) -> None:
    """Ask each handler of the server, then read it as the agent does."""
    for name in server.HANDLERS.values():
        begun = time.monotonic()
        answer = server.ask(address, name, begun + _ANSWER_S)
        took = time.monotonic() - begun
        try:
            entries = json.loads(answer).get("entries", [])
        except ValueError:
            entries = []
        open_ones = [entry.get("collective_seq_id") for entry in entries if entry.get("state") != "completed"]
        bench.tell(
            "handler",
            case=case,
            name=name,
            seconds=took,
            bytes=len(answer),
            entries=len(entries),
            states=dict(Counter(entry.get("state", "?") for entry in entries)),
            first_not_completed=open_ones[0] if open_ones else None,
            newest=open_ones[-1] if open_ones else None,
            last_entry=entries[-1] if entries else answer[:200].decode(errors="replace"),
        )
    begun = time.monotonic()
    found = server.take(address, begun + _ANSWER_S)
    took = time.monotonic() - begun
    bench.tell(
        "our reading",
        case=case,
        seconds=took,
        collectives=[_line(one) for one in found.collectives],
        idle=found.idle,
    )


def _line(one: Collective) -> str:
    return (
        f"{one.group} {one.operation} {one.sequence} {one.state}, enqueued {one.enqueued}, ranks {one.ranks}"
    )


_HOLDS_LOCK = """
import ctypes, os, sys, torch
from pathlib import Path
from slurm_robust.util.process import die_with_parent
from slurm_robust.worker import dump
die_with_parent(os.getppid())
os.environ["WORLD_SIZE"] = "2"
dump.prepare(sys.argv[1])
Path(sys.argv[2]).touch()
ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the lock
"""


def _while_the_lock_is_held(bench: Bench) -> None:
    """Does the server answer while a thread keeps the interpreter's lock, as one that hangs in C may do?"""
    record, mark = bench.place / "lock.rec", bench.place / "lock.mark"
    process = subprocess.Popen([sys.executable, "-c", _HOLDS_LOCK, str(record), str(mark)], cwd=common.ROOT)
    try:
        common.wait_for(mark.exists, _STARTED_S, "the process that keeps the lock does not start")
        time.sleep(0.2)  # from the mark into the call
        for name in server.HANDLERS.values():
            begun = time.monotonic()
            answer = server.ask(record.with_suffix(RECORDER_SUFFIX), name, begun + _ANSWER_S)
            bench.tell("lock is held", name=name, seconds=time.monotonic() - begun, bytes=len(answer))
    finally:
        process.kill()
        process.wait(30)
