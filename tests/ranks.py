"""Ranks as forks of one process with PyTorch imported, which takes longer than most trainings of tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Frameworks, and what scripts, agents and zygotes import of ours. Not what is run as a program itself.
_IMPORTED = [
    "torchdata.stateful_dataloader",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.trainer",
    "lightning.pytorch",
    "torch._dynamo",
    "deepspeed",
    "megatron.core.optimizer",
    "slurm_robust.worker.api",
    "slurm_robust.worker.runs",
    "slurm_robust.agent.loop",
    "torch.utils.serialization",
]


def processes() -> Any:
    """What starts processes that have imported all that, as far as it is installed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def run_ranks(
    main: Callable[[], None],
    *arguments: str | Path,
    environs: Sequence[Mapping[str, str]],
    limit_s: float = 200.0,
) -> None:
    """Run ``main`` with these arguments once for each of ``environs``, side by side; all must end well.

    Each is the environment of a rank, over that of the tests.
    """
    around = {name: value for name, value in os.environ.items() if name not in surroundings()}
    argv = (main.__module__, *map(str, arguments))
    ranks = [
        processes().Process(target=_run, args=(main, argv, {**around, "CUDA_VISIBLE_DEVICES": "", **environ}))
        for environ in environs
    ]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(limit_s)
        assert [rank.exitcode for rank in ranks] == [0] * len(ranks)
    finally:
        end(ranks)


def _run(main: Callable[[], None], argv: Sequence[str], environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = argv
    main()


def end(ranks: Sequence[Any]) -> None:
    """Kill those that still run."""
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join(60.0)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def surroundings() -> list[str]:
    """Variables of a job or launcher around the tests, which a script must not see."""
    known = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return [name for name in os.environ if name.startswith(("SROBUST_", "SLURM_")) or name in known]
