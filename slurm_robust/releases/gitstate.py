"""What Git says of a folder."""

from __future__ import annotations

import os

from slurm_robust.model.release import GitState
from slurm_robust.util.program import run_program

_LIMIT_S = 5.0  # for each of two commands
_BYTES = 1 << 16


def read(folder: str) -> GitState | None:
    """Return commit and branch of the folder; None where there is no repository, or Git does not answer."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD") or ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return GitState(commit=commit, branch=branch, dirty=bool(changed))


def _git(folder: str, *arguments: str) -> str | None:
    # Without optional locks Git writes nothing, so a person's own command is never in its way.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = run_program(["git", "-C", folder, *arguments], limit_s=_LIMIT_S, max_bytes=_BYTES, env=env)
    except (OSError, ValueError):
        return None
    return done.output.decode(errors="replace").strip() if done.code == 0 else None
