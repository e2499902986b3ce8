"""Parts as ``torch.distributed.checkpoint`` (DCP) reads them: data files, and the ``.metadata`` of all.

``.metadata`` is a pickle, as DCP wants it, for users of DCP alone; a restore by slurm_robust needs only the
sidecars and unpickles nothing. Keys are as DCP gives them to ``{"<entry>": entry.state_dict(), ...}``. If
ranks hold different values under the same key, the lowest rank's has the key, and the others have
``rank-00002.<key>``; random number generators always have such keys.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch
import xxhash
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from slurm_robust.checkpoint import shards
from slurm_robust.checkpoint.errors import ForeignPart
from slurm_robust.checkpoint.part import PartItem, Sidecar, corrupt, data_of, name_of
from slurm_robust.checkpoint.plain import map_tensors
from slurm_robust.checkpoint.tree import flatten
from slurm_robust.util.ours import only_we_write, open_plain
from slurm_robust.util.text import version_numbers

ALIGNMENT = 64

# The first release whose torch.load(weights_only=True) cannot be made to run a program (CVE-2025-32434).
_LOADS_SAFELY_FROM = (2, 6)

_LOCAL_HEADER = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
_TENSOR_RECORD = b"/data/0"

_Path = tuple[str | int, ...]


def write_items(file: IO[bytes], tree: Any, prefix: _Path = (), *, shared: bool = False) -> list[PartItem]:
    """Append every value of a tree of plain data to a data file, in the order of ``map_tensors``.

    Raises ``OSError``.
    """
    stream = _ItemStream(file)
    with _without_crc32():
        return [
            item
            for path, value in _leaves(prefix, tree)
            for item in _written(stream, path, value, shared=shared)
        ]


def loads_safely(release: str) -> bool:
    """Return whether that release's ``torch.load(weights_only=True)`` may read what others have written."""
    return version_numbers(release) >= _LOADS_SAFELY_FROM


def read_tensors(path: Path, sidecar: Sidecar, items: Iterable[PartItem]) -> list[torch.Tensor]:
    """Return the tensors among ``items``, whose sums were compared; they are in the mapped data file.

    The mapping is private: writing to a tensor changes nothing in the file. Raises :class:`CorruptPart`
    or ``OSError``.
    """
    wanted = [item for item in items if item.dtype]
    if not wanted:
        return []
    data = data_of(path, sidecar)
    file = open_plain(data)
    try:
        if not os.fstat(file).st_size:
            raise corrupt(data, "it is empty")
        mapping = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
        may_load = loads_safely(torch.__version__) or only_we_write(file)
    finally:
        os.close(file)
    found = []
    for item in wanted:
        if item.raw < 0 and not may_load:
            raise ForeignPart(
                f"others could write {data}, and {name_of(item)} in it can only be read by torch.load, which "
                f"torch {torch.__version__} does not do safely (CVE-2025-32434): use torch 2.6 or later, or, "
                f"if the file is yours and you trust what is in it, chmod go-w {data}"
            )
        try:
            found.append(_tensor(mapping, item))
        except Exception as error:  # whole, and yet nothing that torch reads: it raises anything then
            raise corrupt(data, f"{name_of(item)} is not a tensor: {error}") from error
    return found


