"""``srobust training``: every training with how far it is, and the jobs of one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.cli.main import main
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.report.training_view import row_of, running_elsewhere, shown
from slurm_robust.slurm.errors import SlurmCommandMissing
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.jobs import ChapterState
from slurm_robust.util.text import size_text
from tests.builders.checkpoints import ref
from tests.builders.specs import job_spec
from tests.unit.checkpoint.test_store import publish_all
from tests.unit.report.test_together import job
from tests.unit.report.trainings import make_training, write
from tests.users import as_another_user


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "srobust-jobs"


@pytest.fixture
def training(root: Path) -> TrainingDirectory:
    """Two jobs that have ended, and two checkpoints."""
    training = make_training(root, "gpt", 7, 9)
    write(root / "7", job(7, 20, 1, range(50)))
    write(root / "9", job(9, 400, 2, range(30, 80)))
    store = CheckpointStore(training.checkpoints)
    publish_all(store, ref(1, 29), ref(2, 60))
    return training


def running(root: Path, slurm: FakeSlurm, *, held: bool = False) -> int:
    """A job of Slurm without a journal."""
    return slurm.submit(SubmitRequest(command=("train.sh",), hold=held, work_dir=str(root.parent)))


def test_a_training_that_nobody_holds(training: TrainingDirectory) -> None:
    row = row_of(training, FakeSlurm())
    assert (row.name, row.jobs, row.newest, row.holder) == ("gpt", 2, "9", "")
    assert (row.state, row.how) == (ChapterState.ENDED, "stopped: cancelled by its user")
    assert (row.step, row.stored, row.checkpoints, row.trouble) == (79, 60, 2, "")
    assert row.nbytes == sum(
        path.stat().st_size for path in training.checkpoints.rglob("*") if path.is_file()
    )


def test_a_job_that_waits_or_is_only_starting_holds_it(root: Path, training: TrainingDirectory) -> None:
    slurm = FakeSlurm()
    for held, state in ((True, ChapterState.PENDING), (False, ChapterState.STARTING)):
        number = running(root, slurm, held=held)
        other = make_training(root, f"held-{held}", 7, number)
        row = row_of(other, slurm)
        assert (row.state, row.holder, row.newest) == (state, str(number), str(number))
        assert "gone" not in row.how
        assert row.step == 49


def test_a_running_job_holds_it(root: Path) -> None:
    slurm = FakeSlurm()
    number = running(root, slurm)
    training = make_training(root, "runs", number)
    events = job(number, 20, 1, range(50))[:-2]
    # The fake cluster has a time of its own.
    events = [replace(e, submitted=None) if isinstance(e, ev.AllocationTaken) else e for e in events]
    write(root / str(number), events)
    row = row_of(training, slurm)
    assert (row.state, row.holder, row.how) == (ChapterState.RUNNING, str(number), "training")
    slurm.cancel(number)
    row = row_of(training, slurm)
    assert (row.state, row.holder) == (ChapterState.ENDED, "")


class Nowhere(FakeSlurm):
    """As on a node for data transfers."""

    def job(self, job_id: int) -> SlurmJob:
        raise SlurmCommandMissing("scontrol is not installed")


def test_a_silent_or_missing_slurm_leaves_a_job_that_did_not_end_its_training(
    training: TrainingDirectory,
) -> None:
    silent = FakeSlurm()
    silent.cluster.unreachable = True
    journal = training.path.parent / "9" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    assert row_of(training, Nowhere()).holder == "9"
    row = row_of(training, silent)
    assert row.holder == "9"
    assert "does not answer" in row.slurm


def test_the_jobs_of_one(training: TrainingDirectory) -> None:
    make_training(training.path.parent, "gpt.old-20261128", 5)
    found = shown(training, FakeSlurm())
    assert [(row.job, row.from_step, row.to_step) for row in found.jobs] == [("7", -1, 49), ("9", 29, 79)]
    assert all(row.ettr is not None and 0 < row.ettr < 1 for row in found.jobs)
    assert found.moved_aside == ("training-gpt.old-20261128",)
    assert found.ledger is not None
    assert found.ledger.repeated == 20
    old = shown(TrainingDirectory(training.path.parent / "training-gpt.old-20261128"), FakeSlurm())
    assert (old.training.moved_aside, old.ledger) == (True, None)
    assert [row.state for row in old.jobs] == [ChapterState.GONE]


def test_the_folder_of_checkpoints_may_be_elsewhere(training: TrainingDirectory, tmp_path: Path) -> None:
    where = tmp_path / "scratch"
    publish_all(CheckpointStore(where), ref(2, 70))
    spec = job_spec(run_id="9-a", job_id=9, checkpoint_dir=str(where))
    (training.path.parent / "9" / "job.json").write_bytes(msgspec.json.encode(spec))
    row = row_of(training, FakeSlurm())
    assert (row.storage, row.stored) == (str(where), 70)


# -- the command -------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["training", *words]) == 0
    return capsys.readouterr().out


def test_the_list_and_one_of_it(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_training(training.path.parent, "big.old-1", 5)
    text = printed(capsys)
    assert "gpt" in text
    assert "big.old-1" in text
    assert "moved aside by --fresh" in text
    rows = json.loads(printed(capsys, "--json"))
    assert [(row["name"], row["moved_aside"]) for row in rows] == [("big", True), ("gpt", False)]
    text = printed(capsys, "gpt")
    assert "held by" in text
    assert "cancelled by its user" in text
    assert "2 checkpoints" in text
    one = json.loads(printed(capsys, "gpt", "--json"))
    assert [row["job"] for row in one["jobs"]] == ["7", "9"]
    assert printed(capsys, str(training.path)) == printed(capsys, "gpt")
    assert "no training in" in printed(capsys, "--job-dir", str(tmp_path / "empty"))


def test_a_training_that_runs_elsewhere_is_in_the_list(
    training: TrainingDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    while slurm.submit(SubmitRequest(command=("a.sh",), nodes=1, work_dir=str(training.path.parents[1]))) < 9:
        pass
    found = running_elsewhere(tmp_path / "home" / "srobust-jobs", slurm)
    assert [one.path.resolve() for one in found] == [training.path.resolve()]
    assert running_elsewhere(training.path.parent, slurm) == ()
    for pending in slurm.jobs():
        slurm.cancel(pending.job_id)
    assert running_elsewhere(tmp_path / "home" / "srobust-jobs", slurm) == ()


def test_an_unknown_training_names_those_that_there_are(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["training", "gtp"]) == ExitCode.NO_INPUT
    said = capsys.readouterr().err
    assert "there is no training gtp" in said
    assert "has the trainings gpt" in said


def test_a_training_that_may_not_be_read_is_said_to_be(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    training.path.chmod(0)
    try:
        with as_another_user():
            assert main(["training", "gpt"]) == ExitCode.NO_INPUT
            assert "may not be read by uid" in capsys.readouterr().err
    finally:
        training.path.chmod(0o700)
    training.path.parent.chmod(0)
    try:
        with as_another_user():
            for words in ([], ["gpt"]):
                assert main(["training", *words]) == ExitCode.NO_INPUT
                assert "may not be read by uid" in capsys.readouterr().err
    finally:
        training.path.parent.chmod(0o700)


def test_a_training_that_cannot_be_read_is_a_line_of_the_list(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_training(training.path.parent, "other", 5)
    other.chapters.unlink()
    other.chapters.mkdir()
    text = " ".join(printed(capsys).split())  # where lines are broken depends on the length of paths
    assert "cannot be read" in text
    assert "cancelled by its user" in text


def test_storage_that_lists_nothing_now_is_not_told_to_be_empty(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    training.checkpoints.rename(training.path / "elsewhere")
    training.checkpoints.symlink_to(training.checkpoints)  # each access fails with ELOOP
    row = row_of(training, FakeSlurm())
    assert (row.stored, row.checkpoints, row.unlisted) == (-1, 0, os.strerror(errno.ELOOP))
    text = " ".join(printed(capsys, "gpt").split())
    assert f"not known, since it does not list its checkpoints now: {row.unlisted}" in text
    assert "nothing complete" not in text
    assert " ? " in printed(capsys)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0.0 kB"),
        (1234, "1.2 kB"),
        (999_400, "999 kB"),
        (999_600, "1.0 MB"),
        (12.3e9, "12.3 GB"),
        (4e12, "4.0 TB"),
    ],
)
def test_sizes_read_well(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text


def test_given_a_job_its_training_is_shown(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "7") == printed(capsys, "gpt")
    assert main(["training", "5"]) == ExitCode.NO_INPUT


def test_commands_name_a_training_that_was_moved_aside_as_they_take_it(
    training: TrainingDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    training.path.rename(training.path.with_name("training-gpt.old-1"))
    for words in (["status", "gpt.old-1"], ["status", "--phases", "7"]):
        assert main(words) == 0
        first = capsys.readouterr().out.splitlines()[0].split()
        assert first[:2] == ["training", "gpt.old-1,"]


def test_what_was_moved_aside_is_mentioned_by_the_commands_of_a_job(
    training: TrainingDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    make_training(training.path.parent, "gpt.old-1", 5)
    assert main(["status", "gpt"]) == 0
    said = capsys.readouterr().out
    assert "all jobs: srobust report gpt; moved aside by --fresh: gpt.old-1" in said
    spec = job_spec(run_id="9-a", job_id=9, checkpoint_dir=str(training.checkpoints))
    (training.path.parent / "9" / "job.json").write_bytes(msgspec.json.encode(spec))
    assert main(["checkpoint", "ls", "gpt"]) == 0
    said = capsys.readouterr().out
    assert "On storage: 2 complete checkpoints of training gpt" in said
    assert "with checkpoints of their own: gpt.old-1" in said
    assert main(["checkpoint", "ls", "gpt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["training"], found["complete"], found["moved_aside"]) == ("gpt", 2, ["training-gpt.old-1"])
    assert found["nbytes"] > 0
