"""``python -m slurm_robust.checkpoint.flush``: writes snapshots from a node's memory to shared storage.

A process of its own beside an agent, because it needs torch and because storage may hang: no process waits
for it. It reads one :class:`~slurm_robust.checkpoint.flush_order.FlushOrder` per line of its standard input,
as JSON, answers each with a ``FlushAnswer`` in one line on its standard output, and ends when its input does.

This module imports no torch: before that a writer becomes nice, and keeps its answers' channel from what
libraries print. Then it imports :mod:`slurm_robust.checkpoint.storage_writer`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import IO, NoReturn

# Training on the same cores goes first.
NICENESS = 10


def main() -> int:
    """Carry out orders until the input ends."""
    os.nice(NICENESS)
    # The answers keep this channel for themselves, whatever a library prints.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with suppress(BrokenPipeError):  # the agent that gave the orders is gone
        _serve(sys.stdin.buffer, answers)
    return 0


def serve_on(descriptor: int) -> NoReturn:
    """Be a writer in a fork of a process that has imported torch; ``descriptor``: of a stream socket.

    The first line of its answers is its process id.
    """
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.nice(NICENESS)
        with suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone
            answers = os.fdopen(os.dup(descriptor), "wb", buffering=0)
            answers.write(b"%d\n" % os.getpid())
            _serve(os.fdopen(descriptor, "rb"), answers)
        code = 0
    finally:  # no other code of the zygote may run in its fork
        if code:
            traceback.print_exc()
        os._exit(code)


def _serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    from slurm_robust.checkpoint import storage_writer  # imports torch

    storage_writer.serve(orders, answers)


if __name__ == "__main__":
    sys.exit(main())
