"""The driver's own words: what NVML answers and our checks make of it, and the faults that it reports."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import msgspec

from benchmarks.gpu.bench import Bench, LeftOut
from slurm_robust.config.node import NodeConfig
from slurm_robust.inspector.gpuevents import XidEvent, XidEvents
from slurm_robust.kernel import xid
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.gpus import nvidia
from slurm_robust.nodes.gpus.gather import gather_gpus
from slurm_robust.nodes.gpus.nvml import Nvml
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.runner import inspect
from slurm_robust.util.isolate import directly

_LOOKS = 20


def nvml(bench: Bench) -> None:
    """All that our reader reads, each field alone, and all checks: on a sound GPU each finding is a pass."""
    for name in ("cold", "again"):
        begun = time.monotonic()
        facts = nvidia.read_gpus(Host())
        bench.tell("read", name=name, seconds=time.monotonic() - begun, fault=facts.fault)
    for gpu in facts.gpus:
        bench.tell("gpu", **msgspec.to_builtins(gpu))
    _ask_fields(bench)
    times = []
    for _ in range(_LOOKS):
        begun = time.monotonic()
        found = gather_gpus(Host(), NodeConfig())
        times.append(time.monotonic() - begun)
    bench.tell("looks", median_s=sorted(times)[_LOOKS // 2], worst_s=max(times), stuck_in=found.stuck_in)
    for context in (CheckContext.PERIODIC, CheckContext.EPILOG):
        report = inspect(
            NodeConfig(),
            context,
            memory=None,
            now=time.time(),
            budget_s=10.0,
            job_gone=True,
            only=("gpu.*",),
            checks=CHECKS,
            calls=directly,
        )
        for finding in report.findings:
            bench.tell("finding", context=context.value, **msgspec.to_builtins(finding))
        bench.tell("checks", context=context.value, errors=report.errors, took_s=report.took_s)
    if os.getuid() == 0:
        words = [sys.executable, "-c", _EVENTS]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
        bench.tell("events as an ordinary user", said=(done.stdout + done.stderr).strip()[-200:])


def xids(bench: Bench) -> None:
    """Ordinary faults of a program: which XIDs the driver reports, and what we make of them."""
    for name, code in _FAULTS.items():
        seen: list[XidEvent] = []
        ready, over = threading.Event(), threading.Event()

        def listen(
            seen: list[XidEvent] = seen, ready: threading.Event = ready, over: threading.Event = over
        ) -> None:
            with XidEvents() as events:
                ready.set()
                while not over.is_set():
                    seen.extend(events.within(0.5))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        if not ready.wait(10):
            raise LeftOut("needs a driver that gives events")
        begun = time.time()
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        ended = time.time()
        time.sleep(1.0)  # the event comes within that
        over.set()
        thread.join(5)
        bench.tell(
            "fault",
            name=name,
            code=done.returncode,
            seconds=ended - begun,
            xids=[event.code for event in seen],
            rules=[
                f"{xid.rule(event.code).suggestion.value}: {xid.rule(event.code).meaning}" for event in seen
            ],
            stderr=done.stderr.strip()[-200:],
        )


def _ask_fields(bench: Bench) -> None:
    """Each field alone: a driver may refuse a whole question for one of them."""
    library = Nvml()
    try:
        handle = library.api.nvmlDeviceGetHandleByIndex(0)
        links = [(field, link) for family in nvidia._NVLINK_FAMILIES for field in family for link in (0, 17)]
        every: list[int | tuple[int, int]] = [*nvidia._FIELDS, *links]
        for wanted in every:
            library.errors = {}
            begun = time.monotonic()
            values = list(library.fields(handle, [wanted]).values())
            took = time.monotonic() - begun
            bench.tell("field", field=wanted, seconds=took, values=values, errors=library.errors)
    finally:
        library.close()


_EVENTS = """
import os, pynvml
from slurm_robust.inspector.gpuevents import XidEvents
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with XidEvents() as events:
    print(f"registered, {len(list(events.within(0.1)))} events")
"""
_FAULTS = {
    "an index beyond the tensor": (
        "import torch; t = torch.zeros(4, device='cuda'); t[torch.tensor([99], device='cuda')].sum().item()"
    ),
    "an address beyond all memory": (
        "import torch\n"
        "source = 'extern \"C\" __global__ void beyond(int* p) { p[1LL << 44] = 1; }'\n"
        "kernel = torch.cuda._compile_kernel(source, 'beyond')\n"
        "kernel((1, 1, 1), (1, 1, 1), (torch.zeros(4, dtype=torch.int32, device='cuda'),))\n"
        "torch.cuda.synchronize()\n"
    ),
    "killed in a kernel": (
        "import os, signal, time, torch\n"
        "torch.ones(1, device='cuda'); torch.cuda._sleep(20 * 10**9)\n"
        "time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)\n"
    ),
}
