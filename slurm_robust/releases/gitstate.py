"""What Git says of a folder."""

from __future__ import annotations

import os
import time

from slurm_robust.model.release import GitState
from slurm_robust.util.program import run_program

_LIMIT_S = 5.0
_BYTES = 1 << 16
_LIST_BYTES = 64 << 20


def read(folder: str) -> GitState | None:
    """Return commit and branch of the folder; None where there is no repository, or Git does not answer."""
    until = time.monotonic() + _LIMIT_S
    commit = _git(folder, until, "rev-parse", "HEAD")
    if not commit:
        return None
    branch = _git(folder, until, "symbolic-ref", "--short", "-q", "HEAD") or ""
    changed = _git(folder, until, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return GitState(commit=commit, branch=branch, dirty=changed if changed is None else bool(changed))


class TrackedFiles:
    """Which files Git tracks: each folder is asked once, and all together have 5 s."""

    def __init__(self) -> None:
        self._left_s = _LIMIT_S
        self._found: dict[str, frozenset[str]] = {}

    def below(self, folder: str, limit_s: float) -> frozenset[str]:
        """Return the paths relative to ``folder``; none where Git does not answer.

        It does not in a repository of another user, whose configuration might name a program.
        """
        if (found := self._found.get(folder)) is None:
            began = time.monotonic()
            found = _tracked(folder, began + max(0.0, min(self._left_s, limit_s)))
            self._left_s -= time.monotonic() - began
            self._found[folder] = found
        return found


def _tracked(folder: str, until: float) -> frozenset[str]:
    listed = _ask(folder, until, "ls-files", "-z", most=_LIST_BYTES)
    if not listed or len(listed) == _LIST_BYTES:  # its beginning may be lacking
        return frozenset()
    return frozenset(os.fsdecode(path) for path in listed.split(b"\0") if path)


def _git(folder: str, until: float, *arguments: str) -> str | None:
    said = _ask(folder, until, *arguments)
    return said.decode(errors="replace").strip() if said is not None else None


def _ask(folder: str, until: float, *arguments: str, most: int = _BYTES) -> bytes | None:
    # Without optional locks Git writes nothing, so a person's own command is never in its way.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    limit_s = max(0.0, until - time.monotonic())
    try:
        done = run_program(["git", "-C", folder, *arguments], limit_s=limit_s, max_bytes=most, env=env)
    except (OSError, ValueError):
        return None
    return done.output if done.code == 0 else None
