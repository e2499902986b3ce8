"""An image is whole or it is not there; what is damaged or foreign is told, and readers are left alone."""

from __future__ import annotations

import os
import resource
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.errors import CorruptPart, ForeignPart, MissingCheckpoint
from slurm_robust.checkpoint.header import PartHeader, check_header
from slurm_robust.checkpoint.image import (
    ALIGNMENT,
    CHUNK_BYTES,
    DATA_ALIGNMENT,
    PAGE,
    ROOM_TO_GROW,
    Buffer,
    BufferInUse,
    TensorSpec,
    image_bytes,
    open_image,
    read_header,
)

HEADER = PartHeader(run_id="7-ab", layout="tp1", generation=2, step=30, rank=3, world_size=4, library="1")


def bytes_of(count: int, seed: int = 1) -> bytes:
    return bytes((seed * 31 + n * 7) % 251 for n in range(min(count, 5000))).ljust(count, bytes([seed]))


def fill(buffer: Buffer, contents: list[bytes], header: PartHeader = HEADER, tree: bytes = b"tree") -> None:
    specs = [TensorSpec(dtype="uint8", shape=(len(one),), nbytes=len(one)) for one in contents]
    for view, content in zip(buffer.begin(header, specs, tree), contents, strict=True):
        view[:] = content
    buffer.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own-00003.0"


@pytest.mark.parametrize("sizes", [[], [0], [1], [5, 0, 64, 65, 1000], [CHUNK_BYTES + 1, 3]])
def test_what_was_committed_is_read_back(path: Path, sizes: list[int]) -> None:
    contents = [bytes_of(size, seed) for seed, size in enumerate(sizes)]
    buffer = Buffer(path)
    fill(buffer, contents)
    assert read_header(path) == HEADER
    image = open_image(path)
    for threads in (1, 2, 3):
        image.verify(threads)
    assert (image.header, image.tree) == (HEADER, b"tree")
    assert [bytes(view) for view in image.data()] == contents
    assert image.nbytes == image_bytes(image.tensors, b"tree") <= buffer.capacity
    image.close()


def test_an_image_can_be_opened_as_soon_as_it_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PartHeader | None] = []

    def unlock(buffer: Buffer) -> None:
        seen.append(read_header(path))
        open_image(path).close()
        with pytest.raises(BufferInUse):
            Buffer(path).reserve(1)
        real(buffer)

    real = Buffer._unlock
    monkeypatch.setattr(Buffer, "_unlock", unlock)
    fill(Buffer(path), [b"a"])
    assert seen == [HEADER]


def test_tensors_are_aligned_and_the_file_is_private(path: Path) -> None:
    buffer = Buffer(path)
    fill(buffer, [b"a", b"b" * 70, b"c"])
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    at = struct.unpack_from("<Q", whole, 24)[0]
    assert at % DATA_ALIGNMENT == 0
    assert [whole[at + ALIGNMENT * n : at + ALIGNMENT * n + 1] for n in (0, 1, 3)] == [b"a", b"b", b"c"]


def test_an_image_that_was_begun_and_not_committed_is_ignored(path: Path) -> None:
    buffer = Buffer(path)
    fill(buffer, [b"old"])
    buffer.begin(HEADER, [TensorSpec(dtype="uint8", shape=(3,), nbytes=3)], b"")
    assert read_header(path) is None
    with pytest.raises(MissingCheckpoint, match="being refilled"):
        open_image(path)
    buffer.discard()
    with pytest.raises(MissingCheckpoint, match="no whole image"):
        open_image(path)


def test_a_missing_or_short_image_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="not there"):
        open_image(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"x")
    with pytest.raises(MissingCheckpoint, match="no whole image"):
        open_image(tmp_path / "short")
    assert read_header(tmp_path / "short") is None


def test_a_reader_keeps_its_image(path: Path) -> None:
    buffer = Buffer(path)
    fill(buffer, [b"one"])
    image = open_image(path)
    with pytest.raises(BufferInUse):
        buffer.begin(HEADER, [], b"")
    assert bytes(image.data()[0]) == b"one"
    image.close()
    fill(buffer, [b"two"])
    assert bytes(open_image(path).data()[0]) == b"two"


def test_a_mapping_may_be_written_to_without_harm(path: Path) -> None:
    fill(Buffer(path), [b"one"])
    view = open_image(path).data()[0]
    view[:] = b"two"
    assert bytes(open_image(path).data()[0]) == b"one"


def test_a_buffer_grows_and_shrinks_with_what_it_holds(path: Path) -> None:
    buffer = Buffer(path)
    for size in (10, 100_000, 10, 200_000):
        fill(buffer, [bytes_of(size)])
        image = open_image(path)
        image.verify()
        assert [bytes(view) for view in image.data()] == [bytes_of(size)]
        image.close()
    buffer.close()
    assert read_header(path) == HEADER


def test_the_tree_may_be_known_last(path: Path) -> None:
    spec = TensorSpec(dtype="uint8", shape=(3,), nbytes=3)
    buffer = Buffer(path)
    (view,) = buffer.begin(HEADER, [spec], b"expected")
    view[:] = b"old"
    grown = bytes_of(ROOM_TO_GROW)
    assert buffer.replace_tree(grown)
    assert not buffer.replace_tree(bytes(DATA_ALIGNMENT))
    buffer.commit()
    image = open_image(path)
    image.verify()
    assert image.tree == grown
    assert [bytes(view) for view in image.data()] == [b"old"]
    assert image.nbytes == image_bytes([spec], b"expected")
    image.close()


