"""Storage of its own that all nodes share, and its faults: a network that is cut, no room left.

What hangs and is healed is a folder behind bindfs, what can be full is a small file system.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, find_process
from tests.waiting import wait_for

HOME = f"/home/{USER}"
_BINDFS = ("bindfs", "-f", "-o", "nonempty,big_writes,allow_other")


class SharedStorage:
    """Each node reaches the home by a server of its own; one that is stopped is a network that is cut."""

    def __init__(self, sandbox: Sandbox, folder: str) -> None:
        nodes = sandbox.config.node_names
        self._servers = [find_process(sandbox, node, *_words(folder)) for node in nodes]

    def cut(self) -> None:
        """Whoever touches the storage from now on hangs, on all nodes."""
        self._signal(signal.SIGSTOP)

    def heal(self) -> None:
        """What hung goes on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._servers:
            os.kill(pid, number)


@contextmanager
def shared_storage(sandbox: Sandbox, folder: str = HOME) -> Iterator[SharedStorage]:
    """The storage of all compute nodes; whole again afterwards, and jobs that are left have lost it."""
    nodes = sandbox.config.node_names
    mounts: list[subprocess.Popen[str]] = []
    try:
        for node in nodes:
            mounts.append(sandbox.popen(_words(folder), node=node, user="root"))
        for node in nodes:
            wait_for(partial(_is_mounted, sandbox, node, folder), 20, f"no storage on {node}")
        yield SharedStorage(sandbox, folder)
    finally:
        for mount in mounts:
            mount.kill()
            mount.communicate()
        for node in nodes:
            sandbox.exec(["umount", "--lazy", folder], node=node, user="root", check=False)


@contextmanager
def shared_disk(sandbox: Sandbox, folder: str, mb: int) -> Iterator[Path]:
    """A file system of ``mb`` MiB at ``folder`` of all nodes, the user's; its path on this machine."""
    here = sandbox.home(USER) / PurePosixPath(folder).relative_to(HOME)
    here.mkdir(exist_ok=True)
    os.chown(here, sandbox.config.uid(USER), -1)  # jobs use it when the file system is gone
    image = sandbox.folder.path / "disk"
    with image.open("wb") as file:
        file.truncate(mb << 20)
    _run("mkfs.ext4", "-q", "-m", "0", image)
    device = _run("losetup", "--find", "--show", image)
    try:
        # Mounted in many places, a device is still one file system.
        _run("mount", device, here)
        os.chown(here, sandbox.config.uid(USER), -1)
        for node in sandbox.config.node_names:
            sandbox.exec(["mount", device, folder], node=node, user="root")
        yield here
    finally:
        for node in sandbox.config.node_names:
            sandbox.exec(["umount", "--lazy", folder], node=node, user="root", check=False)
        subprocess.run(["umount", "--lazy", here], check=False)
        _run("losetup", "--detach", device)  # when the last process has left it
        image.unlink()


def fill(path: Path) -> None:
    """Leave no room: none that ext4 gives back when it has written what it held in memory, either."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10):
            try:
                while True:
                    file.write(bytes(size))
                    os.fsync(file.fileno())
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _run(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def _words(folder: str) -> tuple[str, ...]:
    return (*_BINDFS, folder, folder)


def _is_mounted(sandbox: Sandbox, node: str, folder: str) -> bool:
    done = sandbox.exec(["cat", "/proc/mounts"], node=node, user="root")
    return f" {folder} fuse" in done.stdout
