from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.local import LocalCopies, local_path
from slurm_robust.checkpoint.store import CheckpointRef
from slurm_robust.model.copies import SHARED, Copy, Tier
from tests.unit.agent.nodes import MIB, RUN, check, fill


@pytest.fixture
def local(tmp_path: Path) -> LocalCopies:
    return LocalCopies(local_path(tmp_path / "disk", RUN), RUN)


def publish(local: LocalCopies, memory: Path, rank: int, step: int, generation: int = 1) -> Path:
    image = open_image(fill(memory / "buffer", rank, step, generation, MIB))
    try:
        return local.publish(image, keep=2)
    finally:
        image.close()


def test_a_copy_is_whole_named_and_without_the_buffers_slack(local: LocalCopies, tmp_path: Path) -> None:
    fill(tmp_path / "buffer", 0, 1, 1, 3 * MIB)  # the buffer stays as large as its largest image
    path = publish(local, tmp_path, 3, 120, 3)
    assert path == local.path / "own-00003" / "gen-0003" / "step-00000120.img"
    assert local.path == tmp_path / "disk" / f"srobust-{os.getuid()}-{RUN}"
    check(path, 3, 120, 3)
    assert path.stat().st_size < 2 * MIB
    assert path.stat().st_mode & 0o077 == 0
    ref = CheckpointRef(generation=3, step=120)
    assert local.find(3, ref) == path
    assert local.find(3, CheckpointRef(generation=3, step=121)) is None
    (copy,) = local.inventory()
    assert copy == Copy(rank=3, generation=3, step=120, tier=Tier.LOCAL, nbytes=path.stat().st_size)


def test_the_newest_of_each_part_stay(local: LocalCopies, tmp_path: Path) -> None:
    for generation, step in ((1, 10), (1, 20), (1, 30), (2, 21)):
        for rank in (0, SHARED):
            publish(local, tmp_path, rank, step, generation)
    found = {(c.rank, c.generation, c.step) for c in local.inventory()}
    assert found == {(rank, *ref) for rank in (0, SHARED) for ref in ((1, 30), (2, 21))}
    assert sorted(p.name for p in local.path.iterdir()) == ["own-00000", "shared"]


def test_damage_and_files_of_others_are_no_copies(local: LocalCopies, tmp_path: Path) -> None:
    good = publish(local, tmp_path, 0, 10)
    (good.parent / "step-00000011.img").write_bytes(b"short")
    (good.parent / "step-00000012.img").write_bytes(good.read_bytes())  # another step than its name says
    (good.parent / "notes.txt").write_text("x")
    fill(good.parent / "step-00000013.img", 0, 13, 1, MIB, run_id="another")
    assert [c.step for c in local.inventory()] == [10]
    assert local.find(0, CheckpointRef(generation=1, step=13)) is None


def test_a_full_disk_leaves_what_was_there(
    local: LocalCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(local, tmp_path, 0, 10)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    with pytest.raises(OSError, match="No space"):
        publish(local, tmp_path, 0, 20)
    assert [c.step for c in local.inventory()] == [10]
    assert [p.name for p in local.path.rglob("*") if p.is_file()] == ["step-00000010.img"]


def test_a_folder_that_is_not_there_holds_nothing(local: LocalCopies) -> None:
    assert local.inventory() == ()
    assert local.find(0, CheckpointRef(generation=1, step=1)) is None
