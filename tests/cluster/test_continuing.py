"""A training outlives its jobs: cancel, mend, submit again, on a real Slurm."""

from __future__ import annotations

import shutil

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.training import TrainingDirectory
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

OFTEN = "--set checkpoint.every_steps=10"
TINY = "tiny.py --out OUT --steps 60"


def submit(sandbox: Sandbox, options: str, words: str, out: str, nodes: int = 2) -> ProtectedJob:
    """A job whose command is the same as that of each other one with these ``words`` and ``out``."""
    command = f"{options} {OFTEN} {words.replace('OUT', out)} --step-s 0.25"
    job = ProtectedJob(sandbox, command, nodes=nodes)
    job.out = sandbox.home(USER) / out
    job.out.with_suffix(".hurry").unlink(missing_ok=True)
    return job


def cancel(sandbox: Sandbox, job: ProtectedJob) -> None:
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)


def until_stored(job: ProtectedJob, step: int) -> None:
    job.wait(
        lambda: [e for e in job.events(ev.StorageWritten) if e.step >= step], 120, f"step {step} on storage"
    )


def weights(sandbox: Sandbox, out: str) -> str:
    return (sandbox.home(USER) / out).read_text()


def restored(job: ProtectedJob) -> int:
    job.wait(lambda: job.events(ev.GenerationLaunched), 90, "launch")
    return job.events(ev.GenerationLaunched)[0].restore_step


@pytest.mark.soak
def test_a_cancelled_training_goes_on_and_one_that_is_finished_starts_nothing(sandbox: Sandbox) -> None:
    expected = undisturbed(2, TINY)
    first = submit(sandbox, "--training cancelled", TINY, "cancelled.sha")
    until_stored(first, 19)
    cancel(sandbox, first)
    second = submit(sandbox, "--training cancelled", TINY, "cancelled.sha")  # at once
    assert second.wait_end() == 0, second.log
    assert restored(second) >= 19
    assert (
        f"goes on with training cancelled from step {restored(second)} of job {first.id} (chapter 2)"
        in second.log
    )
    assert weights(sandbox, "cancelled.sha") == expected
    generations = [e.generation for e in second.events(ev.GenerationLaunched)]
    assert generations == [first.state.world.generation + 1]
    training = TrainingDirectory.of(first.folder.parent, "cancelled")
    assert [chapter.job_id for chapter in training.read()] == [first.id, second.id]
    third = submit(sandbox, "--training cancelled", TINY, "cancelled.sha")
    assert third.wait_left() == "0:0", third.log
    assert f"training cancelled is finished: job {second.id} ended with 0" in third.log
    assert not (third.folder / "journal.jsonl").exists()
    longer = "tiny.py --out OUT --steps 70"
    fourth = submit(sandbox, "--training cancelled", longer, "cancelled.sha")
    assert fourth.wait_end() == 0, fourth.log
    assert restored(fourth) >= 49
    assert weights(sandbox, "cancelled.sha") == undisturbed(2, longer)


def test_mended_code_goes_on_after_93(sandbox: Sandbox) -> None:
    broken = submit(sandbox, "--training mended", f"{TINY} --fail-at 35", "mended.sha")
    assert broken.wait_end() == 93, broken.log
    mended = submit(sandbox, "--training mended", TINY, "mended.sha")
    assert mended.wait_end() == 0, mended.log
    assert restored(mended) >= 19, mended.log
    assert weights(sandbox, "mended.sha") == undisturbed(2, TINY)


def test_a_second_job_is_refused_while_one_has_the_training(sandbox: Sandbox) -> None:
    holder = submit(sandbox, "--training held", "tiny.py --out OUT --steps 100000", "held.sha")
    holder.wait_step(2)
    second = submit(sandbox, "--training held", "tiny.py --out OUT --steps 100000", "held.sha")
    assert second.wait_left() == "76:0", second.log
    assert (
        f"training held is held by job {holder.id} on node {holder.state.own_node}, RUNNING since"
        in second.log
    )
    assert f"scancel {holder.id}" in second.log
    other = submit(sandbox, f"--from {holder.id}", "tiny.py --out OUT --steps 100000", "other.sha")
    assert other.wait_left() == "76:0", other.log
    assert f"the folder of job {holder.id} is held by job {holder.id}" in other.log
    cancel(sandbox, holder)
    assert holder.wait_end() == 143


def test_the_next_job_ends_with_74_while_storage_is_gone(sandbox: Sandbox) -> None:
    """Nothing is begun over; with the folder back the job after it goes on."""
    words = "tiny.py --out OUT --steps 100000"
    first = submit(sandbox, "--training gone", words, "gone.sha")
    until_stored(first, 9)
    cancel(sandbox, first)
    assert first.wait_end() == 143
    folder = TrainingDirectory.of(first.folder.parent, "gone").path
    there, away = folder / "checkpoints", folder / "away"
    there.rename(away)
    second = submit(sandbox, "--training gone", words, "gone.sha")
    assert second.wait_left() == f"{int(ExitCode.CHECKPOINTS)}:0", second.log
    assert not second.folder.exists() or not second.events(ev.GenerationLaunched)
    if there.exists():
        there.rmdir()
    away.rename(there)
    third = submit(sandbox, "--training gone", words, "gone.sha")
    assert restored(third) == first.events(ev.StorageWritten)[-1].step, third.log
    cancel(sandbox, third)


def test_fresh_begins_anew_and_old_jobs_are_still_to_be_had(sandbox: Sandbox) -> None:
    old = submit(sandbox, "--training anew", TINY, "old.sha")
    until_stored(old, 9)
    cancel(sandbox, old)
    assert old.wait_end() == 143
    fresh = submit(sandbox, "--training anew --fresh", TINY, "fresh.sha")
    assert fresh.wait_end() == 0, fresh.log
    assert restored(fresh) == -1
    assert "training anew as it was is now" in fresh.log
    assert weights(sandbox, "fresh.sha") == undisturbed(2, TINY)
    folder = f"/home/{USER}/srobust-jobs/{old.id}"  # as the sandbox sees it
    listed = sandbox.exec(["srobust", "checkpoint", "ls", "--json", folder], user=USER, check=True).stdout
    assert "/training-anew.old-" in listed
    step = old.events(ev.StorageWritten)[-1].step
    branch = submit(sandbox, f"--from {old.id} --step {step}", TINY, "branch.sha")
    assert branch.wait_end() == 0, branch.log
    assert restored(branch) == step
    assert weights(sandbox, "branch.sha") == undisturbed(2, TINY)


def test_without_a_name_latest_goes_on_and_a_new_job_says_what_was_left(sandbox: Sandbox) -> None:
    shutil.copy(SCRIPTS / "tiny.py", sandbox.home(USER) / "latest.py")
    words = TINY.replace("tiny.py", "latest.py")
    left = submit(sandbox, "", words, "latest.sha")
    until_stored(left, 19)
    cancel(sandbox, left)
    assert left.wait_end() == 143
    latest = submit(sandbox, "--from latest", words, "latest.sha")
    assert latest.wait_end() == 0, latest.log
    assert restored(latest) >= 19
    assert f"goes on from step {restored(latest)} of job {left.id}" in latest.log
    assert weights(sandbox, "latest.sha") == undisturbed(2, TINY)
    anew = submit(sandbox, "", words, "latest.sha")
    anew.wait_said(f"job {latest.id} of the same script")
    assert f"to go on from there instead, cancel it and submit: srobust run --from {latest.id}" in anew.log
    assert restored(anew) == -1
    cancel(sandbox, anew)
    assert anew.wait_end() == 143
