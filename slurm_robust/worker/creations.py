"""What a script creates below its release's copy gets to the place where it would be without one.

``Path(__file__).parent / "out"`` is a path in the copy, which is in this node's memory and goes with the
release. So a new file or folder is a link there, to a new one in its real place, and what another node has
made in that place can be seen. This holds for Python's own ``open``, the functions of ``os`` that name a
file, ``shutil.rmtree`` and ``torch.save``. What libraries in C create otherwise, the agent moves to its place
later (``agent/code.py``).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any

from slurm_robust.worker.copied import CopiedCode, content_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Code that is newer than the release is none of its.
_NEVER_NEW = (".py", ".pyc")
# They fail if nothing is there.
_LOOKING = ("stat", "lstat", "listdir", "scandir", "access", "chdir")


class Creations:
    """Directs what is created below ``copy``. Raises nothing that would not be raised in the real place."""

    def __init__(self, copy: CopiedCode) -> None:
        self._copy = copy
        self._within = f"{copy.place}/"
        self._lstat, self._unlink, self._replace = os.lstat, os.unlink, os.replace
        self._released: dict[bytes, tuple[int, int]] | None = None  # read when it is needed
        self._leads_torch = False

    def begin(self) -> None:
        """Begin, in this process and its forks."""
        for name in _LOOKING:
            _patch(name, self._looking(getattr(os, name)))
        _patch("mkdir", self._making(os.mkdir))
        for name in ("rename", "replace"):
            _patch(name, self._moving(getattr(os, name)))
        for name in ("unlink", "remove", "rmdir"):
            _patch(name, self._removing(getattr(os, name)))
        setattr(shutil, "rmtree", self._removing(shutil.rmtree))  # noqa: B010 - it has a type of its own
        self._lead_torch()
        sys.addaudithook(self._audit)

    def _lead_torch(self) -> None:
        """Direct ``torch.save``, once torch is imported so far that there is one."""
        torch: Any = sys.modules.get("torch")
        if (save := getattr(torch, "save", None)) is not None:
            self._leads_torch = True
            torch.save = sys.modules["torch.serialization"].save = self._saving(save)  # type: ignore[attr-defined]

    # -- what is called ----------------------------------------------------------------------------

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if not self._leads_torch:
                self._lead_torch()
            path, _, flags = args
            self._before_opening(path, flags if isinstance(flags, int) else 0)
        elif event == "sqlite3.connect":
            self._before_opening(args[0], os.O_RDWR | os.O_CREAT)

    def _before_opening(self, path: Any, flags: int) -> None:
        inside = self._inside(path)
        if inside is None:
            return
        with contextlib.suppress(OSError):  # then the copy shows what it is
            if flags & os.O_EXCL and self._leads_nowhere(inside):
                self._unlink(inside)  # else it would be in the way
            if self._mode(inside) is None:
                if flags & os.O_CREAT or not inside.endswith(_NEVER_NEW):
                    self._reveal(inside)
                if flags & os.O_CREAT and not flags & os.O_EXCL and self._mode(inside) is None:
                    self._lead_to_origin(inside)
            elif flags & _WRITES and self._is_released(inside):
                # A file of the release: what is written belongs to the one that it was copied from.
                self._lead_to_origin(inside)

    def _looking(self, look: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(look)
        def looks(*args: Any, **kwargs: Any) -> Any:
            try:
                found = look(*args, **kwargs)
            except FileNotFoundError:
                if not self._reveals(args, kwargs):
                    raise
            else:
                if found is not False or not self._reveals(args, kwargs):
                    return found
            return look(*args, **kwargs)

        return looks

    def _reveals(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether something is there now."""
        inside = self._inside(args[0]) if args and kwargs.get("dir_fd") is None else None
        if inside is None or inside.endswith(_NEVER_NEW):
            return False
        with contextlib.suppress(OSError):
            self._reveal(inside)
        return self._mode(inside) is not None

    def _making(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(mkdir)
        def makes(path: Any, *args: Any, **kwargs: Any) -> None:
            inside = self._inside(path) if kwargs.get("dir_fd") is None else None
            origin = self._copy.origin_of(inside) if inside is not None else None
            if inside is None or origin is None or self._is_there(inside):
                mkdir(path, *args, **kwargs)
                return
            try:
                mkdir(origin, *args, **kwargs)
            except FileExistsError:
                self._link(inside, origin)  # another process was first
                raise
            self._link(inside, origin)

        return makes

    def _moving(self, move: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(move)
        def moves(source: Any, target: Any, **kwargs: Any) -> None:
            plain = kwargs.get("src_dir_fd") is None and kwargs.get("dst_dir_fd") is None
            old, new = (self._inside(source), self._inside(target)) if plain else (None, None)
            if old is None and new is None:
                move(source, target, **kwargs)
                return
            if old is not None:
                self._is_there(old)  # else it is revealed
            origin = self._copy.origin_of(new) if new is not None else None
            real = self._led_from(old) or source
            try:
                move(real, origin or target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._carry(os.fspath(real), os.fspath(origin or target))
            if old is not None and real is not source:
                self._unlink(old)
            if new is not None and origin is not None:
                self._link(new, origin)

        return moves

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        """What the release has, too: without a copy its file would be removed."""

        @functools.wraps(remove)
        def removes(path: Any, *args: Any, **kwargs: Any) -> None:
            inside = self._inside(path) if kwargs.get("dir_fd") is None else None
            origin = self._copy.origin_of(inside) if inside is not None and self._is_there(inside) else None
            if inside is None or origin is None:
                remove(path, *args, **kwargs)
                return
            mode = self._mode(inside)
            if mode is not None and stat.S_ISLNK(mode) and os.readlink(inside) == origin:
                remove(origin, *args, **kwargs)
                self._unlink(inside)
                return
            remove(path, *args, **kwargs)
            with contextlib.suppress(OSError):
                remove(origin, *args, **kwargs)

        return removes

    def _saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def saves(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):  # torch opens it in C++
                self._before_opening(f, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            return save(obj, f, *args, **kwargs)

        return saves

    # -- the copy ----------------------------------------------------------------------------------

    def _inside(self, path: Any) -> str | None:
        """Return a path below the copy, whose folder is one of the copy and no link out of it; else None."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name = os.fsdecode(path)
        if not name.startswith("/"):
            try:
                folder = os.getcwd()
            except OSError:
                return None
            if not f"{folder}/".startswith(self._within):
                return None
            name = f"{folder}/{name}"
        elif not name.startswith(self._within):
            return None
        *folders, last = os.path.normpath(name).removeprefix(self._within).split("/")
        path = self._copy.place
        for part in folders:
            path = f"{path}/{part}"
            if (mode := self._mode(path)) is not None and stat.S_ISLNK(mode):
                path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
                if not path.startswith(self._within):
                    return None
        inside = f"{path}/{last}"
        return inside if self._copy.origin_of(inside) is not None else None

    def _mode(self, path: str) -> int | None:
        try:
            return self._lstat(path).st_mode
        except OSError:
            return None

    def _is_released(self, inside: str) -> bool:
        """Return whether it is a file as it was unpacked, and not what a library in C has written."""
        if self._released is None:
            content = content_of(self._copy.place)
            self._released = content.files if content is not None else {}
        info = self._lstat(inside)
        known = self._released.get(os.fsencode(inside.removeprefix(self._within)))
        return stat.S_ISREG(info.st_mode) and known == (info.st_size, int(info.st_mtime))

    def _is_there(self, inside: str) -> bool:
        with contextlib.suppress(OSError):
            if self._mode(inside) is None:
                self._reveal(inside)
            elif self._leads_nowhere(inside):
                self._unlink(inside)  # another process has removed what it led to
        return self._mode(inside) is not None

    def _leads_nowhere(self, inside: str) -> bool:
        origin = self._copy.origin_of(inside)
        mode = self._mode(inside)
        if origin is None or mode is None or not stat.S_ISLNK(mode) or self._mode(origin) is not None:
            return False
        return os.readlink(inside) == origin

    def _reveal(self, inside: str) -> None:
        """Link the first part of the path that the copy lacks, if it is in its real place."""
        path = self._copy.place
        for part in inside.removeprefix(self._within).split("/"):
            path = f"{path}/{part}"
            if (mode := self._mode(path)) is None:
                origin = self._copy.origin_of(path)
                if origin is not None and self._mode(origin) is not None:
                    self._link(path, origin)
                return
            if stat.S_ISLNK(mode):
                return

    def _led_from(self, inside: str | None) -> str | None:
        """Return the real place of what is a link there, or of what the release has; else None."""
        mode = self._mode(inside) if inside is not None else None
        if inside is None or mode is None:
            return None
        origin = self._copy.origin_of(inside)
        if stat.S_ISLNK(mode):
            return origin if os.readlink(inside) == origin else None
        return origin if self._is_released(inside) else None

    def _lead_to_origin(self, inside: str) -> None:
        origin = self._copy.origin_of(inside)
        if origin is not None and os.path.isdir(os.path.dirname(origin)):
            self._link(inside, origin)

    def _link(self, inside: str, origin: str) -> None:
        """Make ``inside`` a link, at once for all who look."""
        beside = f"{inside}.srobust-{os.getpid()}"
        with contextlib.suppress(OSError):  # the copy is being removed, or a folder is there
            os.symlink(origin, beside)
            try:
                self._replace(beside, inside)
            except OSError:
                self._unlink(beside)

    def _carry(self, source: str, target: str) -> None:
        """Move to another file system, at once for all who look."""
        if os.path.isdir(source):
            shutil.move(source, target)
            return
        beside = f"{target}.srobust-{os.getpid()}"
        shutil.copy2(source, beside)
        self._replace(beside, target)
        self._unlink(source)


def _patch(name: str, function: Callable[..., Any]) -> None:
    # What it takes, others ask by these sets.
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if getattr(os, name) in known:
            known.add(function)
    setattr(os, name, function)
    # Before 3.11 pathlib has them by names of its own.
    accessor: Any = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and hasattr(accessor, name):
        setattr(accessor, name, staticmethod(function))
