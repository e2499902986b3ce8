"""The first start of a job: what it goes on from, and what it refuses before anything is changed."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.state import Snapshot
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.cli.main import main
from slurm_robust.config.job import JobConfig
from slurm_robust.inventory.listing import open_job
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.model.training import TrainingDirectory, encoded, storage_of, trainings
from slurm_robust.run.command import _start_again
from slurm_robust.run.continuing import NOTHING, ContinueOptions, Started, check_still_ours, start
from slurm_robust.run.holding import ENDING_S, WaitClock, take_alone
from slurm_robust.run.preflight import check_unbegun
from slurm_robust.run.sources import Here
from slurm_robust.trainings.find import NoSuchJob
from slurm_robust.util.alone import Alone
from tests.builders.events import allocation_taken
from tests.unit.controller.earlier_jobs import Jobs, over, ran, ref
from tests.users import as_root, run_as

GPT = ContinueOptions(training="gpt")
CANCELLED = (*ran(1, 40, best=47), over(143))


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "srobust-jobs")


def refused(wish: ContinueOptions, here: Here, code: ExitCode, *words: str) -> None:
    with pytest.raises((PreflightError, NoSuchJob)) as error:
        start(wish, here)
    assert error.value.exit_code == code
    for word in words:
        assert word in str(error.value) + error.value.fix
    assert error.value.fix


def went_on(started: Started) -> ev.Continued:
    assert started.continued is not None
    return started.continued


def chapters(jobs: Jobs, name: str = "gpt") -> list[int]:
    return [chapter.job_id for chapter in TrainingDirectory.of(jobs.root, name).read()]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--training", "gpt", "--fresh", "--step", "3"], ExitCode.USAGE),
        (["--training", "gpt", "--step", "-1"], ExitCode.USAGE),
        (["--fresh"], ExitCode.USAGE),
        (["--step", "3"], ExitCode.USAGE),
        (["--step", "x", "--from", "7"], ExitCode.USAGE),
        (["--training", "a/b"], ExitCode.USAGE),
        (["--training", "gpt", "--fresh"], ExitCode.ALLOCATION),
        (["--from", "latest", "--step", "3"], ExitCode.ALLOCATION),
    ],
)
def test_options_that_contradict_each_other_are_refused_first(
    options: list[str], code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they say together is checked first; then there is no Slurm job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", *options, "train.py", "--step", "9"]) == code


# -- by name ---------------------------------------------------------------------------------------


def test_the_first_job_of_a_training_begins_it(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(GPT, jobs.here(7, "gpt")) == Started()
    assert chapters(jobs) == [7]
    assert (jobs.root / "training-gpt").stat().st_mode & 0o777 == 0o700
    assert "training gpt begins; folder" in capfd.readouterr().out


def test_the_next_job_goes_on(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 30), ref(1, 40)))
    event = went_on(start(GPT, jobs.here(8, "gpt")))
    assert (event.training, event.chapter, event.from_job) == ("gpt", 2, 7)
    assert (event.sealed, event.generation, event.runs) == ({1: 40}, 1, ("7-x",))
    assert chapters(jobs) == [7, 8]
    said = capfd.readouterr().out
    assert "goes on with training gpt from step 40 of job 7 (chapter 2)" in said
    assert "steps 41 to 47 had been done, but did not get onto storage" in said


def test_a_job_that_died_before_it_began_is_passed_over(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    jobs.job(8, training="gpt")
    (jobs.job(9, training="gpt").journal).unlink()
    event = went_on(start(GPT, jobs.here(10, "gpt")))
    assert (event.from_job, event.chapter) == (7, 4)


@pytest.mark.parametrize("with_chapter", [True, False])
def test_checkpoints_whose_journals_were_removed_are_gone_on_from(jobs: Jobs, with_chapter: bool) -> None:
    """Somebody tidied up among the folders of jobs."""
    directory = jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 30), ref(1, 40)))
    shutil.rmtree(directory.path)
    if not with_chapter:
        (jobs.root / "training-gpt" / "chapters.jsonl").unlink()
    event = went_on(start(GPT, jobs.here(8, "gpt")))
    assert (event.sealed, event.generation, event.stored) == ({1: 40}, 1, ref(1, 40))


def test_a_newer_checkpoint_whose_journal_was_removed_is_named(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40), ref(2, 90)))
    event = went_on(start(GPT, jobs.here(8, "gpt")))
    assert (event.stored, event.generation) == (ref(1, 40), 2)
    said = capfd.readouterr().out
    assert "from step 40 of job 7" in said
    assert "step 90 on storage is passed over: the journal of the job that wrote it is gone" in said
    assert f"--from {jobs.root / 'training-gpt' / 'checkpoints'}" in said


def test_the_folder_of_another_training_is_not_begun_in(jobs: Jobs) -> None:
    shared = jobs.root.parent / "shared"
    jobs.store(shared, ref(1, 40))
    refused(GPT, jobs.here(8, "gpt", storage=shared), ExitCode.CONFIG, "step 40", f"--from {shared}")
    assert chapters(jobs) == []
    event = went_on(
        start(ContinueOptions(training="gpt", source=str(shared)), jobs.here(8, "gpt", storage=shared))
    )
    assert event.sealed == {1: 40}


def test_a_start_that_did_not_get_far_is_made_again(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    start(GPT, jobs.here(8, "gpt"))
    again = jobs.here(8, "gpt")
    event = went_on(start(GPT, again._replace(chapter=jobs.chapter(8).__class__(**_as(jobs, 8, "8-y")))))
    assert (event.from_job, event.chapter) == (7, 2)


def _as(jobs: Jobs, job_id: int, run_id: str) -> dict[str, object]:
    chapter = jobs.chapter(job_id)
    return {"job_id": job_id, "run_id": run_id, "folder": chapter.folder, "t": chapter.t}


def test_a_finished_training_starts_nothing(jobs: Jobs) -> None:
    jobs.job(7, *ran(1, 40), over(0), training="gpt", stored=(ref(1, 40),))
    started = start(GPT, jobs.here(8, "gpt"))
    assert "training gpt is finished: job 7 ended with 0" in started.finished
    assert chapters(jobs) == [7]


@pytest.mark.parametrize(
    ("wish", "command"),
    [
        (GPT, ("train.py", "--steps", "90")),
        (ContinueOptions(training="gpt", step=40), ("train.py",)),
        (ContinueOptions(training="gpt", source="7"), ("train.py",)),
        (ContinueOptions(training="gpt", fresh=True), ("train.py",)),
    ],
)
def test_another_command_or_an_explicit_wish_goes_on_after_the_end(
    jobs: Jobs, wish: ContinueOptions, command: tuple[str, ...]
) -> None:
    jobs.job(7, *ran(1, 40), over(0), training="gpt", stored=(ref(1, 40),))
    started = start(wish, jobs.here(8, "gpt", command=command))
    assert not started.finished
    assert 8 in chapters(jobs)


def test_a_finished_training_stays_so_after_a_job_that_never_began(jobs: Jobs) -> None:
    jobs.job(7, *ran(1, 40), over(0), training="gpt", stored=(ref(1, 40),))
    jobs.job(8, training="gpt", command=("other.py",)).journal.unlink()
    assert "training gpt is finished: job 7 ended with 0" in start(GPT, jobs.here(9, "gpt")).finished


@pytest.mark.parametrize("code", [93, 1, 143])
def test_any_other_end_is_gone_on_from(jobs: Jobs, code: int) -> None:
    jobs.job(7, *ran(1, 40), over(code), training="gpt", stored=(ref(1, 40),))
    assert went_on(start(GPT, jobs.here(8, "gpt"))).from_job == 7


def test_a_step_is_chosen_and_those_after_it_do_not_count(jobs: Jobs) -> None:
    banned = ev.CheckpointBanned(t=4.0, checkpoint=ref(1, 40), reason="it failed")
    jobs.job(7, *CANCELLED[:-1], banned, over(143), training="gpt", stored=(ref(1, 30), ref(1, 40)))
    event = went_on(start(ContinueOptions(training="gpt", step=30), jobs.here(8, "gpt")))
    assert (event.sealed, event.best_step) == ({1: 30}, 30)
    jobs.job(9, *ran(2, 35), over(143), training="other", stored=(ref(2, 35),))
    refused(
        ContinueOptions(training="gpt", step=35), jobs.here(10, "gpt"), ExitCode.NO_INPUT, "steps 40 and 30"
    )


def test_a_checkpoint_that_the_earlier_job_had_given_up_is_tried_again(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    banned = ev.CheckpointBanned(t=4.0, checkpoint=ref(1, 40), reason="it failed")
    jobs.job(7, *CANCELLED[:-1], banned, over(93), training="gpt", stored=(ref(1, 30), ref(1, 40)))
    start(GPT, jobs.here(8, "gpt"))
    said = capfd.readouterr().out
    assert "from step 40 of job 7" in said
    assert "job 7 had passed over step 40 (it failed); it is tried again; to take an older one," in said
    assert "submit a new job with --step 30" in said


def test_an_old_job_of_the_same_id_is_gone_on_from(jobs: Jobs) -> None:
    """Ids begin anew when they run out, or a cluster is installed anew; the old folder was moved aside."""
    old = jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    old.path.rename(jobs.root / "7.old-2026-01-01T10:00")
    here = jobs.here(7, "gpt")
    here = here._replace(chapter=structs.replace(here.chapter, run_id="7-y"))
    event = went_on(start(GPT, here))
    assert (event.sealed, event.chapter, event.runs) == ({1: 40}, 2, ("7-x",))


# -- who has it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [("RUNNING",), ("PENDING",), ("RUNNING", "SUSPENDED")])
@pytest.mark.parametrize(
    "wish", [GPT, ContinueOptions(training="gpt", fresh=True), ContinueOptions(training="gpt", step=40)]
)
def test_a_held_training_is_refused_and_nothing_is_changed(
    jobs: Jobs, states: tuple[str, ...], wish: ContinueOptions
) -> None:
    jobs.job(7, *ran(1, 40), *ran(2, runs=True), training="gpt", stored=(ref(1, 40),))
    jobs.slurm.put(7, *states)
    before = sorted(path.name for path in jobs.root.rglob("*"))
    words = ("training gpt is held by job 7", "scancel 7")
    refused(wish, jobs.here(8, "gpt"), ExitCode.OTHER_CONTROLLER, *words)
    assert sorted(path.name for path in jobs.root.rglob("*")) == before


def test_a_job_that_slurm_is_ending_is_waited_for(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.job(7, *ran(1, 40), training="gpt", stored=(ref(1, 40),))
    jobs.slurm.put(7, "COMPLETING")

    def advance(seconds: float) -> None:
        jobs.time.advance(seconds)
        if jobs.time.sleeps == 3:
            jobs.slurm.put(7, "CANCELLED")

    here = jobs.here(8, "gpt")
    clock = jobs.time.clock._replace(sleep=advance)
    start(GPT, here._replace(asked=here.asked._replace(clock=clock)))
    assert jobs.time.sleeps == 3
    assert capfd.readouterr().out.count("Slurm is still ending it: waiting up to 120 s") == 1


def test_a_job_that_slurm_does_not_end_is_refused_after_two_minutes(jobs: Jobs) -> None:
    jobs.job(7, *ran(1, 40), training="gpt")
    jobs.slurm.put(7, "COMPLETING")
    jobs.slurm.known[7] = structs.replace(jobs.slurm.known[7], nodes=("n3",))
    jobs.slurm.cluster.set_node("n3", states=frozenset({"ALLOCATED", "NOT_RESPONDING"}))
    words = ("COMPLETING", "afterany:7", "job 7 waits for Slurm to give up node n3 (SlurmdTimeout=300 s)")
    refused(GPT, jobs.here(8, "gpt"), ExitCode.OTHER_CONTROLLER, *words)
    assert 120 <= jobs.time.t < 125
    with pytest.raises(PreflightError) as error:
        start(GPT, jobs.here(8, "gpt"))
    assert "scancel" not in error.value.fix, "somebody has done that already"


def test_a_cancelled_job_on_a_dead_node_is_not_waited_for_longer(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    jobs.slurm.put(7, "COMPLETING")
    assert went_on(start(GPT, jobs.here(8, "gpt"))).from_job == 7
    assert 120 <= jobs.time.t < 125


def test_a_cancelled_job_is_not_waited_for_on_nodes_that_it_had_given_up(jobs: Jobs) -> None:
    lost = ev.NodeEvicted(t=1.0, node="n3", reason="n3 does not respond", incident=1)
    jobs.job(7, *CANCELLED[:-1], lost, CANCELLED[-1], training="gpt", stored=(ref(1, 40),))
    jobs.slurm.put(7, "COMPLETING")
    jobs.slurm.known[7] = structs.replace(jobs.slurm.known[7], nodes=("n2", "n3"))
    jobs.slurm.cluster.set_node("n3", states=frozenset({"IDLE", "COMPLETING", "NOT_RESPONDING"}))
    assert went_on(start(GPT, jobs.here(8, "gpt"))).from_job == 7
    assert jobs.time.t == 0


def test_a_cancelled_job_is_waited_for_on_a_node_that_may_still_write(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    jobs.slurm.put(7, "COMPLETING")
    jobs.slurm.known[7] = structs.replace(jobs.slurm.known[7], nodes=("n3",))
    jobs.slurm.cluster.set_node("n3", states=frozenset({"IDLE", "COMPLETING", "NOT_RESPONDING"}))
    assert went_on(start(GPT, jobs.here(8, "gpt"))).from_job == 7
    assert 120 <= jobs.time.t < 125
    assert "job 7 waits for Slurm to give up node n3 (SlurmdTimeout=300 s)" in capfd.readouterr().out


def test_a_silent_slurm_is_asked_for_a_minute(jobs: Jobs) -> None:
    jobs.job(7, *ran(1, 40), training="gpt")
    jobs.slurm.silent = True
    refused(GPT, jobs.here(8, "gpt"), ExitCode.SLURM, "does not say whether that has ended")
    assert 60 <= jobs.time.t < 65


@pytest.mark.parametrize("is_known", [True, False])
def test_another_job_that_has_its_id_now_does_not_hold_it(jobs: Jobs, is_known: bool) -> None:
    taken = allocation_taken(("n1",), submitted=9.0)
    old = jobs.job(7, taken, *ran(1, 40), training="gpt", stored=(ref(1, 40),))
    if is_known:
        old.path.rename(jobs.root / "7.old-2026-01-01T10:00")
        jobs.job(7, *ran(1, runs=True), run_id="7-y")
    jobs.slurm.put(7, "RUNNING")
    assert went_on(start(GPT, jobs.here(8, "gpt"))).from_job == 7


def test_of_two_that_start_at_once_one_gets_the_training(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    for job_id in range(8, 14):
        jobs.slurm.put(job_id, "RUNNING")
    ready, results = threading.Barrier(6), {}

    def run(job_id: int) -> None:
        here = jobs.here(job_id, "gpt")
        ready.wait()
        try:
            results[job_id] = start(GPT, here)
        except PreflightError as error:
            results[job_id] = error

    threads = [threading.Thread(target=run, args=(job_id,)) for job_id in range(8, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [job_id for job_id, result in results.items() if isinstance(result, Started)]
    assert len(won) == 1
    assert chapters(jobs) == [7, *won]
    lost = [r for r in results.values() if isinstance(r, PreflightError)]
    assert {error.exit_code for error in lost} == {ExitCode.OTHER_CONTROLLER}


def test_a_job_that_is_requeued_while_another_looks_keeps_its_training(jobs: Jobs) -> None:
    """Its own start may have looked for later chapters before there was one."""
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    here = jobs.here(8, "gpt", take=lambda: jobs.slurm.put(7, "PENDING"))
    refused(GPT, here, ExitCode.OTHER_CONTROLLER, "training gpt is held by job 7, PENDING")
    assert chapters(jobs) == [7]


@pytest.mark.parametrize("file", ["journal", "spec"])
def test_a_folder_that_has_lost_a_file_loses_no_checkpoints(
    jobs: Jobs, file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    getattr(directory, file).unlink()
    assert went_on(start(GPT, jobs.here(8, "gpt"))).stored == ref(1, 40)
    assert "from step 40" in capfd.readouterr().out


@pytest.mark.parametrize("content", [b"", b"\0\0", b'{"of": "another release"}\n'])
@pytest.mark.parametrize("wish", [GPT, ContinueOptions(training="gpt", fresh=True)])
def test_a_newest_chapter_that_cannot_be_read_is_not_passed_over(
    jobs: Jobs, wish: ContinueOptions, content: bytes
) -> None:
    """Its job may run."""
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    training = TrainingDirectory.of(jobs.root, "gpt")
    training.claim(2).write_bytes(content)
    refused(wish, jobs.here(8, "gpt"), ExitCode.JOURNAL, str(training.claim(2)), "nothing was changed")
    assert len(trainings(jobs.root)) == 1
    training.claim(2).unlink()
    start(wish, jobs.here(8, "gpt"))


@pytest.mark.parametrize("wish", [GPT, ContinueOptions(source="7")])
@pytest.mark.parametrize("hangs", [True, False])
def test_checkpoints_that_are_away_are_waited_for_before_another_folder_is_taken(
    jobs: Jobs, wish: ContinueOptions, hangs: bool
) -> None:
    """Of a job that has begun nobody would look into the folder of the job before."""
    written = ev.StorageWritten(t=4.0, generation=1, step=40, seconds=1.0)
    jobs.job(7, *ran(1, 40), written, over(143), training=wish.training, stored=(ref(1, 40),))
    where = jobs.here(7, wish.training).storage
    where.rename(jobs.root / "away")
    if hangs:
        where.symlink_to(where)  # the error of a file system, whoever asks
    here = jobs.here(8, wish.training, storage=jobs.root / "new")
    refused(wish, here, ExitCode.CHECKPOINTS, str(where), "nothing was changed")
    assert not wish.training or chapters(jobs) == [7]
    where.unlink(missing_ok=True)
    (jobs.root / "away").rename(where)
    assert went_on(start(wish, here)).stored == ref(1, 40)
    assert CheckpointStore(here.storage).complete() == [ref(1, 40)]


@pytest.mark.parametrize("folder", ["8", "8.other"])
def test_of_two_starts_in_one_allocation_the_second_is_refused(
    jobs: Jobs, folder: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first has no controller yet that would answer. It is waited for, since it may be about to end."""
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    first, second = Alone(str(jobs.root)), Alone(str(jobs.root))
    here = jobs.here(8, "gpt", take=lambda: take_alone(first, "training gpt", jobs.time.clock))
    went_on(start(GPT, here))
    again = structs.replace(here.chapter, run_id="8-y", folder=folder)
    later = here._replace(chapter=again, take=lambda: take_alone(second, "training gpt", jobs.time.clock))
    words = ("training gpt is held by another 'srobust run' on this node", str(os.getpid()))
    refused(GPT, later, ExitCode.OTHER_CONTROLLER, *words)
    assert chapters(jobs) == [7, 8]
    assert jobs.time.t == ENDING_S
    assert capfd.readouterr().out.count("waiting up to 30 s for its end") == 1
    first.close()  # it died before it had begun
    went_on(start(GPT, later))
    second.close()


