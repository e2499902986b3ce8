"""A few steps of the job's script with nothing that counts: what a replay and a rehearsal have in common."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from slurm_robust.model.job import CommandKind
from slurm_robust.worker import script
from slurm_robust.worker.copied import CopiedCode


def enter(
    kind: CommandKind, command: tuple[str, ...], cwd: str, code: CopiedCode | None = None
) -> tuple[str, ...]:
    """Enter the folder in which ``command`` runs, and have Python find modules as for it.

    ``cwd``: the user's. Returns the command, in the copy of the ``code`` if there is one.
    """
    os.chdir(cwd if code is None else code.workdir_of(cwd))
    return script.search_for(kind, command, cwd, code)


def leave(what: str) -> NoReturn:
    """End ``what`` with code 0, but not before the others are as far: they may still need this rank.

    In the middle of the script and without its exit handlers: there is nothing that it should still write.
    """
    dist: Any = sys.modules.get("torch.distributed")
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.barrier()
    except Exception as error:  # noqa: BLE001 - all is done, so the way out does not matter
        print(f"slurm_robust: {what}: left without the others: {error}", file=sys.stderr)
    end(0)


def end(code: int) -> NoReturn:
    """End this process now, with what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # a full disk, or closed by the script
    os._exit(code)
