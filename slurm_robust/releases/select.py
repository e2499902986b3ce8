"""Which files below a folder belong to a release, and what is left out.

What is known to be code is copied: files that Git tracks, those that are code by their names, and those that
the command or a ``.srobustignore`` names. All else is a symbolic link to its place in the copy, so a script
finds its data beside it as ever, and its outputs and its state as they are now and not as they were once.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_robust.config.job import CodeConfig
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.job import JOBS_FOLDER
from slurm_robust.model.record import Record
from slurm_robust.releases.gitstate import TrackedFiles
from slurm_robust.releases.ignore import GIT, OURS, IgnoreFile, IgnoreRules, rules
from slurm_robust.releases.names import is_code, is_source
from slurm_robust.util.files import read_regular
from slurm_robust.util.text import count, one_line, size_text, some_of

_MB = 1_000_000
_PATTERN_BYTES = 1 << 20
_LOOK_ON = 10  # times max_files: entries that the search looks at, since most of them may be data
_LOOK_ON_S = 2.0
_LARGEST = 3

# Python makes these anew, and those of another place are no use: they are neither copied nor linked.
_is_cache = re.compile(r"__pycache__|.*\.pyc", re.DOTALL).fullmatch
# What is no code wherever it lies. Nobody needs to be told.
_is_never = re.compile(rf"\.git|{re.escape(JOBS_FOLDER)}|slurm-.*\.out", re.DOTALL).fullmatch
_NO_CODE = "no code"
_NO_SOURCES = "no source file in it"
_SCRIPT = b"#!"


class CannotTakeCode(SrobustError):
    """No copy of the code can be made."""


class TooLarge(CannotTakeCode):
    """A folder has more than a copy may have."""


class CopyLimits(Record):
    """Bounds of a copy, as in the configuration (``code``)."""

    max_files: int = 20_000
    max_mb: float = 256
    max_file_mb: float = 16
    take_s: float = 60.0

    @classmethod
    def of(cls, code: CodeConfig) -> CopyLimits:
        """Return those of a job's configuration."""
        return cls(
            max_files=code.max_files, max_mb=code.max_mb, max_file_mb=code.max_file_mb, take_s=code.take_s
        )


class Chosen(NamedTuple):
    """A file that belongs to the release, as it was when it was found. Equal ones are the same content."""

    path: str
    """Relative to the folder, as all paths here."""
    size: int
    mtime_ns: int
    inode: int
    mode: int


class Linked(NamedTuple):
    """Something that is a symbolic link in the copy."""

    path: str
    target: str
    reason: str = ""
    """Why it was not copied; "" if nobody needs to be told."""
    is_code: bool = False
    """It is a link of the user's; where it leads is part of the code."""


class Selection(NamedTuple):
    """What a folder has, sorted by path."""

    files: tuple[Chosen, ...]
    links: tuple[Linked, ...]


