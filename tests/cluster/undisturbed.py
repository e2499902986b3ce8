"""The final weights of a training that nothing disturbed, without a job: local ranks are enough for them."""

from __future__ import annotations

import functools
import os
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

from tests.cluster.protected_job import SCRIPTS
from tests.ranks import free_port, run_ranks


@functools.cache
def undisturbed(ranks: int, words: str, *, nproc_per_node: int = 1) -> str:
    """What ``words``, a script of ``scripts/`` with its arguments, writes to OUT when ``ranks`` run it."""
    script, *arguments = shlex.split(words)
    with tempfile.TemporaryDirectory(prefix="srobust-undisturbed-") as folder:
        out = Path(folder, "out")
        port = str(free_port())
        environs = [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank % nproc_per_node),
                "LOCAL_WORLD_SIZE": str(nproc_per_node),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            for rank in range(ranks)
        ]
        given = [str(out) if word == "OUT" else word for word in arguments]
        run_ranks(run_script, folder, SCRIPTS / script, *given, environs=environs)
        return out.read_text()


def run_script() -> None:
    """Run the script of the arguments in the folder before it, with one thread per operation as jobs do."""
    import torch

    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    del sys.argv[:2]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
