"""Takes a release: a copy of the code with what goes with it, whole or not at all.

The files are read once, by several threads, since storage answers slowly and not one after the other. Then
they are looked at again: a copy in which a file or the list of files has changed meanwhile mixes two states
that never were together, so it is made anew.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import tarfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeout
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec.structs import replace

from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.model.release import NAME_LETTERS, CodeRoot, Release
from slurm_robust.releases import gitstate
from slurm_robust.releases.manifest import (
    DIGEST_BYTES,
    MEMBER,
    CodeFile,
    CodeLink,
    CodeManifest,
    digest,
    encode,
)
from slurm_robust.releases.roots import without_nested
from slurm_robust.releases.select import (
    Budget,
    CannotTakeCode,
    Chosen,
    CopyLimits,
    Linked,
    Selection,
    TooLarge,
    chosen,
    left_out_texts,
    parents,
    select,
)
from slurm_robust.releases.store import ARCHIVE, ReleaseStore
from slurm_robust.util.text import one_line, some_of

_ROUNDS = 3
_THREADS = 16
_AHEAD = 64  # files that are read before they are needed
_GRACE_S = 1.0
_TOLD = 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Taking(Record):
    """What a release is to be made of."""

    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    roots: tuple[str, ...] = ()
    """Folders to copy, that of the script first: absolute, without symbolic links, none below another."""
    packages: tuple[str, ...] = ()
    """Folders that are copied, too, each as far as the limits are kept: packages installed in place."""
    never: tuple[str, ...] = ()
    """Real paths of what is never code: checkpoints, the job's folder and its output."""
    stands_for: dict[str, str] = {}
    """The folders for which some of ``roots`` stand, as another checkout of the code does: ranks run the copy
    in their place.
    """
    env: dict[str, str] = {}
    config_text: str = ""
    image: str = ""
    workdir: bool = False
    limits: CopyLimits = CopyLimits()


class TakenRoot(NamedTuple):
    """A folder of the user's and what belongs to the release of it."""

    root: CodeRoot
    selection: Selection


class CodeCopy(NamedTuple):
    """What is in the copy of all folders."""

    roots: tuple[CodeRoot, ...] = ()
    manifest: CodeManifest = CodeManifest(files=(), links=())
    code: str = ""
    left_out: tuple[str, ...] = ()


def take(store: ReleaseStore, wish: Taking) -> Release:
    """Make the release, or return the one that is there with the same content.

    Raises :class:`CannotTakeCode`, and then nothing is left behind.
    """
    began = time.monotonic()
    try:
        made = store.begin()
    except OSError as error:
        raise _cannot_write(store, error) from error
    try:
        with _threads() as threads:
            git = threads.submit(gitstate.read, wish.roots[0]) if wish.roots else None
            copy = _copy(wish, made / ARCHIVE, threads)
            state = git.result() if git is not None else None
        copy = copy._replace(roots=_places(copy.roots, wish))
        release = Release(
            name=_name(store, wish, copy.code),
            kind=wish.kind,
            command=wish.command,
            code=copy.code,
            roots=copy.roots,
            entry=_entry(wish, copy),
            files=len(copy.manifest.files),
            nbytes=sum(file.nbytes for file in copy.manifest.files),
            left_out=copy.left_out,
            git=state,
            env=tuple(sorted(wish.env)),
            image=wish.image,
            has_config=bool(wish.config_text),
            config=hashlib.sha256(wish.config_text.encode()).hexdigest() if wish.config_text else "",
            workdir=wish.workdir,
            taken=time.time(),
            took_s=round(time.monotonic() - began, 3),
        )
        return store.publish(made, release, wish.env, wish.config_text)
    except OSError as error:
        raise _cannot_write(store, error) from error
    finally:
        store.discard(made)  # nothing is there if it was published


def in_place(wish: Taking) -> CodeCopy:
    """Return what would be taken now. Raises :class:`CannotTakeCode`, ``OSError``."""
    with _threads() as threads:
        return _copy(wish, None, threads)


