"""Unpacks the copy of a release on a node."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.model.release import Release
from slurm_robust.releases.manifest import MEMBER, CodeFile, CodeManifest, DamagedRelease, decode, digest
from slurm_robust.util.ours import check_own_folder, open_ours

_MOST_BYTES = 256 << 20  # of a manifest
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def unpack(archive: Path, release: Release, into: Path) -> CodeManifest:
    """Let ``into`` be the copy of the release, whole; its parent is a folder of this user's.

    Returns what belongs to it. Its owner may write to the files, so copies of them are ordinary files. What
    is there already is kept: files that are as they should be, and what a program has added, changed or put
    in the place of a file. Raises :class:`DamagedRelease`, and ``OSError``, among them ``NotOurs``.
    """
    with opened(archive) as tar:
        manifest = read_manifest(tar, archive, release)
        if os.path.isdir(into) and not os.path.islink(into):
            lacking = [file for file in manifest.files if _is_to_be_written(os.fsencode(into), file)]
            _write(tar, archive, manifest, into, lacking)
            return manifest
        hidden = into.with_name(f".{into.name}-{secrets.token_hex(4)}")
        hidden.mkdir(mode=0o755)
        try:
            _write(tar, archive, manifest, hidden, manifest.files)
            os.rename(hidden, into)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        return manifest


@contextmanager
def opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive of a release. Raises :class:`DamagedRelease`, also within, and ``OSError``."""
    try:
        with os.fdopen(open_ours(archive), "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield tar
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DamagedRelease(f"{archive} cannot be read: {error}") from error


def read_manifest(tar: tarfile.TarFile, archive: Path, release: Release) -> CodeManifest:
    """Read what is in the copy, the first member. Raises :class:`DamagedRelease`."""
    first = tar.next()
    if first is None or first.name != MEMBER or not first.isreg() or first.size > _MOST_BYTES:
        raise DamagedRelease(f"{archive} does not begin with a manifest")
    manifest = decode(_content(tar, first), archive)
    folders = {os.fsencode(root.folder) for root in release.roots}
    paths = [*(file.path for file in manifest.files), *(link.path for link in manifest.links)]
    for path in paths:
        parts = path.split(b"/")
        if len(parts) < 2 or parts[0] not in folders or {b"", b".", b".."} & set(parts) or b"\0" in path:
            raise DamagedRelease(f"{archive} has an entry outside of its folders: {path!r}")
    if manifest.hash(release.roots) != release.code:
        raise DamagedRelease(f"{archive} is not the code of release {release.name}")
    return manifest


def _write(
    tar: tarfile.TarFile, archive: Path, manifest: CodeManifest, place: Path, wanted: Sequence[CodeFile]
) -> None:
    """Write the files that are wanted, and then the links, so that no file is written through a link."""
    base = os.fsencode(place)
    folders = _Folders(base)
    lacking = {file.path: file for file in wanted}
    while lacking and (member := tar.next()) is not None:
        file = lacking.get(os.fsencode(member.name))
        if file is None or not member.isreg():
            continue
        data = _content(tar, member)
        if digest(data) != file.digest:
            raise DamagedRelease(f"{archive} is damaged: {os.fsdecode(file.path)!r} is not what was taken")
        folders.make(file.path)
        _write_file(os.path.join(base, file.path), data, file)
        del lacking[file.path]
    if lacking:
        raise DamagedRelease(f"{archive} lacks {os.fsdecode(min(lacking))!r}")
    for link in manifest.links:
        path = os.path.join(base, link.path)
        if not os.path.lexists(path):
            folders.make(link.path)
            os.symlink(link.target, path)


def _write_file(path: bytes, data: bytes, file: CodeFile) -> None:
    """Write a file beside its place, since a program may read what is there."""
    folder, name = os.path.split(path)
    beside = os.path.join(folder, b".srobust-" + secrets.token_hex(8).encode())
    descriptor = os.open(beside, _NEW, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, 0o755 if file.x else 0o644)
        os.utime(descriptor, (file.mtime, file.mtime))
        os.rename(beside, os.path.join(folder, name))
    except BaseException:
        os.unlink(beside)
        raise
    finally:
        os.close(descriptor)


class _Folders:
    """Makes the folders of files, each once."""

    def __init__(self, base: bytes) -> None:
        self._base, self._made = base, {b""}

    def make(self, path: bytes) -> None:
        """Make the folders above ``path``. Raises ``NotOurs`` if one is something else, such as a link."""
        parent = os.path.dirname(path)
        if parent in self._made:
            return
        self.make(parent)
        place = os.path.join(self._base, parent)
        try:
            os.mkdir(place, 0o755)
            os.chmod(place, 0o755)  # whatever the umask
        except FileExistsError:
            check_own_folder(os.fsdecode(place))
        self._made.add(parent)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise DamagedRelease(f"the archive ends within {member.name!r}")
    return data


def _is_to_be_written(place: bytes, file: CodeFile) -> bool:
    """Return whether a file of the release is missing, or damaged: cut with its own time, by a power failure.

    What a program has put in its place is a link, or out of the copy by a link, or has a time of its own.
    """
    try:
        info = os.lstat(os.path.join(place, file.path))
    except NotADirectoryError:
        return False
    except FileNotFoundError:
        pass
    else:
        is_own = stat.S_ISREG(info.st_mode) and int(info.st_mtime) == file.mtime
        if not is_own or info.st_size == file.nbytes:
            return False
    return not any(os.path.islink(os.path.join(place, folder)) for folder in _folders_above(file.path))


def _folders_above(path: bytes) -> Iterator[bytes]:
    while path := os.path.dirname(path):
        yield path
