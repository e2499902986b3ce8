"""The journal's storage with faults on command: calls that fail, that hang, writes that end short."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from slurm_robust.controller.journal import FileSystem


class FaultyDisk(FileSystem):
    """A real folder that refuses, or does not answer, between :meth:`fail` or :meth:`hang` and :meth:`heal`.

    A full file system still takes a part of a write, and so does this one: ``room`` bytes. Reading works.
    """

    def __init__(self) -> None:
        self._error: int | None = None
        self._room = 0
        self._only = ""
        self._hangs = threading.Event()
        self._healed = threading.Event()
        self._healed.set()
        self.calls: list[str] = []
        """Names of the calls so far, also of failed ones."""

    def fail(self, number: int, *, room: int = 0, only: str = "") -> None:
        """Let calls that change something fail with errno ``number``; ``only``: just this call."""
        self._error, self._room, self._only = number, room, only

    def hang(self) -> None:
        """Let calls that change something hang."""
        self._hangs.clear()
        self._healed.clear()

    def heal(self) -> None:
        """Heal: all is well again, and what hung is done."""
        self._error = None
        self._healed.set()

    def wait_hanging(self, timeout_s: float) -> bool:
        """Return whether some call hangs, within ``timeout_s``."""
        return self._hangs.wait(timeout_s)

    def open(self, path: Path, flags: int) -> int:
        """Open as the file system does, if it does."""
        self._meet("open")
        return super().open(path, flags)

    def write(self, fd: int, data: bytes) -> int:
        """Write as the file system does, if it does; at first as much as there is room for."""
        if self._error is not None and self._room and self._only in ("", "write"):
            done = super().write(fd, data[: self._room])
            self._room -= done
            return done
        self._meet("write")
        return super().write(fd, data)

    def cut(self, fd: int, size: int) -> None:
        """Cut as the file system does, if it does."""
        self._meet("cut")
        super().cut(fd, size)

    def sync(self, fd: int) -> None:
        """Sync as the file system does, if it does."""
        self._meet("sync")
        super().sync(fd)

    def close(self, fd: int) -> None:
        """Close as the file system does: the descriptor is gone even if it reports an error."""
        super().close(fd)
        self._meet("close")

    def _meet(self, call: str) -> None:
        self.calls.append(call)
        if not self._healed.is_set():
            self._hangs.set()
            self._healed.wait()
        if self._error is not None and self._only in ("", call):
            raise OSError(self._error, os.strerror(self._error))
