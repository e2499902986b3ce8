"""Nodes of one job on this machine, as far as copies are concerned: each with a folder of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from slurm_robust.agent.copies.service import CopyService
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import Buffer, BufferInUse, TensorSpec, open_image, read_header
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import Peer, RestoreSource
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.wire.copychannel import CopyChannel, derive_key
from slurm_robust.wire.keys import ClientKeys, create_keys, load_client
from slurm_robust.wire.messages import Launch
from tests.builders import specs

RUN = "7-abcd"
MIB = 2**20


def keys_in(folder: Path) -> ClientKeys:
    """Keys of a job whose directory this is."""
    create_keys(folder / "keys")
    return load_client(folder / "keys")


def job_spec(**copies: object) -> JobSpec:
    return specs.job_spec(run_id=RUN, copies=specs.copy_spec(**copies))


def folder_of(name: str, shm: Path) -> MemoryFolder:
    """Where the copies of node ``name`` lie."""
    return MemoryFolder(shm / name / f"srobust-{os.getuid()}-{RUN}-copies", RUN)


def peer_steps(folder: MemoryFolder, rank: int) -> set[tuple[int, int]]:
    """Generation and step of the copies of a rank that came from elsewhere."""
    found = (read_header(path) for path in folder.path.glob(f"peer-{rank:05d}.*"))
    return {(h.generation, h.step) for h in found if h is not None}


class Node:
    """One node: its service, and what its workers would do."""

    def __init__(self, name: str, shm: Path, job: Path, keys: ClientKeys, **copies: object) -> None:
        self.name = name
        self.base = shm / name
        self.base.mkdir(exist_ok=True)
        self.service = CopyService(job_spec(**copies), JobDirectory(job), keys, base=self.base)
        self.folder = folder_of(name, shm)

    def snapshot(self, rank: int, step: int, *, generation: int = 1, size: int = MIB) -> Path:
        """What a worker does after a step; the data are those of :func:`content`."""
        for number in range(step, step + 5):
            try:
                return fill(self.folder.own(rank, number % 5), rank, step, generation, size)
            except BufferInUse:
                continue  # it is being sent; a worker passes over it as well
        raise AssertionError("all buffers are locked")

    def launch(self, generation: int, ranks: tuple[int, ...], **fields: object) -> Launch:
        launch = specs.launch(
            generation=generation, ranks=ranks, world_size=4, slots=2, layout="w4", **fields
        )
        self.service.launched(launch)
        return launch

    def peer(self, rank: int) -> Peer:
        """This node as the peer of a rank."""
        return Peer(rank=rank, node=self.name, address="127.0.0.1", port=self.service.port)

    def source(self, rank: int, **fields: object) -> RestoreSource:
        """This node as the source of a part."""
        return RestoreSource(rank=rank, address="127.0.0.1", port=self.service.port, **fields)  # type: ignore[arg-type]

    def peer_steps(self, rank: int) -> set[tuple[int, int]]:
        """Generation and step of the copies of a rank that came from elsewhere."""
        return peer_steps(self.folder, rank)

    def close(self, *, remove: bool = True) -> None:
        self.service.close(remove=remove)


def content(rank: int, step: int, generation: int, size: int) -> bytes:
    """Data that no other part or step has."""
    return random.Random(f"{rank} {step} {generation}").randbytes(min(size, MIB)) * max(1, size // MIB)


def fill(path: Path, rank: int, step: int, generation: int, size: int, run_id: str = RUN) -> Path:
    """Make an image, as a worker does."""
    header = PartHeader(
        run_id=run_id, layout="w4", generation=generation, step=step, rank=rank, world_size=4, library="x"
    )
    data = content(rank, step, generation, size)
    buffer = Buffer(path)
    table = (TensorSpec(dtype="uint8", shape=(len(data),), nbytes=len(data)),)
    try:
        (view,) = buffer.begin(header, table, b"tree")
        view[:] = data
        view.release()
        buffer.commit()
    finally:
        buffer.close()
    return path


def check(path: Path, rank: int, step: int, generation: int = 1, size: int = MIB) -> None:
    """The image there is exactly the one that the worker wrote."""
    with closing(open_image(path)) as image:
        image.verify()
        header = image.header
        assert (header.rank, header.step, header.generation) == (rank, step, generation)
        assert bytes(image.data()[0]) == content(rank, step, generation, size)
        assert image.tree == b"tree"


def connect(node: Node, job: Path) -> CopyChannel:
    """A connection to a node, as another agent of the job makes it."""
    return CopyChannel.connect("127.0.0.1", node.service.port, derive_key(keys_in(job).client.secret))


MakeNode = Callable[..., Node]


def with_peer(make: MakeNode, **fields: object) -> tuple[Node, Node]:
    """Return two launched nodes; the second is the peer of the first one's rank."""
    a, b = make("a"), make("b")
    b.launch(1, (1,))
    a.launch(1, (0,), peers=(b.peer(0),), **fields)
    return a, b
