"""Beside slurmctld: each job's nodes as events, in a file that SlurmUser can write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from slurm_robust.config.node import NodeConfig, Paths
from slurm_robust.hooks import allocation
from tests.users import as_root


def test_events_go_to_a_folder_of_their_own_whatever_the_job_is_called(tmp_path: Path) -> None:
    config = NodeConfig(paths=Paths(log=str(tmp_path / "events.jsonl"), syslog=False))
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": os.fsdecode(b"a\xff\xc2\x9b"),
        "SLURMD_NODENAME": "head",
    }
    allocation.record("epilog_slurmctld", config, environ)
    [line] = (tmp_path / "slurmctld" / "events.jsonl").read_bytes().splitlines()
    event = msgspec.json.decode(line)
    assert line.isascii()
    assert (event["event"], event["job"], event["name"]) == ("ended", 7, "a?\x9b")
    assert not (tmp_path / "events.jsonl").exists()


@as_root
def test_slurm_s_user_needs_only_that_folder() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)
        folder = Path(name) / "slurmctld"
        folder.mkdir(mode=0o750)
        os.chown(folder, 65534, 65534)
        config = NodeConfig(paths=Paths(log=f"{name}/events.jsonl", syslog=False))
        if (pid := os.fork()) == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            allocation.record("epilog_slurmctld", config, {"SLURM_JOB_ID": "7"})
            os._exit(0)
        os.waitpid(pid, 0)
        assert b'"ended"' in (folder / "events.jsonl").read_bytes()
