"""Runs a script or module in this process as ``python script.py`` or ``python -m module`` would.

``__main__`` is a fresh module of its own, so classes defined in the script can be pickled, and
``multiprocessing`` finds the script again when it spawns new interpreters.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from slurm_robust.model.job import CommandKind
from slurm_robust.worker.copied import CopiedCode, search_in

# Frames of these files stand before the user's in a traceback.
RUNNER_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>"})


def first_path_entry(kind: CommandKind, command: tuple[str, ...], cwd: str) -> str | None:
    """Return what Python puts first into ``sys.path`` for this command; None if it adds nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if kind is CommandKind.MODULE:
        return cwd
    script = os.path.join(cwd, command[0])
    return script if _holds_main(script) else os.path.dirname(os.path.realpath(script))


def search_for(
    kind: CommandKind, command: tuple[str, ...], cwd: str, code: CopiedCode | None
) -> tuple[str, ...]:
    """Have this process find modules as for ``command`` in ``cwd``, the user's own in the copy of ``code``.

    Returns the command with the script in the copy. For another code it may be called again.
    """
    if code is not None:
        command = code.command(kind, command, cwd)
    entry = first_path_entry(kind, command, cwd)
    if entry is not None:
        sys.path[0] = entry
    search_in(code, cwd)
    return command


def run(kind: CommandKind, command: tuple[str, ...]) -> None:
    """Run ``command``; returns when its last line was run. Raises what it raises.

    ``command`` begins with the script's path or the module's name; ``sys.path`` is not touched
    except for a folder or zip file with a ``__main__.py``.
    """
    importlib.invalidate_caches()
    sys.argv = list(command)
    options = [] if kind is CommandKind.SCRIPT else ["-m"]
    sys.orig_argv = [sys.executable, *options, *command]
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins)
    if sys.version_info < (3, 14):  # later ones make it when there is an annotation
        main.__dict__.update(__annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        # multiprocessing's name for it in spawned processes, kept when it was first imported.
        sys.modules["__mp_main__"] = main
    if kind is CommandKind.MODULE:
        _run_as_main(command[0], alter_argv=True)
    elif _holds_main(command[0]):
        _run_as_main("__main__", alter_argv=False)
    else:
        _run_file(command[0], main)


def _run_file(path: str, main: ModuleType) -> None:
    # Joined but not made canonical: './train.py' keeps its dot in __file__ and in tracebacks.
    path = os.path.join(os.getcwd(), path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    # What the interpreter itself calls for -m; runpy's public functions would take __main__ away
    # again before the exit handlers run.
    run_as_main = runpy._run_module_as_main  # type: ignore[attr-defined]
    run_as_main(name, alter_argv)


def _holds_main(path: str) -> bool:
    """Return whether ``path`` is a folder or zip file, which Python runs by the ``__main__.py`` in it."""
    return os.path.isdir(path) or (os.path.exists(path) and pkgutil.get_importer(path) is not None)