def named(roots: Sequence[str]) -> tuple[CodeRoot, ...]:
    """Give each folder a name in the copy: its own, and a number if another one has that."""
    found: list[CodeRoot] = []
    taken = {MEMBER}
    for path in roots:
        name = folder = os.path.basename(path) or "root"
        number = 2
        while folder in taken:
            folder, number = f"{name}-{number}", number + 1
        taken.add(folder)
        found.append(CodeRoot(path=path, folder=folder))
    return tuple(found)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="take")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # one may wait for storage that does not answer


def _copy(wish: Taking, archive: Path | None, threads: ThreadPoolExecutor) -> CodeCopy:
    """Copy the folders into ``archive``, or only read them."""
    tracked = gitstate.TrackedFiles()
    paths, too_large = _with_packages(wish, tracked)
    if not paths:
        return CodeCopy()
    for path in paths:
        _check_text(path)
    names = named([wish.stands_for.get(path, path) for path in paths])
    roots = tuple(CodeRoot(path=path, folder=one.folder) for path, one in zip(paths, names, strict=True))
    budget = Budget(wish.limits)
    sources = _select(roots, wish, tracked)
    for _ in range(_ROUNDS):
        with open(archive or os.devnull, "wb") as file:
            manifest, changed = _read_all(sources, file, budget, threads)
            file.flush()
            if archive is not None and not changed:
                os.fsync(file.fileno())
        places = (os.path.join(one.root.path, file.path) for one in sources for file in one.selection.files)
        deque(threads.map(_ask_again, places), maxlen=0)
        again = _select(roots, wish, tracked)
        changed |= _differences(sources, again)
        if not changed:
            return CodeCopy(roots, manifest, manifest.hash(roots), (*too_large, *_left_out(sources)))
        sources = again
    raise CannotTakeCode(
        f"files change while they are copied: {some_of([one_line(path) for path in sorted(changed)])}",
        fix="try again when nothing writes there, or exclude them with a .srobustignore",
    )


