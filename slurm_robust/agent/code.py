"""Copies of releases on this node, from which workers run: made, given back, and kept from losing anything.

They are in ``/dev/shm/srobust-<uid>-<run id>-code/<release>/``, the same on all nodes, and below ``/tmp``
where nothing in ``/dev/shm`` may be executed and the release has something to execute. All agents of the run
on the node share them. What programs create there, and could not be directed to its real place when it was
created (:mod:`slurm_robust.worker.creations`), is moved there when the workers have ended, and before a copy
is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.nodefolders import CODE, SHARED_MEMORY, folder_name
from slurm_robust.model.record import Record
from slurm_robust.model.release import Release
from slurm_robust.releases.contents import stored
from slurm_robust.releases.imports import imported
from slurm_robust.releases.manifest import CodeManifest
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.util.ours import NotOurs, check_own_folder, make_own_folder
from slurm_robust.util.text import one_line, some_of
from slurm_robust.util.threads import Executor, print_unless_os_error
from slurm_robust.worker.copied import CONTENT, CopiedCode, CopyContent, content_of
from slurm_robust.worker.copying import cannot_run_in, make_copy, manifest_of
from slurm_robust.worker.spawning import RankProgram

ON_DISK = Path("/tmp")
_ALIVE = "alive"
_REASON_CHARS = 400
_OURS = b".srobust-"  # in the names of what we make for a moment
_CACHE = b"__pycache__"


class Copied(Record):
    """What came of making a release's copy on this node."""

    name: str
    program: RankProgram | None = None
    why: str = ""
    """Why the release could not be copied, with the fix; "" if it was."""


class _Imports(Record):
    """Modules that a release needs beside its own."""

    name: str
    modules: tuple[str, ...]


class _Settled(Record):
    """What was moved to its real place."""

    notes: tuple[str, ...]