def test_the_process_of_a_job_that_has_ended_is_waited_for(jobs: Jobs) -> None:
    """Its journal has the end, and it still tells people."""
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    old, new = Alone(str(jobs.root)), Alone(str(jobs.root))
    take_alone(old, "training gpt")

    def sleep(seconds: float) -> None:
        jobs.time.advance(seconds)
        if jobs.time.t >= 20.0:
            old.close()

    clock = WaitClock(lambda: jobs.time.t, sleep)
    went_on(start(GPT, jobs.here(8, "gpt", take=lambda: take_alone(new, "training gpt", clock))))
    assert jobs.time.t == 20.0
    new.close()


def test_a_start_that_waited_for_another_of_its_folder_does_not_go_on_in_that_journal(jobs: Jobs) -> None:
    directory = jobs.job(7, *CANCELLED)
    with pytest.raises(PreflightError, match="another 'srobust run' has begun in") as error:
        check_unbegun(directory)
    assert error.value.exit_code == ExitCode.OTHER_CONTROLLER
    directory.journal.write_bytes(b"")
    check_unbegun(directory)


def test_a_requeued_job_whose_training_went_on_without_it_is_refused(jobs: Jobs) -> None:
    training = TrainingDirectory.of(jobs.root, "gpt")
    jobs.job(7, *CANCELLED, training="gpt")
    check_still_ours(training, "7-x", "7", 30.0)
    jobs.job(8, *ran(2, 50), training="gpt")
    check_still_ours(training, "8-x", "8", 30.0)
    with pytest.raises(PreflightError, match="job 8 has gone on with training gpt since job 7 ended") as late:
        check_still_ours(training, "7-x", "7", 30.0)
    assert "nothing is to be done about job 7, which ends now" in late.value.fix
    start(ContinueOptions(training="gpt", fresh=True), jobs.here(9, "gpt"))
    with pytest.raises(PreflightError, match="job 9 has begun anew training gpt since job 8 ended"):
        check_still_ours(training, "8-x", "8", 30.0)


