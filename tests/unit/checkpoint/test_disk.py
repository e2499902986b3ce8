"""A rank gets back exactly its own state, and everything that is not exactly that is refused."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from slurm_robust.checkpoint.disk import DiskTier, finish, read_part
from slurm_robust.checkpoint.errors import (
    CorruptPart,
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    NotWritten,
    WorldSizeMismatch,
)
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from tests.builders.checkpoints import named, ref

REF = ref(2, 7)


def tier(folder: Path, rank: int = 0, world_size: int = 2, run_id: str = "run") -> DiskTier:
    return DiskTier(CheckpointStore(folder), run_id=run_id, rank=rank, world_size=world_size)


def snapshot(rank: int) -> Snapshot:
    return Snapshot(
        own={"model": {"buffer": torch.full((3,), float(rank))}},
        shared={"model": {"weight": torch.arange(5)}},
        rng={"rank": rank},
    )


def saved(folder: Path) -> Path:
    for rank in range(2):
        tier(folder, rank).save(REF, snapshot(rank))
    return folder


def test_each_rank_gets_its_own_and_the_shared_state(tmp_path: Path) -> None:
    saved(tmp_path)
    for rank in range(2):
        found = tier(tmp_path, rank).load(REF, named("model"))
        assert found.own["model"]["buffer"].tolist() == [rank] * 3
        assert found.shared["model"]["weight"].tolist() == [0, 1, 2, 3, 4]
        assert found.rng == {"rank": rank}


def test_only_rank_0_writes_what_is_shared(tmp_path: Path) -> None:
    first, second = CheckpointStore(saved(tmp_path)).parts(REF)
    assert "model" in read_part(first, read_sidecar(first)).shared
    assert read_part(second, read_sidecar(second)).shared == {}


def test_a_step_that_is_not_complete_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="gen-0002/step-00000007 is not complete"):
        tier(tmp_path).load(REF, named("model"))


def test_another_world_size_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WorldSizeMismatch, match=r"written by 2 ranks.*has 4: run with 2 ranks"):
        tier(saved(tmp_path), world_size=4).load(REF, named("model"))


def test_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignPart, match=r"of run run, .*expected is run other"):
        tier(saved(tmp_path), run_id="other").load(REF, named("model"))


def test_a_part_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(saved(tmp_path))
    moved = ref(2, 8)
    shutil.copytree(tmp_path / str(REF), tmp_path / str(moved))
    assert store.complete()[0] == moved
    with pytest.raises(ForeignPart, match="step 7, rank 0"):
        tier(tmp_path).load(moved, named("model"))


def test_another_layout_is_refused_where_one_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    DiskTier(store, run_id="run", rank=0, world_size=1, layout="tp2").save(REF, snapshot(0))
    for layout in ("tp2", ""):
        DiskTier(store, run_id="run", rank=0, world_size=1, layout=layout).load(REF, named("model"))
    with pytest.raises(ForeignPart, match=r"layout tp2, .*layout tp4"):
        DiskTier(store, run_id="run", rank=0, world_size=1, layout="tp4").load(REF, named("model"))


def test_a_part_without_its_data_is_missing(tmp_path: Path) -> None:
    CheckpointStore(saved(tmp_path)).data_path(REF, 1).unlink()
    with pytest.raises(MissingCheckpoint, match=r"__1_0.distcp is not there"):
        tier(tmp_path, 1).load(REF, named("model"))


def test_an_order_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(saved(tmp_path))
    files = [*store.parts(REF), store.data_path(REF, 0), store.folder(REF) / ".metadata"]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    tier(tmp_path).save(REF, snapshot(0))
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before


def test_the_last_part_makes_it_complete_for_others(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    tier(tmp_path, 1).save(REF, snapshot(1))
    assert store.latest() is None
    assert not (store.folder(REF) / ".metadata").exists()
    tier(tmp_path, 0).save(REF, snapshot(0))
    assert store.latest() == REF
    assert (store.folder(REF) / ".metadata").exists()


def test_what_a_finisher_left_undone_the_next_one_does(tmp_path: Path) -> None:
    store = CheckpointStore(saved(tmp_path))
    (store.folder(REF) / ".metadata").unlink()
    (tmp_path / "latest").unlink()
    later = ref(2, 8)
    for rank in range(2):
        tier(tmp_path, rank).save(later, snapshot(rank))
    assert (store.folder(REF) / ".metadata").exists()
    assert store.latest() == later


def test_other_entries_are_reported(tmp_path: Path) -> None:
    with pytest.raises(EntryMismatch, match="holds the entries model, the script names model, loader"):
        tier(saved(tmp_path)).load(REF, named("model", "loader"))


def test_damage_to_rank_0_is_found_by_every_rank(tmp_path: Path) -> None:
    path = CheckpointStore(saved(tmp_path)).data_path(REF, 0)
    content = bytearray(path.read_bytes())
    at = content.index(torch.arange(5).numpy().tobytes())
    content[at + 8] ^= 1
    path.write_bytes(content)
    for rank in range(2):
        with pytest.raises(CorruptPart, match=r"__0_0.distcp is damaged \(model.weight.*remove its folder"):
            tier(tmp_path, rank).load(REF, named("model"))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_ones(tmp_path: Path) -> None:
    store = CheckpointStore(saved(tmp_path))
    later = ref(2, 8)
    big = Snapshot(own={"model": torch.zeros(100_000)}, shared={}, rng={})
    with file_size_limit(50_000), pytest.raises(NotWritten, match=r"step-00000008: .*too large"):
        tier(tmp_path).save(later, big)
    assert store.complete() == [REF]
    assert list((tmp_path / str(later)).iterdir()) == []
    assert store.latest() == REF


@pytest.mark.parametrize("damage", ["header", "rest"])
def test_a_damaged_neighbour_is_logged_and_hinders_nobody(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(saved(tmp_path))
    (store.folder(REF) / ".metadata").unlink()
    path = store.parts(REF)[1]
    path.write_bytes(b"?" * 10 if damage == "header" else path.read_bytes()[:-1])
    later = ref(2, 8)
    for rank in range(2):
        tier(tmp_path, rank).save(later, snapshot(rank))
    assert "checkpoint gen-0002/step-00000008 is whole, but" in caplog.text
    assert "rank-00001-of-00002.part is damaged" in caplog.text
    assert (store.folder(later) / ".metadata").exists()
    assert store.latest() == later


def test_a_folder_that_cannot_be_made_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritten, match=r"Not a directory|File exists"):
        tier(tmp_path / "file").save(REF, snapshot(0))


@pytest.mark.slow
def test_many_finishers_at_once_write_the_same(tmp_path: Path) -> None:
    """And who reads meanwhile finds nothing or all of it."""
    store = CheckpointStore(saved(tmp_path))
    metadata = store.folder(REF) / ".metadata"
    expected = FileSystemReader(store.folder(REF)).read_metadata().storage_data
    for _ in range(20):
        metadata.unlink()
        (tmp_path / "latest").unlink()
        with ThreadPoolExecutor(4) as pool:
            finishers = [pool.submit(finish, store) for _ in range(4)]
            while not all(finisher.done() for finisher in finishers):
                if metadata.exists():
                    assert FileSystemReader(store.folder(REF)).read_metadata().storage_data == expected
                assert store.latest() in (None, REF)
            assert [finisher.result() for finisher in finishers] == [None] * 4
        assert store.latest() == REF
    assert sorted(path.name for path in store.folder(REF).iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "rank-00000-of-00002.part",
        "rank-00001-of-00002.part",
    ]


def test_a_part_of_an_earlier_run_is_read_and_one_of_any_other_is_not(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    DiskTier(store, run_id="7-a", rank=0, world_size=1).save(REF, snapshot(0))
    later = DiskTier(store, run_id="8-b", rank=0, world_size=1, earlier=("6-z", "7-a"))
    assert later.load(REF, named(*snapshot(0).own)).own.keys() == snapshot(0).own.keys()
    with pytest.raises(ForeignPart, match="is of run 7-a"):
        DiskTier(store, run_id="8-b", rank=0, world_size=1, earlier=("6-z",)).load(REF, named("model"))


def test_a_part_of_another_run_is_never_written_over(tmp_path: Path) -> None:
    """Two trainings that were given one folder number their generations alike."""
    saved(tmp_path)
    with pytest.raises(NotWritten, match=r"is of another run \(run\).*checkpoint.directory"):
        tier(tmp_path, run_id="other").save(REF, snapshot(1))
    assert tier(tmp_path).load(REF, named(*snapshot(0).own)).own["model"]["buffer"].tolist() == [0.0] * 3
