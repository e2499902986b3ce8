"""The files of one incident: written beside and renamed, each within its bound."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.analysis.exits import root_exit
from slurm_robust.analysis.incidents import Story
from slurm_robust.model.job import JobDirectory

MIB = 1024 * 1024
MOST_TAIL = 64 * 1024
"""Bytes from the end of one worker's output."""

MOST_RANKS = 96
"""Ranks of one generation whose output is kept; of the others the journal has the last lines."""

MOST_GENERATIONS = 3
STREAMS = ("err", "out")
MOST_JSON = 8 * MIB
MOST_STACKS = 8 * MIB
MOST_ALERTS = MIB
MOST_LINES = MIB
"""Bytes of one text for people."""

MOST_BYTES = 64_000_000
"""Of the whole folder; what is above adds up to less."""

FEW = 4
"""Ranks that did not fail, whose output is kept for comparison."""


def write(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, whole or not at all. Raises ``OSError``."""
    # Storage that hung may let an older thread go on just now, so no two share a name.
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterator[str]) -> None:
    """As :func:`write`, cut after :data:`MOST_LINES` bytes."""
    data, cut = bytearray(), b"(cut here)\n"
    for line in lines:
        encoded = line.encode(errors="replace") + b"\n"
        if len(data) + len(encoded) + len(cut) > MOST_LINES:
            data += cut
            break
        data += encoded
    write(path, bytes(data))


def remove_leftovers(folder: Path) -> None:
    """What controllers that were killed while they wrote have left."""
    for path in folder.rglob(".*"):
        if f".{os.getpid()}-" not in path.name:
            path.unlink(missing_ok=True)


def wanted_generations(story: Story) -> tuple[int, ...]:
    """The generation that failed, and the newest ones since."""
    first, *since = story.generations
    return (first, *since[-(MOST_GENERATIONS - 1) :])


def wanted_ranks(story: Story, generation: int) -> tuple[int, ...]:
    """Ranks whose output is kept: the root, those on suspects, other failed ones, and a few more."""
    exits = story.exits_of(generation) or story.failed
    root = root_exit(exits)
    ranks = [root.exit.rank] if root is not None else []
    first = story.placements.get(story.summary.generation)
    for node in story.suspects:
        ranks += first.ranks_of(node) if first is not None else ()
    ranks += [found.exit.rank for found in exits]
    known = set(ranks)
    world = first.world_size if first is not None else 0
    few = [rank for rank in range(min(world, len(known) + FEW)) if rank not in known][:FEW]
    every = list(dict.fromkeys(ranks))[: MOST_RANKS - len(few)]
    return (*every, *few)


def copy_tails(directory: JobDirectory, story: Story, folder: Path) -> OSError | None:
    """Copy the ends of the workers' output; the first error, since one bad file must not cost the others."""
    failed: OSError | None = None
    logs = folder / "logs"
    planned = {
        logs / directory.logs(generation).name / source.name: source
        for generation in wanted_generations(story)
        for rank in wanted_ranks(story, generation)
        for stream in STREAMS
        for source in [directory.worker_log(generation, rank, stream)]
    }
    for old in [path for path in logs.glob("*/[!.]*") if path not in planned]:
        old.unlink(missing_ok=True)
    for target, source in planned.items():
        try:
            _copy_tail(source, target)
        except OSError as error:
            failed = failed or error
    return failed


def _copy_tail(source: Path, target: Path) -> None:
    try:
        with source.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_TAIL))
            data = file.read(MOST_TAIL)
    except FileNotFoundError:
        return  # a rank that never got as far as its own output
    if data:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, data)
