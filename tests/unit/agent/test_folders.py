from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from slurm_robust.agent.folders import (
    FEW_RANKS,
    NO_STEP_S,
    SPREAD_S,
    EpochRead,
    NextLogs,
    RuntimeFolder,
    make_log_folders,
    make_logs_ahead,
    read_epoch,
)
from slurm_robust.model.job import JobDirectory
from tests.builders.specs import launch


def test_the_folder_is_private_and_goes_with_the_agent(tmp_path: Path) -> None:
    runtime = RuntimeFolder("run", tmp_path)
    assert runtime.path.stat().st_mode & 0o777 == 0o700
    assert runtime.path.name.startswith(f"srobust-{os.getuid()}-run-")
    runtime.generation(1)
    runtime.close()
    assert list(tmp_path.iterdir()) == []


def test_a_new_generation_replaces_the_folder_of_the_last(tmp_path: Path) -> None:
    runtime = RuntimeFolder("run", tmp_path)
    (runtime.generation(1) / "rank-00000.rec").touch()
    second = runtime.generation(2)
    assert [p.name for p in runtime.path.glob("gen-*")] == ["gen-002"]
    assert runtime.generation(2) == second
    runtime.close()


def test_folders_of_living_agents_other_runs_and_strangers_are_left_alone(tmp_path: Path) -> None:
    """Two agents of one run may share a machine (a test cluster)."""
    other = RuntimeFolder("other", tmp_path)
    alive = RuntimeFolder("run", tmp_path)
    strange = tmp_path / f"srobust-{os.getuid()}-run-strange"
    strange.mkdir()
    runtime = RuntimeFolder("run", tmp_path)
    assert all(folder.exists() for folder in (other.path, alive.path, strange))
    for agent in (other, alive, runtime):
        agent.close()


@pytest.mark.parametrize("run", ["7-abc", "8-def"])
def test_what_a_killed_agent_of_any_run_left_is_removed(run: str, tmp_path: Path) -> None:
    dead = RuntimeFolder("7-abc", tmp_path)
    os.close(dead._lock)  # what the kernel does
    runtime = RuntimeFolder(run, tmp_path)
    assert not dead.path.exists()
    runtime.close()


def test_copies_of_checkpoints_and_the_names_of_others_are_no_run_folders(tmp_path: Path) -> None:
    copies = tmp_path / f"srobust-{os.getuid()}-7-abc-copies"
    copies.mkdir()
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    (elsewhere / "alive").touch()
    link = tmp_path / f"srobust-{os.getuid()}-7-abc-link"
    link.symlink_to(elsewhere)
    RuntimeFolder("8-def", tmp_path).close()
    assert copies.exists()
    assert link.is_symlink()
    assert (elsewhere / "alive").exists()


@pytest.mark.parametrize("kind", [OSError, ValueError, MemoryError])
def test_every_read_of_the_epochs_is_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Exception]
) -> None:
    """Else the agent would wait for the answer for ever, and never read again."""

    def fail(_: Path) -> NoReturn:
        raise kind("no")

    monkeypatch.setattr("slurm_robust.agent.folders.newest_epoch", fail)
    assert read_epoch(tmp_path) == EpochRead(newest=None, failed=True)


def test_folders_for_output_are_made(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    make_log_folders(job, 2, (56, 63, 64, 71))
    assert job.logs(2).is_dir()
    assert job.worker_log(2, 64, "out").parent.is_dir()


def tree(job: JobDirectory) -> set[tuple[str, int]]:
    """All that lies below the folder of logs; a file that was made anew has another inode."""
    return {(str(path), path.stat().st_ino) for path in job.logs(0).parent.rglob("*")}


def starts(job: JobDirectory, generation: int, ranks: tuple[int, ...]) -> None:
    """What agent and workers do at a launch."""
    make_log_folders(job, generation, ranks)
    for rank in ranks:
        for stream in ("out", "err"):
            with job.worker_log(generation, rank, stream).open("a"):
                pass


def test_a_restart_makes_nothing_on_storage_if_its_files_were_made_ahead(tmp_path: Path) -> None:
    """A job of 16 nodes: 8 x 16 x 2 files, in two folders."""
    job = JobDirectory(tmp_path)
    nodes = [tuple(range(first, first + 8)) for first in range(0, 128, 8)]
    for ranks in nodes:
        starts(job, 1, ranks)
        make_logs_ahead(job, 2, ranks)
    mark = job.logs_ahead(2)
    before = tree(job)
    assert len(before) == 2 * (1 + 1 + 256) + 1
    for ranks in nodes:
        starts(job, 2, ranks)
    assert before - tree(job) == {(str(mark), next(i for path, i in before if path == str(mark)))}
    assert tree(job) - before == set()


def test_what_was_made_ahead_is_closed_to_others(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    starts(job, 1, (0, 64))
    make_logs_ahead(job, 2, (0, 64))
    found = {path.name: path.stat().st_mode & 0o777 for path in job.logs(2).parent.rglob("*")}
    assert {found[name] for name in ("gen-002", "ranks-00064")} == {0o700}
    assert found["rank-00064.out"] & 0o007 == 0
    assert list(job.logs(2).parent.glob(".ahead*")) == []


def test_a_generation_that_runs_already_is_not_marked_as_made_ahead(tmp_path: Path) -> None:
    job = JobDirectory(tmp_path)
    starts(job, 2, (0,))
    make_logs_ahead(job, 2, (8,))  # an agent that is late
    assert not job.logs_ahead(2).exists()
    assert job.worker_log(2, 8, "err").exists()


def test_files_are_made_ahead_once_a_generation_trains_and_not_by_all_agents_at_once() -> None:
    def due(slot: int, stepped_at: float) -> int:
        order = launch(generation=3, ranks=(8, 9), world_size=2000, slot=slot, slots=1000)
        logs = NextLogs(order, 100.0)
        assert (logs.generation, logs.ranks) == (4, (8, 9))
        return next(t for t in range(100, 1000) if logs.is_due(t, has_stepped=t >= stepped_at))

    assert due(0, 107.0) == 107
    assert due(500, 107.0) == 107 + SPREAD_S / 2
    assert due(999, 107.0) <= 107 + SPREAD_S
    assert due(0, 1e9) == 100 + NO_STEP_S  # its steps are not seen


@pytest.mark.parametrize(("ranks", "expected"), [(FEW_RANKS, False), (FEW_RANKS + 1, True)])
def test_a_small_job_has_no_files_of_a_generation_that_may_never_be(ranks: int, expected: bool) -> None:
    logs = NextLogs(launch(world_size=ranks), 100.0)
    assert logs.is_due(1e6, has_stepped=True) is expected
