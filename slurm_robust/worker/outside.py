"""Code that a script reads from its place although it runs from a release: an update would not change it.

nanoGPT's ``exec(open('configurator.py').read())`` finds the file by the working directory, the user's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from slurm_robust.model.record import UNREADABLE
from slurm_robust.releases.names import is_code
from slurm_robust.worker.copied import CopiedCode

MAX_FILES = 20
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_names = msgspec.json.Decoder(tuple[str, ...])


class OutsideReads:
    """Notes until :meth:`leave` which files of the release are read, but not from there."""

    def __init__(self, copy: CopiedCode, path: str) -> None:
        """``path``: the file for their names."""
        self._copy, self._path = copy, Path(path)
        self._found: dict[str, None] = {}
        self._over = False

    def begin(self) -> None:
        """Begin, in this process."""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._over or event != "open" or not isinstance(args[0], str):
            return
        name, flags = args[0], args[2]
        if not is_code(os.path.basename(name)) or (isinstance(flags, int) and flags & _CHANGES):
            return
        with contextlib.suppress(OSError, ValueError):  # nothing here may end a script
            place = os.path.abspath(name)
            copy = None if self._copy.has(place) else self._copy.copy_of(place)
            if copy is not None and os.path.isfile(copy) and self._copy.has(os.path.realpath(copy)):
                self._found[name] = None
                self._over = len(self._found) == MAX_FILES

    def leave(self) -> None:
        """Leave the names for the agent; nothing is noted any more. Raises nothing."""
        self._over = True
        with contextlib.suppress(Exception):
            beside = self._path.with_suffix(".new")
            beside.write_bytes(msgspec.json.encode(tuple(self._found)))
            beside.rename(self._path)


def read_outside(path: Path) -> tuple[str, ...] | None:
    """Return what a worker has left there; None if nothing is yet. Whatever else it is counts as nothing."""
    try:
        return _names.decode(path.read_bytes())[:MAX_FILES]
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE):
        return ()
