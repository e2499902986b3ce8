"""What ``.gitignore`` and ``.srobustignore`` say of a file, by the rules of Git.

Patterns are read by the library pathspec. A file that is named in a ``.srobustignore``, for or against, is
treated so whatever ``.gitignore`` says; of one kind the pattern of the deepest folder counts, and of one file
the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

GIT = ".gitignore"
OURS = ".srobustignore"

_DIR_MARK = "ps_d"


class IgnoreFile(NamedTuple):
    """The patterns of one file, which stand for paths below the folder of the file."""

    folder: str
    """Relative to the folder that is copied, with a slash at its end; "" for that folder itself."""
    patterns: tuple[GitIgnoreSpecPattern, ...]
    above: str = ""
    """The path of the copied folder below that of the file, with a slash; "" for a file within it."""

    def says(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether the entry itself is ignored; None if no pattern is about it.

        A pattern that is about a folder above it does not count: nobody looks into an ignored folder, and one
        that was taken nevertheless is taken whole.
        """
        return self.about(self.above + path[len(self.folder) :] + ("/" if is_folder else ""))

    def about(self, own: str) -> bool | None:
        """Return the same for a path relative to the folder of the file, with a slash after a folder."""
        for pattern in reversed(self.patterns):
            if pattern.regex is None or (found := pattern.regex.search(own)) is None:
                continue
            marked = _DIR_MARK in pattern.regex.groupindex and found.start(_DIR_MARK) >= 0
            if marked and found.start(_DIR_MARK) != len(own) - 1:
                # A folder above it. But "*/" is about all folders, and the first is found.
                if pattern.regex.pattern.startswith("^") or not own.endswith("/"):
                    continue
            elif not marked and own.endswith("/") and found.end() == len(own):
                continue  # all that is in it, but not itself
            return bool(pattern.include)
        return None


def rules(text: str, folder: str, above: str = "") -> IgnoreFile | None:
    """Read the file of a folder; None if it has no pattern. What is no pattern to Git is none to us."""
    found = []
    for line in text.splitlines():
        try:
            pattern = GitIgnoreSpecPattern(line)
        except GitIgnorePatternError:
            continue
        if pattern.regex is not None:
            found.append(pattern)
    return IgnoreFile(folder, tuple(found), above) if found else None


class IgnoreRules:
    """The rules that hold in one folder: its own and those of the folders above it."""

    def __init__(self, git: Sequence[IgnoreFile] = (), ours: Sequence[IgnoreFile] = ()) -> None:
        """The rules of the deepest folder come last."""
        self._git, self._ours = tuple(git), tuple(ours)

    def below(self, git: IgnoreFile | None, ours: IgnoreFile | None) -> IgnoreRules:
        """Return what holds in a folder that has these files."""
        if git is None and ours is None:
            return self
        return IgnoreRules(
            (*self._git, git) if git is not None else self._git,
            (*self._ours, ours) if ours is not None else self._ours,
        )

    def why(self, path: str, *, is_folder: bool) -> str:
        """Return the name of the file that ignores this path, "" if it is not ignored."""
        for name, files in ((OURS, self._ours), (GIT, self._git)):
            for one in reversed(files):
                if (says := one.says(path, is_folder=is_folder)) is not None:
                    return name if says else ""
        return ""

    def names(self, path: str) -> bool:
        """Return whether a ``.srobustignore`` says of the file itself that it is none to be ignored."""
        for one in reversed(self._ours):
            if (says := one.says(path, is_folder=False)) is not None:
                return not says
        return False
