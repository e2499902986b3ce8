"""The folder of one job's snapshots in a node's memory: names, and what whole copies are there.

It belongs to the job, not to a process: workers and agents come and go, the copies stay, until the job
ends or is gone. Layout (all files are images, :mod:`slurm_robust.checkpoint.image`)::

    /dev/shm/srobust-<uid>-<run id>-copies/
        own-00003.0 …    buffers of rank 3, which its worker fills in turn
        shared.0 …       buffers of the part that is equal on all ranks, filled by the node's first rank
        peer-00007.0 …   copies of rank 7 of another node, streamed by its agent
        fetched-00003    a part that was fetched from another node for a restore
        fetched-00003.error   why it could not be fetched: text
        fetched-00003.size    how many bytes are on their way: text
        plan-00003.json  how many buffers fit, as rank 3 found out (:mod:`slurm_robust.checkpoint.budget`)
        seal             key of the seals of copies on the disk (:mod:`slurm_robust.checkpoint.local`)
        run              how often the job had been restarted when its agent began: for the epilog

A file counts only while it holds a whole image of this run; names say nothing about the content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import read_header
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.nodefolders import COPIES, SHARED_MEMORY, folder_name
from slurm_robust.model.record import Record
from slurm_robust.util.ours import make_own_folder

_NAME = re.compile(r"(own|peer|fetched)-(\d{5,})(?:\.(\d+))?|(shared|fetched-shared)(?:\.(\d+))?")
_KINDS = {"own": Tier.MEMORY, "shared": Tier.MEMORY, "peer": Tier.PEER}
_ORDER = {"own": 0, "shared": 0, "fetched": 1, "fetched-shared": 1, "peer": 2}


class FoundImage(Record):
    """A file of the folder that holds a whole image."""

    path: Path
    kind: str  # see :func:`kind_of`
    header: PartHeader
    nbytes: int  # of the file, which may be larger than the image

    @property
    def checkpoint(self) -> CheckpointId:
        """Which checkpoint it is a part of."""
        return self.header.checkpoint


class MemoryFolder:
    """Names in one job's folder of copies. Holds nothing open; every call reads the folder anew."""

    def __init__(self, path: Path | str, run_id: str) -> None:
        """Use :meth:`create` to make it, or this with a path from an agent."""
        self.path = Path(path)
        self.run_id = run_id

    @classmethod
    def create(cls, run_id: str, base: Path = SHARED_MEMORY) -> MemoryFolder:
        """Make the folder (0700), or take the folder that this job left here before. Raises ``OSError``."""
        folder = cls.of(run_id, base)
        make_own_folder(folder.path)
        return folder

    @classmethod
    def of(cls, run_id: str, base: Path = SHARED_MEMORY) -> MemoryFolder:
        """Return the folder of a run, whether it is there or not."""
        return cls(base / folder_name(run_id, COPIES), run_id)

    @property
    def seal_key(self) -> Path:
        """The file (0600) for the agent's key of the seals on this node's disk."""
        return self.path / "seal"

    def own(self, rank: int, number: int) -> Path:
        """Return buffer ``number`` of a part that a worker of this node fills (``rank`` may be SHARED)."""
        return self.path / f"{'shared' if rank == SHARED else f'own-{rank:05d}'}.{number}"

    def peer(self, rank: int, number: int) -> Path:
        """Return buffer ``number`` for copies of a rank of another node."""
        return self.path / f"peer-{rank:05d}.{number}"

    def fetched(self, rank: int) -> Path:
        """Return the file in which the part of ``rank`` appears that was fetched for a restore."""
        return self.path / ("fetched-shared" if rank == SHARED else f"fetched-{rank:05d}")

    def fetch_error(self, rank: int) -> Path:
        """Return the file in which the reason appears if it could not be fetched."""
        path = self.fetched(rank)
        return path.with_name(f"{path.name}.error")

    def fetch_size(self, rank: int) -> Path:
        """Return the file in which the fetching agent writes how many bytes are on their way."""
        path = self.fetched(rank)
        return path.with_name(f"{path.name}.size")

    def inventory(self) -> tuple[Copy, ...]:
        """Return the whole copies here, of all tiers in memory; what was fetched is not among them."""
        return tuple(
            Copy(
                rank=image.header.rank,
                generation=image.header.generation,
                step=image.header.step,
                tier=_KINDS[image.kind],
                nbytes=image.nbytes,
            )
            for image in self.images(_KINDS)
        )

    def find(self, rank: int, checkpoint: CheckpointId) -> Path | None:
        """Return a whole copy of one part, own before fetched before a peer's; None if there is none."""
        found = [
            (_ORDER[image.kind], image.path)
            for image in self.images()
            if image.header.rank == rank and image.checkpoint == checkpoint
        ]
        return min(found)[1] if found else None

    def images(self, kinds: Collection[str] = _ORDER) -> Iterator[FoundImage]:
        """Yield every file here of one of these kinds that holds a whole image of this run."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return
        for name in names:
            kind = kind_of(name)
            if kind not in kinds:
                continue
            path = self.path / name
            try:
                header, nbytes = read_header(path), path.stat().st_size
            except OSError:
                continue  # removed or replaced meanwhile
            if header is not None and header.run_id == self.run_id:
                yield FoundImage(path=path, kind=kind, header=header, nbytes=nbytes)


def kind_of(name: str) -> str:
    """Return what stands before the number in the name of an image's file, "" for another name."""
    match = _NAME.fullmatch(name)
    return str(match[1] or match[4]) if match else ""
