"""A controller begins with the configuration of the release that the job runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.controller.__main__ import _with_release
from slurm_robust.controller.journal import Journal
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.release import Release, Requester
from slurm_robust.util.output import settle
from tests.builders.plans import plan

NAME = "b" * 12
BASE = JobConfig(detect=DetectConfig(hang=True, slow_factor=3.0))


class Job:
    def __init__(self, folder: Path, by: Requester | None) -> None:
        self.directory = JobDirectory(folder)
        self.journal = Journal(self.directory.journal)
        release = Release(name=NAME, kind=CommandKind.SCRIPT, command=("train.py",), has_config=True)
        self.journal.append(
            ev.ReleaseTaken(t=1.0, release=release, by=by),
            ev.UpdateApplied(t=2.0, update=1, release=NAME, before="a" * 12, step=5),
        )
        self.place = self.directory.releases / NAME
        self.place.mkdir(parents=True, mode=0o700)

    def config(self) -> JobConfig:
        return _with_release(self.directory, plan(config=BASE), self.journal).config

    def notes(self) -> list[str]:
        return [event.text for event in self.journal.events if isinstance(event, ev.Noted)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, Requester(user="ada", uid=1000))


def test_what_its_file_sets_counts_and_the_rest_is_as_the_job_began(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    (job.place / "config.yaml").write_text("detect: {hang: false}\n")
    assert (job.config().detect.hang, job.config().detect.slow_factor) == (False, 3.0)
    settle(10.0)
    assert f"release {NAME} sets detect.hang to false, not true" in capfd.readouterr().out
    assert job.notes() == []


@pytest.mark.parametrize(
    "content", ["nodes: 7\n", "detect: {hang: [}\n", "detect: {hung: true}\n", b"\xff\xfe"]
)
def test_a_file_that_cannot_be_used_is_told_and_changes_nothing(job: Job, content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (job.place / "config.yaml").write_bytes(data)
    assert job.config() == BASE
    (text,) = job.notes()
    assert text.startswith(f"the configuration of release {NAME} is left out, since it cannot be read: ")


def test_the_configuration_of_the_first_release_is_the_jobs_own(tmp_path: Path) -> None:
    """Of which options of the command line may have set more."""
    job = Job(tmp_path, None)
    (job.place / "config.yaml").write_text("detect: {hang: false}\n")
    assert job.config() == BASE
