"""Shared memory and the GPU: what it costs to register, to copy and to sum up."""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.gpu.bench import GB, Bench
from slurm_robust.checkpoint.chunks import sums_of
from slurm_robust.checkpoint.gpus import CUDA
from slurm_robust.util.process import fault_in

_POPULATED_AT_ONCE = 2**26
_PIECES = (2**28, 2**30, 2**32)


def registering(bench: Bench) -> None:
    """Register 4 GiB, untouched and with its pages there, in pieces of each size; kernels start beside it."""
    bench.needs_memory(5)
    for threads in (1, 4, 8):
        with shared(bench.place, 2**32) as memory:
            begun = time.perf_counter()
            populate(memory, threads)
            bench.tell("populate", gib=4, threads=threads, seconds=time.perf_counter() - begun)
    for there in (False, True):
        for piece in _PIECES:
            with shared(bench.place, 2**32) as memory:
                if there:
                    populate(memory, 8)
                _register(bench, memory, piece, there=there)


def rates(bench: Bench) -> None:
    """Seconds to reserve, to register, to copy each way (registered and not) and to give back."""
    for gb in (bench.size(4), bench.size(16, 0.2)):
        bench.needs_memory(gb)
        with shared(bench.place, int(gb * GB), tell=bench) as memory:
            host = torch.frombuffer(memory, dtype=torch.uint8)
            part = min(len(memory), 4 * GB)
            source = torch.ones(part, dtype=torch.uint8, device=bench.device)
            copied = part / GB
            for name in ("pageable, first touch", "pageable"):
                issued, done = _copy(bench, host[:part], source)
                bench.tell("copy", gb=copied, of_gb=gb, way="d2h", memory=name, issue_s=issued, seconds=done)
            begun = time.perf_counter()
            if not bench.cpu:
                whole = mmap_address(memory), len(memory)
                _must(CUDA.register(*whole, source.device))
            bench.tell("register", gb=gb, seconds=time.perf_counter() - begun)
            for _ in range(2):
                for way, into, out in (("d2h", host[:part], source), ("h2d", source, host[:part])):
                    issued, done = _copy(bench, into, out)
                    bench.tell(
                        "copy",
                        gb=copied,
                        of_gb=gb,
                        way=way,
                        memory="registered",
                        issue_s=issued,
                        seconds=done,
                    )
            begun = time.perf_counter()
            if not bench.cpu:
                CUDA.unregister(mmap_address(memory))
            bench.tell("unregister", gb=gb, seconds=time.perf_counter() - begun)
            del host, source


def sums(bench: Bench) -> None:
    """XXH3 of 4 GB in threads, alone and beside copies that come from the GPU."""
    gb = bench.size(4)
    bench.needs_memory(2 * gb)
    with shared(bench.place, int(gb * GB)) as memory, shared(bench.place, int(gb * GB)) as beside:
        populate(memory, 4)
        view = memoryview(memory)
        device = torch.device(bench.device)
        for threads in (1, 2, 4, 8):
            bench.tell("sums", gb=gb, threads=threads, beside="nothing", seconds=_summed(view, threads))
        if not bench.cpu:
            target = torch.frombuffer(beside, dtype=torch.uint8)
            source = torch.ones(len(beside), dtype=torch.uint8, device=device)
            _must(CUDA.register(mmap_address(beside), len(beside), source.device))
            for threads in (1, 4):
                for _ in range(10):
                    target.copy_(source, non_blocking=True)
                took = _summed(view, threads)
                bench.tell("sums", gb=gb, threads=threads, beside="copies", seconds=took)
                bench.wait()
            CUDA.unregister(mmap_address(beside))
            del target
        view.release()


@contextmanager
def shared(place: Path, nbytes: int, tell: Bench | None = None) -> Iterator[mmap.mmap]:
    """Memory of a file, reserved and not touched, as a snapshot's buffer has it; ``tell`` what that takes."""
    nbytes = nbytes // mmap.PAGESIZE * mmap.PAGESIZE
    path = place / f"{time.monotonic_ns()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        begun = time.perf_counter()
        os.posix_fallocate(file, 0, nbytes)
        if tell is not None:
            tell.tell("reserve", gb=nbytes / GB, seconds=time.perf_counter() - begun)
        yield mmap.mmap(file, nbytes)  # unmapped with the last tensor over it
    finally:
        os.close(file)
        path.unlink()


def populate(memory: mmap.mmap, threads: int) -> None:
    """Map all pages of ``memory``, in ``threads`` threads. Before Linux 5.14 this does nothing."""
    begins = range(0, len(memory), _POPULATED_AT_ONCE)
    first = mmap_address(memory)
    with ThreadPoolExecutor(threads) as pool:
        for begin in begins:
            pool.submit(fault_in, first + begin, min(_POPULATED_AT_ONCE, len(memory) - begin))


def mmap_address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _register(bench: Bench, memory: mmap.mmap, piece: int, *, there: bool) -> None:
    device = torch.device("cuda", 0)
    x = torch.ones(1000, device=device)
    bench.wait()
    first, took, errors = mmap_address(memory), 0.0, [0]

    def register() -> None:
        nonlocal took
        begun = time.perf_counter()
        errors[:] = [CUDA.register(first + at, piece, device) for at in range(0, len(memory), piece)]
        took = time.perf_counter() - begun

    thread = threading.Thread(target=register)
    launches: list[float] = []
    thread.start()
    while thread.is_alive():
        begun = time.perf_counter()
        x.add_(1)
        launches.append(time.perf_counter() - begun)
    thread.join()
    bench.wait()
    begun = time.perf_counter()
    for at in range(0, len(memory), piece):
        CUDA.unregister(first + at)
    bench.tell(
        "register",
        gib=len(memory) / 2**30,
        piece_gib=piece / 2**30,
        pages_there=there,
        seconds=took,
        refused=sum(map(bool, errors)),
        launches=len(launches),
        launch_median_ms=1e3 * statistics.median(launches) if launches else None,
        launch_worst_ms=1e3 * max(launches) if launches else None,
        unregister_s=time.perf_counter() - begun,
    )


def _copy(bench: Bench, into: torch.Tensor, out: torch.Tensor) -> tuple[float, float]:
    """Seconds until the host is free again, and until all is there."""
    bench.wait()
    begun = time.perf_counter()
    into.copy_(out, non_blocking=True)
    issued = time.perf_counter() - begun
    bench.wait()
    return issued, time.perf_counter() - begun


def _summed(view: memoryview, threads: int) -> float:
    begun = time.perf_counter()
    sums_of(view, threads)
    return time.perf_counter() - begun


def _must(error: int) -> None:
    if error:
        raise RuntimeError(f"not registered: cudaError {error}")
