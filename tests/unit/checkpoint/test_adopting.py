"""Checkpoints of an earlier job get into a new one's folder, whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_robust.checkpoint.adopting import adopt
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId

REF = CheckpointId(generation=2, step=7)
PART = "rank-00000-of-00001.part"


@pytest.fixture
def old(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "old")
    store.folder(REF).mkdir(parents=True)
    for name in (PART, "__0_0.distcp", ".metadata"):
        (store.folder(REF) / name).write_text(name)
    return store


def test_files_are_linked_and_either_job_may_remove_its_own(old: CheckpointStore, tmp_path: Path) -> None:
    new = CheckpointStore(tmp_path / "new")
    assert adopt(old, new, [REF]) == 0
    assert new.complete() == [REF]
    assert os.path.samefile(old.folder(REF) / PART, new.folder(REF) / PART)
    assert new.folder(REF).stat().st_mode & 0o777 == 0o700
    for path in old.folder(REF).iterdir():
        path.unlink()
    assert (new.folder(REF) / PART).read_text() == PART


def test_where_storage_has_no_links_files_are_copied(
    old: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    new = CheckpointStore(tmp_path / "new")
    assert adopt(old, new, [REF]) == len(PART) + len("__0_0.distcp") + len(".metadata")
    assert new.complete() == [REF]


def test_a_step_that_is_there_stays_and_one_that_cannot_be_had_leaves_nothing(
    old: CheckpointStore, tmp_path: Path
) -> None:
    new = CheckpointStore(tmp_path / "new")
    adopt(old, new, [REF])
    (new.folder(REF) / "mark").touch()
    assert adopt(old, new, [REF]) == 0
    assert (new.folder(REF) / "mark").exists()
    with pytest.raises(FileNotFoundError):
        adopt(old, new, [CheckpointId(generation=3, step=9)])
    assert [path for path in new.path.rglob("*") if "00000009" in path.name] == []


def test_links_and_folders_are_left_out(old: CheckpointStore, tmp_path: Path) -> None:
    (old.folder(REF) / "trap").symlink_to("/etc/hostname")
    (old.folder(REF) / "more").mkdir()
    new = CheckpointStore(tmp_path / "new")
    adopt(old, new, [REF])
    assert not (new.folder(REF) / "trap").is_symlink()
    assert not (new.folder(REF) / "more").exists()
