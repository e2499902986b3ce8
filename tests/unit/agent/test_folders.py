from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from slurm_robust.agent.folders import EpochRead, RuntimeFolder, make_log_folders, read_epoch
from slurm_robust.model.job import JobDirectory


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
