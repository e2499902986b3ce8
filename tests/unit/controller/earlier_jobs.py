"""Folders of earlier jobs, as they are found by a job that starts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.training import Chapter, TrainingDirectory, encoded
from slurm_robust.run.holding import Applicant, WaitClock
from slurm_robust.run.sources import Here
from slurm_robust.slurm.errors import ControllerUnreachable
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records, specs
from tests.builders.events import run_started


def ref(generation: int, step: int) -> CheckpointId:
    return CheckpointId(generation=generation, step=step)


class Slurm(FakeSlurm):
    """Knows the jobs that a test gives it, or says nothing at all."""

    silent = False

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, SlurmJob] = {}

    def job(self, job_id: int) -> SlurmJob:
        if self.silent:
            raise ControllerUnreachable("no answer")
        return self.known[job_id] if job_id in self.known else super().job(job_id)

    def put(self, job_id: int, *states: str) -> None:
        self.known[job_id] = records.job(
            job_id=job_id, states=frozenset(states), batch_host="n3", start_time=60.0, submit_time=50.0
        )


class Time:
    """Passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.t = 0.0
        self.sleeps = 0

    def advance(self, seconds: float) -> None:
        self.t += seconds
        self.sleeps += 1

    @property
    def clock(self) -> WaitClock:
        return WaitClock(lambda: self.t, self.advance)


class Jobs:
    """Below one folder of jobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.slurm = Slurm()
        self.time = Time()

    def store(self, where: Path, *refs: CheckpointId) -> None:
        """Complete checkpoints of one rank, by their names."""
        for each in refs:
            folder = where / str(each)
            folder.mkdir(parents=True)
            (folder / "rank-00000-of-00001.part").write_text(str(each))
            (folder / "__0_0.distcp").write_text("data")

    def job(
        self,
        job_id: int,
        *events: ev.AnyEvent,
        training: str = "",
        stored: tuple[CheckpointId, ...] = (),
        continued: ev.Continued | None = None,
        **started: object,
    ) -> JobDirectory:
        """One that ran, and wrote these events."""
        directory = JobDirectory(self.root / str(job_id))
        directory.path.mkdir(mode=0o700)
        run_id = started.pop("run_id", f"{job_id}-x")
        chapters = TrainingDirectory.of(self.root, training)
        storage = chapters.checkpoints if training else directory.checkpoints
        spec = specs.job_spec(run_id=run_id, job_id=job_id, checkpoint_dir=str(storage))
        directory.spec.write_bytes(msgspec.json.encode(spec))
        first = run_started(run_id=run_id, job_id=job_id, training=training, t=float(job_id), **started)
        known = [first, *((continued,) if continued is not None else ()), *events]
        directory.journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in known))
        self.store(storage, *stored)
        if training:
            chapters.path.chmod(0o700) if chapters.path.exists() else chapters.path.mkdir(mode=0o700)
            with chapters.chapters.open("ab") as file:
                file.write(encoded(self.chapter(job_id)))
        return directory

    def chapter(self, job_id: int) -> Chapter:
        return Chapter(job_id=job_id, run_id=f"{job_id}-x", folder=str(job_id), t=float(job_id), cluster="")

    def here(self, job_id: int, training: str = "", **changes: object) -> Here:
        """A job that starts."""
        directory = JobDirectory(self.root / str(job_id))
        storage = TrainingDirectory.of(self.root, training).checkpoints if training else directory.checkpoints
        here = Here(
            directory=directory,
            chapter=self.chapter(job_id),
            storage=storage,
            kind=CommandKind.SCRIPT,
            command=("train.py",),
            cwd="/",
            keep=2,
            asked=Applicant(self.slurm, "", job_id, f"training {training}", self.time.clock),
        )
        return here._replace(**changes)


def ran(generation: int, sealed: int = -1, *, best: int = -1, runs: bool = False) -> tuple[ev.AnyEvent, ...]:
    """A generation that ended with this sealed step, unless it still ``runs``."""
    launched = ev.GenerationLaunched(t=2.0, generation=generation, slots=("n1",), master="n1")
    progress = ev.ProgressMade(t=3.0, generation=generation, step=max(best, sealed), reported=True)
    ended = ev.GenerationEnded(t=4.0, generation=generation, reason="", sealed_step=sealed)
    return (launched, progress) if runs else (launched, progress, ended)


def over(code: int, *, final: bool = True) -> ev.RunEnded:
    """An end as the controller writes it: one that was ordered is not for good."""
    return ev.RunEnded(t=5.0, code=code, reason="", final=final and code not in (130, 143))
