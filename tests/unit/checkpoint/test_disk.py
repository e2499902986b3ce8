"""A rank gets back exactly its own state, and everything that is not exactly that is refused."""

from __future__ import annotations

import pickle
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.errors import (
    CorruptPart,
    EntryMismatch,
    ForeignPart,
    MissingCheckpoint,
    NotWritten,
    WorldSizeMismatch,
)
from slurm_robust.checkpoint.part import read_part
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointRef, CheckpointStore

REF = CheckpointRef(generation=2, step=7)


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
        found = tier(tmp_path, rank).load(REF, ("model",))
        assert found.own["model"]["buffer"].tolist() == [rank] * 3
        assert found.shared["model"]["weight"].tolist() == [0, 1, 2, 3, 4]
        assert found.rng == {"rank": rank}


def test_only_rank_0_writes_what_is_shared(tmp_path: Path) -> None:
    first, second = CheckpointStore(saved(tmp_path)).parts(REF)
    assert "model" in read_part(first)[1].shared
    assert read_part(second)[1].shared == {}


def test_what_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="gen-0002/step-00000007 is not complete"):
        tier(tmp_path).load(REF, ("model",))


def test_another_world_size_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorldSizeMismatch, match=r"written by 2 ranks.*has 4: run with 2 ranks"):
        tier(saved(tmp_path), world_size=4).load(REF, ("model",))


def test_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignPart, match=r"of run run, .*here is run other"):
        tier(saved(tmp_path), run_id="other").load(REF, ("model",))


def test_a_part_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(saved(tmp_path))
    moved = CheckpointRef(generation=2, step=8)
    shutil.copytree(tmp_path / REF.token(), tmp_path / moved.token())
    assert store.complete()[0] == moved
    with pytest.raises(ForeignPart, match="step 7, rank 0"):
        tier(tmp_path).load(moved, ("model",))


def test_other_entries_are_told(tmp_path: Path) -> None:
    with pytest.raises(EntryMismatch, match="holds the entries model, the script names model, loader"):
        tier(saved(tmp_path)).load(REF, ("model", "loader"))


def test_damage_to_rank_0_is_found_by_every_rank(tmp_path: Path) -> None:
    path = CheckpointStore(saved(tmp_path)).parts(REF)[0]
    content = bytearray(path.read_bytes())
    at = content.index(torch.arange(5).numpy().tobytes())
    content[at + 8] ^= 1
    path.write_bytes(content)
    for rank in range(2):
        with pytest.raises(CorruptPart, match=r"rank-00000-of-00002.pt is damaged.*remove its folder"):
            tier(tmp_path, rank).load(REF, ("model",))


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return CheckpointStore(saved(tmp_path_factory.mktemp("part"))).parts(REF)[0].read_bytes()


@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(
    part: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    changed = bytearray(part)
    changed[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "part.pt"
    path.write_bytes(changed)
    try:
        header, found = read_part(path)
    except (CorruptPart, ForeignPart):
        return
    assert (header.step, header.generation, header.rank) == (7, 2, 0)
    assert found.own["model"]["buffer"].tolist() == [0.0] * 3
    assert found.shared["model"]["weight"].tolist() == [0, 1, 2, 3, 4]


class Evil:
    """Would run code when unpickled in the ordinary way."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_part_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    torch.save({"format": Evil()}, path)
    with pytest.raises(SystemExit, match="executed"):
        torch.load(path, weights_only=False)
    with pytest.raises(CorruptPart, match="not a checkpoint part"):
        read_part(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    path.write_bytes(pickle.dumps({"format": 1}))
    with pytest.raises(CorruptPart):
        read_part(path)
    torch.save([1, 2, 3], path)
    with pytest.raises(ForeignPart, match="not written by slurm_robust"):
        read_part(path)


def test_another_format_version_is_told(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    torch.save({"format": "slurm_robust checkpoint part", "version": 99}, path)
    with pytest.raises(ForeignPart, match="format version 99"):
        read_part(path)


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
    later = CheckpointRef(generation=2, step=8)
    big = Snapshot(own={"model": torch.zeros(100_000)}, shared={}, rng={})
    with file_size_limit(50_000), pytest.raises(NotWritten):
        tier(tmp_path).save(later, big)
    assert store.complete() == [REF]
    assert list((tmp_path / later.token()).iterdir()) == []


def test_a_folder_that_cannot_be_made_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritten, match=r"Not a directory|File exists"):
        tier(tmp_path / "file").save(REF, snapshot(0))
