"""A function run by several ranks (gloo, real processes) that talk with each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import end, processes, surroundings


def on_ranks(
    count: int,
    folder: Path,
    program: Callable[..., Any],
    *given: Any,
    environs: Sequence[Mapping[str, str]] = (),
) -> list[Any]:
    """What ``program(*given)`` returned on each rank, in order; it runs in ``folder``.

    ``environs``: variables for each rank, over those of a launcher.
    """
    folder.mkdir(exist_ok=True)
    pipes, ranks = [], []
    for rank in range(count):
        ours, theirs = processes().Pipe(duplex=False)
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            **(environs[rank] if environs else {}),
        }
        ranks.append(processes().Process(target=_run, args=(theirs, folder, environ, program, given)))
        ranks[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        results = [pipe.recv() if pipe.poll(200.0) else "no answer within 200 s" for pipe in pipes]
    except EOFError:
        results = ["a rank ended early; see its output above"]
    finally:
        end(ranks)
    failed = [str(result) for result in results if not (isinstance(result, tuple) and len(result) == 1)]
    assert not failed, failed[0]
    return [result[0] for result in results]


def _run(answer: Any, folder: Path, environ: dict[str, str], program: Callable[..., Any], given: Any) -> None:
    for name in surroundings():
        del os.environ[name]
    os.environ.update(environ, CUDA_VISIBLE_DEVICES="")
    os.chdir(folder)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    store = dist.FileStore(str(folder / "group"), int(environ["WORLD_SIZE"]))
    dist.init_process_group(
        "gloo", store=store, rank=int(environ["RANK"]), world_size=int(environ["WORLD_SIZE"])
    )
    answer.send((program(*given),))
    dist.barrier()  # nobody ends while another one still talks to it
    os._exit(0)
