"""Which commit a checkout is at: its version alone says only to which release it leads."""

from __future__ import annotations

from pathlib import Path

_LIMIT_S = 5.0
_BYTES = 1000
_DESCRIBE = ("describe", "--tags", "--match=v*", "--always", "--dirty")


_ROOT = Path(__file__).resolve().parents[2]


def in_full(version: str, root: Path = _ROOT) -> str:
    """Return ``version``, and what git says of the commit if the package lies in a checkout."""
    if not (root / ".git").exists():
        return version
    from slurm_robust.util.program import run_program

    try:
        done = run_program(["git", "-C", str(root), *_DESCRIBE], limit_s=_LIMIT_S, max_bytes=_BYTES)
    except OSError:
        return version
    said = done.output.decode(errors="replace").strip()
    return f"{version} (checkout {said})" if done.code == 0 and said not in ("", f"v{version}") else version
