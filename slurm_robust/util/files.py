"""Files that are whole or not there: a reader, also after a power cut, finds the old content or the new one.

A file is written beside its place, under a name that begins with a dot, and renamed. *Durable* means that it
also survives a power cut from then on: it is fsynced before it is renamed, and its folder after that.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_TAIL_BYTES = 16 * 1024
_LINE_CHARS = 500


def write_atomically(path: Path, data: bytes, *, durable: bool, mode: int = 0o666) -> None:
    """Let ``data`` be the content of ``path``. ``mode``: that of the file, less the umask. Raises
    ``OSError``.
    """
    with replacing(path, durable=durable) as beside, os.fdopen(os.open(beside, _NEW, mode), "wb") as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, durable: bool) -> Iterator[Path]:
    """Write the path that this yields; at the end it takes the place of ``path``.

    After an exception ``path`` is as before and the unfinished file is removed. Raises ``OSError``.
    """
    # Two hosts may write the same file at the same time, so a process id would not do.
    beside = path.with_name(f".{path.name.lstrip('.')}.{uuid.uuid4().hex[:12]}")
    try:
        yield beside
        if durable:
            sync(beside)
        os.replace(beside, path)
        if durable:
            sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def make_folder(path: Path, *, below: Path | None = None) -> None:
    """Make a folder, as ``mkdir -p``, that survives a power cut. Raises ``OSError``.

    ``below``: a folder that must be there already; what is made in it is closed to others (0700).
    """
    if path.is_dir() or path == below:
        return
    make_folder(path.parent, below=below)
    path.mkdir(0o777 if below is None else 0o700, exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int) -> bytes:
    """Read the content of a regular file of ``most`` bytes at most; of nothing else. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)  # before open(), whose error for a folder would name a number
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with open(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10} KiB", str(path))
    return content


def is_there(path: Path) -> bool:
    """Return whether anything is there. Raises ``OSError`` for a link that leads nowhere, also on the way."""
    try:
        # Not by exists(), which takes a folder that cannot be read for an empty one since Python 3.14.
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        first = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
        if first.is_symlink() and not first.exists():
            raise OSError(
                error.errno, f"it is a link to {os.readlink(first)}, which is not there", str(first)
            ) from error
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, in no order; none if there is no folder. Raises ``OSError``."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def publish_once(path: Path, content: bytes) -> bool:
    """Create ``path`` (0600) with ``content``, durably; False if it exists already. Raises ``OSError``.

    The file is linked, not renamed: link(2) is the one operation that is exclusive and brings the whole
    content on NFS of any version.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(beside, _NEW, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            # An NFS server whose first answer was lost refuses the repeated request: the link is ours.
            if os.stat(beside).st_nlink != 2:
                return False
        sync(path.parent)
        return True
    finally:
        beside.unlink(missing_ok=True)


def disk_use(folder: Path) -> int:
    """Return the bytes of all files that can be seen below ``folder``; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def free_on(folder: Path) -> int | None:
    """Return the bytes that the storage of ``folder`` has free, None if it does not say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def read_tail(paths: tuple[Path, ...], lines: int = 20) -> tuple[str, ...]:
    """Return the last lines of the first file that has any, from at most 16 KiB. Raises ``OSError``."""
    for path in paths:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except FileNotFoundError:
            continue
        found = [line.rstrip()[:_LINE_CHARS] for line in text.splitlines()]
        if any(found):
            return tuple(found[-lines:])
    return ()
