"""SIGKILL of a worker with a GPU: when it is gone, when its memory is free, what the next one meets.

The workers are forked from a zygote, as under ``srobust run``. Beside the kill NVML is asked all the time,
and the agent's inspector looks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TypeVar

from benchmarks import common
from benchmarks.gpu.bench import Bench, LeftOut, free_gb
from slurm_robust.agent.deaths import DeathWatch
from slurm_robust.agent.gpumemory import FREE, GpuWait
from slurm_robust.agent.launcher import Gone, ZygoteLauncher
from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.job import CommandKind
from slurm_robust.nodes.gpus.gather import gather_gpus
from slurm_robust.util import proc
from slurm_robust.worker.spawning import (
    Exited,
    Fatal,
    Prepare,
    Ready,
    Spawn,
    Spawned,
    SpawnFailed,
    WorkerSpec,
)
from slurm_robust.worker.step_record import StepRecord

_REGISTERED_GB = 40.0
_DEVICE_GB = 100.0
_READY_S = 60.0
_GONE_S = 60.0
_NOTHING = 1.5e9  # bytes that a driver uses while nobody uses the GPU, with room

Message = TypeVar("Message", Ready, Spawned, Exited)


def kill(bench: Bench) -> None:
    """Kill one with nothing registered and with 40 GB; fork the next at once, and as the agent waits."""
    registered = bench.size(min(_REGISTERED_GB, free_gb(bench.place) - 8), 0.2)
    if registered <= 0:
        raise LeftOut(f"needs 8 GB and more in {bench.place.parent}")
    zygote = _Zygote(bench)
    try:
        for gb, waits in ((0.0, False), (registered, True), (registered, False)):
            _kill(bench, zygote, gb, waits=waits)
    finally:
        zygote.launcher.close()


class _Zygote:
    """The zygote, and the workers that it forks."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.launcher = ZygoteLauncher(
            Prepare(
                command_kind=CommandKind.MODULE,
                command=("benchmarks.gpu.holding",),
                cwd=str(common.ROOT),
                nproc_per_node=1,
            )
        )
        self._generation = 0
        self.launcher.start()
        ready = self.expect(Ready, _READY_S)
        bench.tell("zygote", import_s=ready.import_s, notes=list(ready.notes))

    def expect(self, kind: type[Message], patience_s: float) -> Message:
        """Its next message of this kind; others are passed over. Raises ``RuntimeError``."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            for message in self.launcher.read():
                if isinstance(message, kind):
                    return message
                if isinstance(message, (Fatal, Gone, SpawnFailed)):
                    raise RuntimeError(str(message))
            time.sleep(0.001)
        raise RuntimeError(f"no {kind.__name__} within {patience_s:.0f} s")

    def fork(self, place: Path, module: str, *options: object) -> int:
        self._generation += 1
        name = f"{self._generation}"
        record = place / f"{name}.rec"
        StepRecord.create(record, generation=self._generation, rank=0)
        spec = WorkerSpec(
            rank=0,
            env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            out=str(place / f"{name}.out"),
            err=str(place / f"{name}.err"),
            error=str(place / f"{name}.error.json"),
            record=str(record),
        )
        self.launcher.spawn(
            Spawn(
                generation=self._generation,
                command_kind=CommandKind.MODULE,
                command=(module, "--device", self.bench.device, *map(str, options)),
                cwd=str(common.ROOT),
                workers=(spec,),
            )
        )
        return self.expect(Spawned, 20.0).pid


class _Nvml(threading.Thread):
    """What NVML says of a process and of its GPU, and how long an answer takes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.worst_s = 0.0
        self.unlisted_at = self.free_at = 0.0
        self._pid = pid

    def run(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self.over.is_set():
            begun = time.monotonic()
            used = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used
            pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            now = time.monotonic()
            self.worst_s = max(self.worst_s, now - begun)
            if self._pid not in pids:
                self.unlisted_at = self.unlisted_at or now
            if used < _NOTHING:
                self.free_at = self.free_at or now
            self.over.wait(0.02)


class _Looks(threading.Thread):
    """Looks of the inspector, one after the other."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.worst_s = 0.0
        self.stuck: set[str] = set()

    def run(self) -> None:
        while not self.over.is_set():
            begun = time.monotonic()
            found = gather_gpus(Host(), NodeConfig())
            self.worst_s = max(self.worst_s, time.monotonic() - begun)
            self.stuck |= {found.stuck_in} - {""}
            self.over.wait(0.2)


def _kill(bench: Bench, zygote: _Zygote, registered_gb: float, *, waits: bool) -> None:
    """Kill one, fork the next at once, or when its memory is free, and tell all times from the kill."""
    place = Path(tempfile.mkdtemp(dir=bench.place))
    mark, said, device_gb = place / "mark", place / "said", _device_gb(bench)
    room = ("--device-gb", device_gb)
    amounts = ("--registered-gb", registered_gb, *room, "--place", place, "--mark", mark)
    pid = zygote.fork(place, "benchmarks.gpu.holding", *amounts)
    common.wait_for(lambda: mark.exists() or _is_over(pid), _READY_S, "the worker is not ready")
    if not mark.exists():
        raise common.BenchmarkFailed("the worker has ended" + common.tail(next(iter(place.glob("*.err")))))
    watches = () if bench.cpu else (_Nvml(pid), _Looks())
    for thread in watches:
        thread.start()
    time.sleep(0.5)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    deaths, still_s = DeathWatch(), 0.0
    while not _is_over(pid) and time.monotonic() - killed < _GONE_S:
        still_s = max(still_s, deaths.still_s([pid], time.monotonic()) or 0.0)
        time.sleep(0.02)
    exited = zygote.expect(Exited, _GONE_S)
    reported = time.monotonic()
    zygote.launcher.sweep()
    held = _wait_as_the_agent(pid, killed) if waits else []
    forked = time.monotonic()
    zygote.fork(place, "benchmarks.gpu.succeeding", *room, "--said", said)
    ended = zygote.expect(Exited, _GONE_S)
    done = time.monotonic()
    zygote.launcher.sweep()
    bench.tell(
        "kill",
        registered_gb=registered_gb,
        device_gb=device_gb,
        waits=waits,
        worker=json.loads(mark.read_text()),
        exited_s=exited.ended - killed,
        reported_s=reported - killed,
        still_worst_s=still_s,
        **_seen(watches, killed),
        agent_waits=held,
        forked_s=forked - killed,
        next_done_s=done - killed,
        next_worker=json.loads(said.read_text()) if said.exists() else str(ended),
    )
    shutil.rmtree(place)


def _seen(watches: tuple[()] | tuple[_Nvml, _Looks], killed: float) -> dict[str, object]:
    """What the two saw from the kill on, when they are over."""
    for thread in watches:
        thread.over.set()
        thread.join(10)
    if not watches:
        return {}
    nvml, looks = watches
    return {
        "unlisted_s": nvml.unlisted_at - killed if nvml.unlisted_at else None,
        "gpu_free_s": nvml.free_at - killed if nvml.free_at else None,
        "nvml_worst_s": nvml.worst_s,
        "look_worst_s": looks.worst_s,
        "look_stuck_in": sorted(looks.stuck),
    }


def _is_over(pid: int) -> bool:
    process = proc.read_process(pid)
    return process is None or process.state == "Z"


def _wait_as_the_agent(pid: int, killed: float) -> list[str]:
    """Each answer of the agent's wait, with its seconds since the kill."""
    waiting, held = GpuWait(), []
    waiting.ask([pid])
    while time.monotonic() - killed < _GONE_S:
        if (answer := waiting.read()) is not None:
            held.append(f"{time.monotonic() - killed:.2f} s: {answer}")
            if answer == FREE:
                break
        time.sleep(0.01)
    waiting.end()
    return held


def _device_gb(bench: Bench) -> float:
    """Three quarters of the GPU, 100 GB at most."""
    if bench.cpu:
        return 0.4
    import pynvml

    pynvml.nvmlInit()
    total = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    pynvml.nvmlShutdown()
    return min(_DEVICE_GB, 0.75 * float(total) / 1e9)
