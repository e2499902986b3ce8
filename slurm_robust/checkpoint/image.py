"""The flat format of one part of a checkpoint, as it is in memory and on local disks.

Little-endian. Reading it executes nothing: there are numbers, names and raw tensor data::

    0     magic, 8 bytes; zeros while the image is not whole
    8     u32 version, u32 bytes of the header, u64 bytes of the meta block, u64 where the data begin,
          u64 bytes of data, u32 bytes of a chunk, u32 zero, u64 sum of the meta block, u64 sum of the
          first page from here on (this field zero)
    64    header: MessagePack of :class:`PartHeader`, up to the end of the first page (4096)
    4096  meta block: MessagePack of :class:`Meta` (table of tensors, tree, sums of the chunks), and room
    …     data: the tensors in the order of the table, each at a multiple of 64; the file goes on beyond
          the end of the data if the buffer is larger than the image

Sums are XXH3 (64 bits). An image is whole exactly when its magic is there, and the magic is written last,
so a writer that is killed in between leaves no image. A reader holds a shared ``flock`` on
it, and a writer takes an exclusive one, so a buffer is never refilled under its reader.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import xxhash

from slurm_robust.checkpoint.chunks import CHUNK_BYTES, DeviceBytes, Piece, Staging, fill, sums_of
from slurm_robust.checkpoint.errors import CorruptPart, ForeignPart, MissingCheckpoint
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.record import UNREADABLE, Record, decoded
from slurm_robust.util import numa
from slurm_robust.util.ours import open_ours, read_ours

MAGIC = b"SRIMAGE\x01"
VERSION = 1
PAGE = 4096
ALIGNMENT = 64
# The beginning of the data is known before the tree, whose length differs a little from step to step (states
# of generators): it is a multiple of this, with so much room for a tree to grow.
DATA_ALIGNMENT = 64 * 2**10
ROOM_TO_GROW = 16 * 2**10

_PREFIX = struct.Struct("<IIQQQIIQQ")
_SUM_AT = 8 + _PREFIX.size - 8
_HEADER_AT = 64


OnMap = Callable[[memoryview], Callable[[], None]]
"""Called when a file is mapped; what it returns is called before that mapping goes."""


Target = memoryview | DeviceBytes | None
"""Where the bytes of a tensor belong; None if they stay in the mapping."""


class BufferInUse(Exception):
    """The file is being read, so it cannot be written now."""


class NotReserved(Exception):
    """There is no memory yet for the image, or it is not mapped: see :meth:`Buffer.reserve`."""


class TensorSpec(Record):
    """One tensor of the table."""

    dtype: str  # torch's name without ``torch.``
    shape: tuple[int, ...]
    nbytes: int


class Meta(Record):
    """What is between the header and the data."""

    tensors: tuple[TensorSpec, ...]
    tree: bytes  # to which they belong (:mod:`slurm_robust.checkpoint.tree`)
    sums: bytes  # one u64 per chunk of the data


# Made while there is one thread; see Record.
_headers, _metas = msgspec.msgpack.Decoder(PartHeader), msgspec.msgpack.Decoder(Meta)
_UNKNOWN = PartHeader(run_id="", layout="", generation=0, step=0, rank=0, world_size=0)


class _Layout(Record):
    meta_bytes: int
    data_at: int
    data_bytes: int

    @property
    def total(self) -> int:
        return self.data_at + self.data_bytes


def image_bytes(tensors: Sequence[TensorSpec], tree: bytes) -> int:
    """Return the size of the image that holds these."""
    return _lay_out(tensors, tree)[0].total


class Buffer:
    """A file in shared memory that takes one image after the other. One writer at a time."""

    def __init__(self, path: Path, on_map: OnMap = lambda _: lambda: None) -> None:
        """Open or make the file (0600), which keeps its content. Raises ``OSError``."""
        self.path = path
        self.checkpoint: CheckpointId | None = None  # of the whole image that its writer knows to be here
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._map: mmap.mmap | None = None
        self._on_map = on_map
        self._on_unmap: Callable[[], None] = lambda: None
        self._header = _UNKNOWN  # this and the next two: of the image that was begun last
        self._meta = Meta(tensors=(), tree=b"", sums=b"")
        self._layout = _Layout(meta_bytes=0, data_at=0, data_bytes=0)

    @property
    def capacity(self) -> int:
        """Bytes that are reserved."""
        return os.fstat(self._file).st_size

    @property
    def mapped(self) -> int:
        """Bytes that are reserved and mapped."""
        return 0 if self._map is None else len(self._map)

    @property
    def total(self) -> int:
        """Bytes of the image that was begun last."""
        return self._layout.total

    @property
    def tree(self) -> bytes:
        """To what the tensors of the image belong that was begun last."""
        return self._meta.tree

    def reserve(self, total: int) -> None:
        """Reserve and map ``total`` bytes, which takes seconds; the image that is here stays.

        Raises :class:`BufferInUse`, or ``OSError`` when there is no memory (then the buffer is empty).
        """
        self._lock()
        self._make_room(total)
        self._unlock()

    def begin(
        self, header: PartHeader, tensors: Sequence[TensorSpec], tree: bytes, *, reserved: bool = False
    ) -> list[memoryview]:
        """Give up the image that is here and lay out another; return where each tensor's bytes belong.

        Raises :class:`BufferInUse`, or ``OSError`` when there is no memory (then the buffer is empty).
        ``reserved``: raise :class:`NotReserved` instead of reserving it.
        """
        self._header = header
        self._layout, self._meta = _lay_out(tensors, tree)
        if _HEADER_AT + len(msgspec.msgpack.encode(header)) > PAGE:
            raise ValueError("the header takes more than a page: use a shorter run id and layout")
        whole = self._open(self.total, reserved=reserved)
        views, at = [], self._layout.data_at
        for tensor in tensors:
            views.append(whole[at : at + tensor.nbytes])
            at = _aligned(at + tensor.nbytes)
        return views

    def replace_tree(self, tree: bytes) -> bool:
        """Put another tree into the image that was begun; False, and the old one stays, without room."""
        layout, meta = _lay_out(self._meta.tensors, tree)
        fits = PAGE + layout.meta_bytes <= self._layout.data_at
        if fits:
            self._meta = meta
        return fits

    def commit(self, threads: int = 1) -> None:
        """Sum up the data, which are in place, in so many threads, and make the image whole."""
        assert self._map is not None
        data = memoryview(self._map)[self._layout.data_at : self.total]
        meta = msgspec.msgpack.encode(msgspec.structs.replace(self._meta, sums=sums_of(data, threads)))
        data.release()
        self._map[PAGE : PAGE + len(meta)] = meta
        page, header = bytearray(PAGE), msgspec.msgpack.encode(self._header)
        fields = (VERSION, len(header), len(meta), self._layout.data_at, self._layout.data_bytes)
        _PREFIX.pack_into(page, 8, *fields, CHUNK_BYTES, 0, _sum(meta), 0)
        page[_HEADER_AT : _HEADER_AT + len(header)] = header
        struct.pack_into("<Q", page, _SUM_AT, _sum(page[8:]))
        self._map[8:PAGE] = bytes(page[8:])
        self._publish(self._header)

    def receive(self, total: int) -> memoryview:
        """Give up the image that is here; return where bytes 8 to ``total`` of another belong.

        Raises :class:`BufferInUse` or ``OSError``.
        """
        return self._open(total)[8:total]

    def adopt(self) -> PartHeader:
        """Make what was received whole if its sums agree. Raises :class:`CorruptPart`."""
        assert self._map is not None
        image = Image(self.path, self._map, received=True)
        image.verify()
        self._publish(image.header)
        return image.header

    def discard(self) -> None:
        """Leave the buffer empty."""
        self._unlock()

    def close(self) -> None:
        """Unmap and close; the file and a whole image in it stay."""
        self._drop_map()
        os.close(self._file)

    def _open(self, total: int, *, reserved: bool = False) -> memoryview:
        self._lock()
        if reserved and self.mapped < total:
            self._unlock()
            raise NotReserved(str(self.path))
        whole = self._make_room(total)
        whole[:8] = bytes(8)
        self.checkpoint = None
        return memoryview(whole)

    def _publish(self, header: PartHeader) -> None:
        assert self._map is not None
        try:
            # Readers are let in before the magic, and no other writer: an agent that sees the image opens it
            # immediately, and takes a locked one for refilled.
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another writer has come in between
        else:
            self._map[:8] = MAGIC
            self.checkpoint = header.checkpoint
        self._unlock()

    def _lock(self) -> None:
        """Keep readers out. Raises :class:`BufferInUse`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BufferInUse(str(self.path)) from None

    def _unlock(self) -> None:
        """Let all readers and writers in."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _make_room(self, total: int) -> mmap.mmap:
        """Reserve and map ``total`` bytes of the locked file.

        Raises ``OSError`` when there is no memory; the file is empty and unlocked then.
        """
        try:
            if self.capacity < total:
                self._drop_map()
                numa.reserve(self._file, _round_up(total, mmap.PAGESIZE))
            if self._map is None:
                self._map = mmap.mmap(self._file, self.capacity)
                self._on_unmap = self._on_map(memoryview(self._map))
        except OSError:
            self._drop_map()
            os.ftruncate(self._file, 0)
            self.checkpoint = None
            self._unlock()
            raise
        return self._map

    def _drop_map(self) -> None:
        if self._map is not None:
            self._on_unmap()
            try:
                self._map.close()
            except BufferError:
                pass  # a view of an earlier image lives; the kernel unmaps when it is gone
            self._map = None


class Image:
    """A whole image, mapped; see :func:`open_image`. Tensors are in the mapping."""

    def __init__(self, path: Path, mapping: mmap.mmap, *, received: bool = False, file: int = -1) -> None:
        """Use :func:`open_image`. ``received``: the magic is not there yet."""
        self.path = path
        self._map = mapping
        self._file = file
        if not received and mapping[:8] != MAGIC:
            raise MissingCheckpoint(f"{path} holds no whole image")
        parsed = _parse_page(mapping[:PAGE])
        if parsed is None:
            raise CorruptPart(f"{path} is damaged (its first page): remove it, then another copy is used")
        version, self.header, self._layout, self._meta_sum = parsed
        if version != VERSION:
            raise ForeignPart(
                f"{path} is an image of version {version}, this slurm_robust reads version {VERSION}: "
                "continue with the slurm_robust that wrote it, or remove the file"
            )
        if self._layout.total > len(mapping):
            raise CorruptPart(f"{path} is damaged (shorter than it says): remove it")
        meta = mapping[PAGE : PAGE + self._layout.meta_bytes]
        if _sum(meta) != self._meta_sum:
            raise CorruptPart(f"{path} is damaged (its table): remove it, then another copy is used")
        self._meta = decoded(
            _metas, meta, lambda why: CorruptPart(f"{path} is damaged (its table: {why}): remove it")
        )
        if not _agrees(self._meta, self._layout):
            raise CorruptPart(f"{path} is damaged (its table is not that of its data): remove it")

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The table."""
        return self._meta.tensors

    @property
    def tree(self) -> bytes:
        """What the tensors belong to (:mod:`slurm_robust.checkpoint.tree`)."""
        return self._meta.tree

    @property
    def nbytes(self) -> int:
        """Size of the image in the file."""
        return self._layout.total

    @property
    def fileno(self) -> int:
        """Descriptor of the locked file, from which the bytes can be sent on; -1 when closed."""
        return self._file

    def front(self) -> bytes:
        """Return all that is in front of the data, as :func:`read_front` reads it."""
        return self._map[: PAGE + self._layout.meta_bytes]

    def data(self) -> list[memoryview]:
        """Return the bytes of each tensor of the table."""
        whole, views, at = memoryview(self._map), [], self._layout.data_at
        for tensor in self.tensors:
            views.append(whole[at : at + tensor.nbytes])
            at = _aligned(at + tensor.nbytes)
        return views

    def verify(self, threads: int = 1) -> None:
        """Compare the sums of all data. Raises :class:`CorruptPart`."""
        self.fill([None] * len(self.tensors), threads)

    def fill(self, targets: Sequence[Target], threads: int = 1, staging: Staging | None = None) -> None:
        """Verify all data, and put the bytes of each tensor of the table that has a target into it.

        They are read past the mapping: there, getting the pages costs more than copying their content. Those
        of GPUs get there through ``staging``. Raises :class:`CorruptPart`, when targets may hold a part of
        the bytes already, ``OSError``, or ``RuntimeError`` if a GPU fails.
        """
        at, sums = self._layout.data_at, self._meta.sums
        bad = fill(self._file, at, self._pieces(targets), sums, threads, staging)
        if bad:
            raise CorruptPart(
                f"{self.path} is damaged ({bad} of {len(sums) // 8} chunks fail their checksum): "
                "remove it, then another copy is used; if this repeats, the node's memory is bad"
            )

    def _pieces(self, targets: Sequence[Target]) -> Iterator[Piece]:
        """Yield the data in their order: targets with the gaps behind them, and what stays in the mapping."""
        whole, total = memoryview(self._map), self._layout.total
        begin = at = self._layout.data_at
        for tensor, target in zip(self.tensors, targets, strict=True):
            end = at + tensor.nbytes
            after = min(_aligned(end), total)
            if target is not None:
                yield Piece(whole[begin:at], read=False)
                yield Piece(target, read=True)
                yield Piece(memoryview(bytearray(after - end)), read=True)
                begin = after
            at = after
        yield Piece(whole[begin:total], read=False)

    def close(self) -> None:
        """Let go of the buffer; tensors that are in the mapping keep it mapped."""
        if self._file >= 0:
            # Closing is not enough: the mapping has a duplicate of the descriptor, which shares its lock.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1