class CodeCopies:
    """The copies of one run. No call but :meth:`close` waits for storage."""

    def __init__(self, spec: JobSpec, job: JobDirectory, node: str, base: Path = SHARED_MEMORY) -> None:
        """``base``: where the copies are, if it allows that."""
        self._store, self._node, self._cwd = ReleaseStore(job.releases), node, spec.cwd
        self._bases = (base, ON_DISK)
        self._folder = folder_name(spec.run_id, CODE)
        self._worker: Executor[Copied | _Imports | _Settled] | None = None
        self._wanted: set[str] = set()
        self._found: dict[str, Copied] = {}
        self._needed: dict[str, tuple[str, ...]] = {}
        self._locks: dict[Path, int] = {}
        self._used: tuple[str, ...] = ()  # the newest first
        self._notes: list[str] = []

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`follow` has something to do; -1 for none."""
        return self._worker.fileno() if self._worker is not None else -1

    def want(self, name: str, *, with_imports: bool = False) -> None:
        """Have the release copied, unless it is there or being copied. One that failed is tried again.

        ``with_imports``: and find out what it imports.
        """
        known = self._found.get(name)
        is_there = name in self._wanted or (known is not None and known.program is not None)
        if not is_there:
            self._found.pop(name, None)
            self._remove_all_but(name, *self._used)
            self._wanted.add(name)
            self._do(partial(self._copy, name), partial(_failed, name))
        if with_imports and name not in self._needed:
            self._do(partial(self._imports, name), lambda error: _Imports(name=name, modules=()))

    def get(self, name: str) -> Copied | None:
        """Return what came of it; None while it is being made."""
        return self._found.get(name)

    def needed(self, name: str) -> tuple[str, ...] | None:
        """Return the modules that the release imports in any case and lacks; None if not known yet."""
        return self._needed.get(name)

    def follow(self) -> None:
        """Take in what is done."""
        for result in self._worker.results() if self._worker is not None else ():
            match result:
                case Copied():
                    self._wanted.discard(result.name)
                    self._found[result.name] = result
                case _Imports():
                    self._needed[result.name] = result.modules
                case _Settled():
                    self._notes.extend(result.notes)

    def notes(self) -> list[str]:
        """Take the facts for the journal."""
        notes, self._notes = self._notes, []
        return notes

    def launched(self, name: str) -> None:
        """Keep this release and the one before; others are removed."""
        if name and name not in self._used[:1]:
            self._used = (name, *(other for other in self._used if other != name))[:2]
            self._remove_all_but(*self._used)

    def _remove_all_but(self, *names: str) -> None:
        for other in [name for name in self._found if name not in names and name not in self._wanted]:
            del self._found[other]
            self._do(partial(self._remove, other))

    def ended(self) -> None:
        """Settle what the workers, which have ended, have left in the newest copy."""
        if self._used and self._has_code(self._used[0]):
            self._do(partial(self._settle, self._used[0]))

    def close(self) -> None:
        """Settle everything, and remove the copies unless another agent of the run needs them."""
        if self._worker is not None:
            self._worker.close(CLOSE_S)
        for place, lock in self._locks.items():
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for text in remove_code(place, self._node):
                    print(text, flush=True)
            os.close(lock)
        self._locks.clear()

    # -- in the thread -----------------------------------------------------------------------------

    def _copy(self, name: str) -> Copied:
        release = self._store.read(name)
        env = self._store.env(name)
        program = RankProgram(command_kind=release.kind, command=release.command, env=env)
        if not release.code:
            return Copied(name=name, program=program)
        manifest = manifest_of(self._store, release)
        place = self._place(manifest, release) / name
        copy = make_copy(self._store, release, place)
        return Copied(name=name, program=msgspec.structs.replace(program, code=copy))

    def _imports(self, name: str) -> _Imports:
        found = imported(stored(self._store, name), self._cwd)
        return _Imports(name=name, modules=found.modules)

    def _place(self, manifest: CodeManifest, release: Release) -> Path:
        base = self._bases[cannot_run_in(self._bases[0], manifest, release)]
        folder = base.resolve() / self._folder
        make_own_folder(folder)
        if folder not in self._locks:
            self._locks[folder] = _hold(folder)
        return folder

    def private(self, copy: CopiedCode, folder: Path) -> CopiedCode:
        """Return a copy of its own below ``folder`` for a process whose changes count for nothing.

        Waits for storage. Raises ``OSError``, ``SrobustError``.
        """
        if ON_DISK in Path(copy.place).parents:
            return copy  # nothing in memory may be executed
        return make_copy(self._store, self._store.read(copy.release), folder / copy.release)

    def _settle(self, name: str) -> _Settled:
        return _Settled(
            notes=tuple(t for folder in self._locks for t in settle(folder / name, self._node)[0])
        )

    def _remove(self, name: str) -> _Settled:
        return _Settled(notes=tuple(t for folder in self._locks for t in _remove(folder / name, self._node)))

    # -- helpers -----------------------------------------------------------------------------------

    def _has_code(self, name: str) -> bool:
        found = self._found.get(name)
        return found is not None and found.program is not None and found.program.code is not None

    def _do(
        self,
        work: Callable[[], Copied | _Imports | _Settled],
        failed: Callable[[BaseException], Copied | _Imports | None] = print_unless_os_error,
    ) -> None:
        if self._worker is None:
            self._worker = Executor("code")
        self._worker.submit(work, failed)


def _hold(folder: Path) -> int:
    """Hold a folder as long as this process lives. Raises ``OSError``."""
    while True:
        make_own_folder(folder)
        lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder / _ALIVE)):
                return lock
        os.close(lock)  # another agent has removed the folder meanwhile


CLOSE_S = 5.0
"""Slurm kills the step after its KillWait; what has been begun by then is better done."""


def _failed(name: str, error: BaseException) -> Copied:
    why = str(error) if isinstance(error, (SrobustError, OSError)) else f"{type(error).__name__}: {error}"
    fix = f" ({error.fix})" if isinstance(error, SrobustError) and error.fix else ""
    return Copied(name=name, why=one_line(f"{why}{fix}", _REASON_CHARS))


# -- what programs have created --------------------------------------------------------------------


def remove_code(folder: Path, node: str) -> list[str]:
    """Settle and remove all copies in ``folder``, which no process uses; what cannot be settled stays.

    Returns what to tell people.
    """
    notes = [text for place in _copies_in(folder) for text in _remove(place, node)]
    if not any(True for _ in _copies_in(folder)):
        shutil.rmtree(folder, ignore_errors=True)
    return notes


def remove_dead_code(base: Path, node: str) -> list[str]:
    """Do as :func:`remove_code` for this user's runs whose agents on this node were killed."""
    notes: list[str] = []
    for folder in base.glob(f"{folder_name('')}*{CODE}"):
        try:
            check_own_folder(folder)
            lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, NotOurs):
            continue  # being made, or gone meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            notes += remove_code(folder, node)
        except OSError:
            pass  # an agent uses it
        finally:
            os.close(lock)
    return notes


