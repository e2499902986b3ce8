"""What is left behind for people: a folder per incident, and word about nodes that were given up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurm_robust.analysis.ettr import incidents
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.suspicion import Suspicion

_TAIL_BYTES = 64 * 1024


def save(directory: JobDirectory, number: int, events: Sequence[ev.AnyEvent]) -> Path:
    """Write ``incidents/NNN/``: the summary, its events, and the last output of failed ranks.

    Written again when the incident gets further, so that the folder is never behind the journal for
    long. Returns the folder. Raises ``OSError``.
    """
    folder = directory.incidents / f"{number:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    summary = [s for s in incidents(events) if s.number == number]
    own = [e for e in events if getattr(e, "incident", None) == number]
    generation = summary[0].generation if summary else 0
    ended = [e for e in events if isinstance(e, ev.GenerationEnded) and e.generation == generation]
    content = {"summary": summary, "events": [*own, *ended]}
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    beside = folder / ".incident.json.new"
    beside.write_bytes(text + b"\n")
    beside.replace(folder / "incident.json")
    for node_exit in ended[-1].exits if ended else ():
        _copy_tail(directory.worker_log(generation, node_exit.exit.rank, "err"), folder)
    return folder


def save_suspicion(directory: JobDirectory, suspicion: Suspicion) -> Path:
    """Write ``suspects/<node>.json``, which the epilog of that node reads. Raises ``OSError``."""
    directory.suspects.mkdir(mode=0o700, exist_ok=True)
    path = directory.suspects / f"{suspicion.node}.json"
    beside = directory.suspects / f".{suspicion.node}.new"
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(suspicion))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return path


def _copy_tail(source: Path, folder: Path) -> None:
    try:
        with source.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            (folder / source.name).write_bytes(file.read())
    except FileNotFoundError:
        return  # a rank that never got as far as its own output
