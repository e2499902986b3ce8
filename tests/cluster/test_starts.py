"""On a real Slurm: agents that do not start, ids that come again, memory that runs out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Blame
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

TINY = "tiny.py --out OUT --steps"
REFUSAL = "srun: error: Unable to create step for job 7: Invalid account or account/partition combination"


def own_srun(sandbox: Sandbox, does: str) -> str:
    """The sbatch option by which a job finds an ``srun`` that ``does`` something before the real one."""
    folder = sandbox.home(USER) / f"bin-{time.monotonic_ns()}"
    folder.mkdir()
    wrapper = folder / "srun"
    wrapper.write_text(f'#!/bin/bash\n{does}\nexec /usr/bin/srun "$@"\n')
    for path in (folder, wrapper):
        path.chmod(0o755)
    path = f"/home/{USER}/{folder.name}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return f"--export=ALL,PATH={path}"


def test_a_heterogeneous_job_is_refused_with_the_fix(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 5", nodes=1, sbatch=(":", "--nodes=1"))
    job.wait(lambda: "fix: submit one job" in job.log, 60, "the refusal")
    assert "is heterogeneous (2 components)" in job.log
    job.wait(lambda: job.exit_code() == f"{int(ExitCode.ALLOCATION)}:0", 60, "the exit code")


def test_a_refused_step_ends_the_job_in_slurms_words(sandbox: Sandbox) -> None:
    option = own_srun(sandbox, f"echo '{REFUSAL}' >&2; exit 1")
    job = ProtectedJob(sandbox, f"{TINY} 5", nodes=2, sbatch=(option,))
    assert job.wait_end(60) == ExitCode.DO_NOT_REQUEUE
    (decided,) = job.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.blame is Blame.NOBODY
    assert REFUSAL in decided.reason
    assert REFUSAL in job.log
    assert job.events(ev.NodeEvicted) == []
    (begun,) = job.events(ev.AllocationTaken)
    assert decided.t - begun.t < 10


def test_of_an_agent_that_ends_by_an_exception_the_log_has_its_last_line(sandbox: Sandbox) -> None:
    folder = sandbox.home(USER) / "broken"
    folder.mkdir()
    module = folder / "zmq.py"
    module.write_text("raise AttributeError('zmq has no such thing')\n")
    for path in (folder, module):
        path.chmod(0o755)
    option = own_srun(sandbox, f"export PYTHONPATH=/home/{USER}/{folder.name}")
    job = ProtectedJob(sandbox, f"{TINY} 5", nodes=2, sbatch=(option,))
    assert job.wait_end(120) == ExitCode.DO_NOT_REQUEUE
    job.wait_said("Exited with exit code 1 | AttributeError: zmq has no such thing")
    assert job.events(ev.NodeEvicted) == []


def test_a_slurmctld_that_restarts_at_the_start_is_waited_for(sandbox: Sandbox) -> None:
    go = sandbox.home(USER) / "go"
    go.unlink(missing_ok=True)
    option = own_srun(sandbox, f"until [ -e /home/{USER}/go ]; do sleep 0.1; done")
    job = ProtectedJob(sandbox, f"{TINY} 5 --step-s 0", nodes=2, sbatch=(option,))
    job.wait(lambda: list(job.folder.glob("agents/step-*")), 60, "order to srun")
    # In order: one that is killed has not saved this job yet, and forgets it.
    sandbox.exec(["scontrol", "shutdown", "slurmctld"], user="root")
    go.touch()
    job.wait(lambda: "Unable to contact slurm controller" in job.log, 60, "srun's words")
    sandbox.fault.start_slurmctld()
    assert job.wait_end() == 0, job.log
    assert job.events(ev.IncidentOpened) == []


@pytest.fixture
def no_python(sandbox: Sandbox) -> Iterator[str]:
    """A node on which Python cannot be executed."""
    python = str(Path(sys.executable).resolve())
    sandbox.exec(["mount", "--bind", "/dev/null", python], node="n3", user="root")
    yield "n3"
    sandbox.exec(["umount", python], node="n3", user="root")


def test_a_standby_without_python_is_told_and_never_chosen(sandbox: Sandbox, no_python: str) -> None:
    job = ProtectedJob(sandbox, f"--spares 2 {TINY} 40 --step-s 0.2", nodes=4)
    job.wait(lambda: f"standby {no_python} is set aside" in job.log, 60, "word on the standby")
    job.wait_step(3)
    aside = job.state.aside[no_python]
    assert "Permission denied" in aside.reason
    assert not aside.usable
    sandbox.fault.power_cut("n2")
    job.wait_recovered(1)
    assert job.state.world.slots == ("n1", "n4")
    assert job.wait_end() == 0
    assert no_python not in job.state.evicted


def test_an_id_that_comes_again_is_another_job(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 5 --step-s 0", nodes=1)
    assert job.wait_end() == 0
    old = (job.folder / "journal.jsonl").read_bytes()
    again = ProtectedJob(sandbox, f"{TINY} 5 --step-s 0", nodes=1, sbatch=("--hold",))
    job.folder.rename(again.folder)  # as if slurmctld had given the id a second time
    sandbox.exec(["scontrol", "release", str(again.id)], user=USER)
    assert again.wait_left() == "0:0"
    assert again.out.exists()
    (aside,) = again.folder.parent.glob(f"{again.id}.old-*")
    assert (aside / "journal.jsonl").read_bytes() == old
    assert "held another job with this id (submitted at " in again.log


@pytest.fixture
def small_cgroup(sandbox: Sandbox) -> Iterator[Path]:
    """A memory cgroup of 600 MB, which n2 can see."""
    group = Path("/sys/fs/cgroup/memory") / f"srobust-test-{time.monotonic_ns()}"
    if not (group.parent / "memory.oom_control").exists():
        pytest.skip("no memory cgroups of version 1")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    seen = "/sys/fs/cgroup/memory"
    mount = f"mkdir -p {seen} && mount -t cgroup -o memory cgroup {seen}"
    sandbox.exec(["sh", "-c", mount], node="n2", user="root")
    yield group
    sandbox.exec(["umount", seen], node="n2", user="root")
    for pid in (group / "cgroup.procs").read_text().split():
        (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()


def test_memory_that_runs_out_is_told_as_that(sandbox: Sandbox, small_cgroup: Path) -> None:
    now = sandbox.home(USER) / "now"
    now.unlink(missing_ok=True)
    job = ProtectedJob(sandbox, f"{TINY} 10000 --hog /home/{USER}/now", nodes=2)
    job.wait(lambda: job.events(ev.FirstStep), 60, "first step")
    for pid in sandbox.host_pids("n2"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if b"slurm_robust" in Path(f"/proc/{pid}/cmdline").read_bytes():
                (small_cgroup / "cgroup.procs").write_text(str(pid))
    sandbox.fault.kill_rank(job.id, 1)  # the next one is a child of the cgroup
    job.wait(lambda: len(job.events(ev.FirstStep)) == 2, 60, "second generation")
    now.touch()
    assert job.wait_end() == ExitCode.DO_NOT_REQUEUE
    last = job.events(ev.Decided)[-1]
    assert (
        "rank 1 on n2: out of memory in the job's cgroup (limit 0.629 GB): ask for more memory" in last.reason
    )
    assert last.verdict is not None
    assert last.verdict.blame is Blame.CODE
    assert job.events(ev.NodeEvicted) == []
    assert job.state.world.generation == 3  # once more, and no more
