"""What each file of a part says of itself, in memory, on local disks and on shared storage alike."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurm_robust.checkpoint.errors import ForeignPart
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.record import Record


class PartHeader(Record):
    """Which part of which checkpoint of which run, so that a file in the wrong place is found out."""

    run_id: str
    layout: str
    """Identity of the parallel layout."""
    generation: int
    step: int
    rank: int
    """SHARED (-1) in an image of the part that is equal on all ranks."""
    world_size: int
    library: str = ""
    """The version of slurm_robust that wrote it."""
    release: str = ""
    """The release of the job's code that wrote it, "" for code that is in none."""

    @classmethod
    def of(
        cls, checkpoint: CheckpointId, rank: int, *, run_id: str, layout: str, world_size: int
    ) -> PartHeader:
        """Return the header that a part of ``checkpoint`` should have."""
        return cls(
            run_id=run_id,
            layout=layout,
            generation=checkpoint.generation,
            step=checkpoint.step,
            rank=rank,
            world_size=world_size,
        )

    @property
    def checkpoint(self) -> CheckpointId:
        """Which checkpoint it is a part of."""
        return CheckpointId(step=self.step, generation=self.generation)

    def matches(self, expected: PartHeader, *, any_layout: bool = False) -> bool:
        """Return whether it is the part that is expected; what wrote it may differ."""
        layout = self.layout if any_layout else expected.layout
        return msgspec.structs.replace(self, library="", release="") == msgspec.structs.replace(
            expected, library="", release="", layout=layout
        )


def check_header(
    header: PartHeader, expected: PartHeader, path: Path, *, any_layout: bool = False, fix: str = ""
) -> None:
    """Raise :class:`ForeignPart` unless the file at ``path`` holds the part that is expected.

    ``fix``: what to do about it, unless that is to remove the file.
    """
    if not header.matches(expected, any_layout=any_layout):
        layout = "any" if any_layout else expected.layout or "(none)"
        raise ForeignPart(
            f"{path} is of run {header.run_id or '(none)'}, layout {header.layout or '(none)'}, generation "
            f"{header.generation}, step {header.step}, rank {header.rank} of {header.world_size}; expected "
            f"is run {expected.run_id or '(none)'}, layout {layout}, generation {expected.generation}, "
            f"step {expected.step}, rank {expected.rank} of {expected.world_size}: "
            + (fix or "remove the file")
        )
