"""Data are read to where they belong and summed up, whatever chunks they straddle."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_robust.checkpoint.chunks import CHUNK_BYTES, Piece, fill, sums_of
from slurm_robust.checkpoint.errors import CorruptPart
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, Image, TensorSpec, open_image

HEADER = PartHeader(run_id="7-ab", layout="", generation=1, step=5, rank=0, world_size=1)
DATA = os.urandom(3 * CHUNK_BYTES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own-00000.0"


@pytest.fixture
def image(path: Path) -> Iterator[Image]:
    opened = image_of(path, [bytes(DATA[:1000]), DATA[: CHUNK_BYTES + 7], b"", DATA[5:70]])
    yield opened
    opened.close()


def image_of(path: Path, contents: list[bytes]) -> Image:
    buffer = Buffer(path)
    specs = [TensorSpec(dtype="uint8", shape=(len(one),), nbytes=len(one)) for one in contents]
    for view, content in zip(buffer.begin(HEADER, specs, b"tree"), contents, strict=True):
        view[:] = content
    buffer.commit()
    buffer.close()
    return open_image(path)


def room(nbytes: int) -> memoryview:
    return memoryview(bytearray(b"\xaa" * nbytes))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


near_chunk = st.integers(CHUNK_BYTES - 130, CHUNK_BYTES + 130)
sizes = st.one_of(st.integers(0, 200), near_chunk, st.integers(0, 2 * CHUNK_BYTES))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.lists(st.tuples(sizes, st.booleans()), max_size=6), threads=st.integers(1, 3))
def test_tensors_of_any_size_get_their_bytes(
    path: Path, tensors: list[tuple[int, bool]], threads: int
) -> None:
    contents = [DATA[number : number + size] for number, (size, _) in enumerate(tensors)]
    image = image_of(path, contents)
    try:
        targets = [room(size) if wanted and size else None for size, wanted in tensors]
        image.fill(targets, threads)
        places = zip(targets, image.data(), strict=True)
        assert [bytes(mapped if target is None else target) for target, mapped in places] == contents
        assert [bytes(mapped) for mapped in image.data()] == contents
    finally:
        image.close()
        path.unlink()


@pytest.mark.parametrize("targeted", [(0, 1, 3), (1,), (0, 3), ()])
@pytest.mark.parametrize("tensor", [0, 1, 3])
def test_a_damaged_byte_is_told_wherever_it_goes(
    image: Image, path: Path, targeted: tuple[int, ...], tensor: int
) -> None:
    begin = image.nbytes - sum(-(-spec.nbytes // 64) * 64 for spec in image.tensors[tensor + 1 :])
    flip(path, begin - 70 if tensor < 3 else image.nbytes - 1)
    targets = [room(spec.nbytes) if number in targeted else None for number, spec in enumerate(image.tensors)]
    with pytest.raises(CorruptPart, match=r"1 of 2 chunks fail"):
        image.fill(targets, 2)


def test_a_damaged_gap_between_targets_is_reported(image: Image, path: Path) -> None:
    image.fill([room(spec.nbytes) if spec.nbytes else None for spec in image.tensors])
    flip(path, image.nbytes - 65 - 1)  # behind the second tensor
    with pytest.raises(CorruptPart):
        image.fill([room(spec.nbytes) if spec.nbytes else None for spec in image.tensors])


def test_a_file_that_became_shorter_is_reported(image: Image, path: Path) -> None:
    os.truncate(path, image.nbytes - 500)
    with pytest.raises(CorruptPart, match=r"1 of 2 chunks fail"):
        image.fill([room(spec.nbytes) if spec.nbytes else None for spec in image.tensors])


def test_more_pieces_than_one_call_reads(tmp_path: Path) -> None:
    count = os.sysconf("SC_IOV_MAX") * 2 + 3
    (tmp_path / "file").write_bytes(b"head" + DATA[: 3 * count])
    views = [room(3) for _ in range(count)]
    file = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        sums = struct.pack("<Q", xxhash.xxh3_64_intdigest(DATA[: 3 * count]))
        damaged = fill(file, 4, [Piece(view, read=True) for view in views], sums, 1)
    finally:
        os.close(file)
    assert b"".join(views) == DATA[: 3 * count]
    assert damaged == 0


def test_a_read_that_stops_halfway_goes_on() -> None:
    """Files in /proc give a few kB at a time."""
    file = os.open("/proc/kallsyms", os.O_RDONLY)
    try:
        views = [room(100), room(50_000)]
        if os.preadv(file, [*views], 7) > 50_000:
            pytest.skip("this kernel gives it all at once")
        views = [room(100), room(50_000)]
        with open("/proc/kallsyms", "rb") as lines:
            expected = lines.read(7 + 50_100)[7:]
        sums = struct.pack("<Q", xxhash.xxh3_64_intdigest(expected))
        damaged = fill(file, 7, [Piece(view, read=True) for view in views], sums, 1)
    finally:
        os.close(file)
    assert b"".join(views) == expected
    assert damaged == 0


@pytest.mark.parametrize("nbytes", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_however_many_threads_make_the_sums_each_chunk_has_its_own(nbytes: int, threads: int) -> None:
    data = memoryview(DATA)[:nbytes]
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, nbytes, CHUNK_BYTES)]
    assert sums_of(data, threads) == b"".join(xxhash.xxh3_64(one).digest()[::-1] for one in chunks)


def test_the_sums_are_made_although_the_node_refuses_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    expected = sums_of(memoryview(DATA))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sums_of(memoryview(DATA), 4) == expected
