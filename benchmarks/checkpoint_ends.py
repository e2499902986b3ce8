"""The two ends of a copy to a peer, each a process: the agents' channel, and a bare sendfile loop.

``python -m benchmarks.checkpoint_ends receive WAY BYTES FOLDER ADDRESS`` prints its port and serves until it
is ended; ``... send WAY BYTES FOLDER ADDRESS PORT`` prints the seconds of a copy. Without torch.
"""

from __future__ import annotations

import mmap
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.server import CopyServer, PeerBuffers
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, TensorSpec, open_image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.tiers import NodeTiers
from slurm_robust.wire.copychannel import CopyChannel, CopyVerdict, Put, derive_key

OURS, BARE = "agents' channel, verified", "bare sendfile and recv_into"
RUN, RANK, GENERATION = "bench", 0, 1
# As many as a peer has buffers, so that none is made in the copy that is timed.
WARM = 2
COPIES = 3
LIMIT_S = 60.0
_KEY = derive_key("benchmark")
_PIECE = 16 * 2**20


def main() -> int:
    """One end."""
    role, way, nbytes, folder, address, *port = sys.argv[1:]
    if role == "receive":
        with socket.create_server((address, 0)) as listener:
            RECEIVERS[way](listener, int(nbytes), Path(folder))
    else:
        with SENDERS[way](int(nbytes), Path(folder), (address, int(port[0]))) as copy:
            for _ in range(WARM):
                copy()
            print(statistics.median(copy() for _ in range(COPIES)), flush=True)
    return 0


def receive_ours(listener: socket.socket, nbytes: int, folder: Path) -> None:
    """An agent's server; its buffers for a peer's copies."""
    memory = MemoryFolder.create(RUN, folder)
    parts, buffers = NodeTiers(memory), PeerBuffers(memory)
    server = CopyServer(listener, _KEY, run_id=RUN, parts=parts, buffers=buffers, notes=Notes())
    server.launch = GENERATION
    print(listener.getsockname()[1], flush=True)
    threading.Event().wait()


@contextmanager
def send_ours(nbytes: int, folder: Path, to: tuple[str, int]) -> Iterator[Callable[[], float]]:
    """From the image of one step after the other; until the peer has verified it."""
    path = folder / "image"
    buffer = Buffer(path)
    channel = CopyChannel.connect(*to, _KEY)
    # Each process begins where no earlier one has been: a peer takes no step that it has.
    steps = iter(range(time.monotonic_ns() // 10**6, 2**62))

    def copy() -> float:
        step = next(steps)
        header = PartHeader(run_id=RUN, layout="", generation=GENERATION, step=step, rank=RANK, world_size=1)
        buffer.begin(header, [TensorSpec(dtype="uint8", shape=(nbytes,), nbytes=nbytes)], b"")
        buffer.commit()
        image = open_image(path)
        began = time.perf_counter()
        put = Put(
            run_id=RUN,
            launch=GENERATION,
            restore=None,
            rank=RANK,
            checkpoint=header.checkpoint,
            total=image.nbytes,
        )
        channel.send(put)
        _expect_go(channel, 0)
        with path.open("rb") as file:
            channel.send_file(file.fileno(), image.nbytes, None)
        _expect_go(channel, image.nbytes)
        seconds = time.perf_counter() - began
        image.close()
        return seconds

    try:
        yield copy
    finally:
        channel.close()
        buffer.close()


def receive_bare(listener: socket.socket, nbytes: int, folder: Path) -> None:
    """Into one file that was made before; a byte back when all is there."""
    with (folder / "bare").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        view = memoryview(mmap.mmap(file.fileno(), nbytes))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(LIMIT_S)
            at = 0
            while received := connection.recv_into(view[at : at + _PIECE]):
                at += received
                if at == nbytes:
                    connection.sendall(b"\1")
                    at = 0


@contextmanager
def send_bare(nbytes: int, folder: Path, to: tuple[str, int]) -> Iterator[Callable[[], float]]:
    """From a file of the same size, until the byte comes."""
    with (
        (folder / "bare-source").open("w+b") as file,
        socket.create_connection(to, timeout=LIMIT_S) as connection,
    ):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Blocking for the kernel, so that sendfile waits there: that is the fastest.
        connection.settimeout(None)

        def copy() -> float:
            began = time.perf_counter()
            at = 0
            while at < nbytes:
                at += os.sendfile(connection.fileno(), file.fileno(), at, min(_PIECE, nbytes - at))
            if connection.recv(1) != b"\1":
                raise ConnectionError("the receiver has gone")
            return time.perf_counter() - began

        yield copy


def _expect_go(channel: CopyChannel, work_bytes: int) -> None:
    answer = channel.answer(work_bytes)
    if answer.verdict is not CopyVerdict.GO:
        raise ConnectionError(f"the peer answers {answer}")


RECEIVERS = {OURS: receive_ours, BARE: receive_bare}
SENDERS = {OURS: send_ours, BARE: send_bare}


if __name__ == "__main__":
    sys.exit(main())
