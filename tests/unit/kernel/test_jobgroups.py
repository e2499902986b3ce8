"""Whose a control group is: paths of cgroup version 1 and 2, with ids and with SLUIDs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.jobgroups import group_of, jobs_here
from slurm_robust.kernel.shapes import recognise
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.checks import pressure, snapshots
from tests.there import there
from tests.unit.nodes.host_files import only, plant, view
from tests.unit.nodes.test_processes import stat
from tests.users import as_root

DATA = Path(__file__).parents[2] / "data"
CONFIG = NodeConfig()
SLUID, OTHER = "s5K1KKYAYG5D00", "sEKNKTV3WPV500"
SCOPE = "/system.slice/slurmstepd.scope"

# Where the job's folder lies, its name, what is below it.
PLACES = [
    (SCOPE, "job_7", "/step_0/user/task_0"),
    (SCOPE, "job_7", ""),
    (SCOPE, SLUID, "/step_0/user/task_0"),
    (SCOPE, SLUID, "/step_batch/slurm"),
    (SCOPE, "s0000000000000", "/step_0/user/task_0"),  # a SLUID of 0
    (SCOPE, OTHER, "/step_extern/user/task_special"),
    (SCOPE, SLUID, "/step_0/user/task_0/libpod-0a1b/container"),
    (SCOPE, "job_7", "/step_0/user/task_0/docker/job_9"),
    ("/system.slice/n07_slurmstepd.scope", SLUID, "/step_0"),
    ("/system.slice/n-07.cl_slurmstepd.scope", "job_4", "/step_0"),
    ("/slurm.slice/slurmstepd.scope", SLUID, "/step_0"),
    ("/hpc.slice/hpc-slurm.slice/slurmstepd.scope", SLUID, ""),
    (f"/kubepods.slice/pod1.slice/cri-1.scope{SCOPE}", "job_8", "/step_0"),
    ("/slurm/uid_1000", "job_12", "/step_0/task_0"),
    ("/slurm_n07/uid_1000", "job_12", "/step_batch"),
    ("/slurm/uid_1000", "job_12", "/step_4294967291"),
    ("", "job_7", "/step_0"),
]
# A path, the job's folder in it, its id.
OF_JOBS = [
    (f"{place}/{name}{below}", f"{place}/{name}", int(name[4:]) if name.startswith("job_") else None)
    for place, name, below in PLACES
]
OF_NO_JOB = [
    "/",
    "",
    f"{SCOPE}/system",
    SCOPE,
    "/system.slice/slurmd.service",
    "/system.slice/job_x",
    "/user.slice/my_job_7",
    "/user.slice/user-1000.slice/session-7.scope",
    f"{SCOPE}/{SLUID.lower()}",
    f"{SCOPE}/{SLUID[:-1]}",
    f"{SCOPE}/{SLUID}0",
    f"{SCOPE}/s5K1KKYAYG5DIL",  # letters that a SLUID does not have
    f"{SCOPE}/{SLUID}.scope",
    "/system.slice/sssd.service",
    "/job_7.mount",
]


@pytest.mark.parametrize(("path", "folder", "job_id"), OF_JOBS)
def test_a_group_below_a_jobs_is_the_jobs(path: str, folder: str, job_id: int | None) -> None:
    assert group_of(path) == (folder, job_id)


@pytest.mark.parametrize("path", OF_NO_JOB)
def test_a_group_of_no_job(path: str) -> None:
    assert group_of(path) is None


# -- the same paths in the kernel's log and in /proc -----------------------------------------------------

OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,"
    "oom_memcg={0},task_memcg={0},task={1},pid=41233,uid=2001"
)


@pytest.mark.parametrize("path", [path for path, *_ in OF_JOBS])
def test_a_job_at_its_limit_is_no_finding(path: str) -> None:
    assert recognise(OOM.format(path, "python3")) is None


@pytest.mark.parametrize("path", OF_NO_JOB)
def test_a_service_at_its_limit_is_one(path: str) -> None:
    for task in ("python3", "/job_7", f"/{SLUID}"):
        found = there(recognise(OOM.format(path, task)))
        assert found[0].name == "out-of-memory-group"


@pytest.mark.parametrize(("path", "folder", "job_id"), OF_JOBS)
def test_a_job_is_judged_by_its_limit(tmp_path: Path, path: str, folder: str, job_id: int | None) -> None:
    is_v1 = path.startswith("/slurm") and ".slice" not in path
    files = ("usage_in_bytes", "limit_in_bytes") if is_v1 else ("current", "max")
    mount = f"/sys/fs/cgroup{'/memory' if is_v1 else ''}{folder}"
    host = plant(
        tmp_path,
        {
            "/proc/self/cgroup": f"4:memory:{path}" if is_v1 else f"0::{path}",
            f"{mount}/memory.{files[0]}": "505396075520",
            f"{mount}/memory.{files[1]}": "515396075520",
            f"{mount}/memory.stat": "file 1048576\nanon 500000000000",
            "/proc/self/environ": "A=1\0SLURM_JOB_ID=3801\0B=2",
        },
    )
    job = there(pressure.gather(host, CONFIG).job)
    assert job.name == f"job_{job_id or 3801}"
    assert job.share == pytest.approx(0.9806, abs=0.001)
    host.path("/proc/self/environ").write_text("A=1\0")
    job = there(pressure.gather(host, CONFIG).job)
    assert job.name == (f"job_{job_id}" if job_id else folder.rpartition("/")[2])


# -- which jobs are here -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "jobs"),
    [
        (["system.slice/slurmstepd.scope/job_12/step_0", "system.slice/slurmstepd.scope/system"], {12}),
        (["system.slice/n1_slurmstepd.scope/job_7", "system.slice/n2_slurmstepd.scope/job_8"], {7, 8}),
        (["hpc.slice/hpc-slurm.slice/slurmstepd.scope/job_7"], {7}),
        (["unified/system.slice/slurmstepd.scope/job_7", "freezer/slurm/uid_1/job_8"], {7, 8}),
        (["slurmstepd.scope/job_7"], {7}),
        (["system.slice/slurmstepd.scope/system"], set()),
        (["memory/slurm/uid_1000/job_12/step_0", "freezer/slurm_n1/uid_1001/job_13"], {12, 13}),
        (["memory/slurm/system"], set()),
        (["system.slice/user-slurmstepd.scope.d/job_9", "memory/slurmish/uid_1/job_9"], None),
        (["user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_9"], None),
        ([f"system.slice/slurmstepd.scope/{SLUID}/step_0"], None),
        ([f"system.slice/slurmstepd.scope/{SLUID}/step_0", "system.slice/slurmstepd.scope/job_7"], None),
    ],
)
def test_jobs_are_known_from_control_groups(tmp_path: Path, paths: list[str], jobs: set[int] | None) -> None:
    files = {f"/sys/fs/cgroup/{path}/cgroup.procs": "" for path in paths}
    assert jobs_here(plant(tmp_path, files | {"/proc/loadavg": "0"})) == jobs


def daemons(*titles: str) -> dict[str, str]:
    """Files of a slurmd and of daemons of steps, from pid 2 on, all of root."""
    files = {"/proc/1/stat": stat(1, "slurmd"), "/proc/1/status": "Uid: 0 0 0 0"}
    for pid, title in enumerate(titles, 2):
        files[f"/proc/{pid}/stat"] = stat(pid, "slurmstepd")
        files[f"/proc/{pid}/status"] = "Uid:\t0\t0\t0\t0"
        files[f"/proc/{pid}/cmdline"] = title
    return files


INFINITY = "/usr/sbin/slurmstepd\0infinity\0"


def group(name: str, root: str = f"/sys/fs/cgroup{SCOPE}") -> dict[str, str]:
    return {f"{root}/{name}/step_0/user/task_0/cgroup.procs": "41", f"{root}/{name}/cgroup.procs": ""}


@as_root
@pytest.mark.parametrize(
    ("titles", "files", "jobs"),
    [
        # The job that each title names is in some group; neither is left over.
        (["slurmstepd: [3801.extern]", "slurmstepd: [3801.0 stepmgr]", INFINITY], group(SLUID), {3801}),
        (["slurmstepd: [3801.batch]", "slurmstepd: [3802.0]"], group(SLUID) | group(OTHER), {3801, 3802}),
        (["slurmstepd: [3801+1.0]"], group(SLUID), {3801}),
        # One more group than jobs: nobody knows whose it is.
        (["slurmstepd: [3801.batch]"], group(SLUID) | group(OTHER), None),
        ([INFINITY], group(SLUID), None),
        ([], group(SLUID), None),
        # The kernel says in which group a daemon is, so the other one is nobody's.
        (
            ["slurmstepd: [3801.0]", "slurmstepd: [3802.0]"],
            group(SLUID) | group(OTHER)
            | {f"/proc/{pid}/cgroup": f"0::{SCOPE}/{SLUID}/step_0/slurm" for pid in (2, 3)},
            {3801, 3802},
        ),
        (
            ["slurmstepd: [3801.0]", "slurmstepd: [3801.1]"],
            group(SLUID) | group(OTHER)
            | {f"/proc/{pid}/cgroup": f"0::{SCOPE}/{SLUID}/step_0/slurm" for pid in (2, 3)},
            None,
        ),
        # What is left of an ended job has no processes.
        (
            ["slurmstepd: [3801.0]"],
            group(SLUID) | group(OTHER)
            | {f"/sys/fs/cgroup{SCOPE}/{OTHER}/cgroup.events": "populated 0\nfrozen 0"},
            {3801},
        ),
        # Its processes say which job it is.
        ([], group(SLUID) | {"/proc/41/environ": "A=1\0SLURM_JOB_ID=3801\0"}, {3801}),
        ([], group(SLUID) | {"/proc/41/environ": "MY_SLURM_JOB_ID=3801\0"}, None),
        (["slurmstepd: [3801.0]"], group("job_3802"), {3802}),
        # No group at all: the titles alone.
        (["slurmstepd: [12.0]\0\0", "slurmstepd: [13.batch]", INFINITY], {}, {12, 13}),
        ([], {}, set()),
    ],
)  # fmt: skip
def test_jobs_are_known_from_step_daemons_of_root(
    tmp_path: Path, titles: list[str], files: dict[str, str], jobs: set[int] | None
) -> None:
    assert jobs_here(plant(tmp_path, daemons(*titles) | files)) == jobs


@as_root
def test_jobs_of_a_recorded_node(tmp_path: Path) -> None:
    """Version 2 of Slurm 26.05.5: jobs 1, 2, 3 and 6 of two users, 3 and 6 of one array. The daemons of the
    steps of job 1 were killed, and its processes live on.
    """
    files: dict[str, str] = json.loads((DATA / "cgroups/26.05.5.json").read_text())
    host = plant(tmp_path, files)
    assert jobs_here(host) == {1, 2, 3, 6}
    environments = {path: text for path, text in files.items() if path.endswith("/environ")}
    assert len(environments) >= 12
    for path, text in environments.items():
        group = there(group_of(files[path.replace("environ", "cgroup")]))
        assert f"SLURM_JOB_SLUID={group.name}\0" in text
        if "SLURM_JOB_ID=1\0" in text:
            host.path(path).unlink()
    assert jobs_here(host) is None


@as_root
def test_a_daemon_of_a_user_is_none(tmp_path: Path) -> None:
    forged = {**daemons(), "/proc/1/status": "Uid: 1000 0 0 0"}
    assert jobs_here(plant(tmp_path / "setuid", forged)) is None
    host = plant(tmp_path / "owner", daemons("slurmstepd: [14.extern]"))
    os.chown(host.path("/proc/2"), 1000, 1000)
    assert jobs_here(host) == frozenset()


@as_root
@pytest.mark.parametrize(
    "scope", [SCOPE, "/system.slice/n07_slurmstepd.scope", "/slurm.slice/slurmstepd.scope"]
)
def test_of_a_running_job_nothing_is_left_over(tmp_path: Path, scope: str) -> None:
    """As on 26.05: job 3801 runs here, job 3702 is gone."""
    shm = f"/dev/shm/srobust-{os.getuid()}"
    titles = [
        "slurmstepd: [3801.extern]",
        "slurmstepd: [3801.batch]",
        "slurmstepd: [3801.0 stepmgr]",
        INFINITY,
    ]
    files = {f"{shm}-{name}-copies/own": "x" for name in ("3801-abc", "3702-xyz")}
    host = plant(tmp_path, daemons(*titles) | files | group(SLUID, f"/sys/fs/cgroup{scope}"))
    for file in files:
        os.utime(host.path(file), (0, 0))
        os.utime(host.path(file).parent, (0, 0))
    found = only(snapshots.judge_stale(view(snapshots.gather(host, CONFIG)), CONFIG))
    assert found.outcome is Outcome.FAIL
    assert "3702" in found.text
    assert "3801" not in found.text


def test_cgroups_of_the_real_machine_are_read() -> None:
    jobs_here(Host())
