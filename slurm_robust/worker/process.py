"""What the kernel must know of a worker process; Linux calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_COMM_LENGTH = 15

# Out of 1000. The kernel takes a worker before the agent, whose reports are needed to recover.
OOM_SCORE = 500


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; ends at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_title(rank: int) -> None:
    """Name this process in ``ps`` and ``top``: ``srobust-rank3``, shorter for very high ranks."""
    name = f"srobust-rank{rank}"
    if len(name) > _COMM_LENGTH:
        name = f"srobust-r{rank}"
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:_COMM_LENGTH]))


def prefer_for_oom() -> None:
    """Raise this process's ``oom_score_adj``; a score that is higher already is kept."""
    path = Path("/proc/self/oom_score_adj")
    try:
        if int(path.read_text()) < OOM_SCORE:
            path.write_text(str(OOM_SCORE))
    except OSError:
        pass  # a container without /proc: the worker is as good without


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
