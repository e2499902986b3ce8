"""A worker in an interpreter of its own: ``python -m slurm_robust.worker.fresh DESCRIPTOR AGENT [LISTENER]``.

It is used if the zygote has started the GPU's driver, which its forks could not use. A fork of the zygote,
which is the worker's process in all else, executes this. Importing torch again takes seconds.
"""

from __future__ import annotations

import os
import sys

from slurm_robust.util import process
from slurm_robust.worker import bootstrap, dump, spawning
from slurm_robust.worker.spawning import Prepare, Spawn, WorkerSpec
from slurm_robust.worker.zygote import prepare


def main() -> None:
    """Run the script of the order in the memory file ``DESCRIPTOR``; never returns."""
    descriptor, agent, *listener = map(int, sys.argv[1:])
    with open(descriptor, "rb") as file:
        file.seek(0)
        spawn = spawning.decode_to_zygote(file.read())
    assert isinstance(spawn, Spawn)
    code = 1
    try:
        code = _run(spawn, spawn.workers[0], agent, *listener)
    finally:
        os._exit(code)


def _run(spawn: Spawn, worker: WorkerSpec, agent: int, listener: int | None = None) -> int:
    if listener is not None:
        os.set_inheritable(listener, False)
    process.set_title(worker.rank)
    dump.allow_tracing(agent)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    order = Prepare(
        command_kind=spawn.command_kind,
        command=spawn.command,
        cwd=spawn.cwd,
        nproc_per_node=1,
        code=spawn.code,
    )
    try:
        prepare(order)
    except BaseException as error:  # noqa: BLE001 - nothing that ends a worker goes unreported
        bootstrap.leave_error(error, spawn, worker)
        return 1
    return bootstrap.run(spawn, worker, listener)


if __name__ == "__main__":
    # By the module's own name: this copy of it gives way to the user's __main__.
    from slurm_robust.worker import fresh

    fresh.main()