def open_image(path: Path) -> Image:
    """Map a whole image; until it is closed its buffer is not refilled.

    The mapping is private: writing to it changes nothing in the file. Raises
    :class:`MissingCheckpoint` if there is none (or it is being refilled), :class:`CorruptPart`, or
    ``OSError``, :class:`~slurm_robust.util.ours.NotOurs` for a file of another user.
    """
    try:
        file = open_ours(path)
    except FileNotFoundError:
        raise MissingCheckpoint(f"{path} is not there: restore another checkpoint") from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if os.fstat(file).st_size < PAGE:
            raise MissingCheckpoint(f"{path} holds no whole image")
        return Image(path, mmap.mmap(file, 0, access=mmap.ACCESS_COPY), file=file)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            raise MissingCheckpoint(f"{path} is being refilled") from None
        raise


def read_header(path: Path) -> PartHeader | None:
    """Return the header of the whole image in ``path``; None for anything else.

    Raises ``OSError``, :class:`~slurm_robust.util.ours.NotOurs` for a file of another user.
    """
    parsed = _parsed(read_ours(path, PAGE))
    return parsed[1] if parsed else None


class Front(NamedTuple):
    """What is in front of the data of a whole image."""

    header: PartHeader
    content: bytes  # all of it, the header included


def read_front(file: IO[bytes]) -> Front | None:
    """Read the front of the image at the position of ``file``, without the room behind the meta block.

    Returns None for anything else. Raises ``OSError``.
    """
    page = file.read(PAGE)
    parsed = _parsed(page)
    if parsed is None or parsed[2].meta_bytes > os.fstat(file.fileno()).st_size:
        return None
    return Front(parsed[1], page + file.read(parsed[2].meta_bytes))


