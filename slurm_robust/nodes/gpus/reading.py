"""Reads the GPUs of all vendors together, and says so if their driver does not answer."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.gpus import amd, nvidia, nvml
from slurm_robust.nodes.gpus.facts import GpuFacts, GpuUse
from slurm_robust.nodes.gpus.leftovers import is_held

PATIENCE_S = 3.0
"""A driver that is awake answers within milliseconds; waking a GPU takes one or two seconds."""

STUCK_S = 1.0
"""A single call that takes so long is stuck; many short ones are a node that is busy."""

SETTLE_S = 2.0
"""How long a run waits for what a process held that has just ended; the epilog checks again, for longer."""

_POLL_S = 0.1


def read_gpus(host: Host) -> GpuFacts:
    """Return facts of all GPUs. Raises what goes wrong in reading them."""
    # Before the clock runs, as the readers above: a module or a library that comes late is no silence of
    # the driver.
    if host.is_real:
        try:
            nvml.load()
        except (OSError, ImportError):
            pass  # The reader says what that means.
    answers: list[GpuFacts | BaseException] = []

    def read() -> None:
        try:
            answers.append(_read(host))
        except BaseException as error:  # noqa: BLE001  # raised again below, in the thread that waits
            answers.append(error)

    begun = time.monotonic()
    # A thread, so that silence is a fact with a name and a duration, judged by what is known of this node.
    # A thread that is stuck in the kernel is abandoned together with this process.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(PATIENCE_S - STUCK_S)
    call = _frame(thread.ident)
    thread.join(STUCK_S)
    took_s = round(time.monotonic() - begun, 4)
    if not answers:
        if call is None or call is not _frame(thread.ident):
            raise RuntimeError(f"the node is too busy to read its GPUs in {took_s:.1f} s")
        return GpuFacts(stuck_in=call.f_code.co_name, took_s=took_s)
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return msgspec.structs.replace(answers[0], took_s=took_s, uptime_s=_uptime(host))


def _uptime(host: Host) -> float | None:
    try:
        return host.uptime_s()
    except (OSError, ValueError, IndexError):
        return None


def _frame(thread: int | None) -> FrameType | None:
    """Return the function call that the thread is in."""
    return sys._current_frames().get(thread or 0)


def _read(host: Host) -> GpuFacts:
    green = nvidia.read_gpus(host)
    red = amd.read_gpus(host, first=len(green.gpus))
    return msgspec.structs.replace(green, gpus=green.gpus + red.gpus, driver=green.driver or red.driver)


def read_use(host: Host, config: NodeConfig) -> GpuUse:
    """Use of all GPUs. Waits up to 2 s for memory that no living process holds: it is about to be freed."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        green = nvidia.read_use(host)
        use = GpuUse(gpus=green + amd.read_use(host, first=len(green)))
        if time.monotonic() >= deadline or not any(is_held(gpu, config) for gpu in use.gpus):
            return use
        time.sleep(_POLL_S)
