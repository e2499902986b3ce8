"""Tests that fork often, in interpreters of their own: a fork of pytest with all it has collected is slow."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a new process without any other; its fixtures are paths."""

    @functools.wraps(test)
    def run(**paths: Path) -> None:
        given = {name: str(path) for name, path in paths.items()}
        code = (
            f"from pathlib import Path; from {test.__module__} import {test.__name__} as run\n"
            f"run.__wrapped__(**{{name: Path(path) for name, path in {given!r}.items()}})"
        )
        command = [sys.executable, "-c", code]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
        assert ended.returncode == 0, ended.stderr

    return run
