"""Real agents whose workers run from releases."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.model.job import CommandKind
from slurm_robust.model.nodefolders import CODE, SHARED_MEMORY, folder_name
from slurm_robust.model.release import Release
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.wire.messages import Heartbeat, Phase, Rehearse, Shutdown, Tried, TryRelease
from tests.there import there
from tests.unit.agent.local_job import LocalJob, MakeJob, ScriptedController
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SAY = """
import os, sys
import own
print(own.VALUE, os.environ["SROBUST_RELEASE"], os.environ.get("MODE", "none"), flush=True)
"""


class Job:
    """A job of one node whose code can be edited."""

    def __init__(self, make_job: MakeJob, folder: Path) -> None:
        self.code = folder / "project"
        self.code.mkdir()
        self._make = make_job

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.code / f"{name}.py").write_text(text)

    def begin(self, **spec: object) -> ScriptedController:
        fields: dict[str, object] = {
            "command": ("train.py",),
            "cwd": str(self.code),
            "nproc_per_node": 1,
            **spec,
        }
        self.job: LocalJob = self._make("", **fields)
        self.store = ReleaseStore(self.job.job.releases)
        self.controller = self.job.controller()
        return self.controller

    def start(self) -> None:
        self.job.start_agent("n1")
        self.controller.wait_for("n1", lambda b: b.ready)

    def take(self, **changes: object) -> Release:
        kind, command = CommandKind.SCRIPT, ("train.py",)
        wish = Taking(kind=kind, command=command, cwd=str(self.code), roots=(os.path.realpath(self.code),))
        return take(self.store, structs.replace(wish, **changes))

    def run(self, generation: int, release: Release) -> str:
        """Launch it, and return what it has printed when it has ended."""
        self.controller.launch("n1", generation, (0,), release=release.name)
        self.wait(lambda b: b.generation == generation and b.phase is Phase.ENDED)
        return self.job.output(generation, 0)

    def wait(self, condition: Callable[[Heartbeat], bool]) -> Heartbeat:
        return self.controller.wait_for("n1", condition, 120)

    def attempt(self, number: int, release: str, limit_s: float = 100.0) -> Tried:
        order = TryRelease(epoch=self.controller.epoch, number=number, release=release, limit_s=limit_s)
        self.controller.send("n1", order)
        return there(self.wait(lambda b: b.tried is not None and b.tried.number == number).tried)

    def rehearse(self, number: int, release: Release, **changes: object) -> Rehearsal:
        order = Rehearse(
            epoch=self.controller.epoch, number=number, slots=2, steps=1, limit_s=100.0, release=release.name
        )
        self.controller.send("n1", structs.replace(order, **changes))

        def is_over(beat: Heartbeat) -> bool:
            found = beat.rehearsal
            return found is not None and found.number == number and found.state is not RehearsalState.RUNNING

        return there(self.wait(is_over).rehearsal)

    @property
    def children(self) -> str:
        """The processes that the agent has started."""
        pid = self.job.agents["n1"].pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()

    @property
    def copies(self) -> Path:
        return SHARED_MEMORY / folder_name(self.job.spec.run_id, CODE)


@pytest.fixture
def job(make_job: MakeJob, tmp_path: Path) -> Job:
    return Job(make_job, tmp_path)


def test_generations_run_each_its_release_and_the_agent_leaves_nothing(job: Job) -> None:
    """Only the copies of the two that ran last stay meanwhile."""
    job.write(train=SAY, own="VALUE = 1")
    controller = job.begin()
    first = job.take()
    job.write(own="VALUE = 22")
    second = job.take(env={"MODE": "fast"})
    job.write(own="VALUE = 333")
    third = job.take()
    job.start()
    assert job.run(1, first) == f"1 {first.name} none\n"
    assert job.run(2, second) == f"22 {second.name} fast\n"
    assert there(controller.newest("n1")).release == second.name
    assert job.run(3, first) == f"1 {first.name} none\n"
    assert job.run(4, third) == f"333 {third.name} none\n"
    wait_for(lambda: {p.name for p in job.copies.iterdir() if p.is_dir()} == {first.name, third.name})
    controller.send("n1", Shutdown(epoch=controller.epoch, grace_s=1))
    assert job.job.agents["n1"].wait(30) == 0
    assert not list(SHARED_MEMORY.glob(f"{folder_name(job.job.spec.run_id)}*"))


def test_a_release_that_has_no_copy_fails_each_rank_with_the_reason(job: Job) -> None:
    job.write(train=SAY, own="VALUE = 1")
    job.begin()
    release = job.take()
    job.store.archive(release.name).write_bytes(b"broken")
    job.start()
    job.controller.launch("n1", 1, (0, 1), release=release.name)
    exits = job.wait(lambda b: len(b.exits) == 2).exits
    assert {there(e.error).type for e in exits} == {"LaunchError"}
    assert f"release {release.name} has no copy on this node" in there(exits[0].error).message
    assert "srobust update" in there(exits[0].error).message


WRITES = """
import ctypes, os, pathlib
here = pathlib.Path(__file__).parent
(here / "seen.txt").write_text("1")
libc = ctypes.CDLL(None)
for name, text in (("hidden.bin", b"2"), ("own.py", b"3")):
    path = os.fsencode(here / name)
    libc.unlink(path)
    file = libc.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    libc.write(file, text, 1)
