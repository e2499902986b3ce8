"""A pytest plug-in: the files that take longest begin first, since one that begins last is waited for alone.

For ``-n 2 --dist loadfile --no-loadscope-reorder``; xdist itself would begin with the files of most tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# As `--durations=0` shows; those that are not named follow in their usual order.
LONGEST = (
    "tests/cluster/test_recovery.py",
    "tests/cluster/test_copies.py",
    "tests/cluster/test_detection.py",
    "tests/cluster/test_drain.py",
    "tests/cluster/test_leaving.py",
    "tests/cluster/test_sandbox_down.py",
    "tests/cluster/test_diagnose.py",
    "tests/cluster/test_storage.py",
    "tests/cluster/test_unreachable.py",
    "tests/cluster/test_slurm_contract.py",
    "tests/cluster/test_sandbox.py",
    "tests/cluster/test_hooks.py",
    "tests/cluster/test_replay.py",
    "tests/cluster/test_starts.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file, and keep the order within each."""
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