def skeleton(value: Any) -> bytes:
    """Return a tree of plain data without its tensors, which ``unflatten`` puts in again."""
    count = 0

    def number(_: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return torch.tensor(count - 1)

    tree, numbers = flatten(map_tensors(number, value))
    if [int(one) for one in numbers] != list(range(count)):
        raise AssertionError("the tensors of a tree are not met in the order of map_tensors")
    return tree


def write_metadata(path: Path, sidecars: Iterable[Sidecar]) -> None:
    """Write DCP's ``.metadata`` for these parts, in the order of ranks. Raises ``OSError``."""
    index = _Index()
    for sidecar in sidecars:
        for item in sidecar.items:
            if item.path:
                index.add(sidecar, item)
    with path.open("wb") as file:
        pickle.dump(index.metadata(), file)


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Leave out torch's CRC-32: it costs several times our own sum, and no load compares it."""
    if not hasattr(torch.serialization, "set_crc32_options"):  # before torch 2.6
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _leaves(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield the values to which DCP gives keys of their own (its ``flatten_state_dict``)."""
    if isinstance(value, dict) and not shards.is_shard(value):
        for key, item in value.items():
            yield from _leaves((*path, str(key)), item)
    elif type(value) is list and _is_opened(value):
        for number, item in enumerate(value):
            yield from _leaves((*path, number), item)
    else:
        yield path, value


def _is_opened(values: list[Any]) -> bool:
    return any(
        isinstance(value, dict | torch.Tensor) or (type(value) is list and _is_opened(value))
        for value in values
    )


def _written(stream: _ItemStream, path: _Path, value: Any, *, shared: bool) -> Iterator[PartItem]:
    if isinstance(value, torch.Tensor):
        yield stream.put_tensor(path, value, shared=shared)
    elif shards.is_shard(value):
        shard = shards.placed(value)
        item_path = path if shard.at is not None else ()
        yield stream.put_tensor(item_path, shard.local, shared=shared, whole=shard.whole, at=shard.at or ())
    else:
        inner: list[torch.Tensor] = []
        _collect(value, inner)
        yield stream.put(path, value, shared=shared)
        # DCP pickles what is in a tuple; for our own restore, which does not unpickle, once more.
        for tensor in inner:
            yield stream.put_tensor((), tensor, shared=shared)


def _collect(value: Any, into: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, into)
    elif type(value) in (list, tuple):
        for item in value:
            _collect(item, into)


class _ItemStream:
    """What ``torch.save`` writes to: counts, sums up, and notes where the bare bytes of a tensor begin."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._at = file.tell()
        self._sum = xxhash.xxh3_64()
        self._header: tuple[int, bytes] | None = None
        self._raw = -1

    def put(self, path: _Path, value: Any, *, shared: bool) -> PartItem:
        """Append one value."""
        padding = -self._at % ALIGNMENT
        self._file.write(bytes(padding))  # so that tensors are aligned when the file is mapped
        start = self._at = self._at + padding
        self._sum, self._raw = xxhash.xxh3_64(), -1
        torch.save(value, cast(IO[bytes], self))
        raw = self._raw - start if self._raw >= 0 else -1
        return PartItem(
            path=path,
            offset=start,
            length=self._at - start,
            sum=self._sum.intdigest(),
            raw=raw,
            shared=shared,
        )

    def put_tensor(
        self,
        path: _Path,
        value: torch.Tensor,
        *,
        shared: bool,
        whole: tuple[int, ...] | None = None,
        at: tuple[int, ...] = (),
    ) -> PartItem:
        """Append one tensor, from whatever device."""
        tensor = value.detach().cpu()
        bare = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_quantized
        if bare and tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()  # torch.save would write all that it is a view of
        bare = bare and tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg()
        written = self.put(path, tensor, shared=shared)
        return PartItem(
            path=path,
            offset=written.offset,
            length=written.length,
            sum=written.sum,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()) if bare else (),
            raw=written.raw if bare else -1,
            whole=whole,
            at=at,
            shared=shared,
        )

    def write(self, data: bytes | memoryview) -> int:
        """Write for torch, and note where a tensor begins."""
        size = len(data)
        if size == _LOCAL_HEADER_BYTES and bytes(data[:4]) == _LOCAL_HEADER:
            self._header = self._at, bytes(data)
        elif self._header is not None and size < ALIGNMENT and bytes(data).endswith(_TENSOR_RECORD):
            # A record of a ZIP file: header, name, extra field, and then the bytes of the tensor.
            at, header = self._header
            self._raw = at + _LOCAL_HEADER_BYTES + sum(struct.unpack_from("<HH", header, 26))
        self._file.write(data)
        self._sum.update(data)
        self._at += size
        return size

    def flush(self) -> None:
        """Do nothing; torch calls it."""


def _tensor(mapping: mmap.mmap, item: PartItem) -> torch.Tensor:
    dtype = getattr(torch, item.dtype)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{item.dtype} is not a dtype")
    if item.raw < 0:
        content = io.BytesIO(mapping[item.offset : item.offset + item.length])
        # weights_only: nothing but plain data and tensors can come out of it, no matter what the file holds.
        loaded = torch.load(content, map_location="cpu", weights_only=True)
        if not isinstance(loaded, torch.Tensor) or tuple(loaded.shape) != item.shape:
            raise TypeError(f"it is a {type(loaded).__name__}")
        return loaded
    nbytes = math.prod(item.shape) * dtype.itemsize
    if item.raw + nbytes > item.length:
        raise ValueError("it is longer than its item")
    flat = torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes, offset=item.offset + item.raw)
    return flat.view(dtype).as_strided(item.shape, item.strides)


