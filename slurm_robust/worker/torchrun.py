"""What torchrun sets for a rank, and what all workers of a node inherit."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib import metadata

from slurm_robust.util.text import version_numbers

RECORDER_ENTRIES = "2000"
"""Operations that the flight recorder keeps: more than the 1,000 or so that a host gets ahead of its GPU."""

_BUFFER, _OLD_BUFFER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
# The first release of torch that knows the new name; it warns of the old one.
_KNOWS_BUFFER = (2, 9)


def prepare_inherited(environ: MutableMapping[str, str], torch: tuple[int, ...] | None = None) -> None:
    """Change this process's environment into what all workers should inherit; what the user has set stays.

    ``torch`` is its release, None if that is not known.
    """
    # Left over from a torchrun around us; with it rank 0 would wait for a store that no process serves.
    environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # The agent's own process: a worker has another one.
    environ.pop("SLURM_TASK_PID", None)
    # Distinguishes "started" from "scheduled", so that a GPU that hangs is seen although its host ran ahead.
    environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    if _BUFFER not in environ and _OLD_BUFFER not in environ:
        environ[_BUFFER] = RECORDER_ENTRIES
        if torch is None or torch < _KNOWS_BUFFER:
            environ[_OLD_BUFFER] = RECORDER_ENTRIES


def torch_release() -> tuple[int, ...] | None:
    """Return the release of torch that this Python would import, as (2, 13), without importing it."""
    try:
        return version_numbers(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return None


def torchrun(
    rank: int, local: int, nproc: int, *, slot: int, slots: int, world_size: int, address: str, port: int
) -> dict[str, str]:
    """Return what torchrun sets for a rank, the ``local``-th of ``nproc`` on the node of ``slot``."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(slot),
        "GROUP_WORLD_SIZE": str(slots),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