def test_a_job_that_is_started_again_by_hand_takes_no_other_training(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a requeue it goes on: the configuration may have changed since it was submitted."""
    training = TrainingDirectory.of(jobs.root, "gpt")
    jobs.job(7, *CANCELLED, training="gpt")
    state = JobState(job_id=7, run_id="7-x", training="gpt", restart_count=1)
    _start_again(ContinueOptions(training="gpt"), state, training, JobConfig(), 1)
    assert capfd.readouterr().out == ""
    with pytest.raises(PreflightError, match="this start is for training other; nothing was") as no:
        _start_again(ContinueOptions(training="other"), state, training, JobConfig(), 1)
    assert no.value.exit_code is ExitCode.USAGE
    _start_again(ContinueOptions(training="other", step=5), state, training, JobConfig(), 2)
    _start_again(ContinueOptions(), state, training, JobConfig(), 1)
    said = capfd.readouterr().out
    assert "--step 5 had a say in the first start of job 7 only" in said
    assert said.count("job 7 belongs to training gpt, as it began, and goes on so") == 2


@pytest.mark.parametrize("keeps", [True, False])
def test_a_requeued_job_waits_for_one_that_has_only_claimed_its_training(jobs: Jobs, keeps: bool) -> None:
    """That one asks Slurm first, learns that this job runs again, and gives the training back."""
    training = TrainingDirectory.of(jobs.root, "gpt")
    jobs.job(7, *CANCELLED, training="gpt")
    training.claim(2).write_bytes(encoded(jobs.chapter(8)))

    def sleep(seconds: float) -> None:
        jobs.time.advance(seconds)
        if jobs.time.sleeps == 3 and keeps:
            training.chapters.write_bytes(training.chapters.read_bytes() + encoded(jobs.chapter(8)))
        elif jobs.time.sleeps == 3:
            training.claim(2).unlink()

    clock = WaitClock(lambda: jobs.time.t, sleep)
    if keeps:
        with pytest.raises(PreflightError, match="job 8 has gone on with training gpt"):
            check_still_ours(training, "7-x", "7", 30.0, clock)
    else:
        check_still_ours(training, "7-x", "7", 30.0, clock)
    assert jobs.time.sleeps == 3


def test_a_requeued_job_does_not_wait_for_ever_for_one_that_died_at_its_claim(jobs: Jobs) -> None:
    training = TrainingDirectory.of(jobs.root, "gpt")
    jobs.job(7, *CANCELLED, training="gpt")
    training.claim(2).write_bytes(encoded(jobs.chapter(8)))
    with pytest.raises(PreflightError, match="job 8 has gone on with training gpt"):
        check_still_ours(training, "7-x", "7", 30.0, jobs.time.clock)
    assert jobs.time.t == 30.0


# -- anew ------------------------------------------------------------------------------------------


def test_fresh_moves_the_old_one_aside_where_its_jobs_find_it(
    jobs: Jobs, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    assert start(ContinueOptions(training="gpt", fresh=True), jobs.here(8, "gpt")) == Started()
    new, aside = trainings(jobs.root)
    assert ([c.job_id for c in new.read()], [c.job_id for c in aside.read()]) == ([8], [7])
    assert f"training gpt as it was is now {aside.path}" in capfd.readouterr().out
    assert not new.checkpoints.exists()
    seen = open_job(str(old.path), None)
    assert seen.store.path == aside.checkpoints
    event = went_on(start(ContinueOptions(source="7"), jobs.here(9)))
    assert event.sealed == {1: 40}
    assert CheckpointStore(jobs.here(9).storage).complete() == [ref(1, 40)]


def test_fresh_of_a_training_that_is_not_there_begins_it(jobs: Jobs) -> None:
    assert start(ContinueOptions(training="gpt", fresh=True), jobs.here(8, "gpt")) == Started()
    assert chapters(jobs) == [8]


def test_fresh_moves_once_where_a_start_is_made_again(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    for _ in range(2):
        start(ContinueOptions(training="gpt", fresh=True), jobs.here(8, "gpt"))
    assert len(trainings(jobs.root)) == 2


def test_fresh_in_a_folder_of_checkpoints_that_stay_has_generations_of_its_own(jobs: Jobs) -> None:
    shared = jobs.root.parent / "shared"
    jobs.job(7, *CANCELLED, training="gpt")
    jobs.store(shared, ref(1, 40), ref(3, 60))
    event = went_on(start(ContinueOptions(training="gpt", fresh=True), jobs.here(8, "gpt", storage=shared)))
    assert (event.generation, event.sealed, event.unsealed) == (3, {}, ())
    assert event.runs == ("7-x",), "what they have written goes as newer ones come"


@pytest.mark.parametrize(("requeued", "step"), [(True, 40), (False, None)])
def test_a_requeued_job_whose_journal_is_gone_goes_on_all_the_same(
    jobs: Jobs, requeued: bool, step: int | None
) -> None:
    here = jobs.here(8, requeued=requeued)
    jobs.store(here.storage, ref(1, 30), ref(2, 40))
    event = went_on(start(NOTHING, here))
    assert (event.sealed.get(2), event.generation) == (step, 2)


def written(storage: Path, run_id: str, *refs: CheckpointId) -> None:
    for each in refs:
        DiskTier(CheckpointStore(storage), run_id=run_id, rank=0, world_size=1).save(
            each, Snapshot(own={}, shared={}, rng={})
        )


def test_in_a_folder_of_several_jobs_a_job_without_its_journal_knows_its_own(jobs: Jobs) -> None:
    shared = jobs.root.parent / "shared"
    written(shared, "8-a", ref(1, 30), ref(2, 40))
    written(shared, "88-b", ref(5, 90))
    event = went_on(start(NOTHING, jobs.here(8, requeued=True, storage=shared)))
    assert (event.sealed, event.runs, event.generation) == ({1: 30, 2: 40}, ("8-a",), 5)


@pytest.mark.parametrize(("step", "runs"), [(None, ("88-b",)), (40, ("7-a",))])
def test_the_other_jobs_of_a_folder_keep_what_they_wrote(
    jobs: Jobs, step: int | None, runs: tuple[str, ...]
) -> None:
    """They may run: what is this job's own it also removes."""
    shared = jobs.root.parent / "shared"
    written(shared, "7-a", ref(2, 40))
    written(shared, "88-b", ref(5, 90))
    event = went_on(
        start(ContinueOptions(source=str(shared), step=step), jobs.here(9, "gpt", storage=shared))
    )
    assert event.runs == runs


def test_a_job_that_begins_where_others_have_checkpoints_writes_beside_them(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = jobs.root.parent / "shared"
    jobs.store(shared, ref(1, 40), ref(3, 60))
    event = went_on(start(NOTHING, jobs.here(8, storage=shared)))
    assert (event.generation, event.sealed, event.training, event.chapter) == (3, {}, "", 0)
    assert f"{shared} has checkpoints of others: they stay there" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (ContinueOptions(training="gpt", step=-1), "steps are counted from 0"),
        (ContinueOptions(training="gpt", step=3, fresh=True), "nothing was moved"),
        (ContinueOptions(fresh=True), "this job has none"),
        (ContinueOptions(step=3), "add --training NAME"),
        (ContinueOptions(training="gpt", source="7", fresh=True), "belongs to training gpt"),
        (ContinueOptions(training="gpt", source="gpt", fresh=True), "belongs to training gpt"),
        (ContinueOptions(training="gpt", source="5"), "is no job of training gpt"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage_and_changes_nothing(
    jobs: Jobs, wish: ContinueOptions, words: str
) -> None:
    jobs.job(5, *ran(1, 9), over(143), stored=(ref(1, 9),))
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    before = sorted(path.name for path in jobs.root.rglob("*"))
    refused(wish, jobs.here(8, "gpt"), ExitCode.USAGE, words)
    assert sorted(path.name for path in jobs.root.rglob("*")) == before


@pytest.mark.parametrize("source", ["99", "latest", "nowhere", "./nowhere", "6"])
def test_a_source_that_is_not_there_is_found_out_before_anything_is_moved(jobs: Jobs, source: str) -> None:
    jobs.job(6)
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    wish = ContinueOptions(training="gpt", source=source, fresh=True)
    here = jobs.here(8, "gpt", command=("other.py",))
    refused(wish, here, ExitCode.NO_INPUT)
    assert len(trainings(jobs.root)) == 1
    assert chapters(jobs) == [7]


def test_too_few_nodes_are_found_out_before_anything_is_moved(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))

    def fits(slots: int) -> None:
        raise PreflightError(f"too few for {slots}", fix="more", code=ExitCode.ALLOCATION)

    for wish, slots in ((GPT, 1), (ContinueOptions(training="gpt", fresh=True), 0)):
        refused(wish, jobs.here(8, "gpt", fits=fits), ExitCode.ALLOCATION, f"too few for {slots}")
    assert len(trainings(jobs.root)) == 1
    assert chapters(jobs) == [7]


# -- from ------------------------------------------------------------------------------------------


def test_from_a_job_its_newest_checkpoints_are_linked_into_the_new_ones_folder(jobs: Jobs) -> None:
    old = jobs.job(7, *CANCELLED, stored=(ref(1, 20), ref(1, 30), ref(1, 40), ref(1, 50)))
    event = went_on(start(ContinueOptions(source="7"), jobs.here(8)))
    assert (event.training, event.chapter, event.sealed) == ("", 0, {1: 40})
    new = CheckpointStore(jobs.root / "8" / "checkpoints")
    assert new.complete() == [ref(1, 40), ref(1, 30)]
    part = "rank-00000-of-00001.part"
    assert os.path.samefile(new.folder(ref(1, 40)) / part, old.checkpoints / str(ref(1, 40)) / part)


@pytest.mark.parametrize("source", ["7", "{root}/7", "38_1", "old", "training-old", "{root}/training-old"])
def test_a_job_to_go_on_from_is_named_by_id_path_or_training(jobs: Jobs, source: str) -> None:
    jobs.job(7, *CANCELLED, training="old", array_task="38_1", stored=(ref(1, 40),))
    wish = ContinueOptions(source=source.format(root=jobs.root))
    assert went_on(start(wish, jobs.here(8, cwd=str(jobs.root)))).from_job == 7


def test_a_task_of_an_array_is_named_as_squeue_does(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.job(39, *CANCELLED, array_task="38_1", stored=(ref(1, 40),))
    start(ContinueOptions(source="38_1"), jobs.here(40))
    assert "goes on from step 40 of job 38_1" in capfd.readouterr().out


def test_latest_is_the_newest_of_the_same_script(jobs: Jobs) -> None:
    for number, (job_id, command) in enumerate({5: "train.py", 6: "train.py", 7: "other.py"}.items()):
        made = jobs.job(job_id, *CANCELLED, command=(command, "--lr"), stored=(ref(1, 40),))
        os.utime(made.journal, (number, number))
    os.utime(jobs.job(8, *CANCELLED).journal, (9, 9))  # nothing of it is on storage
    assert went_on(start(ContinueOptions(source="latest"), jobs.here(9))).from_job == 6


def test_a_hand_made_folder_of_checkpoints_can_be_gone_on_from(jobs: Jobs) -> None:
    made = jobs.root.parent / "mine"
    jobs.store(made, ref(4, 10), ref(4, 20))
    event = went_on(start(ContinueOptions(source=str(made)), jobs.here(8)))
    assert (event.from_job, event.sealed, event.generation) == (0, {4: 20}, 4)
    assert CheckpointStore(jobs.here(8).storage).complete() == [ref(4, 20), ref(4, 10)]


def test_a_training_may_begin_from_elsewhere(jobs: Jobs) -> None:
    jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    event = went_on(start(ContinueOptions(training="gpt", source="7"), jobs.here(8, "gpt")))
    assert (event.training, event.chapter, event.from_job) == ("gpt", 1, 7)
    assert CheckpointStore(jobs.here(8, "gpt").storage).complete() == [ref(1, 40)]


def test_an_earlier_chapter_is_gone_on_from_with_numbers_of_its_own(jobs: Jobs) -> None:
    first = (*ran(1, 40), over(143))
    jobs.job(7, *first, training="gpt", stored=(ref(1, 40),))
    second = went_on(start(GPT, jobs.here(8, "gpt")))
    jobs.job(8, *ran(2, 60), over(143), training="gpt", continued=second, stored=(ref(2, 60),))
    event = went_on(start(ContinueOptions(training="gpt", source="7"), jobs.here(9, "gpt")))
    assert (event.sealed, event.generation, event.runs) == ({1: 40}, 2, ("7-x", "8-x"))


def test_from_a_job_that_still_runs_the_words_fit(jobs: Jobs) -> None:
    jobs.job(7, *ran(1, runs=True), stored=(ref(1, 40),))
    jobs.slurm.put(7, "RUNNING")
    words = ("the folder of job 7 is held by job 7 on node n3, RUNNING", "scancel 7")
    refused(ContinueOptions(source="7"), jobs.here(8), ExitCode.OTHER_CONTROLLER, *words)


def test_from_a_job_without_a_checkpoint_nothing_is_gone_on_from(jobs: Jobs) -> None:
    jobs.job(7)
    refused(ContinueOptions(source="7"), jobs.here(8), ExitCode.NO_INPUT, "ended before its training began")


@as_root
def test_the_folder_of_another_user_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    old = jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    for path in (old.path, *old.path.rglob("*")):
        os.chown(path, 65534, 65534)
    refused(ContinueOptions(source="7"), jobs.here(8), ExitCode.NO_INPUT, "belongs to", "export")


def test_storage_that_fails_is_not_told_as_somebody_elses(jobs: Jobs, tmp_path: Path) -> None:
    jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    (tmp_path / "file").touch()
    here = jobs.here(8, storage=tmp_path / "file" / "checkpoints")
    refused(ContinueOptions(source="7"), here, ExitCode.JOB_DIR, "Not a directory", "when storage works")


# -- without a name --------------------------------------------------------------------------------


def test_a_job_without_a_name_says_what_an_earlier_one_left_and_changes_nothing(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    before = sorted(path.name for path in jobs.root.rglob("*"))
    assert start(NOTHING, jobs.here(8)) == Started()
    said = capfd.readouterr().out
    assert "job 7 of the same script (ended with 143 at " in said
    assert "has left a checkpoint of step 40, and this job begins anew" in said
    assert "srobust run --from 7" in said
    assert sorted(path.name for path in jobs.root.rglob("*")) == before


@pytest.mark.parametrize(
    ("earlier", "option"), [("gpt", "--training gpt …"), ("", "--training gtp --from 7 …")]
)
def test_a_training_that_begins_says_what_an_earlier_job_left(
    jobs: Jobs, earlier: str, option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its name may be a slip, or the earlier job had none yet."""
    jobs.job(7, *CANCELLED, training=earlier, stored=(ref(1, 40),))
    assert start(ContinueOptions(training="gtp"), jobs.here(8, "gtp")) == Started()
    said = capfd.readouterr().out
    assert "training gtp begins; folder" in said
    assert "has left a checkpoint of step 40, and this job begins anew" in said
    assert f"cancel it and submit: srobust run {option}" in said
    assert "no checkpoint of it is left" not in said


def test_who_asks_for_a_new_beginning_is_told_nothing(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    start(ContinueOptions(training="gpt", fresh=True), jobs.here(8, "gpt"))
    assert "job 7" not in capfd.readouterr().out


def test_a_training_whose_folder_was_removed_names_what_is_lost(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    shutil.rmtree(jobs.root / "training-gpt")
    assert start(GPT, jobs.here(8, "gpt")) == Started()
    assert "job 7 of training gpt had done step 47, and no checkpoint of it is left" in capfd.readouterr().out


@pytest.mark.parametrize("changes", [{"command": ("other.py",)}, {"cwd": "/elsewhere"}])
def test_another_script_or_folder_is_nothing_to_speak_of(
    jobs: Jobs, changes: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    jobs.job(7, *CANCELLED, stored=(ref(1, 40),))
    start(NOTHING, jobs.here(8, **changes))
    assert not capfd.readouterr().out


def test_a_job_that_still_runs_is_nothing_to_speak_of(jobs: Jobs, capfd: pytest.CaptureFixture[str]) -> None:
    jobs.job(7, *ran(1, 40), stored=(ref(1, 40),))
    jobs.slurm.put(7, "RUNNING")
    start(NOTHING, jobs.here(8))
    assert not capfd.readouterr().out


def test_a_trap_in_a_shared_folder_of_jobs_is_not_waited_for(
    jobs: Jobs, capfd: pytest.CaptureFixture[str]
) -> None:
    trap = jobs.root / "66"
    trap.mkdir()
    os.mkfifo(JobDirectory(trap).journal)
    start(NOTHING, jobs.here(8))
    assert not capfd.readouterr().out


def test_the_folders_of_all_jobs_may_have_been_copied(jobs: Jobs, tmp_path: Path) -> None:
    jobs.job(7, *CANCELLED, training="gpt", stored=(ref(1, 40),))
    jobs.root.rename(tmp_path / "kept")
    directory = JobDirectory(tmp_path / "kept" / "7")
    spec = open_job(str(directory.path), None).spec
    assert storage_of(directory, spec, "gpt") == tmp_path / "kept" / "training-gpt" / "checkpoints"


def test_nobody_else_can_look_into_a_training(jobs: Jobs) -> None:
    start(GPT, jobs.here(7, "gpt"))
    if os.geteuid() == 0:
        jobs.root.parent.chmod(0o755)
        seen = run_as(65534, lambda: os.listdir(jobs.root / "training-gpt"))
        assert "PermissionError" in seen or "Permission denied" in seen
