"""A pytest plug-in: pytest rewrites each test file once, before the workers of xdist all do it.

In a fresh clone each of them would, since they collect at the same time: half a minute of a CPU for each.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Write the bytecode of what was named, in the process that starts the workers."""
    if sys.dont_write_bytecode or not session.config.pluginmanager.hasplugin("dsession"):
        return
    files = list(missing(session.config.args))
    fork = multiprocessing.get_context("fork")
    halves = [fork.Process(target=_write, args=(session.config, files[start::2])) for start in (0, 1)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()


def missing(named: list[str]) -> Iterator[Path]:
    """Yield the test files below these paths of which there is no bytecode of their age."""
    for name in named:
        path = ROOT / name.partition("::")[0]
        for file in [path] if path.is_file() else path.rglob("test_*.py"):
            written = _bytecode(file)
            if not written.exists() or written.stat().st_mtime < file.stat().st_mtime:
                yield file


def _bytecode(file: Path) -> Path:
    return rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"


def _write(config: pytest.Config, files: list[Path]) -> None:
    for file in files:
        source, code = rewrite._rewrite_test(file, config)
        written = _bytecode(file)
        rewrite.try_makedirs(written.parent)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, written)
