"""Modules that a script has imported until its first step, and the zygote had not.

Standbys, and later starts on all nodes, can then begin with them. Only installed modules count, and only if
they were imported before the script changed its environment variables: it may have changed them for a later
import, which in a zygote would come before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

import msgspec

from slurm_robust.util.modules import clean_names, is_installed, is_installed_file

# Their import joins the job's own steps, or starts a server.
_NEVER = frozenset({"mpi4py", "ray", "horovod"})


class ImportRecorder:
    """A finder that finds nothing; it is in ``sys.meta_path`` until :meth:`leave`."""

    def __init__(self, path: str, own: str = "") -> None:
        """``path``: the file for the names. ``own``: the top-level package of the user's program."""
        self._path = Path(path)
        self._never = _NEVER | {own}
        self._environ = _environment()
        self._is_untouched = True
        self._names: list[str] = []

    def begin(self) -> None:
        """Begin, in this process."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Note that ``name`` is imported."""
        try:
            self._note(name)
        except Exception:  # noqa: BLE001 - nothing here may end weeks of training
            self._is_untouched = False

    def _note(self, name: str) -> None:
        if not self._is_untouched:
            return
        # What a package changes while it is imported, it changes in a zygote, too.
        if not _is_within_package(sys._getframe(2)):
            self._is_untouched = _environment() == self._environ
        else:
            self._environ = _environment()
        if self._is_untouched:
            self._names.append(name)

    def leave(self) -> None:
        """Leave the names for the agent; nothing is noted any more. Raises nothing."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        with contextlib.suppress(Exception):
            beside = self._path.with_suffix(".new")
            beside.write_bytes(msgspec.json.encode(self.names()))
            beside.rename(self._path)

    def names(self) -> tuple[str, ...]:
        """Return what was imported and is fit to be imported earlier."""
        loaded = ((name, sys.modules.get(name)) for name in self._names)
        return clean_names(
            name
            for name, module in loaded
            if name.partition(".")[0] not in self._never and is_installed(getattr(module, "__spec__", None))
        )


def _environment() -> dict[object, object]:
    """Return the environment as it is kept: to decode it for each import would take a while."""
    return dict(vars(os.environ).get("_data", os.environ))


def _is_within_package(frame: FrameType | None) -> bool:
    """Return whether the body of an installed module is being executed in ``frame`` or above."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and is_installed_file(code.co_filename):
            return frame.f_globals.get("__name__") != "__main__"
        frame = frame.f_back
    return False


def read_names(path: Path) -> tuple[str, ...] | None:
    """Return what a worker has left there; None if nothing is yet. Whatever else it is counts as nothing."""
    try:
        with path.open("rb") as file:
            content = file.read(1 << 16)
    except FileNotFoundError:
        return None
    except OSError:
        return ()
    try:
        return clean_names(msgspec.json.decode(content, type=tuple[str, ...]))
    except (ValueError, RecursionError):
        return ()
