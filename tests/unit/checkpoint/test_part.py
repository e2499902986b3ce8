"""Whatever is changed in the files of a part is found, or changes nothing that a reader gets."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint import dcp
from slurm_robust.checkpoint.disk import DiskTier, read_part
from slurm_robust.checkpoint.errors import CorruptPart, ForeignPart, MissingCheckpoint
from slurm_robust.checkpoint.part import MAGIC, Sidecar, encode_sidecar, read_sidecar, verify_part
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId

REF = CheckpointId(generation=2, step=7)
SNAPSHOT = Snapshot(
    own={"model": {"buffer": torch.full((3,), 4.0), "pair": (torch.ones(2), "two")}},
    shared={"model": {"weight": torch.arange(5)}},
    rng={"torch": torch.arange(16, dtype=torch.uint8)},
)


def saved(folder: Path) -> Path:
    store = CheckpointStore(folder)
    DiskTier(store, run_id="run", rank=0, world_size=1).save(REF, SNAPSHOT)
    return store.parts(REF)[0]


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    path = saved(tmp_path_factory.mktemp("part"))
    return path.read_bytes(), path.with_name("__0_0.distcp").read_bytes()


def placed(folder: Path, sidecar: bytes, data: bytes) -> Path:
    path = folder / "rank-00000-of-00001.part"
    path.write_bytes(sidecar)
    path.with_name("__0_0.distcp").write_bytes(data)
    return path


def read(path: Path) -> tuple[Sidecar, Snapshot]:
    sidecar = read_sidecar(path)
    return sidecar, read_part(path, sidecar)


def check_content(path: Path) -> None:
    sidecar, found = read(path)
    assert (sidecar.header.step, sidecar.header.generation, sidecar.header.rank) == (7, 2, 0)
    assert found.own["model"]["buffer"].tolist() == [4.0] * 3
    assert found.own["model"]["pair"][0].tolist() == [1.0, 1.0]
    assert found.own["model"]["pair"][1] == "two"
    assert found.shared["model"]["weight"].tolist() == [0, 1, 2, 3, 4]
    assert found.rng["torch"].tolist() == list(range(16))


def test_a_whole_part_is_accepted(tmp_path: Path) -> None:
    path = saved(tmp_path)
    size = path.stat().st_size + path.with_name("__0_0.distcp").stat().st_size
    assert 0 < verify_part(path) <= size
    check_content(path)


def test_a_part_that_is_gone_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="not there"):
        verify_part(tmp_path / "rank-00000-of-00001.part")
    path = saved(tmp_path)
    path.with_name("__0_0.distcp").unlink()
    with pytest.raises(MissingCheckpoint, match=r"__0_0.distcp is not there"):
        verify_part(path)


@settings(deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(
    part: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    files = [bytearray(content) for content in part]
    changed = data.draw(st.sampled_from(files))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    path = placed(tmp_path_factory.mktemp("flip"), *files)
    try:
        verify_part(path)
    except (CorruptPart, ForeignPart) as error:
        with pytest.raises(type(error)):
            read(path)
        return
    check_content(path)


@settings(deadline=None)
@given(data=st.data())
def test_a_truncated_part_is_refused(
    part: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    files = list(part)
    which = data.draw(st.integers(0, 1))
    files[which] = files[which][: data.draw(st.integers(0, len(files[which]) - 1))]
    path = placed(tmp_path_factory.mktemp("cut"), *files)
    with pytest.raises(CorruptPart, match="is damaged"):
        verify_part(path)
    with pytest.raises(CorruptPart, match="is damaged"):
        read(path)


class Evil:
    """Would run code when unpickled in the ordinary way."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_part_is_executed(tmp_path: Path) -> None:
    """Even with all sums right."""
    path = saved(tmp_path)
    data = path.with_name("__0_0.distcp")
    torch.save(Evil(), data)
    with pytest.raises(SystemExit, match="executed"):
        torch.load(data, weights_only=False)
    content = data.read_bytes()
    sidecar = read_sidecar(path)
    changed = msgspec.structs.replace(sidecar, data_bytes=len(content), items=())
    for raw in (-1, 0, len(content)):
        items = tuple(
            msgspec.structs.replace(
                item, offset=0, length=len(content), sum=xxhash.xxh3_64_intdigest(content), raw=raw
            )
            for item in sidecar.items
        )
        path.write_bytes(encode_sidecar(msgspec.structs.replace(changed, items=items)))
        if raw:
            with pytest.raises(CorruptPart, match="is not a tensor"):
                read(path)
        else:
            read(path)  # numbers without sense, and no more


def test_a_sidecar_names_no_other_folders_data(tmp_path: Path) -> None:
    path = saved(tmp_path)
    sidecar = msgspec.structs.replace(read_sidecar(path), data="../../secret")
    path.write_bytes(encode_sidecar(sidecar))
    with pytest.raises(CorruptPart, match=r"names '\.\./\.\./secret'"):
        verify_part(path)


@pytest.mark.parametrize("content", [pickle.dumps({"format": 1}) * 9, b"x" * 500])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-00000-of-00001.part"
    path.write_bytes(content)
    with pytest.raises(ForeignPart, match="not written by slurm_robust"):
        read_sidecar(path)


def test_another_format_version_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000-of-00001.part"
    path.write_bytes(struct.pack("<8sIIQ", MAGIC, 99, 0, 0) + b"whatever")
    with pytest.raises(ForeignPart, match="format version 99"):
        read_sidecar(path)


@pytest.mark.parametrize(
    ("release", "safely"),
    [
        ("2.4.0", False),
        ("2.4.1+cu121", False),
        ("2.5.1", False),
        ("2.6.0", True),
        ("2.10.0a0+git1234", True),
        ("2.15.0+cpu", True),
        ("3.0.0", True),
    ],
)
def test_releases_with_the_defect_of_torch_load_are_known(release: str, safely: bool) -> None:
    assert dcp.loads_safely(release) is safely


def test_an_old_torch_loads_only_what_nobody_else_could_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch 2.6 even ``weights_only`` runs what the file says (CVE-2025-32434)."""
    store = CheckpointStore(tmp_path)
    state = Snapshot(own={"model": {"none": torch.empty(0, 3)}}, shared={}, rng={})
    DiskTier(store, run_id="run", rank=0, world_size=1).save(REF, state)
    path = store.parts(REF)[0]
    data = store.data_path(REF, 0)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    data.chmod(0o644)
    assert read(path)[1].own["model"]["none"].shape == (0, 3)
    data.chmod(0o664)
    with pytest.raises(ForeignPart, match="CVE-2025-32434") as error:
        read(path)
    assert "torch 2.6" in str(error.value)
    assert f"chmod go-w {data}" in str(error.value)
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    assert read(path)[1].own["model"]["none"].shape == (0, 3)
