from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from tests.unit.agent.copy_nodes import MIB, RUN, fill


@pytest.fixture
def folder(tmp_path: Path) -> MemoryFolder:
    return MemoryFolder.create(RUN, tmp_path)


def test_the_inventory_has_every_whole_image_and_nothing_else(folder: MemoryFolder) -> None:
    fill(folder.own(0, 1), 0, 7, 2, MIB)
    fill(folder.own(SHARED, 0), SHARED, 7, 2, MIB)
    fill(folder.peer(9, 0), 9, 6, 2, MIB)
    fill(folder.fetched(4), 4, 6, 2, MIB)
    fill(folder.own(1, 0), 1, 7, 2, MIB, run_id="another")
    with fill(folder.own(2, 0), 2, 7, 2, MIB).open("r+b") as torn:
        torn.write(bytes(8))
    (folder.path / "own-00003.0").write_bytes(b"SRIMAGE\x01 and not much more")
    (folder.path / "plan-00000.json").write_text("{}")
    (folder.path / "own-00005.0").mkdir()
    nbytes = os.stat(folder.own(0, 1)).st_size
    assert set(folder.inventory()) == {
        Copy(rank=0, generation=2, step=7, tier=Tier.MEMORY, nbytes=nbytes),
        Copy(rank=SHARED, generation=2, step=7, tier=Tier.MEMORY, nbytes=nbytes),
        Copy(rank=9, generation=2, step=6, tier=Tier.PEER, nbytes=nbytes),
    }


def test_a_part_is_found_nearest_first(folder: MemoryFolder) -> None:
    ref = CheckpointId(generation=2, step=7)
    assert folder.find(3, ref) is None
    for path in (folder.peer(3, 0), folder.fetched(3), folder.own(3, 4)):
        fill(path, 3, 7, 2, MIB)
        assert folder.find(3, ref) == path
    assert folder.find(3, CheckpointId(generation=1, step=7)) is None
    fill(folder.fetched(SHARED), SHARED, 7, 2, MIB)
    assert folder.find(SHARED, ref) == folder.fetched(SHARED)


def test_a_folder_is_taken_again_and_traps_are_not(tmp_path: Path) -> None:
    folder = MemoryFolder.create(RUN, tmp_path)
    folder.path.chmod(0o755)
    fill(folder.own(0, 0), 0, 1, 1, MIB)
    again = MemoryFolder.create(RUN, tmp_path)
    assert len(again.inventory()) == 1
    assert again.path.stat().st_mode & 0o777 == 0o700
    trap = tmp_path / f"srobust-{os.getuid()}-8-ef-copies"
    trap.symlink_to(folder.path)
    with pytest.raises(OSError, match="is not a folder: remove it"):
        MemoryFolder.create("8-ef", tmp_path)


def test_a_folder_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "none", RUN)
    assert folder.inventory() == ()
    assert folder.find(0, CheckpointId(generation=1, step=1)) is None