class _Index:
    """Collects the content of ``.metadata``: each key once, in a form that DCP can make a tree of again."""

    def __init__(self) -> None:
        self._values: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        self._paths: dict[str, _Path] = {}
        self._storage: dict[MetadataIndex, _StorageInfo] = {}
        self._sums: dict[tuple[str, tuple[int, ...]], int] = {}
        self._nodes: dict[_Path, type] = {}  # type of the keys of each container

    def add(self, sidecar: Sidecar, item: PartItem) -> None:
        """Add an item of the next rank."""
        if item.whole is not None and 0 in item.shape and 0 not in item.whole:
            return  # a rank that got nothing of an unevenly sharded tensor
        key = name_of(item)
        same = self._sums.get((key, item.at or tuple(0 for _ in item.shape)))
        if same == item.sum and not self._fits(item.path):
            return  # a replica
        if not self._fits(item.path) and not self._continues(key, item):
            item_path: _Path = (f"rank-{sidecar.header.rank:05d}", *item.path)
            if not self._fits(item_path):
                return
            self._put(sidecar, item, item_path, None)
        else:
            self._put(sidecar, item, item.path, item.whole)

    def metadata(self) -> Metadata:
        """Return what DCP pickles."""
        return Metadata(
            state_dict_metadata=self._values,
            planner_data=self._paths,
            storage_data=self._storage,
            storage_meta=StorageMeta(),
        )

    def _fits(self, path: _Path) -> bool:
        """Return whether nothing is at this place yet, and DCP can put something there."""
        if path in self._nodes or ".".join(map(str, path)) in self._values:
            return False
        for depth in range(1, len(path)):
            parent = path[:depth]
            if self._paths.get(".".join(map(str, parent))) == parent:
                return False  # a value, and no container
            if self._nodes.get(parent, type(path[depth])) is not type(path[depth]):
                return False
        return True

    def _continues(self, key: str, item: PartItem) -> bool:
        """Return whether this is one more shard of a tensor of which others are there."""
        known = self._values.get(key)
        return (
            item.whole is not None
            and isinstance(known, TensorStorageMetadata)
            and known.size == torch.Size(item.whole)
            and known.properties.dtype == getattr(torch, item.dtype)
            and (key, item.at) not in self._sums
        )

    def _put(self, sidecar: Sidecar, item: PartItem, path: _Path, whole: tuple[int, ...] | None) -> None:
        key = ".".join(map(str, path))
        if item.dtype:
            size = item.shape if whole is None else whole
            at = tuple(0 for _ in item.shape) if whole is None else item.at
            properties = TensorProperties(dtype=getattr(torch, item.dtype))
            fresh = TensorStorageMetadata(properties=properties, size=torch.Size(size), chunks=[])
            value = cast(TensorStorageMetadata, self._values.setdefault(key, fresh))
            index = MetadataIndex(key, at, len(value.chunks))
            value.chunks.append(ChunkStorageMetadata(offsets=torch.Size(at), sizes=torch.Size(item.shape)))
        else:
            at, index = (), MetadataIndex(key)
            self._values[key] = BytesStorageMetadata()
        self._sums[key, at] = item.sum
        self._paths[key] = path
        self._storage[index] = _StorageInfo(sidecar.data, item.offset, item.length)
        for depth in range(1, len(path)):
            self._nodes[path[:depth]] = type(path[depth])
