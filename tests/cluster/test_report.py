"""The report on a real job with faults, against somebody who only looks at its steps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LOOK_S = 0.02
OPTIONS = "--spares 1 --set detect.hang_floor_s=8 tiny.py --out OUT --step-s 0.06"
# Few checkpoints: an observer takes the time in which one blocks for that of a step.
OPTIONS += " --no-hurry --every 60"


class Observer(threading.Thread):
    """Looks at the step counter that rank 0 prints, again and again, and knows nothing of the journal."""

    def __init__(self, job: ProtectedJob) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._over = threading.Event()
        self._read: dict[str, int] = {}
        self.seen: dict[str, list[tuple[float, int]]] = {}
        """By the log of each generation: when each step was first seen."""

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        for log in sorted(self._job.folder.glob("logs/gen-*/rank-00000.out")):
            name = str(log)
            with log.open("rb") as file:
                file.seek(self._read.get(name, 0))
                whole, end, _ = file.read().rpartition(b"\n")
            self._read[name] = self._read.get(name, 0) + len(whole + end)
            now = time.time()
            steps = [int(line.split()[1]) for line in whole.splitlines() if line.startswith(b"step ")]
            self.seen.setdefault(name, []).extend((now, step) for step in steps)

    def stop(self) -> None:
        self._over.set()
        self.join(10)

    @property
    def last(self) -> float:
        return max(t for steps in self.seen.values() for t, _ in steps)

    def effective_s(self) -> float:
        """The time of the steps that had not been done before; a first step of a run takes what others do."""
        usual = median(b[0] - a[0] for steps in self.seen.values() for a, b in pairwise(steps))
        best, total = -1, 0.0
        for steps in self.seen.values():
            before = None
            for t, step in steps:
                if step > best:
                    best, total = step, total + (usual if before is None else t - before)
                before = t
        return total


@contextmanager
def observed(job: ProtectedJob) -> Iterator[Observer]:
    observer = Observer(job)
    observer.start()
    try:
        yield observer
    finally:
        observer.stop()


@pytest.fixture
def cluster(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=5, slurmd_timeout_s=20, cred_expire_s=5)


def reported(job: ProtectedJob, *words: str) -> str:
    done = job.sandbox.exec(["srobust", "report", str(job.id), *words], user=USER, timeout_s=60.0, check=True)
    return done.stdout


def test_the_ettr_of_a_job_with_a_killed_rank_and_a_hang_is_what_an_observer_computes(
    cluster: Sandbox,
) -> None:
    job = ProtectedJob(cluster, f"{OPTIONS} --steps 230", nodes=3)
    with observed(job) as observer:
        job.wait_step(70)  # stopped while it saves step 60, it would have the time of a phase
        cluster.fault.kill_rank(job.id, 1)
        job.wait_recovered(1)
        job.wait_step(130)
        cluster.fault.stop_rank(job.id, 0)
        job.wait_recovered(2)
        assert job.wait_end() == 0
        observer.look()
    assert_as_observed(job, observer, incidents=2)


@pytest.mark.soak
def test_the_ettr_of_a_job_with_five_faults_and_a_requeue_is_what_an_observer_computes(
    cluster: Sandbox,
) -> None:
    job = ProtectedJob(cluster, f"{OPTIONS} --steps 600", nodes=3)
    with observed(job) as observer:
        for number, rank in enumerate((0, 1, 1), 1):
            job.wait_step(90 * number)
            cluster.fault.kill_rank(job.id, rank)
            job.wait_recovered(number)
        job.wait_step(370)
        cluster.fault.stop_rank(job.id, 1)
        job.wait_recovered(4)
        job.wait_step(450)
        dead = job.state.world.slots[1]
        cluster.fault.power_cut(dead)
        job.wait(lambda: job.state.restart_count == 1, 120, "the next run of the job")
        assert job.wait_end() == 0
        observer.look()
    report = assert_as_observed(job, observer, incidents=5)
    kinds = [mark["kind"] for mark in report["marks"]]
    assert [kind for kind in kinds if kind != "restart"] == ["requeue", "run"]
    assert {line["nodes"] for line in report["nodes"] if line["evicted"]} >= {dead}


def assert_as_observed(job: ProtectedJob, observer: Observer, *, incidents: int) -> dict[str, Any]:
    """The report says so, as JSON, which is returned, and as a page."""
    report: dict[str, Any] = json.loads(reported(job, "--json"))
    # A machine that stands still for a while is an incident as well.
    assert len(report["incidents"]) >= incidents
    assert all(entry["row"]["status"] == "over" for entry in report["incidents"])
    # slurmdbd knows all runs, and says the same as the journal.
    assert not [note for note in report["notes"] if "sacct" in note]

    curve = report["ettr"]
    place = min(range(len(curve["t"])), key=lambda at: abs(curve["t"][at] - observer.last))
    assert curve["t"][place] == pytest.approx(observer.last, abs=0.5)
    theirs = observer.effective_s() / (observer.last - report["started"])
    ours = curve["since_start"][place]
    print(f"ETTR {ours:.4f}, as observed {theirs:.4f}")
    assert ours == pytest.approx(theirs, rel=0.01)
    (started, *_) = (e for e in job.events(ev.AllocationTaken))
    assert started.submitted is not None
    assert report["started"] == pytest.approx(started.submitted + (started.queued_s or 0.0), abs=0.001)

    assert "wrote" in reported(job, "--html", "report.html")
    page = (job.home / "report.html").read_text()
    assert all(f'id="incident-{number}"' in page for number in range(1, incidents + 1))
    return report
