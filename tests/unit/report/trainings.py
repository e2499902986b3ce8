"""Trainings on disk, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_robust.model import events as ev
from slurm_robust.model.training import Chapter, TrainingDirectory, encoded
from tests.builders.events import run_started


def make_training(root: Path, name: str, *jobs: int) -> TrainingDirectory:
    """The folder of a training whose chapters are ``jobs``, with runs like ``7-a``."""
    training = TrainingDirectory.of(root, name)
    training.path.mkdir(parents=True)
    chapters = (Chapter(job_id=job, run_id=f"{job}-a", folder=str(job), t=100.0 * job) for job in jobs)
    training.chapters.write_bytes(b"".join(map(encoded, chapters)))
    return training


def started_run(folder: Path, run_id: str, *events: ev.AnyEvent, **changes: object) -> Path:
    """The folder of a job whose journal begins with this run."""
    write(folder, [run_started(run_id=run_id, job_id=int(folder.name.split(".")[0]), **changes), *events])
    return folder


def write(folder: Path, events: Sequence[ev.AnyEvent]) -> None:
    """A journal."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
