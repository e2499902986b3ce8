"""A rehearsal that needs more memory than there is ends, and neither its standby nor the training does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.standby import StandbyStage
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """import os, time
hoard = []
while os.environ.get("SROBUST_REHEARSAL"):
    hoard.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.05)
import tiny
"""
LIMIT_MB = 1200
MOUNTED = "/sys/fs/cgroup/memory"


@pytest.fixture
def small_cgroup(sandbox: Sandbox) -> Iterator[Path]:
    """A memory cgroup that n3 can see."""
    group = Path(MOUNTED) / f"srobust-test-{time.monotonic_ns()}"
    if not (group.parent / "memory.oom_control").exists():
        pytest.skip("no memory cgroups of version 1")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(LIMIT_MB << 20))
    mount = f"mkdir -p {MOUNTED} && mount -t cgroup -o memory cgroup {MOUNTED}"
    sandbox.exec(["sh", "-c", mount], node="n3", user="root")
    yield group
    sandbox.exec(["umount", MOUNTED], node="n3", user="root")
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()


@pytest.mark.soak
def test_a_rehearsal_for_which_there_is_too_little_memory(sandbox: Sandbox, small_cgroup: Path) -> None:
    (sandbox.home(USER) / "eats.py").write_text(SCRIPT)
    words = "--spares 1 eats.py --out OUT --steps 5000 --step-s 0.2"
    job = ProtectedJob(sandbox, words, nodes=3, sbatch=("--nodelist=n1,n2,n3",), preparations=True)
    job.wait_step(1)
    assert job.state.spares == ("n3",)
    for pid in sandbox.host_pids("n3"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if b"slurm_robust" in Path(f"/proc/{pid}/cmdline").read_bytes():
                (small_cgroup / "cgroup.procs").write_text(str(pid))

    def ended() -> list[ev.StandbyChanged]:
        last = (StandbyStage.REHEARSED, StandbyStage.REHEARSAL_FAILED)
        return [event for event in job.events(ev.StandbyChanged) if event.stage in last]

    job.wait(ended, 300, "end of the rehearsal")
    (event,) = ended()
    assert event.stage is StandbyStage.REHEARSAL_FAILED
    assert "memory" in event.reason
    job.wait_said("standby n3 is taken last")
    assert job.events(ev.IncidentOpened) == []
    assert job.state.spares == ("n3",)
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    sandbox.exec(["scancel", str(job.id)], user=USER, timeout_s=30.0)
    job.wait_left()