def _lay_out(tensors: Sequence[TensorSpec], tree: bytes) -> tuple[_Layout, Meta]:
    data_bytes = _data_bytes(tensors)
    chunks = -(-data_bytes // CHUNK_BYTES)
    meta = Meta(tensors=tuple(tensors), tree=tree, sums=bytes(8 * chunks))
    meta_bytes = len(msgspec.msgpack.encode(meta))
    data_at = _round_up(PAGE + meta_bytes + ROOM_TO_GROW, DATA_ALIGNMENT)
    return _Layout(meta_bytes=meta_bytes, data_at=data_at, data_bytes=data_bytes), meta


def _data_bytes(tensors: Sequence[TensorSpec]) -> int:
    data_bytes = 0
    for tensor in tensors:
        data_bytes = _aligned(data_bytes) + tensor.nbytes
    return data_bytes


def _agrees(meta: Meta, layout: _Layout) -> bool:
    """Return whether the table is of data that are laid out so."""
    return (
        all(tensor.nbytes >= 0 for tensor in meta.tensors)
        and _data_bytes(meta.tensors) == layout.data_bytes
        and len(meta.sums) == 8 * -(-layout.data_bytes // CHUNK_BYTES)
        and PAGE + layout.meta_bytes <= layout.data_at
    )


def _parse_page(page: bytes) -> tuple[int, PartHeader, _Layout, int] | None:
    """Parse version, header, layout and sum of the meta block; None if the page is damaged."""
    version, header_bytes, meta_bytes, data_at, data_bytes, _, _, meta_sum, page_sum = _PREFIX.unpack_from(
        page, 8
    )
    blank = bytearray(page[8:])
    struct.pack_into("<Q", blank, _SUM_AT - 8, 0)
    if _sum(blank) != page_sum:
        return None
    if version != VERSION:
        return version, _UNKNOWN, _Layout(meta_bytes=0, data_at=0, data_bytes=0), 0
    try:
        header = _headers.decode(page[_HEADER_AT : _HEADER_AT + header_bytes])
    except UNREADABLE:
        return None
    return version, header, _Layout(meta_bytes=meta_bytes, data_at=data_at, data_bytes=data_bytes), meta_sum


def _parsed(page: bytes) -> tuple[int, PartHeader, _Layout, int] | None:
    """Return the first page of a whole image of this version; None for anything else."""
    if len(page) < PAGE or page[:8] != MAGIC:
        return None
    parsed = _parse_page(page)
    return parsed if parsed and parsed[0] == VERSION else None


def _sum(data: bytes | bytearray | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)


def _aligned(at: int) -> int:
    return _round_up(at, ALIGNMENT)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
