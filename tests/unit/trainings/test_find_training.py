"""A name stands for a training, and mostly for its newest job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.model.training import Chapter, TrainingDirectory, encoded
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.find import NoSuchJob, NotBegun, chapter_folder, find, find_training, newest_job
from tests.unit.report.trainings import make_training, started_run
from tests.unit.trainings.test_find import started
from tests.users import as_another_user


def test_a_name_stands_for_its_newest_job(root: Path) -> None:
    make_training(root, "gpt", 7, 9, 8)
    slurm = FakeSlurm()
    for job in (7, 9, 8):
        started_run(root / str(job), f"{job}-a")
    assert find("gpt", None, slurm).path == root / "8"
    assert find("training-gpt", None, slurm).path == root / "8"
    assert find("srobust-jobs/training-gpt", None, slurm).path == Path("srobust-jobs/8")
    assert find("gpt", str(root), slurm).path == root / "8"
    assert find("9", None, slurm).path == root / "9"


def test_a_folder_of_that_name_that_is_a_job_comes_first(root: Path) -> None:
    make_training(root, "gpt", 7)
    started_run(root / "7", "7-a")
    started(root.parent / "gpt")
    assert find("gpt", None, FakeSlurm()).path == Path("gpt")


def test_a_number_is_a_job_before_it_is_a_training(root: Path) -> None:
    make_training(root, "12", 7)
    started_run(root / "7", "7-a")
    assert find("12", None, FakeSlurm()).path == root / "7"
    started(root / "12")
    assert find("12", None, FakeSlurm()).path == root / "12"


def test_an_unknown_name_lists_those_that_there_are(root: Path) -> None:
    with pytest.raises(
        NoSuchJob, match=r"neither a training nor a folder gtp; .*/srobust-jobs has no training"
    ):
        find("gtp", None, FakeSlurm())
    make_training(root, "gpt", 7)
    make_training(root, "big.old-2026-11-28T10:00:00", 6)
    with pytest.raises(NoSuchJob, match=r"has the trainings big\.old-2026-11-28T10:00:00, gpt"):
        find("gtp", None, FakeSlurm())
    with pytest.raises(NoSuchJob, match="there is no folder gtp"):
        find("./gtp", None, FakeSlurm())


def test_a_training_that_was_moved_aside_is_found_by_its_whole_name(root: Path) -> None:
    make_training(root, "gpt.old-2026", 6)
    started_run(root / "6", "6-a")
    assert find("gpt.old-2026", None, FakeSlurm()).path == root / "6"
    found = find_training("gpt.old-2026", None)
    assert found is not None
    assert found.name == "gpt"
    assert find_training("gpt", None) is None


def test_a_job_that_is_only_starting_is_said_to_be(root: Path) -> None:
    slurm = FakeSlurm()
    waiting = slurm.submit(SubmitRequest(command=("train.sh",), hold=True))
    make_training(root, "gpt", 70, waiting)
    started_run(root / "70", "70-a")
    with pytest.raises(NotBegun, match=rf"job {waiting}, the newest of training gpt, is pending") as error:
        find("gpt", None, slurm)
    assert error.value.may_begin
    started_run(root / str(waiting), f"{waiting}-a")
    assert find("gpt", None, slurm).path == root / str(waiting)


def test_a_job_that_slurm_has_ended_before_it_began_does_not_hide_the_one_before(root: Path) -> None:
    make_training(root, "gpt", 70, 71)
    started_run(root / "70", "70-a")
    assert find("gpt", None, FakeSlurm()).path == root / "70"


def test_a_training_without_any_folder_of_a_job(root: Path) -> None:
    make_training(root, "gpt", 70)
    with pytest.raises(NoSuchJob, match="none of the jobs of training gpt has a folder any more"):
        find("gpt", None, FakeSlurm())


def test_a_folder_is_known_by_its_run_where_job_ids_have_begun_anew(root: Path) -> None:
    training = make_training(root, "gpt", 7)
    (chapter,) = training.read()
    other = started_run(root / "7", "7-b")
    assert chapter_folder(training, chapter) is None
    with pytest.raises(NoSuchJob, match="none of the jobs"):
        newest_job(training, FakeSlurm())
    old = started_run(root / "7.2026-11-28", "7-a")
    found = chapter_folder(training, chapter)
    assert found is not None
    assert found.path == old
    assert find("7", None, FakeSlurm()).path == other


def test_a_training_of_somebody_else_is_reported_as_closed(root: Path) -> None:
    training = make_training(root, "gpt", 7)
    training.path.chmod(0)
    try:
        with as_another_user(), pytest.raises(NoSuchJob, match=r"training-gpt may not be read by uid"):
            find("gpt", None, FakeSlurm())
    finally:
        training.path.chmod(0o700)


def test_the_list_of_chapters_may_be_torn(root: Path) -> None:
    training = TrainingDirectory.of(root, "gpt")
    training.path.mkdir(parents=True)
    line = encoded(Chapter(job_id=7, run_id="7-a", folder="7", t=1.0))
    training.chapters.write_bytes(line + line[:20])
    started_run(root / "7", "7-a")
    assert find("gpt", None, FakeSlurm()).path == root / "7"
    training.chapters.write_bytes(b"")
    with pytest.raises(NoSuchJob, match="neither a training nor a folder"):
        find("gpt", None, FakeSlurm())
