"""Files that an installation writes, and the manifest that makes repeating, upgrading and removing exact.

What the manifest remembers of a file is the checksum of what we wrote. A file that still has it is ours to
replace or remove; one that has another belongs to the person who changed it, and stays.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Literal

import msgspec

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record

MANIFEST = "/var/lib/slurm-robust/manifest.json"
_MAX_LINKS = 40


class InstallError(SrobustError):
    """Files cannot be written or removed."""

    exit_code = ExitCode.JOB_DIR

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix=fix)


class RootOnly(InstallError):
    """What is to be read is root's."""


class Item(Record):
    """What should be at a path. Root is its owner."""

    path: str
    kind: Literal["file", "link", "folder"] = "file"
    text: str = ""
    """Content of a file."""

    target: str = ""
    """Target of a link."""

    mode: int = 0o644

    @property
    def digest(self) -> str:
        """What tells this content from any other."""
        return _digest(self.kind, self.text.encode() if self.kind == "file" else self.target.encode())


class Found(Record):
    """What is at a path. Mode and owner of a link do not matter, so it has neither here."""

    digest: str
    mode: int = 0
    uid: int = 0


class Manifest(Record):
    """What the last installation wrote."""

    version: str = ""
    """The version of slurm_robust that wrote it."""

    digests: dict[str, str] = {}
    """By path."""


class FileAction(str, Enum):
    """What is done with a path."""

    WRITE = "new"
    REPLACE = "changed"
    MODE = "mode"
    REMOVE = "remove"
    KEEP = "keep"
    """It was changed since, or is not ours."""


class FileChange(Record):
    """One change of the file tree."""

    action: FileAction
    path: str
    item: Item | None = None
    why: str = ""
    """In words for people."""


def plan(wanted: Sequence[Item], manifest: Manifest, found: Mapping[str, Found]) -> list[FileChange]:
    """Return the steps from what is there to what is wanted; what is right already needs none. Pure."""
    steps = [step for item in wanted if (step := _step(item, manifest, found.get(item.path)))]
    paths = {item.path for item in wanted}
    # The deepest first, so that folders are empty when their turn comes.
    for path in sorted(manifest.digests.keys() - paths, reverse=True):
        now = found.get(path)
        if now is None:
            continue
        if now.digest == manifest.digests[path]:
            steps.append(FileChange(action=FileAction.REMOVE, path=path))
        else:
            steps.append(
                FileChange(action=FileAction.KEEP, path=path, why="was changed after it was installed")
            )
    return steps


def _step(item: Item, manifest: Manifest, now: Found | None) -> FileChange | None:
    if now is None:
        return FileChange(action=FileAction.WRITE, path=item.path, item=item)
    if now.digest != item.digest:
        if manifest.digests.get(item.path) == now.digest:
            return FileChange(
                action=FileAction.REPLACE, path=item.path, item=item, why="of an earlier version"
            )
        return FileChange(
            action=FileAction.KEEP, path=item.path, why="differs from ours: remove it to get ours"
        )
    if item.kind != "link" and (now.mode, now.uid) != (item.mode, 0):
        return FileChange(action=FileAction.MODE, path=item.path, item=item, why=f"{item.mode:04o}, root's")
    return None


class Tree:
    """A file tree below ``root``; only tests have another root than ``/``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Return the place of a path of the machine."""
        return self.root / name.lstrip("/")

    def real(self, name: str) -> Path:
        """Return the target of a path with links at its end followed, below this root."""
        for _ in range(_MAX_LINKS):
            if not self.path(name).is_symlink():
                break
            name = os.path.join(os.path.dirname(name), os.readlink(self.path(name)))
        return self.path(name)

    def find(self, name: str) -> Found | None:
        """Return what is there; links are not followed. Raises ``OSError``."""
        path = self.path(name)
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            return Found(digest=_digest("link", os.readlink(path).encode()))
        if stat.S_ISDIR(found.st_mode):
            return Found(digest=_digest("folder", b""), mode=mode, uid=found.st_uid)
        if not stat.S_ISREG(found.st_mode):
            return Found(digest="special", mode=mode, uid=found.st_uid)
        return Found(digest=_digest("file", path.read_bytes()), mode=mode, uid=found.st_uid)

    def manifest(self) -> Manifest:
        """Return what was written the last time. Raises :class:`InstallError` for a damaged one."""
        path = self.path(MANIFEST)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest()
        except PermissionError as error:
            raise RootOnly(f"only root may read {path}", "run it with sudo") from error
        except (OSError, msgspec.MsgspecError) as error:
            raise InstallError(
                f"{path} cannot be read: {error}", "remove it; files then count as yours"
            ) from error

    def steps(self, wanted: Sequence[Item]) -> list[FileChange]:
        """Return :func:`plan` for what is there now."""
        manifest = self.manifest()
        names = {item.path for item in wanted} | manifest.digests.keys()
        found = {name: now for name in names if (now := self.find(name))}
        return plan(wanted, manifest, found)

    def carry_out(
        self, steps: Sequence[FileChange], wanted: Sequence[Item], version: str
    ) -> list[FileChange]:
        """Do it and remember it; returns what was kept in the end. Raises :class:`InstallError`.

        The manifest is written first with both what was and what will be, so that whatever interrupts this,
        the next run knows all that may be ours.
        """
        before = self.manifest()
        kept = [step for step in steps if step.action is FileAction.KEEP]
        foreign = {step.path for step in kept} | {
            item.path for item in wanted if item.path not in before.digests and self.find(item.path)
        }
        ours = {item.path: item.digest for item in wanted if item.path not in foreign}
        still = {step.path: before.digests[step.path] for step in kept if step.path in before.digests}
        folder = self.path(MANIFEST).parent
        is_new, is_begun = not folder.exists(), False
        try:
            self._remember(Manifest(version=version, digests={**before.digests, **ours}))
            for step in steps:
                left = self._do(step)
                kept += [left] if left else []
                is_begun = True
            self._remember(Manifest(version=version, digests={**still, **ours}))
        except OSError as error:
            if not is_begun:  # nothing was written, so there is nothing to remember
                with suppress(OSError):
                    self._remember(before)
                    if is_new:
                        folder.rmdir()
            reason = error.strerror or str(error)
            raise InstallError(f"{error.filename}: {reason}", "fix that, then run it again") from error
        return kept

    def _do(self, step: FileChange) -> FileChange | None:
        path = self.path(step.path)
        item = step.item
        if step.action is FileAction.REMOVE:
            if not path.is_symlink() and path.is_dir():
                try:
                    path.rmdir()
                except OSError:
                    return FileChange(action=FileAction.KEEP, path=step.path, why="is not empty")
            else:
                path.unlink(missing_ok=True)
        elif item is not None and item.kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, 0, 0)
            path.chmod(item.mode)
        elif item is not None and item.kind == "link":
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            beside.unlink(missing_ok=True)
            beside.symlink_to(item.target)
            os.replace(beside, path)
        elif item is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, item.text.encode(), item.mode, 0, 0)
        return None

    def _remember(self, manifest: Manifest) -> None:
        path = self.path(MANIFEST)
        if not manifest.digests:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
        write_whole(path, text, 0o600, 0, 0)


def write_whole(path: Path, content: bytes, mode: int, uid: int, gid: int) -> None:
    """Replace a file in one go: a reader sees the old one or the new one. Raises ``OSError``."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
        file.flush()
        os.fsync(descriptor)
    os.replace(beside, path)


def _digest(kind: str, content: bytes) -> str:
    return f"{kind}:{hashlib.sha256(content).hexdigest()}"
