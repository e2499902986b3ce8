"""What Git says of a folder."""

from __future__ import annotations

import os
import time

from slurm_robust.model.release import GitState
from slurm_robust.util.program import run_program

_LIMIT_S = 5.0
_BYTES = 1 << 16


def read(folder: str) -> GitState | None:
    """Return commit and branch of the folder; None where there is no repository, or Git does not answer."""
    until = time.monotonic() + _LIMIT_S
    commit = _git(folder, until, "rev-parse", "HEAD")
    if not commit:
        return None
    branch = _git(folder, until, "symbolic-ref", "--short", "-q", "HEAD") or ""
    changed = _git(folder, until, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return GitState(commit=commit, branch=branch, dirty=changed if changed is None else bool(changed))


def _git(folder: str, until: float, *arguments: str) -> str | None:
    # Without optional locks Git writes nothing, so a person's own command is never in its way.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    limit_s = max(0.0, until - time.monotonic())
    try:
        done = run_program(["git", "-C", folder, *arguments], limit_s=limit_s, max_bytes=_BYTES, env=env)
    except (OSError, ValueError):
        return None
    return done.output.decode(errors="replace").strip() if done.code == 0 else None
