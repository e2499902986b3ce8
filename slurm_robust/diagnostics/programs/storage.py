"""A file in a folder of the shared storage: written, made durable, read back past the cache, compared."""

from __future__ import annotations

import mmap
import os
import time
from hashlib import shake_256
from pathlib import Path

from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart, failed

_SIZE = 16 << 20  # bytes
_BLOCK = 1 << 20


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``NotHere`` without a folder."""
    if not part.storage:
        raise NotHere("no folder was named")
    path = Path(part.storage) / f".srobust-test-{part.node}-{os.getpid()}"
    begun = time.monotonic()
    try:
        try:
            block = shake_256(part.node.encode()).digest(_BLOCK)
            with path.open("xb") as file:
                for number in range(_SIZE // _BLOCK):
                    file.write(marked(block, number))
                file.flush()
                os.fsync(file.fileno())
                # What is in this node's memory would be read from there.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            written_s = time.monotonic() - begun
            wrong = unlike_blocks(path, block)
            if wrong:
                return failed(f"{wrong} of {_SIZE // _BLOCK} blocks came back changed")
            rates = [_SIZE / max(1e-9, s) / 1e6 for s in (written_s, time.monotonic() - begun - written_s)]
            return Measurement(value=f"{rates[0]:.0f} MB/s written, {rates[1]:.0f} MB/s read")
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return failed(f"{error.strerror or error} in {part.storage}")


def unlike_blocks(path: Path, block: bytes) -> int:
    """Return how many blocks of the file are not those that were written. Raises ``OSError``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_RDONLY)  # tmpfs and some network file systems refuse O_DIRECT
    try:
        # O_DIRECT reads into whole pages only.
        with mmap.mmap(-1, _BLOCK) as page:
            wrong = 0
            for number in range(_SIZE // _BLOCK):
                got = os.preadv(descriptor, [page], number * _BLOCK)
                wrong += got != _BLOCK or page[:] != marked(block, number)
            return wrong
    finally:
        os.close(descriptor)


def marked(block: bytes, number: int) -> bytes:
    """Block ``number`` of the file, unlike any other one."""
    return number.to_bytes(8, "little") + block[8:]
