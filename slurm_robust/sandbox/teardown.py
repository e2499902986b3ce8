"""Ends a sandbox, whole or half started, and leaves nothing of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.sandbox import cgroups, procs
from slurm_robust.sandbox.config import SandboxConfig
from slurm_robust.sandbox.errors import NotASandbox, SandboxError
from slurm_robust.sandbox.folder import DEFAULT_ROOT, MADE, StateFolder
from slurm_robust.sandbox.procs import wait_until

DOWN_S = 15.0
EXEC_S = 1.0
"""Within this time the command line of a launcher shows what it is, although its ``up`` was killed."""
REAPED_S = 1.0
"""Time in which a machine whose PID 1 reaps has reaped all."""
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def take_down(name: str, *, is_ours: bool = False) -> tuple[int, ...]:
    """Kill every process of a sandbox, whole or half started, and remove its folder.

    Fine when there is none. ``is_ours``: the caller is the ``up`` that holds the folder. Returns what holds
    nothing any more, and only ends once the machine's PID 1 reaps a process that entered the sandbox. Raises
    :class:`NotASandbox` for a folder that ``up`` did not make, and :class:`SandboxError` when something of it
    does not die within 15 s.
    """
    folder = StateFolder(name)
    deadline = time.monotonic() + DOWN_S
    killed = _kill_all(folder, deadline)
    if not is_ours:
        # Until its exec, a launcher that a killed `up` has just forked looks like `up`, and holds the folder.
        wait_until(lambda: not is_held(folder.path), EXEC_S)
        killed += _kill_all(folder, deadline)
    if _has_cgroups(folder):
        cgroups.sweep()
    _remove(folder.path)
    _remove_root(folder.path.parent)
    wait_until(lambda: not any(map(procs.is_ending, killed)), REAPED_S)
    return tuple(filter(procs.is_ending, killed))


def is_held(path: Path) -> bool:
    """Return whether an ``up`` holds the folder at this moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _kill_all(folder: StateFolder, deadline: float) -> list[int]:
    """Return the inits that were killed."""
    killed: list[int] = []
    # Again until none is seen: a launcher may have forked PID 1 between the scan and the kill.
    while begun := procs.sandbox_processes(folder.path):
        _kill(begun, deadline, folder.name)
        killed += begun
    return killed


def _has_cgroups(folder: StateFolder) -> bool:
    try:
        return SandboxConfig.from_json(folder.config.read_text()).cgroups
    except (OSError, ValueError, TypeError, SandboxError):
        return False  # Not even its settings were written, or they are of another release.


def _kill(begun: tuple[int, ...], deadline: float, name: str) -> None:
    """Send SIGKILL to the inits; returns when they and all that the kernel kills with them are gone."""
    ours = procs.pid_namespace(os.getpid())
    doomed = set(begun)
    for init in begun:
        # The launcher of PID 1 is still in the machine's own namespace, whose members stay.
        if procs.pid_namespace(init) != ours:
            doomed |= set(procs.members(init))
    for pid in begun:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # The kernel was faster: another one's death took it along.
    left = procs.wait_gone(doomed, max(0.0, deadline - time.monotonic()))
    if left:
        raise SandboxError(
            f"processes {', '.join(map(str, left))} of sandbox {name!r} do not die",
            fix="look at them with ps; when they are gone, run down again",
        )


def _remove(path: Path) -> None:
    if not path.exists():
        return
    if not (path / MADE).exists():
        try:
            path.rmdir()  # An `up` may have died in its first moment.
        except OSError:
            raise NotASandbox(
                f"{path} was not made by a sandbox, so it is not removed",
                fix="take another --name, or another folder for sandboxes in SROBUST_SANDBOX_DIR",
            ) from None
        return
    # Daemons may still write their last log lines while the tree is being removed.
    if not wait_until(lambda: _rmtree(path), DOWN_S, poll_s=0.1):
        raise SandboxError(f"{path} cannot be removed", fix=f"see what holds it: ls -lR {path}")


def _remove_root(root: Path) -> None:
    """Remove the folder of all sandboxes after the last of them, if one of them made it."""
    mark = root / MADE
    if not mark.exists() and root != Path(DEFAULT_ROOT):
        return
    mark.unlink(missing_ok=True)
    try:
        root.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        mark.touch()  # Other sandboxes live there.


def _rmtree(path: Path) -> bool:
    # Another process may take down the same sandbox, so anything may vanish on the way.
    try:
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MADE:
                Path(entry).unlink(missing_ok=True)
        if os.listdir(path) != [MADE]:
            return False
    except FileNotFoundError:
        return not path.exists()
    shutil.rmtree(path, ignore_errors=True)  # Last, so that what is left half-way is still known as ours.
    return not path.exists()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and the like in the block: a second one must not stop the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread change handlers, and interrupts no other.
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