def _copies_in(folder: Path) -> Iterator[Path]:
    for content in folder.glob(f"*{CONTENT}"):
        yield content.with_suffix("")


def _remove(place: Path, node: str) -> list[str]:
    notes, is_settled = settle(place, node)
    if is_settled:
        shutil.rmtree(place, ignore_errors=True)
        place.with_suffix(CONTENT).unlink(missing_ok=True)
    return notes


def settle(place: Path, node: str) -> tuple[list[str], bool]:
    """Move what is in a copy beside the files of its release to its real place, over nothing that is there.

    Returns what to tell people, and whether nothing is left to be moved. Raises nothing.
    """
    if (content := content_of(str(place))) is None:
        return [], True  # nothing ran there
    moved, failed = [], []
    for path in sorted(_strays(os.fsencode(place), content)):
        origin = content.copy.origin_of(os.fsdecode(path))
        if origin is None:
            continue
        try:
            moved.append(_move(os.fsdecode(path), origin, node))
        except OSError as error:
            failed.append(f"{os.fsdecode(path)} ({error.strerror or error})")
    notes = []
    if files := [target for target in moved if target]:
        notes.append(f"files that were created in the copy of the code are now {_named(files)}")
    if failed:
        notes.append(
            f"files that were created in the copy of the code cannot be moved away: {_named(failed)}"
        )
    return notes, not failed


def _named(files: list[str]) -> str:
    return one_line(some_of(files), _REASON_CHARS)


def _strays(place: bytes, content: CopyContent) -> Iterator[bytes]:
    """Yield what the release does not have, folders before what is in them."""
    known = {os.path.dirname(path) for path in (*content.files, *content.links)}
    folders = {parent for path in known for parent in _parents(path)}
    waiting = [os.path.join(place, os.fsencode(root.folder)) for root in content.copy.roots]
    above = len(place) + 1
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = entry.path[above:]
                if _OURS in entry.name or entry.name == _CACHE:
                    continue
                if entry.is_symlink():
                    if content.links.get(path) != os.readlink(entry.path) and not _is_lead(
                        entry.path, content
                    ):
                        yield entry.path
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    if path not in folders:
                        yield entry.path
                elif entry.is_file():
                    info = entry.stat()
                    if content.files.get(path) != (info.st_size, int(info.st_mtime)):
                        yield entry.path


def _parents(path: bytes) -> Iterator[bytes]:
    while path:
        yield path
        path = os.path.dirname(path)


def _is_lead(path: bytes, content: CopyContent) -> bool:
    """Return whether it is a link to the real place of what it stands for."""
    origin, target = content.copy.origin_of(os.fsdecode(path)), os.fsdecode(os.readlink(path))
    return origin is not None and (target == origin or target.startswith(f"{origin}.srobust-"))


def _move(path: str, origin: str, node: str) -> str:
    """Move to ``origin``, or beside it if something is there; returns where it is now, "" for a folder.

    Raises ``OSError``.
    """
    before = os.lstat(path)
    if stat.S_ISDIR(before.st_mode):
        os.makedirs(origin, exist_ok=True)
        return ""
    os.makedirs(os.path.dirname(origin), exist_ok=True)
    beside = os.path.join(os.path.dirname(origin), f".srobust-{secrets.token_hex(8)}")
    try:
        if stat.S_ISLNK(before.st_mode):
            os.symlink(os.readlink(path), beside)
        else:
            shutil.copy2(path, beside)
        target = _publish(beside, origin, node)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    now = os.lstat(path)
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        return target  # it is being written again: the next time it is moved once more
    lead = f"{path}.srobust-{os.getpid()}"
    os.symlink(target, lead)
    os.replace(lead, path)
    return target


def _publish(beside: str, origin: str, node: str) -> str:
    """Give what is ``beside`` a name that nothing has, that of ``origin`` if possible; returns the name."""
    number = 1
    target = origin
    while True:
        try:
            os.link(beside, target, follow_symlinks=False)
        except FileExistsError:
            number += 1
            target = f"{origin}.srobust-{node}" + (f"-{number}" if number > 2 else "")
        except OSError:
            if os.path.lexists(target):
                raise
            os.rename(beside, target)  # a file system without hard links
            return target
        else:
            os.unlink(beside)
            return target
