"""Snapshots of jobs that are gone, and how it is known which jobs are here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Suggestion
from slurm_robust.nodes.checks.snapshots import SnapshotFacts, SnapshotFolder, gather, judge_stale
from tests.unit.nodes.host_files import NOW, only, plant, view

CONFIG = NodeConfig()
UID = os.getuid()


def folder(job_id: int, age: float = 10_000.0) -> SnapshotFolder:
    return SnapshotFolder(
        name=f"srobust-1-{job_id}-x-copies", uid=1, job_id=job_id, mib=100, written_at=NOW - age
    )


@pytest.mark.parametrize(
    ("folders", "jobs", "outcome"),
    [
        ((), None, Outcome.PASS),
        ((folder(7),), frozenset({7}), Outcome.PASS),
        ((folder(7),), frozenset(), Outcome.FAIL),
        ((folder(7, age=3600.0),), frozenset(), Outcome.PASS),
        ((folder(7, age=3601.0),), frozenset({8}), Outcome.FAIL),
        ((folder(7, age=-50.0),), frozenset(), Outcome.PASS),
        ((folder(7),), None, Outcome.UNKNOWN),
        ((folder(7, age=10.0),), None, Outcome.PASS),
    ],
)
def test_folders_are_left_over_that_are_old_and_in_use_by_nobody(
    folders: tuple[SnapshotFolder, ...], jobs: frozenset[int] | None, outcome: Outcome
) -> None:
    found = only(judge_stale(view(SnapshotFacts(folders=folders, jobs=jobs)), CONFIG))
    assert found.outcome is outcome
    assert found.suggestion is (Suggestion.MONITOR if outcome is Outcome.FAIL else Suggestion.NONE)


def test_the_finding_names_jobs_and_memory() -> None:
    facts = SnapshotFacts(folders=tuple(folder(job) for job in (5, 6, 7, 8, 9, 9)), jobs=frozenset({8}))
    found = only(judge_stale(view(facts), CONFIG))
    assert found.text == "500 MiB of ended jobs (5, 6, 7, 9): remove them"
    assert found.value == "5 of 6 left over, 500 of 600 MiB"


def test_folders_are_read_without_following_anything(tmp_path: Path) -> None:
    shm = "/dev/shm"
    host = plant(
        tmp_path,
        {
            f"{shm}/srobust-{UID}-12-0-copies/own-00000.0": "x" * 3 * 2**20,
            f"{shm}/srobust-{UID}-12-0-copies/deeper/plan": "x",
            f"{shm}/srobust-{UID + 1}-13-0-copies/own": "of somebody else",
            f"{shm}/srobust-{UID}-bench/own": "no job",
            f"{shm}/srobust-{UID}-14-file": "no folder",
            f"{shm}/srobust-{UID}-15-x\n\x1b[31m/own": "no name of ours",
            "/outside/huge": "x",
            "/proc/loadavg": "",
        },
        links={f"{shm}/srobust-{UID}-16-link": "/outside"},
    )
    os.symlink("/outside", host.path(f"{shm}/srobust-{UID}-12-0-copies/link"))
    os.utime(host.path(f"{shm}/srobust-{UID}-12-0-copies/own-00000.0"), (NOW, 2**33))
    (found,) = gather(host, CONFIG).folders
    assert (found.job_id, found.uid, found.written_at) == (12, UID, 2**33)
    assert 3 <= found.mib <= 4


def test_folders_as_deep_as_a_user_likes_are_no_trouble(tmp_path: Path) -> None:
    shm = f"/dev/shm/srobust-{UID}"
    names = [f"{shm}-{job}-0-copies" for job in (12, 13)]
    files = {f"{name}/own": "x" * 2**20 for name in names}
    host = plant(tmp_path, {**files, "/proc/loadavg": "0 0 0 1/1 1"})
    deep = host.path(names[0])
    try:
        make_deep(deep)
        assert {folder.job_id: folder.mib for folder in gather(host, CONFIG).folders} == {12: 1, 13: 1}
    finally:
        subprocess.run(["rm", "-rf", deep], check=True)


def make_deep(folder: Path) -> None:
    """Deeper than Python recurses, and than a path can name."""
    here = os.open(folder, os.O_RDONLY)
    for name in ["d"] * 1100 + ["d" * 200] * 15:
        os.mkdir(name, dir_fd=here)
        there = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = there
    os.close(here)


def test_a_node_without_shared_memory_has_none(tmp_path: Path) -> None:
    assert gather(Host(tmp_path), CONFIG) == SnapshotFacts()
