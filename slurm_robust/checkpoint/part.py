"""The file of one rank's part: ``torch.save`` of plain data, read back without executing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from slurm_robust.checkpoint.errors import CorruptPart, ForeignPart, NotWritten
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import verify_part
from slurm_robust.model.record import Record

FORMAT = "slurm_robust checkpoint part"
VERSION = 1


class PartHeader(Record):
    """What a part says of itself, so that a file in the wrong place is found out."""

    run_id: str
    generation: int
    step: int
    rank: int
    world_size: int
    entries: tuple[str, ...]


def write_part(path: Path, header: PartHeader, snapshot: Snapshot, *, with_shared: bool) -> None:
    """Write one part; nothing is synced. Raises :class:`NotWritten` or ``OSError``."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "header": {**msgspec.to_builtins(header), "entries": list(header.entries)},
        "own": snapshot.own,
        "shared": snapshot.shared if with_shared else None,
        "rng": snapshot.rng,
    }
    try:
        torch.save(content, path)
    except RuntimeError as error:
        # torch reports a full storage so. A broken accelerator must not look like one.
        if "Writer" not in str(error) and "inline_container" not in str(error):
            raise
        raise NotWritten(str(error).splitlines()[0]) from error


def read_part(path: Path) -> tuple[PartHeader, Snapshot]:
    """A part that was verified to its last byte. Its tensors lie in the mapped file.

    ``shared`` is empty in the parts of all ranks but 0. Raises :class:`CorruptPart`,
    :class:`MissingCheckpoint`, :class:`ForeignPart` for another format, or ``OSError``.
    """
    verify_part(path)
    try:
        # weights_only: nothing but plain data and tensors can come out of it, whoever wrote the file.
        content: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a ZIP file that is whole and yet no part makes torch raise anything
        raise CorruptPart(f"{path} is not a checkpoint part: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ForeignPart(f"{path} was not written by slurm_robust: remove it from the checkpoint folder")
    if content["version"] != VERSION:
        raise ForeignPart(
            f"{path} has format version {content['version']}, this slurm_robust reads version {VERSION}: "
            "continue with the slurm_robust that wrote it"
        )
    header = msgspec.convert(content["header"], PartHeader)
    return header, Snapshot(own=content["own"], shared=content["shared"] or {}, rng=content["rng"])
