"""Resets GPUs of this node, as a job of ``srobust admin repair``, and asks the driver whether that helped."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.record import Record
from slurm_robust.nodes.gpus.facts import NVIDIA, Gpu, GpuFacts
from slurm_robust.nodes.gpus.gather import gather_gpus
from slurm_robust.util.isolate import call
from slurm_robust.util.program import run_program
from slurm_robust.util.text import ascii_line

GATHER_S = 30.0


class Done(Record):
    """What came of it."""

    wrong: str = ""
    """Empty when every GPU answers and wants no recovery."""


Reset = Callable[[Gpu], str]
"""Resets one; what is wrong, else empty."""


def reset(labels: Sequence[str], look: Callable[[], GpuFacts], act: Reset) -> Done:
    """Reset these GPUs one after the other; the first that cannot be ends it."""
    before = {gpu.label: gpu for gpu in look().gpus}
    for label in labels:
        if (gpu := before.get(label)) is None:
            return Done(wrong=f"the driver does not list {label}")
        if gpu.vendor != NVIDIA or not gpu.bus:
            return Done(wrong=f"nvidia-smi cannot reset {label}")
        if wrong := act(gpu):
            return Done(wrong=f"{label}: {wrong}")
    after = {gpu.label: gpu for gpu in look().gpus}
    return Done(wrong="; ".join(filter(None, (_wrong(label, after.get(label)) for label in labels))))


def _wrong(label: str, gpu: Gpu | None) -> str:
    if gpu is None:
        return f"{label} has not come back"
    if gpu.trouble is not None:
        return f"{label} does not answer: {gpu.error}"
    if gpu.recovery not in (None, Recovery.NONE):
        return f"{label} still wants: {gpu.recovery.value}"
    return ""


def by_nvidia_smi(limit_s: float) -> Reset:
    """Run ``nvidia-smi --gpu-reset``, which refuses while a process holds the GPU. All take ``limit_s``."""
    deadline = time.monotonic() + limit_s

    def act(gpu: Gpu) -> str:
        command = ["nvidia-smi", "--gpu-reset", "-i", gpu.bus]
        left_s = deadline - time.monotonic()
        try:
            done = run_program(command, limit_s=max(0.1, left_s), max_bytes=2**12)
        except OSError as error:
            return f"nvidia-smi: {error.strerror}"
        if done.code is None:
            return f"nvidia-smi has not ended within {limit_s:g} s"
        return ascii_line((done.errors or done.output).decode(errors="replace"), 300) if done.code else ""

    return act


def looked(config: NodeConfig, host: Host) -> GpuFacts:
    """Return what the driver says, asked in a child that may hang. Raises ``RuntimeError``."""

    def task() -> bytes:
        return msgspec.msgpack.encode(gather_gpus(host, config))

    answer = call({"gpus": task}, {"gpus": GATHER_S}, GATHER_S)["gpus"]
    if answer.value is None:
        raise RuntimeError(f"the driver cannot be asked: {answer.error}")
    return msgspec.msgpack.decode(answer.value, type=GpuFacts)


def main() -> int:
    """Reset the GPUs that are named."""
    parser = argparse.ArgumentParser(
        prog="slurm_robust.admin.gpu_reset", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--config", type=Path, default=FILE)
    parser.add_argument("--limit", type=float, default=180.0)
    parser.add_argument("gpus", nargs="+")
    args = parser.parse_args()
    config = load(args.config)
    try:
        done = reset(args.gpus, lambda: looked(config, Host()), by_nvidia_smi(args.limit))
    except RuntimeError as error:
        done = Done(wrong=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
    return int(bool(done.wrong))


if __name__ == "__main__":
    sys.exit(main())
