"""Memory that runs out is reported, and never a reason to keep jobs away."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.node import MemoryLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.checks import pressure
from slurm_robust.nodes.checks.pressure import JobMemory, PressureFacts
from tests.unit.nodes.host_files import only, plant, view

CONFIG = NodeConfig()
MIB = 2**20


def psi(full: str) -> str:
    some = "some avg10=90.00 avg60=80.00 avg300=70.00 total=7"
    return f"{some}\nfull avg10=60.00 avg60={full} avg300=0.10 total=5"


def judged(facts: PressureFacts, config: NodeConfig = CONFIG) -> list[Finding]:
    return list(pressure.judge(view(facts), config))


# -- what is read ----------------------------------------------------------------------------------


def test_a_kernel_that_measures_nothing_is_unknown(tmp_path: Path) -> None:
    facts = pressure.gather(Host(tmp_path), CONFIG)
    assert facts == PressureFacts()
    found = only(judged(facts))
    assert found.outcome is Outcome.UNKNOWN
    assert "psi=1" in found.text


def test_pressure_of_the_real_machine_is_read() -> None:
    for found in judged(pressure.gather(Host(), CONFIG)):
        assert not found.suggestion.keeps_jobs_away


def test_a_job_of_cgroup_version_2(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    files = {
        "/proc/pressure/memory": psi("12.34"),
        "/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        f"{folder}/memory.current": str(900 * MIB),
        f"{folder}/memory.max": str(1000 * MIB),
        f"{folder}/memory.stat": f"anon 1\nactive_file {100 * MIB}\ninactive_file {200 * MIB}",
        f"{folder}/memory.pressure": psi("0.00"),
    }
    assert pressure.gather(plant(tmp_path, files), CONFIG) == PressureFacts(
        stalled=0.1234, job=JobMemory(name="job_7", used=600, limit=1000, stalled=0.0)
    )


def test_a_job_in_a_container_sees_the_group_of_its_step_as_the_root(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/",
        "/proc/self/environ": "A=1\0SLURM_JOB_ID=7\0",
        "/sys/fs/cgroup/memory.current": str(900 * MIB),
        "/sys/fs/cgroup/memory.max": "max",
        "/sys/fs/cgroup/memory.pressure": psi("50.00"),
    }
    host = plant(tmp_path, files)
    assert pressure.gather(host, CONFIG).job == JobMemory(name="job_7", used=900, stalled=0.5)
    host.path("/proc/self/environ").write_text("A=1\0")  # the root of another container
    assert pressure.gather(host, CONFIG).job is None


def test_a_job_of_cgroup_version_1(tmp_path: Path) -> None:
    folder = "/sys/fs/cgroup/memory/slurm/uid_1000/job_7"
    files = {
        "/proc/self/cgroup": "5:cpu:/\n4:memory:/slurm/uid_1000/job_7/step_0/task_0\n0::/",
        f"{folder}/memory.usage_in_bytes": str(900 * MIB),
        f"{folder}/memory.limit_in_bytes": str(1000 * MIB),
        f"{folder}/memory.stat": f"active_file 7\ntotal_active_file {MIB}\ntotal_inactive_file {MIB}",
    }
    host = plant(tmp_path, files)
    assert pressure.gather(host, CONFIG).job == JobMemory(name="job_7", used=898, limit=1000)
    host.path(f"{folder}/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert pressure.gather(host, CONFIG).job == JobMemory(name="job_7", used=898)


@pytest.mark.parametrize(
    "path", ["0::/", "0::/user.slice/my_job_7", "4:cpu:/job_7", "0::/system.slice/job_x"]
)
def test_outside_of_a_job_there_is_no_limit(tmp_path: Path, path: str) -> None:
    host = plant(tmp_path, {"/proc/self/cgroup": path})
    assert pressure.gather(host, CONFIG).job is None


# -- what it means ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stalled", "outcome"), [(0.0, Outcome.PASS), (0.1, Outcome.PASS), (0.11, Outcome.FAIL)]
)
def test_waiting_for_memory_is_worth_attention(stalled: float, outcome: Outcome) -> None:
    assert only(judged(PressureFacts(stalled=stalled))).outcome is outcome
    of_job = PressureFacts(stalled=0.0, job=JobMemory(name="job_7", stalled=stalled))
    assert [found.outcome for found in judged(of_job)] == [Outcome.PASS, outcome]


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JobMemory(name="job_7", used=950, limit=1000), ""),
        (
            JobMemory(name="job_7", used=960, limit=1000),
            "uses 96% of its 1000 MiB, beyond which the kernel kills its processes",
        ),
        (JobMemory(name="job_7", used=10**6, stalled=0.0), ""),
    ],
)
def test_a_job_that_is_near_its_limit(job: JobMemory, text: str) -> None:
    _, found = judged(PressureFacts(stalled=0.0, job=job))
    assert (found.subject, found.text) == ("job_7", text)
    assert found.outcome is (Outcome.FAIL if text else Outcome.PASS)


def test_a_job_of_which_nothing_is_known_has_no_finding() -> None:
    assert len(judged(PressureFacts(stalled=0.0, job=JobMemory(name="job_7", used=10**6)))) == 1


def test_pressure_is_the_jobs_doing_and_keeps_no_job_away() -> None:
    full = PressureFacts(stalled=1.0, job=JobMemory(name="job_7", used=1000, limit=1000, stalled=1.0))
    for found in judged(full):
        assert (found.outcome, found.suggestion, found.blame) == (Outcome.FAIL, Suggestion.MONITOR, Party.JOB)
    lax = NodeConfig(memory=MemoryLimits(max_stalled_share=1.0, max_job_share=1.0))
    assert all(found.outcome is Outcome.PASS for found in judged(full, lax))