class Budget:
    """What is left of the limits, for all folders of a release together."""

    def __init__(self, limits: CopyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock, self._until = clock, clock() + limits.take_s
        self._files = self._bytes = 0

    def spend(self, files: int, nbytes: int) -> None:
        """Count what another folder takes."""
        self._files += files
        self._bytes += nbytes

    def excess(self, files: int, nbytes: int) -> str:
        """Return the limit that these files would exceed, "" for none."""
        limits = self.limits
        if self._files + files > limits.max_files:
            return f"it has more than {limits.max_files} files"
        if self._bytes + nbytes > limits.max_mb * _MB:
            return f"it has more than {limits.max_mb:g} MB"
        return ""

    def is_far_over(self, entries: int, nbytes: int) -> bool:
        """Return whether it is so large that nobody needs to look at all of it."""
        limits = self.limits
        return entries > _LOOK_ON * limits.max_files or nbytes > _LOOK_ON * limits.max_mb * _MB

    def left_s(self) -> float:
        """Return the time that is left, in seconds."""
        return self._until - self._clock()

    def check_time(self, root: str) -> None:
        """Raise :class:`CannotTakeCode` if the time is over."""
        if self.left_s() < 0:
            raise CannotTakeCode(
                f"no copy of the code in {one_line(root)} could be made within {self.limits.take_s:g} s",
                fix="exclude what is no code with a .srobustignore, or give it more time with code.take_s",
            )


def select(
    root: str,
    budget: Budget,
    never: Collection[str] = (),
    run: Collection[str] = (),
    tracked: TrackedFiles | None = None,
) -> Selection:
    """Find what belongs to the release below ``root``, an absolute path without symbolic links.

    ``never``: real paths of what is never code, such as a folder with checkpoints or the job's own output.
    ``run``: relative paths of what the command runs, which is code whatever its name. ``tracked``: what Git
    has said before. Raises :class:`CannotTakeCode`, ``OSError``.
    """
    return _Walk(root, budget, frozenset(never), frozenset(run), tracked or TrackedFiles()).run()


class _Walk:
    """One walk through a folder."""

    def __init__(
        self,
        root: str,
        budget: Budget,
        never: Collection[str],
        run: Collection[str],
        tracked: TrackedFiles,
    ) -> None:
        self._root, self._budget, self._never, self._run, self._git = root, budget, never, run, tracked
        self._tracked: set[str] = set()
        self._folders: list[str] = []
        self._files: list[Chosen] = []
        self._doubtful: list[Chosen] = []  # code if there is source in their folder
        self._links: list[Linked] = []
        self._own_links: list[Linked] = []  # code if they lead to code
        self._unreadable: list[str] = []
        self._bytes = self._entries = 0
        self._by_folder: Counter[str] = Counter()  # size in bytes; a file counts a KB at least
        self._entries_of: Counter[str] = Counter()
        self._no_sources: set[str] = set()
        self._excess = ""

    def run(self) -> Selection:
        """Walk."""
        self._tracked.update(self._git.below(self._root, self._budget.left_s()))
        waiting = [("", _above(self._root))]
        over_since = 0.0
        while waiting:
            self._budget.check_time(self._root)
            folder, ignored = waiting.pop()
            waiting += self._look(folder, ignored)
            if self._excess:
                over_since = over_since or time.monotonic()
                if time.monotonic() - over_since > _LOOK_ON_S:
                    break
            else:
                self._excess = self._budget.excess(len(self._files), self._bytes)
            if self._budget.is_far_over(self._entries, self._bytes):
                if not self._excess:
                    too_many = f"there are more than {self._entries} files to look at"
                    raise self._too_large(too_many, self._entries_of)
                break
        if self._excess:
            raise self._too_large(self._excess, self._by_folder)
        if self._unreadable:
            raise CannotTakeCode(
                f"these cannot be read: {some_of([one_line(path) for path in self._unreadable])} "
                f"(in {one_line(self._root)})",
                fix="chmod u+r, or exclude them with a .srobustignore",
            )
        needed = self._settle()
        links = sorted(self._without_code(needed))
        if excess := self._budget.excess(len(self._files), self._bytes):
            raise self._too_large(excess, self._by_folder)
        if excess := self._budget.excess(len(links), 0):
            raise self._too_large(f"{excess} beside its code", self._entries_of)
        self._budget.spend(len(self._files), self._bytes)
        return Selection(tuple(sorted(self._files)), tuple(links))

    def _settle(self) -> set[str]:
        """Decide what depends on its folder or its target; returns the folders with code."""
        needed = _folders_of(self._files)
        no_sources: set[str] = set()
        is_without = not needed  # a folder that was named as code nevertheless
        for file in self._doubtful:
            if is_without or file.path.rpartition("/")[0] in needed:
                self._add(file)
            else:
                no_sources.update(parents(file.path))
                self._leave_out(file.path, _NO_CODE)
        needed |= _folders_of(self._files)
        self._no_sources = no_sources - needed
        known = [link for link in self._links if link.is_code]
        code = {*(file.path for file in self._files), *needed, *(link.path for link in known)}
        for link in self._own_links:
            target = os.path.relpath(os.path.realpath(os.path.join(self._root, link.path)), self._root)
            if link.path.rpartition("/")[0] in needed and ("" if target == "." else target) in code:
                self._links.append(link)
            else:
                self._leave_out(link.path, link.reason or _NO_CODE)
        return needed | {parent for link in known for parent in parents(link.path)}

    def _without_code(self, needed: Collection[str]) -> Iterator[Linked]:
        """Return the links; a folder without code is one, and so has what is written there later."""
        for link in self._links:
            if all(parent in needed for parent in parents(link.path)):
                yield link
        for folder in self._folders:
            if folder not in needed and all(parent in needed for parent in parents(folder)):
                reason = _NO_SOURCES if folder in self._no_sources else ""
                yield Linked(folder, os.path.join(self._root, folder), reason)

    def _look(self, folder: str, ignored: IgnoreRules) -> list[tuple[str, IgnoreRules]]:
        """Look at one folder; returns the folders in it that belong to the code."""
        try:
            with os.scandir(os.path.join(self._root, folder) if folder else self._root) as entries:
                found = list(entries)
        except PermissionError:
            self._unreadable.append(folder or ".")
            return []
        except FileNotFoundError:
            if not folder:
                raise
            return []  # removed meanwhile, which shows when all is looked at again
        prefix = f"{folder}/" if folder else ""
        self._entries += len(found)
        self._entries_of[_head(prefix)] += len(found)
        names = {entry.name for entry in found}
        if folder and ".git" in names:  # a repository of its own
            place = os.path.join(self._root, folder)
            self._tracked.update(prefix + path for path in self._git.below(place, self._budget.left_s()))
        ignored = ignored.below(
            *(_read(os.path.join(self._root, prefix + name), prefix, name in names) for name in (GIT, OURS))
        )
        within = []
        for entry in found:
            try:
                within += self._entry(entry, prefix + entry.name, ignored)
            except FileNotFoundError:
                continue
        return within

    def _entry(
        self, entry: os.DirEntry[str], path: str, ignored: IgnoreRules
    ) -> list[tuple[str, IgnoreRules]]:
        is_folder = entry.is_dir(follow_symlinks=False)
        if _is_cache(entry.name):
            return []
        place = os.path.join(self._root, path)
        if _is_never(entry.name) or place in self._never:
            self._leave_out(path, "")
        elif why := ignored.why(path, is_folder=is_folder):
            self._leave_out(path, f"in {why}")
        elif is_folder and os.path.lexists(os.path.join(place, "pyvenv.cfg")):
            self._leave_out(path, "a virtual environment")
        elif is_folder and entry.name == "node_modules":
            self._leave_out(path, "packages of Node.js")
        elif is_folder:
            self._folders.append(path)
            return [(path, ignored)]
        elif entry.is_symlink():
            self._link(place, path, is_named=ignored.names(path))
        elif not entry.is_file(follow_symlinks=False):
            self._leave_out(path, "not a plain file")
        elif path in self._tracked or path in self._run or ignored.names(path) or is_source(entry.name):
            self._file(path, entry.stat(follow_symlinks=False), is_sure=True)
        elif is_code(entry.name) or self._is_script(entry, place):
            self._file(path, entry.stat(follow_symlinks=False), is_sure=False)
        else:
            self._leave_out(path, _NO_CODE)
        return []

    def _is_script(self, entry: os.DirEntry[str], place: str) -> bool:
        """Return whether a file without an ending in its name can be executed by an interpreter."""
        if "." in entry.name or not entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR:
            return False
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            return os.read(descriptor, len(_SCRIPT)) == _SCRIPT
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _file(self, path: str, info: os.stat_result, *, is_sure: bool) -> None:
        if info.st_size > self._budget.limits.max_file_mb * _MB:
            self._leave_out(path, size_text(info.st_size))
        elif is_sure:
            self._add(chosen(path, info))
        else:
            self._doubtful.append(chosen(path, info))

    def _add(self, file: Chosen) -> None:
        self._files.append(file)
        self._bytes += file.size
        self._by_folder[_head(file.path)] += max(file.size, 1000)

    def _link(self, place: str, path: str, *, is_named: bool) -> None:
        """Keep a link within the tree to what is code.

        Others are left in their place, since programs let them lead to their newest checkpoint; but those
        that are named or tracked lead to the same place from the copy.
        """
        target = os.path.realpath(place)  # of a loop of links: one of them
        is_known = is_named or path in self._tracked
        if target == self._root or target.startswith(self._root.rstrip("/") + "/"):
            found = Linked(path, os.path.relpath(target, os.path.dirname(place)), is_code=True)
        else:
            found = Linked(path, target, f"a link to {one_line(target)}", is_code=True)
        (self._links if is_known else self._own_links).append(found)

    def _leave_out(self, path: str, reason: str) -> None:
        self._links.append(Linked(path, os.path.join(self._root, path), reason))

    def _too_large(self, excess: str, by_folder: Counter[str]) -> TooLarge:
        largest = [one_line(name or ".") for name, _ in by_folder.most_common(_LARGEST)]
        return TooLarge(
            f"the folder {one_line(self._root)} is too large for code: {excess}, the most of it in "
            f"{', '.join(largest)}",
            fix="exclude what is no code with a .srobustignore (as a .gitignore), or name the folders with "
            "code in code.paths",
        )


def chosen(path: str, info: os.stat_result) -> Chosen:
    """Return a file as its owner has left it."""
    return Chosen(path, info.st_size, info.st_mtime_ns, info.st_ino, info.st_mode)


def left_out_texts(links: Collection[tuple[str, str]], most: int) -> tuple[str, ...]:
    """Return paths with reasons for people, and how many more there are; data are counted."""
    data = [one_line(path) for path, reason in links if reason == _NO_CODE]
    told = [f"{one_line(path)} ({reason})" for path, reason in links if reason != _NO_CODE]
    more = len(told) - most
    texts = (*told[:most], f"and {more} more") if more > 0 else tuple(told)
    if not data:
        return texts
    are = "is" if len(data) == 1 else "are"
    return (*texts, f"{count(len(data), 'file')} that {are} no code, such as {', '.join(data[:_LARGEST])}")


def parents(path: str) -> Iterator[str]:
    """Return all folders above ``path``, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _folders_of(files: Collection[Chosen]) -> set[str]:
    """Return the folders above files, with that of the release, ""; none if there is no file."""
    return {folder for file in files for folder in (*parents(file.path), "")}


def _head(path: str) -> str:
    """Return the two folders at the beginning of a path, which name what is large well enough."""
    return "/".join(path.split("/")[:-1][:2])


def _read(path: str, prefix: str, is_there: bool, above: str = "") -> IgnoreFile | None:
    if not is_there:
        return None
    try:
        text = read_regular(Path(path), _PATTERN_BYTES).decode(errors="surrogateescape")
    except OSError:
        return None  # nothing is excluded that cannot be named
    return rules(text, prefix, above)


def _above(root: str) -> IgnoreRules:
    """Return what the ``.gitignore`` files above ``root`` say, up to the top of its repository.

    If one of them ignores ``root`` they do not count, since its owner runs what is there.
    """
    found: list[IgnoreFile] = []
    folder, below = root, ""
    while not os.path.lexists(os.path.join(folder, ".git")):
        folder, name = os.path.split(folder)
        if not name:
            return IgnoreRules()  # no repository
        below = f"{name}/{below}"
        if (one := _read(os.path.join(folder, GIT), "", True, below)) is not None:
            found.append(one)
    if (one := _read(os.path.join(folder, ".git", "info", "exclude"), "", True, below)) is not None:
        found.append(one)
    for one in found:
        whole = one.above.rstrip("/")
        if any(one.about(f"{part}/") for part in (whole, *parents(whole)) if part):
            return IgnoreRules()
    return IgnoreRules(tuple(reversed(found)))