def _with_packages(wish: Taking, tracked: gitstate.TrackedFiles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all folders to copy, and texts of the packages that are too large."""
    paths, too_large = without_nested(wish.roots), []
    for package in wish.packages:
        more = without_nested((*paths, package))
        try:
            if more != paths:
                _select([CodeRoot(path=path, folder="") for path in more], wish, tracked)
        except TooLarge:
            too_large.append(f"{one_line(package)} (installed in place, and too large)")
        else:
            paths = more
    return paths, tuple(too_large)


def _select(roots: Sequence[CodeRoot], wish: Taking, tracked: gitstate.TrackedFiles) -> tuple[TakenRoot, ...]:
    budget, found = Budget(wish.limits), []
    try:
        for root in roots:
            selection = select(root.path, budget, wish.never, _run(root.path, wish), tracked)
            if (original := wish.stands_for.get(root.path)) is not None:
                selection = _beside(selection, original, wish, tracked)
            found.append(TakenRoot(root, selection))
        return tuple(found)
    except OSError as error:
        raise CannotTakeCode(
            f"the code cannot be read: {error}", fix="check the folder, or code.paths"
        ) from error


def _run(root: str, wish: Taking) -> frozenset[str]:
    """Return the files below ``root`` that the command runs, relative to it."""
    if wish.kind is CommandKind.MODULE:
        return frozenset()
    words = wish.command[:1] if wish.kind is CommandKind.SCRIPT else wish.command
    base = wish.stands_for.get(root, root).rstrip("/") + "/"
    places = (os.path.realpath(os.path.join(wish.cwd, word)) for word in words)
    return frozenset(
        place.removeprefix(base)
        for place in places
        if place.startswith(base) and (wish.kind is CommandKind.SCRIPT or os.access(place, os.X_OK))
    )


def _beside(selection: Selection, original: str, wish: Taking, tracked: gitstate.TrackedFiles) -> Selection:
    """Return what another checkout has, with the data and outputs of the folder for which it stands.

    What Git ignores is in the one and mostly not in the other.
    """
    try:
        found = select(original, Budget(wish.limits), wish.never, tracked=tracked)
    except (CannotTakeCode, OSError):
        return selection  # it is gone, or no folder with code any more
    links = [one for one in found.links if not one.is_code]
    there = {one.path for one in links}
    own = [one for one in selection.links if one.is_code or one.path not in there]
    leaves = {*(file.path for file in selection.files), *(link.path for link in own)}
    folders = {parent for path in leaves for parent in parents(path)}
    links = [one for one in links if not {one.path, *parents(one.path)} & leaves and one.path not in folders]
    return Selection(selection.files, tuple(sorted([*own, *links])))


def _read_all(
    sources: Sequence[TakenRoot], file: BinaryIO, budget: Budget, threads: ThreadPoolExecutor
) -> tuple[CodeManifest, set[str]]:
    """Write the archive; returns what is in it, and the files that were not as they had been found."""
    wanted = [(source.root, one) for source in sources for one in source.selection.files]
    entries = [_code_file(root, one, bytes(DIGEST_BYTES)) for root, one in wanted]
    links = tuple(sorted(_links(sources), key=lambda link: link.path))
    manifest = CodeManifest(files=tuple(sorted(entries, key=lambda one: one.path)), links=links)
    changed: set[str] = set()
    found: list[CodeFile] = []
    # No size in it depends on the digests, which are filled in at the end.
    reserved = encode(manifest)
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(_member(MEMBER, len(reserved)), io.BytesIO(reserved))
        at = tarfile.BLOCKSIZE
        for (root, one), (seen, data) in zip(wanted, _ahead(wanted, budget, threads), strict=True):
            path = os.path.join(root.path, one.path)
            budget.check_time(root.path)
            if seen != one or len(data) != one.size:
                changed.add(path)
                continue
            entry = _code_file(root, one, digest(data))
            found.append(entry)
            member = _member(os.fsdecode(entry.path), len(data), 0o755 if entry.x else 0o644, entry.mtime)
            tar.addfile(member, io.BytesIO(data))
        for link in links:
            member = _member(os.fsdecode(link.path), 0)
            member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(link.target)
            tar.addfile(member)
    manifest = CodeManifest(files=tuple(sorted(found, key=lambda one: one.path)), links=links)
    if not changed:
        file.seek(at)
        file.write(encode(manifest))
    return manifest, changed


def _ahead(
    wanted: Sequence[tuple[CodeRoot, Chosen]], budget: Budget, threads: ThreadPoolExecutor
) -> Iterator[tuple[Chosen | None, bytes]]:
    """Read the files in their order, a few ahead of need."""
    waiting: deque[Future[tuple[Chosen | None, bytes]]] = deque()
    unread = iter(wanted)
    for _ in wanted:
        for root, one in islice(unread, _AHEAD - len(waiting)):
            waiting.append(threads.submit(_read, root, one))
        try:
            yield waiting.popleft().result(max(0.0, budget.left_s()) + _GRACE_S)
        except FuturesTimeout:  # no other name of TimeoutError before Python 3.11
            budget.check_time(wanted[0][0].path)
            raise


def _read(root: CodeRoot, one: Chosen) -> tuple[Chosen | None, bytes]:
    """Read a file; returns what it was when it was opened, None if it is no plain file any more."""
    path = os.path.join(root.path, one.path)
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None, b""
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None, b""
        raise CannotTakeCode(
            f"{one_line(path)} cannot be read: {error.strerror}",
            fix="chmod u+r, or exclude it with a .srobustignore",
        ) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return None, b""
        parts, left = [], one.size + 1
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return chosen(one.path, info), b"".join(parts)
    except OSError as error:
        raise CannotTakeCode(
            f"{one_line(path)} cannot be read: {error.strerror}", fix="look at its storage, and try again"
        ) from error
    finally:
        os.close(descriptor)


def _ask_again(path: str) -> None:
    """Open a file: until then NFS does not ask its server what another node has done to it."""
    try:
        os.close(os.open(path, _FLAGS))
    except OSError:
        pass  # the look that follows shows what has become of it


def _code_file(root: CodeRoot, one: Chosen, content: bytes) -> CodeFile:
    return CodeFile(
        path=os.fsencode(f"{root.folder}/{one.path}"),
        nbytes=one.size,
        digest=content,
        mtime=max(0, one.mtime_ns // 10**9),
        x=bool(one.mode & stat.S_IXUSR),
    )


def _links(sources: Sequence[TakenRoot]) -> Iterator[CodeLink]:
    for root, selection in sources:
        for link in selection.links:
            yield CodeLink(
                path=os.fsencode(f"{root.folder}/{link.path}"),
                target=os.fsencode(link.target),
                left_out=not link.is_code,
            )


def _differences(before: Sequence[TakenRoot], after: Sequence[TakenRoot]) -> set[str]:
    """Return the places that are not as they were."""
    return {
        os.path.join(old.root.path, path)
        for old, new in zip(before, after, strict=True)
        for path in _differing(old.selection, new.selection)
    }


def _differing(old: Selection, new: Selection) -> set[str]:
    # What is left out is not copied, and may come and go.
    before: set[Chosen | Linked] = {*old.files, *(link for link in old.links if link.is_code)}
    after: set[Chosen | Linked] = {*new.files, *(link for link in new.links if link.is_code)}
    return {one.path for one in before ^ after}


def _left_out(sources: Sequence[TakenRoot]) -> tuple[str, ...]:
    several = len(sources) > 1
    return left_out_texts(
        [
            (f"{root.folder}/{link.path}" if several else link.path, link.reason)
            for root, selection in sources
            for link in selection.links
            if link.reason
        ],
        _TOLD,
    )


def _member(name: str, size: int, mode: int = 0o644, mtime: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, mode, mtime
    return member


def _places(roots: Sequence[CodeRoot], wish: Taking) -> tuple[CodeRoot, ...]:
    """Return the folders with the places for which they stand."""
    return tuple(
        replace(root, path=wish.stands_for[root.path], taken_from=root.path)
        if root.path in wish.stands_for
        else root
        for root in roots
    )


def _entry(wish: Taking, copy: CodeCopy) -> str:
    """Return the script in the copy."""
    if wish.kind is not CommandKind.SCRIPT or not wish.command:
        return ""
    script = os.path.realpath(os.path.join(wish.cwd, wish.command[0]))
    for root in copy.roots:
        if script.startswith(root.path.rstrip("/") + "/"):
            path = f"{root.folder}/{os.path.relpath(script, root.path)}"
            if path.isprintable() and any(file.path == os.fsencode(path) for file in copy.manifest.files):
                return path  # else its name is no text: the script is read in its place
    return ""


def _name(store: ReleaseStore, wish: Taking, code: str) -> str:
    """Return the name: a hash of everything that the ranks run by. Of values there are fingerprints only."""
    parts = [
        code,
        wish.kind.value,
        *wish.command,
        wish.image,
        "release" if wish.workdir else "user",
        wish.config_text,
        *(f"{name}={value}" for name, value in store.fingerprints(wish.env).items()),
    ]
    whole = hashlib.blake2b(digest_size=NAME_LETTERS // 2)
    for part in parts:
        data = os.fsencode(part)
        whole.update(b"%d:" % len(data) + data)
    return whole.hexdigest()


def _check_text(path: str) -> None:
    """Refuse a folder whose name is no text: journal and messages hold it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise CannotTakeCode(
            f"the name of the folder {one_line(path)} is not UTF-8",
            fix="rename it, or set code.releases: false",
        ) from None


def _cannot_write(store: ReleaseStore, error: OSError) -> CannotTakeCode:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "remove what is not needed there, or keep fewer releases with updates.keep"
    else:
        fix = "the job's folder must be on storage that you may write to"
    return CannotTakeCode(f"no release can be written to {store.folder}: {error}", fix=fix)
