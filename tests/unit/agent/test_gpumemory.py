"""What ended workers still hold of the GPUs: judged, asked of the stand-in driver, waited for by an agent."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.agent.gpumemory import FREE, STILL_S, GpuWait, Leftovers
from slurm_robust.nodes.gpus.facts import GpuProcess, Use
from slurm_robust.sandbox.gpus import StandInGpus
from slurm_robust.wire.messages import Phase
from tests.unit.agent.local_job import LocalJob
from tests.unit.agent.test_agent import SLEEPER, as_program, up
from tests.unit.nodes.fake_nvml import environment

WORKER, CHILD, STRANGER = 100, 150, 900
LIMIT_MB = 512


def leftovers() -> Leftovers:
    """Of one worker, which led a group that its loader is in."""
    groups = {WORKER: WORKER, CHILD: WORKER, STRANGER: STRANGER}
    return Leftovers([WORKER], LIMIT_MB, lambda pid: groups.get(pid, 0))


def gpu(memory_mb: int, *pids: int, ending: bool = False) -> Use:
    return Use(index=0, memory_mb=memory_mb, processes=tuple(GpuProcess(pid=p, ending=ending) for p in pids))


@pytest.mark.parametrize(
    ("use", "held"),
    [
        (gpu(0), ""),
        (gpu(512), ""),
        (gpu(71000), "gpu0 71000 MiB"),
        (gpu(400, WORKER), "gpu0 400 MiB"),
        (gpu(400, CHILD), "gpu0 400 MiB"),
        (gpu(71000, STRANGER), ""),
        (gpu(400, 77, ending=True), "gpu0 400 MiB"),
        (Use(index=0), ""),
    ],
    ids=["free", "little", "nobody's", "worker's", "its child's", "another job's", "gone", "not told"],
)
def test_processes_that_hold_gpu_memory(use: Use, held: str) -> None:
    assert leftovers().held([use], 100.0) == held


def test_memory_that_is_given_back_is_waited_for_and_what_stays_is_not() -> None:
    left = leftovers()
    assert left.held([gpu(71000)], 100.0)
    assert left.held([gpu(71000)], 100.0 + STILL_S)
    assert left.held([gpu(30000)], 101.0 + STILL_S), "something moved"
    assert left.held([gpu(30000)], 100.0 + 2 * STILL_S)
    assert left.held([gpu(30000)], 102.0 + 2 * STILL_S) == ""


def test_a_process_that_is_left_is_waited_for_as_long_as_it_is_there() -> None:
    left = leftovers()
    assert left.held([gpu(400, WORKER)], 100.0)
    assert left.held([gpu(400, WORKER)], 200.0)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInGpus:
    found = StandInGpus(tmp_path / "gpus", "n1", 2)
    found.reset()
    for name in ("LD_LIBRARY_PATH", "SROBUST_NVML_STATE"):
        monkeypatch.setenv(name, environment(found)[name])
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    job = LocalJob(tmp_path, "", **as_program(SLEEPER))  # type: ignore[arg-type]
    yield job
    job.close()


@pytest.fixture
def waiting() -> Iterator[GpuWait]:
    wait = GpuWait()
    wait.possible = True  # the variables above are for children only
    yield wait
    wait.end()


def next_word(wait: GpuWait) -> str:
    """What the child says next."""
    deadline = time.monotonic() + 20
    while (word := wait.read()) is None:
        assert time.monotonic() < deadline
        select.select([wait.fileno()], [], [], 1.0)
    return word


@pytest.mark.slow
def test_the_driver_is_asked_until_the_memory_is_free(gpus: StandInGpus, waiting: GpuWait) -> None:
    gpus.set(1, processes=f"{os.getpid()}:70000")
    waiting.prepare()
    assert waiting.read() is None
    waiting.ask([os.getpgid(0)])
    assert next_word(waiting) == "gpu1 70000 MiB"
    gpus.set(1, processes="", memory_used=40000)
    assert next_word(waiting) == "gpu1 40000 MiB"
    gpus.set(1, memory_used=3)
    assert next_word(waiting) == FREE
    assert waiting.fileno() == -1
    waiting.ask([os.getpgid(0)])
    assert next_word(waiting) == FREE, "the next wait has a child of its own"


@pytest.mark.slow
def test_where_there_is_no_driver_nothing_is_waited_for_again(gpus: StandInGpus, waiting: GpuWait) -> None:
    gpus.path.unlink()
    waiting.ask([1])
    assert next_word(waiting) == FREE
    assert not waiting.possible


def test_without_the_library_no_child_is_started() -> None:
    wait = GpuWait()
    assert not wait.possible
    wait.prepare()
    assert wait.fileno() == -1


@pytest.mark.slow
def test_an_agent_starts_the_next_workers_when_the_gpus_are_free(gpus: StandInGpus, job: LocalJob) -> None:
    controller = job.controller()
    job.start_agent("n1")
    up(job, controller)
    gpus.set(0, memory_used=70000)
    controller.stop("n1", 1, grace_s=0.0)
    controller.wait_for("n1", lambda b: b.phase is Phase.ENDED)
    controller.launch("n1", 2, (0, 1))
    controller.wait_for("n1", lambda b: b.phase is Phase.FREEING and b.generation == 2)
    gpus.set(0, memory_used=3)
    heartbeat = controller.wait_for("n1", lambda b: b.phase is Phase.RUNNING and b.generation == 2)
    assert heartbeat.timings["gpus"] > 0
