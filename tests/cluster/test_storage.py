"""Trouble of the shared storage alone convicts nobody and loses nothing, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.jobs import ProtectedJob
from tests.cluster.storage import HOME, shared_disk, shared_storage
from tests.cluster.test_copies import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
TINY = f"tiny.py --out OUT --steps {STEPS}"
TALKS, IS_SILENT = "", "--talks 6"


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
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("seconds", "talk"),
    [(15, TALKS), soak(45, TALKS), soak(120, TALKS), soak(15, IS_SILENT), soak(120, IS_SILENT)],
)
def test_a_cut_of_the_network_of_the_storage_alone(patient: Sandbox, seconds: int, talk: str) -> None:
    expected = undisturbed(patient, 3, f"{TINY} --step-s 0")
    with shared_storage(patient, HOME) as storage:
        job = ProtectedJob(patient, f"--spares 1 {TINY} --step-s 0.3 {talk}", nodes=4)
        job.wait_step(5)
        storage.cut()
        let_pass(seconds)
        storage.heal()
        healed = time.time()
        assert job.wait_end(300) == 0
    assert is_innocent(job)
    assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1]
    assert job.out.read_text() == expected
    if talk == IS_SILENT:
        took = job.events(ev.RunEnded)[-1].t - healed
        assert took < (STEPS - 5) * 0.3 - 0.6 * min(seconds, STEPS * 0.3), "steps were made meanwhile"


def test_a_full_job_folder(patient: Sandbox) -> None:
    expected = undisturbed(patient, 3, f"{TINY} --step-s 0")
    with shared_disk(patient, f"{HOME}/srobust-jobs", mb=16) as disk:
        job = ProtectedJob(patient, f"--spares 1 {TINY} --step-s 0.3", nodes=4)
        job.wait_step(5)
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(32 << 20))
        patient.fault.kill_rank(job.id, 1)
        job.wait(lambda: "cannot be written: No space left on device" in job.log, 30, "a full folder")
        let_pass(20)
        filler.unlink()
        assert job.wait_end() == 0
        assert is_innocent(job)
        assert "is written again, with all that was kept in memory" in job.log
        opened, closed = job.events(ev.IncidentOpened), job.events(ev.IncidentClosed)
        assert [e.incident for e in opened] == [e.incident for e in closed] == [1]
        assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1, 2]
        assert len(job.events(ev.RunEnded)) == 1
    assert job.out.read_text() == expected
