"""A training that outlives its jobs: its folder, and its chapters, each of which is one job.

The folder lies beside those of the jobs, ``srobust-jobs/training-NAME``, and is its owner's only (0700)::

    chapters.jsonl     one line for each job, in the order in which they took the training
    checkpoints/       on shared storage, of all its jobs, unless the configuration names another folder
    chapter-0002.json  the second of them, made exclusively: of two jobs that start together one gets it

What training was and how far it came stays in the journal of each job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.files import names_in

PREFIX = "training-"
"""Prefix of the names of folders of trainings."""

ASIDE = ".old-"
"""Stands in the name of a folder, of a job or a training, that made room for a new one, before the time."""

MAX_LETTERS = 100
"""Longest name of a training: a folder's name has 255 characters at most."""

_CLAIM = re.compile(r"chapter-(\d{4,})\.json")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def is_name(text: str) -> bool:
    """Return whether a training may have this name: it is a part of its folder's."""
    return _NAME.fullmatch(text) is not None and len(text) <= MAX_LETTERS and ASIDE not in text


class Chapter(Record):
    """One job of a training."""

    job_id: int
    run_id: str
    """Id of the run in the job's folder, which is known by it if job ids have begun anew."""
    folder: str
    """The name of the job's folder, beside the training's."""
    t: float
    """When the job took the training, in seconds since 1970."""
    cluster: str = ""
    submitted: float | None = None
    """Slurm's submit time of the job, in seconds since 1970; None if not known."""
    array_task: str = ""
    """As in :class:`~slurm_robust.model.events.RunStarted`."""
    node: str = ""
    """The batch host when it took the training."""

    @property
    def job(self) -> str:
        """The id that squeue shows."""
        return self.array_task or str(self.job_id)


_decoder = msgspec.json.Decoder(Chapter)


class TrainingDirectory:
    """Names inside the folder of a training, and its chapters."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, root: Path, name: str) -> TrainingDirectory:
        """Return the folder of the training ``name`` beside the jobs' folders in ``root``."""
        return cls(root / f"{PREFIX}{name}")

    @property
    def name(self) -> str:
        """The name of the training, also if it was moved aside."""
        return self.path.name.removeprefix(PREFIX).partition(ASIDE)[0]

    @property
    def chapters(self) -> Path:
        """One :class:`Chapter` a line."""
        return self.path / "chapters.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints on shared storage, unless the configuration names another folder."""
        return self.path / "checkpoints"

    def claim(self, number: int) -> Path:
        """Return the file of the :class:`Chapter` ``number``, counted from 1: its job took the training."""
        return self.path / f"chapter-{number:04d}.json"

    def claims(self) -> list[int]:
        """Return the numbers of the claims that are there, in order. Raises ``OSError``."""
        found = (_CLAIM.fullmatch(name) for name in names_in(self.path))
        return sorted(int(match[1]) for match in found if match)

    def unreadable(self) -> Path | None:
        """Return the newest claim, if it cannot be understood: some job has the training, or had it."""
        newest = next((self.claim(number) for number in reversed(self.claims())), None)
        return newest if newest is not None and not any(_read(newest)) and newest.exists() else None

    def read(self) -> tuple[Chapter, ...]:
        """Read its jobs, oldest first; none if there is no such training. Raises ``OSError``.

        Also one that took it and died before it had written its line: the numbers of the claims are the
        order. A line that was torn, or that another release wrote, is left out.
        """
        claimed = {each.run_id: each for path in map(self.claim, self.claims()) for each in _read(path)}
        lines = {each.run_id: each for each in _read(self.chapters) if each.run_id not in claimed}
        return (*lines.values(), *claimed.values())

    def is_kept(self, chapter: Chapter) -> bool:
        """Return whether its line is there: a job that only claims the training may still give it back."""
        return any(each.run_id == chapter.run_id for each in _read(self.chapters))

    def job(self, chapter: Chapter) -> JobDirectory:
        """Return the folder of one of its jobs."""
        return JobDirectory(self.path.parent / chapter.folder)


def _read(path: Path) -> Iterator[Chapter]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    for line in data.splitlines():
        try:
            yield _decoder.decode(line)
        except UNREADABLE:
            continue


def encoded(chapter: Chapter) -> bytes:
    """Encode the line of a chapter."""
    return msgspec.json.encode(chapter) + b"\n"


def trainings(root: Path) -> tuple[TrainingDirectory, ...]:
    """Return all trainings below ``root``, by name, also if they were moved aside. Raises ``OSError``."""
    try:
        found = sorted(path for path in root.iterdir() if path.name.startswith(PREFIX))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(TrainingDirectory(path) for path in found if path.is_dir())


def storage_of(job: JobDirectory, spec: JobSpec, training: str) -> Path:
    """Return the folder of a job's checkpoints on shared storage, also if its training was moved aside.

    ``training``: its name, "" for none. Raises ``OSError``.
    """
    folder = Path(spec.checkpoint_dir) if spec.checkpoint_dir else job.checkpoints
    if training and folder.parent.name == f"{PREFIX}{training}":
        beside = JobDirectory(folder.parent.parent / job.path.name)
        for each in (job, beside):  # the folders of all jobs may have been copied elsewhere
            if (found := training_of(each, training, spec.run_id)) is not None:
                return found.checkpoints
    return folder if folder.exists() else job.checkpoints


def is_shared(storage: Path, job: JobDirectory) -> bool:
    """Return whether others may have checkpoints there: it is no folder of a training, nor of ``job``."""
    folder = storage.absolute().parent
    return not folder.name.startswith(PREFIX) and folder != job.path.absolute()


def training_of(job: JobDirectory, name: str, run_id: str) -> TrainingDirectory | None:
    """Return the present folder of the training ``name`` of ``job`` with this run; None if it is gone.

    A training that was moved aside is known by its chapters. Raises ``OSError``.
    """
    for training in trainings(job.path.parent):
        if training.name == name and any(chapter.run_id == run_id for chapter in training.read()):
            return training
    return None
