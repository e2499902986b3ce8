"""Whether the program to run is there: asked on the batch host before the job starts, and on every node.

``python -m slurm_robust.worker.lookup MODULE`` searches for a module as ``python -m MODULE`` in the same
folder would, and ends with :data:`NOT_THERE` only if it surely is not there. It imports the packages around
the module, which must not happen in a process that workers are forked from.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import stat
import sys
from pathlib import Path

from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.util.program import run_program

NOT_THERE = 3
# Importing the packages around a module may import torch, from cold shared storage.
_MODULE_S = 60.0


class Missing(Record):
    """Something that is not there."""

    text: str  # what
    fix: str  # what to do about it
    folder: str = ""  # in which it should be; "" if it has none


def missing(kind: CommandKind, command: tuple[str, ...], cwd: str) -> Missing | None:
    """Return why this node cannot run ``command``; None if nothing speaks against it.

    Imports nothing, so of module ``a.b`` only ``a`` is searched for, in ``cwd`` and ``sys.path``.
    """
    name = command[0]
    if kind is CommandKind.MODULE:
        return None if _find(name.partition(".")[0], cwd) else _no_module(name, cwd)
    if kind is CommandKind.SCRIPT:
        return None if mode_of(Path(cwd, name)) != 0 else _not_found("script", Path(cwd, name))
    path = Path(cwd, name) if os.path.dirname(name) else None
    if shutil.which(path or name):
        return None
    if path is None:
        text = f"program not found: {name} is in no folder of PATH ({os.environ.get('PATH', '')})"
        return Missing(text=text, fix="give its path, or load its environment in the batch script")
    mode = mode_of(path)
    if mode is None:
        return None
    if stat.S_ISREG(mode):
        return Missing(text=f"program not executable: {path}", fix=f"chmod +x {path}")
    return _not_found("program", path)


def mode_of(path: Path) -> int | None:
    """Return kind and mode of a file: 0 if it surely is not there, None if storage gives no answer."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return None  # the workers' own error will say more


def missing_module(name: str, cwd: str) -> Missing | None:
    """Do as :func:`missing` for a module, with all packages around it; takes as long as importing these."""
    command = [sys.executable, "-m", __name__, name]
    try:
        done = run_program(command, cwd=cwd, limit_s=_MODULE_S, max_bytes=1)
    except OSError:
        return None  # the workers' own error will say more
    return _no_module(name, cwd) if done.code == NOT_THERE else None


def _not_found(what: str, path: Path) -> Missing:
    fix = "it must be there, at the same path, on all nodes"
    return Missing(text=f"{what} not found: {path}", fix=fix, folder=str(path.parent))


def _no_module(name: str, cwd: str) -> Missing:
    return Missing(
        text=f"module not found: {name} (searched in {cwd} and in the path of {sys.executable})",
        fix="submit from the folder that holds it, set PYTHONPATH in the batch script, or install it",
        folder=cwd,
    )


def _find(name: str, cwd: str) -> bool:
    found = importlib.machinery.PathFinder.find_spec(name, [cwd, *sys.path])
    return found is not None or importlib.util.find_spec(name) is not None


def main() -> int:
    """Return 0 if the module can be run, or if only running it can show that; 3 if it is not there."""
    name = sys.argv[1]
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")  # what runs of a package
    except ModuleNotFoundError as error:
        return NOT_THERE if error.name and f"{name}.".startswith(f"{error.name}.") else 0
    except BaseException:  # noqa: BLE001 - whatever a package does when it is imported, also sys.exit()
        return 0
    return 0 if found is not None else NOT_THERE


if __name__ == "__main__":
    sys.exit(main())
