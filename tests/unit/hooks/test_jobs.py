"""Which jobs run here, from the names of their steps' daemons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.hooks.jobs import no_other_job, running_jobs
from slurm_robust.kernel.host import Host
from tests.users import as_root
from tests.waiting import wait_for


def host_of(folder: Path, uids: str = "0 0 0 0", **processes: str) -> Host:
    for number, (comm, cmdline) in enumerate((("systemd", "/sbin/init"), *processes.items()), start=1):
        path = folder / "proc" / str(number)
        path.mkdir(parents=True)
        (path / "comm").write_text(comm.rstrip("_") + "\n")
        (path / "cmdline").write_text(cmdline)
        (path / "status").write_text(f"Name:\t{comm}\nUid:\t{uids}\n")
    (folder / "proc" / "stat").touch()
    (folder / "proc" / "99").mkdir()  # has ended
    return Host(folder)


@pytest.mark.parametrize(
    ("processes", "jobs"),
    [
        ({}, set()),
        ({"slurmd": "/usr/sbin/slurmd -D", "python": "slurmstepd: [7.0]"}, set()),
        ({"slurmstepd": "slurmstepd: [123.batch]", "slurmstepd_": "slurmstepd: [123.0]"}, {123}),
        ({"slurmstepd": "slurmstepd: [5.extern]", "slurmstepd_": "slurmstepd: [6+1.0]"}, {5, 6}),
        ({"slurmstepd": "/usr/sbin/slurmstepd"}, None),  # has no name yet
        ({"slurmstepd": ""}, set()),  # is ending
        ({"slurmstepd": "/usr/sbin/slurmstepd\0infinity\0"}, set()),  # slurmd's own, with cgroup/v2
        ({"slurmstepd": "/usr/sbin/slurmstepd\0infinity\0", "slurmstepd_": "slurmstepd: [7.0]"}, {7}),
    ],
)
def test_jobs_are_recognised_by_their_steps(
    tmp_path: Path, processes: dict[str, str], jobs: set[int] | None
) -> None:
    host = host_of(tmp_path, **processes)
    assert running_jobs(host) == jobs
    assert no_other_job(host) is (None if jobs is None else jobs == set())
    assert no_other_job(host, 123) is (None if jobs is None else jobs in (set(), {123}))


@pytest.mark.parametrize("uids", ["1234 1234 1234 1234", "1234 0 0 0"], ids=["a user's", "started by a user"])
def test_a_users_process_is_not_a_step_daemon_whatever_its_name(tmp_path: Path, uids: str) -> None:
    host = host_of(tmp_path, uids, slurmstepd="slurmstepd: [99999.0]", slurmstepd_="/usr/sbin/slurmstepd")
    assert running_jobs(host) == set()
    assert no_other_job(host) is True


def test_no_command_line_of_a_user_is_read(tmp_path: Path) -> None:
    """That can hang for as long as the process does, and nobody here looks at the clock."""
    host = host_of(tmp_path, "1234 1234 1234 1234", slurmstepd="slurmstepd: [7.0]")
    command = tmp_path / "proc" / "2" / "cmdline"
    command.unlink()
    os.mkfifo(command)  # opening it would wait for ever
    assert running_jobs(host) == set()


@as_root
@pytest.mark.skipif(not os.path.exists("/usr/bin/su"), reason="needs a program that runs as root for users")
def test_a_program_of_root_that_a_user_starts_is_not_a_step_daemon(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    (tmp_path / "slurmstepd").symlink_to("/usr/bin/su")
    us, them = os.openpty()
    os.fchmod(them, 0o666)
    code = (
        "import os, sys; os.setsid(); os.setgid(1234); os.setuid(1234)\n"
        "for fd in (0, 1, 2): os.dup2(os.open(sys.argv[2], os.O_RDWR), fd)\n"
        "os.execv(sys.argv[1], ['slurmstepd: [99999.0]'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "slurmstepd"), os.ttyname(them)])
    try:
        comm = Path(f"/proc/{process.pid}/comm")
        wait_for(lambda: comm.read_text() == "slurmstepd\n", message="it has the name")
        wait_for(lambda: os.read(us, 100), message="it asks for a password")
        assert os.stat(f"/proc/{process.pid}").st_uid == 0
        assert 99999 not in (running_jobs(Host()) or ())
    finally:
        process.kill()
        process.wait()
        os.close(us)
        os.close(them)