"""


def test_what_c_code_creates_in_the_copy_is_moved_to_its_place_over_nothing(job: Job) -> None:
    job.write(train=WRITES, own="VALUE = 1")
    job.begin()
    job.start()
    job.run(1, job.take())
    wait_for(lambda: (job.code / "own.py.srobust-n1").exists() and (job.code / "hidden.bin").exists())
    assert (job.code / "seen.txt").read_text() == "1"
    assert (job.code / "hidden.bin").read_text() == "2"
    assert (job.code / "own.py").read_text() == "VALUE = 1"
    assert (job.code / "own.py.srobust-n1").read_text() == "3"
    told = job.wait(lambda b: bool(b.told)).told
    assert [("created in the copy" in text, "own.py.srobust-n1" in text) for text in told] == [(True, True)]


def test_what_a_killed_agent_left_in_its_copy_is_moved_by_the_next(job: Job) -> None:
    job.write(train=WRITES + "import time\nprint('done', flush=True)\ntime.sleep(1000)", own="")
    job.begin()
    job.start()
    job.controller.launch("n1", 1, (0,), release=job.take().name)
    log = job.job.job.worker_log(1, 0, "out")
    wait_for(lambda: log.exists() and "done" in log.read_text())
    job.job.agents["n1"].send_signal(signal.SIGKILL)
    job.job.agents["n1"].wait()
    assert not (job.code / "hidden.bin").exists()
    job.start()
    wait_for(lambda: not job.copies.exists())
    assert (job.code / "hidden.bin").read_text() == "2"


def test_a_release_is_tried_by_its_imports_while_workers_live(job: Job) -> None:
    job.write(train="import time, own\nprint('up', flush=True)\ntime.sleep(1000)", own="")
    controller = job.begin()
    first = job.take()
    job.write(own="import wave, xml.dom.minidom")
    fine = job.take()
    job.write(own="import wave\nimport flash_attn_x")
    lacking = job.take()
    job.start()
    controller.launch("n1", 1, (0,), release=first.name)
    job.wait(lambda b: b.phase is Phase.RUNNING)
    assert job.attempt(1, fine.name).ok
    assert {p.name for p in job.copies.iterdir() if p.is_dir()} == {first.name, fine.name}
    refused = job.attempt(2, lacking.name)
    # Of those that were only tried the newest stays.
    wait_for(lambda: {p.name for p in job.copies.iterdir() if p.is_dir()} == {first.name, lacking.name})
    assert not refused.ok
    assert refused.text.startswith("module flash_attn_x cannot be imported on this node: ModuleNotFoundError")
    assert "ModuleNotFoundError" in refused.traceback
    assert not job.attempt(3, "0" * 12).ok
    assert there(controller.newest("n1")).phase is Phase.RUNNING


def test_a_program_finds_its_files_in_the_release(job: Job) -> None:
    """And a trial finds the program."""
    job.write(train=SAY, own="VALUE = 1")
    command = (sys.executable, "train.py")
    job.begin(kind=CommandKind.EXEC, command=command)
    first = job.take(kind=CommandKind.EXEC, command=command)
    job.write(own="VALUE = 22")
    other = job.take(kind=CommandKind.EXEC, command=("no-such-program", "train.py"))
    job.start()
    assert job.run(1, first) == f"1 {first.name} none\n"
    assert job.attempt(1, first.name).ok
    refused = job.attempt(2, other.name)
    assert not refused.ok
    assert refused.text.startswith("program not found: no-such-program")


def test_a_release_that_imports_nothing_new_is_tried_without_another_zygote(job: Job) -> None:
    job.write(train="import time, own\nprint('up', flush=True)\ntime.sleep(1000)", own="")
    controller = job.begin()
    first = job.take()
    job.write(own="import msgspec")  # which each zygote has
    second = job.take()
    job.start()
    controller.launch("n1", 1, (0,), release=first.name)
    job.wait(lambda b: b.phase is Phase.RUNNING)
    known = job.children
    assert job.attempt(1, second.name).ok
    assert job.children == known


STEPS = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
sgd = torch.optim.SGD([weight])
weight.grad = torch.ones(1)
sgd.step()
"""


def test_a_rehearsal_runs_the_release_and_changes_nothing(job: Job) -> None:
    job.write(train=f"import own\n{STEPS}", own="open(__file__ + '.new', 'w').write('x')")
    job.begin()
    fine = job.take()
    job.write(own="def broken():\n    raise ValueError('bad')\nbroken()")
    bad = job.take()
    job.write(own="")
    job.start()
    assert job.rehearse(1, fine).state is RehearsalState.PASSED
    failed = job.rehearse(2, bad)
    assert (failed.state, failed.reason) == (RehearsalState.FAILED, "ValueError at own.py:2: bad")
    assert 'File "own.py", line 2, in broken' in failed.traceback
    assert sorted(p.name for p in job.code.iterdir() if p.suffix) == ["own.py", "train.py"]


def test_beside_workers_a_rehearsal_has_no_gpu_and_only_idle_time(job: Job) -> None:
    live = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
    look = """
import os
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)
print(repr(os.environ["CUDA_VISIBLE_DEVICES"]), open("/proc/self/oom_score_adj").read().strip())
"""
    job.write(train=live, own="")
    controller = job.begin()
    first = job.take()
    job.write(train=look + STEPS)
    second = job.take()
    job.write(train="raise RuntimeError('No CUDA GPUs are available')")
    third = job.take()
    job.start()
    controller.launch("n1", 1, (0,), release=first.name)
    job.wait(lambda b: b.phase is Phase.RUNNING)
    assert job.rehearse(1, second, beside=True).state is RehearsalState.PASSED
    assert "19 True\n'' 1000\n" in (job.job.job.rehearsals / "n1.log").read_text()
    assert job.rehearse(2, third, beside=True).state is RehearsalState.IMPOSSIBLE
    assert there(controller.newest("n1")).phase is Phase.RUNNING
