"""Which jobs run here, from the names of their steps' daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.health.host import Host
from slurm_robust.node.jobs import no_other_job, running_jobs


def host_of(folder: Path, **processes: str) -> Host:
    for number, (comm, cmdline) in enumerate((("systemd", "/sbin/init"), *processes.items()), start=1):
        path = folder / "proc" / str(number)
        path.mkdir(parents=True)
        (path / "comm").write_text(comm.rstrip("_") + "\n")
        (path / "cmdline").write_text(cmdline)
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
    ],
)
def test_jobs_are_told_by_their_steps(
    tmp_path: Path, processes: dict[str, str], jobs: set[int] | None
) -> None:
    host = host_of(tmp_path, **processes)
    assert running_jobs(host) == jobs
    assert no_other_job(host) is (True if jobs == set() else None)
    assert no_other_job(host, 123) is (True if jobs in (set(), {123}) else None)
