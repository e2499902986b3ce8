from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.checkpoint.image import open_image, read_front
from slurm_robust.checkpoint.local import LocalCopies, seal_key
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from tests.unit.agent.copy_nodes import MIB, RUN, check, fill
from tests.users import as_root, run_as

KEY = seal_key("the job's secret")


@pytest.fixture
def local(tmp_path: Path) -> LocalCopies:
    return LocalCopies(tmp_path / "disk", RUN, KEY)


def publish(local: LocalCopies, memory: Path, rank: int, step: int, generation: int = 1) -> Path:
    with closing(open_image(fill(memory / "buffer", rank, step, generation, MIB))) as image:
        return local.publish(image, keep=2)


def test_a_copy_is_whole_named_and_without_the_buffers_slack(local: LocalCopies, tmp_path: Path) -> None:
    fill(tmp_path / "buffer", 0, 1, 1, 3 * MIB)  # the buffer stays as large as its largest image
    path = publish(local, tmp_path, 3, 120, 3)
    assert path == local.path / "own-00003" / "gen-0003" / "step-00000120.img"
    assert local.path == tmp_path / "disk" / f"srobust-{os.getuid()}-{RUN}"
    check(path, 3, 120, 3)
    assert path.stat().st_size < 2 * MIB
    assert path.stat().st_mode & 0o077 == 0
    ref = CheckpointId(generation=3, step=120)
    assert local.find(3, ref) == path
    assert local.find(3, CheckpointId(generation=3, step=121)) is None
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
    fill(good.parent / "step-00000013.img", 0, 13, 1, MIB)  # whole, and without a seal
    another = LocalCopies(local.path.parent, RUN, seal_key("another job's secret"))
    publish(another, tmp_path, 1, 14)
    assert [c.step for c in local.inventory()] == [10]
    assert local.find(0, CheckpointId(generation=1, step=13)) is None
    assert [c.step for c in another.inventory()] == [14]


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
    assert local.find(0, CheckpointId(generation=1, step=1)) is None


def test_a_byte_in_front_of_the_data_or_in_the_seal_makes_it_none(local: LocalCopies, tmp_path: Path) -> None:
    path = publish(local, tmp_path, 0, 10)
    whole = path.read_bytes()
    front = len(front_of(path))
    for at in (8, 70, 4096, front - 1, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert local.inventory() == (), at
    path.write_bytes(whole)
    assert len(local.inventory()) == 1


def front_of(path: Path) -> bytes:
    with path.open("rb") as file:
        found = read_front(file)
    assert found is not None
    return found.content


def test_a_header_with_right_sums_but_without_the_key_is_ignored(local: LocalCopies, tmp_path: Path) -> None:
    """Who can write there can also sum up; a copy of another step, say, with the seal of a true one."""
    true = publish(local, tmp_path, 0, 10)
    forged = local.part_path(0, CheckpointId(generation=1, step=99999999))
    image = open_image(fill(tmp_path / "forged", 0, 99999999, 1, MIB))
    forged.write_bytes(image.path.read_bytes()[: image.nbytes] + true.read_bytes()[-40:])
    image.close()
    assert [c.step for c in local.inventory()] == [10]


@pytest.mark.parametrize("trap", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_anything_but_a_plain_file_is_passed_over_at_once(
    local: LocalCopies, tmp_path: Path, trap: Callable[[Path], None]
) -> None:
    publish(local, tmp_path, 0, 10)
    trap(local.part_path(0, CheckpointId(generation=1, step=11)))
    assert [c.step for c in local.inventory()] == [10]
    assert local.find(0, CheckpointId(generation=1, step=11)) is None


# -- two users -----------------------------------------------------------------------------------------

ME, OTHER = 65533, 65534


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder where all may make folders, with nothing above it that keeps others out."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o755, 0o1777])
def test_a_strangers_folder_is_neither_read_nor_written(scratch: Path, tmp_path: Path, mode: int) -> None:
    local = LocalCopies(scratch, RUN, KEY)
    image = open_image(fill(tmp_path / "buffer", 0, 5, 1, MIB))

    def forge() -> None:
        """Even with the right seal, which nobody has who has no key."""
        local.publish(image, 1)
        local.path.chmod(mode)
        os.mkfifo(local.part_path(0, CheckpointId(generation=1, step=6)), 0o666)

    assert run_as(OTHER, forge) == "None"
    refused = f"belongs to uid {OTHER}"
    assert refused in run_as(ME, local.inventory)
    assert refused in run_as(ME, lambda: local.find(0, CheckpointId(generation=1, step=5)))
    assert refused in run_as(ME, lambda: local.publish(image, 1))
    image.close()


@as_root
def test_a_strangers_file_in_ones_own_folder_is_ignored(scratch: Path, tmp_path: Path) -> None:
    local = LocalCopies(scratch, RUN, KEY)
    image = open_image(fill(tmp_path / "buffer", 0, 5, 1, MIB))
    assert ".img" in run_as(ME, lambda: local.publish(image, 1))
    image.close()
    assert "Copy(" in run_as(ME, local.inventory)
    copy = local.part_path(0, CheckpointId(generation=1, step=5))
    os.chown(copy, OTHER, OTHER)
    copy.chmod(0o644)
    assert run_as(ME, local.inventory) == "()"


@as_root
def test_in_memory_too_a_strangers_folder_or_file_is_refused(scratch: Path, tmp_path: Path) -> None:
    name = f"srobust-0-{RUN}-copies"  # the name has the real user's number
    assert run_as(OTHER, lambda: os.mkdir(scratch / name, 0o777)) == "None"
    with pytest.raises(PermissionError, match=f"belongs to uid {OTHER}"):
        MemoryFolder.create(RUN, scratch)
    mine = MemoryFolder.create(RUN, tmp_path)
    image = fill(mine.own(0, 0), 0, 5, 1, MIB)
    assert len(mine.inventory()) == 1
    os.chown(image, OTHER, OTHER)
    assert mine.inventory() == ()
    with pytest.raises(PermissionError, match=f"belongs to uid {OTHER}"):
        open_image(image)
