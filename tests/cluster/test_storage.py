"""Trouble of the shared storage alone convicts nobody and loses nothing, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob
from tests.cluster.shared_storage import HOME, fill, shared_disk, shared_storage
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, STEP_S = 60, 0.3
TINY = "tiny.py --out OUT"
TALKS, IS_SILENT = "", "--talks 6"
TEN_MINUTES = 600


@pytest.fixture
def patient(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    """A cluster that gives nodes up as late as Slurm does by default."""
    return sandboxes(nodes=4, slurmd_timeout_s=300)


def let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, seconds + 5)


def is_innocent(job: ProtectedJob) -> bool:
    return not job.events(ev.NodeEvicted) and not job.events(ev.RequeueStarted)


def soak(*values: object) -> object:
    return pytest.param(*values, marks=(pytest.mark.soak, pytest.mark.timeout(1800)))


def steps_for(seconds: int) -> int:
    """So many that training ends after the fault does."""
    return STEPS if seconds < TEN_MINUTES else STEPS + round(seconds / STEP_S)


def notes(job: ProtectedJob) -> str:
    return "\n".join(event.text for event in job.events(ev.Noted))


@pytest.mark.parametrize(
    ("seconds", "talk"),
    [
        (15, TALKS),
        soak(45, TALKS),
        soak(120, TALKS),
        soak(15, IS_SILENT),
        soak(120, IS_SILENT),
        soak(TEN_MINUTES, IS_SILENT),
        soak(TEN_MINUTES, TALKS),
    ],
)
def test_a_cut_of_the_network_of_the_storage_alone(patient: Sandbox, seconds: int, talk: str) -> None:
    steps = steps_for(seconds)
    expected = undisturbed(3, f"{TINY} --steps {steps} --step-s 0")
    with shared_storage(patient, HOME) as storage:
        # Not in a hurry: it would look for a file on this storage at each step.
        words = f"{TINY} --no-hurry --steps {steps} --step-s {STEP_S} {talk}"
        job = ProtectedJob(patient, f"--spares 1 {words}", nodes=4)
        job.wait_step(5)
        storage.cut()
        let_pass(seconds)
        storage.heal()
        healed = time.time()
        assert job.wait_end(300 if talk == IS_SILENT else 300 + steps * STEP_S) == 0
    assert is_innocent(job)
    assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1]
    assert [e.epoch for e in job.events(ev.ControllerStarted)] == [1]
    assert job.out.read_text() == expected
    assert seconds < 45 or "decided nothing for" in notes(job)
    assert "stood still" not in notes(job), "heartbeats were not answered"
    if talk == IS_SILENT:
        took = job.events(ev.RunEnded)[-1].t - healed
        total = steps * STEP_S
        assert took < total - 5 * STEP_S - 0.6 * min(seconds, total), "steps were made meanwhile"


@pytest.mark.parametrize("alone_s", [0, soak(TEN_MINUTES)])
def test_a_full_job_folder_whose_controller_dies(patient: Sandbox, alone_s: int) -> None:
    """Training goes on under agents alone; then a rank dies, and there is room."""
    steps = 400 + round(alone_s / STEP_S)
    expected = undisturbed(3, f"{TINY} --steps {steps} --step-s 0")
    with shared_disk(patient, f"{HOME}/srobust-jobs", mb=16) as disk:
        options = f"--spares 1 {TINY} --steps {steps} --step-s {STEP_S} {IS_SILENT}"
        job = ProtectedJob(patient, options, nodes=4)
        job.wait_step(5)
        filler = disk / "filler"
        fill(filler)
        # What is left of the journal's last block of 1 KiB takes an event each ten seconds, up to eight.
        job.wait(lambda: "cannot be written: No space left on device" in job.log, 100, "a full folder")
        (controller,) = job.events(ev.ControllerStarted)
        patient.exec(["kill", "-9", str(controller.pid)], node=controller.host, user="root", check=True)
        job.wait(lambda: "the next controller is started in" in job.log, 30, "a controller that cannot begin")
        let_pass(alone_s)
        assert job.slurm_state() == "RUNNING"
        patient.fault.kill_rank(job.id, 1)
        let_pass(15)
        filler.unlink()
        assert job.wait_end(300) == 0
        assert is_innocent(job)
        opened, closed = job.events(ev.IncidentOpened), job.events(ev.IncidentClosed)
        assert [e.incident for e in opened] == [e.incident for e in closed] == [1]
        assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1, 2]
        assert [e.epoch for e in job.events(ev.ControllerStarted)] == [1, 2]
        assert len(job.events(ev.RunEnded)) == 1
    assert job.out.read_text() == expected