@pytest.mark.parametrize("length", [0, 1000, DATA_ALIGNMENT - ROOM_TO_GROW, 3 * DATA_ALIGNMENT])
def test_there_is_always_room_for_a_tree_to_grow(path: Path, length: int) -> None:
    buffer = Buffer(path)
    buffer.begin(HEADER, [], bytes(length))
    assert buffer.replace_tree(bytes(length + ROOM_TO_GROW - 8))  # less what its own length takes
    buffer.discard()


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 3 * PAGE - 1) | st.integers(DATA_ALIGNMENT - PAGE, DATA_ALIGNMENT + 20_000 - 1),
    bit=st.integers(0, 7),
)
def test_no_changed_byte_stays_unseen(path: Path, at: int, bit: int) -> None:
    """Unless it is in the room between meta block and data, which nobody reads."""
    with closing(Buffer(path)) as buffer:
        fill(buffer, [bytes_of(10_000), bytes_of(9_000)])
    image = open_image(path)
    used = PAGE + struct.unpack_from("<Q", path.read_bytes(), 16)[0], image.nbytes
    image.close()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        if not byte:
            return
        file.seek(at)
        file.write(bytes([byte[0] ^ (1 << bit)]))
    again = None
    try:
        again = open_image(path)
        again.verify()
        assert used[0] <= at < DATA_ALIGNMENT or at >= used[1]
        assert [bytes(view) for view in again.data()] == [bytes_of(10_000), bytes_of(9_000)]
    except (CorruptPart, MissingCheckpoint):
        pass
    finally:
        if again is not None:
            again.close()
        path.unlink()


@pytest.mark.parametrize("size", [PAGE - 1, PAGE, PAGE + 10, 3 * PAGE])
def test_a_shortened_file_is_reported(path: Path, size: int) -> None:
    fill(Buffer(path), [bytes_of(20_000)])
    os.truncate(path, size)
    with pytest.raises((CorruptPart, MissingCheckpoint), match=path.name):
        open_image(path)


def test_another_version_is_told_as_such(path: Path) -> None:
    fill(Buffer(path), [b"x"])
    page = bytearray(path.read_bytes()[:PAGE])
    struct.pack_into("<I", page, 8, 9)
    struct.pack_into("<Q", page, 56, 0)
    struct.pack_into("<Q", page, 56, xxhash.xxh3_64_intdigest(page[8:]))
    with path.open("r+b") as file:
        file.write(page)
    with pytest.raises(ForeignPart, match=r"version 9.*reads version 1"):
        open_image(path)
    assert read_header(path) is None


@pytest.mark.parametrize(
    "other",
    [{"run_id": "8"}, {"layout": "tp2"}, {"generation": 1}, {"step": 9}, {"rank": 1}, {"world_size": 2}],
)
def test_an_image_of_something_else_is_reported(path: Path, other: dict[str, object]) -> None:
    check_header(HEADER, msgspec.structs.replace(HEADER, library="2"), path)
    with pytest.raises(ForeignPart, match="expected is run"):
        check_header(HEADER, msgspec.structs.replace(HEADER, **other), path)


def test_an_image_can_be_received(tmp_path: Path, path: Path) -> None:
    fill(Buffer(path), [bytes_of(100_000)])
    whole = path.read_bytes()[: open_image(path).nbytes]
    other = Buffer(tmp_path / "peer-00003.0")
    other.receive(len(whole))[:] = whole[8:]
    assert read_header(other.path) is None
    assert other.adopt() == HEADER
    assert read_header(other.path) == HEADER
    torn = bytearray(whole)
    torn[-1] ^= 1
    other.receive(len(whole))[:] = torn[8:]
    with pytest.raises(CorruptPart):
        other.adopt()
    assert read_header(other.path) is None


def test_the_example_in_the_documentation_reads_an_image(path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "storage-format.md"
    images = page.read_text().partition("\n## Images\n")[2]
    code = images.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    buffer = Buffer(path)
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    specs = [
        TensorSpec(dtype="bfloat16", shape=(1,), nbytes=2),
        TensorSpec(dtype="float32", shape=(2, 3), nbytes=24),
    ]
    views = buffer.begin(HEADER, specs, msgspec.msgpack.encode({"w": ["t", 1]}))
    views[0][:] = b"xy"
    views[1][:] = numbers.tobytes()
    buffer.commit()
    header, tree, tensors = names["read_image"](path)
    assert (header["run_id"], header["step"], tree) == ("7-ab", 30, {"w": ["t", 1]})
    assert bytes(tensors[0]) == b"xy"
    assert (tensors[1] == numbers).all()


def test_no_memory_leaves_the_buffer_empty(path: Path) -> None:
    """The limit on the size of files stands for a full /dev/shm."""
    buffer = Buffer(path)
    fill(buffer, [b"old"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            fill(buffer, [bytes(200_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == 0
    fill(buffer, [bytes(200_000)])
    open_image(path).verify()
