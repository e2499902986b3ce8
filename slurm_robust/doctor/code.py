"""Whether a copy of the code of a batch script's job can be taken, as ``srobust run`` takes it."""

from __future__ import annotations

import os

from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.releases.roots import code_folders, without_nested
from slurm_robust.releases.select import Budget, CannotTakeCode, CopyLimits, select

LOOK_S = 5.0


class ScriptCommand(Record):
    """What ``srobust run`` in a batch script runs."""

    kind: CommandKind
    command: tuple[str, ...]
    cwd: str = ""
    """The folder that it is run in, relative to that of the job."""


def missing(of: ScriptCommand, folder: str) -> str:
    """Return the path of the script that is run if there is no such file, "" if there is."""
    path = os.path.join(folder, of.cwd, of.command[0])
    return path if of.kind is CommandKind.SCRIPT and not os.path.exists(path) else ""


def uncopied(of: ScriptCommand, folder: str, config: JobConfig) -> str | None:
    """Return why no copy can be taken, "" if one can; None if that does not show here, or not soon.

    ``folder``: the working directory of the job.
    """
    cwd, code = os.path.join(folder, of.cwd), config.code
    if of.kind is CommandKind.SCRIPT and not os.path.isfile(os.path.join(cwd, of.command[0])):
        return None
    limits = structs.replace(CopyLimits.of(code), take_s=LOOK_S)
    budget = Budget(limits)
    never = [os.path.realpath(os.path.join(cwd, place)) for place in config.checkpoint.places.values()]
    try:
        for root in without_nested(code_folders(of.kind, of.command, cwd, code.paths)):
            select(root, budget, never)
    except CannotTakeCode as error:
        return None if budget.left_s() < 0 else str(error)
    except OSError:
        return None
    return ""
