"""The watcher as a process, with stand-ins for scontrol and sinfo on its PATH."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import msgspec
import pytest

from slurm_robust.slurm import watcher
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.requeue import RequeueRequest, Until
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.waiting import wait_for

RECORDED = Path(__file__).parents[2] / "data" / "slurm_text" / "22.05.8"

ORDER = RequeueRequest(
    job_id=41, ending_run=0, exclude=("n4",), need=Need(least=2, most=3), holders=("n1",), pins=("n1", "n2")
)


def encoded(order: RequeueRequest) -> str:
    return msgspec.json.encode(order).decode()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm in which job 41 runs, in run 1."""
    text = (RECORDED / "job_running.txt").read_text().replace("Restarts=0", "Restarts=1")
    (tmp_path / "job.txt").write_text(text)
    (tmp_path / "nodes.txt").write_text((RECORDED / "nodes.txt").read_text())
    choice = f"*node*) cat {tmp_path}/nodes.txt;; *) cat {tmp_path}/job.txt;;"
    scontrol = f'#!/bin/sh\ncase "$*" in {choice} esac\n'
    for name, source in (("scontrol", scontrol), ("sinfo", "#!/bin/sh\necho slurm-wlm 22.05.8\n")):
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_job_that_runs_again_is_all_it_waits_for(slurm: Path) -> None:
    log = slurm / "watch.log"
    assert watcher.main([encoded(ORDER), f"--log={log}"]) == 0
    (last,) = lines(log)
    assert last["ok"]
    assert last["detail"] == "running again on n[1-2]"
    assert last["t"]


def test_the_watcher_leaves_the_process_tree_of_its_caller(slurm: Path) -> None:
    log = slurm / "watch.log"
    done = watcher.start_watcher(ORDER, log=log, timeout_s=20)
    assert done.exit_code == 0
    (last,) = wait_for(lambda: lines(log), message="the detached watcher has written its outcome")
    assert last["ok"]


def test_the_watcher_gives_up_in_time(slurm: Path) -> None:
    log = slurm / "watch.log"
    (slurm / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert watcher.main([encoded(ORDER), f"--log={log}", "--timeout=0.2"]) == 1
    (last,) = lines(log)
    assert not last["ok"]
    assert "Unable to contact" in str(last["detail"])


def test_the_watcher_as_a_job(slurm: Path) -> None:
    request = watcher.watcher_job(ORDER, keep_off=["n3", "n4"], log=slurm / "watch.log")
    assert request.excluded_nodes == ("n4", "n3")
    assert not request.requeue
    argv = shlex.split(request.command[0])[3:]
    order = msgspec.json.decode(argv[0], type=RequeueRequest)
    assert order == msgspec.structs.replace(ORDER, until=Until.STARTED, may_requeue=False)
    assert watcher.main(argv) == 0


def test_where_a_detached_process_survives() -> None:
    assert watcher.survives_the_job({"ProctrackType": "proctrack/linuxproc"})
    assert not watcher.survives_the_job({"ProctrackType": "proctrack/cgroup"})
    assert not watcher.survives_the_job({})


class Site(FakeSlurm):
    """A Slurm whose ProctrackType is to be chosen."""

    proctrack = "proctrack/cgroup"

    def config(self) -> dict[str, str]:
        return {**super().config(), "ProctrackType": self.proctrack}


def test_the_way_that_works_on_the_site(slurm: Path) -> None:
    log = slurm / "watch.log"
    site = Site()
    said = watcher.arrange_watcher(site, ORDER, log=log, partition="spare")
    (job,) = site.jobs()
    assert said == f"job {job.job_id} starts job 41 again early"
    assert (job.name, job.partition) == ("srobust-watch-41", "spare")
    site.proctrack = "proctrack/linuxproc"
    said = watcher.arrange_watcher(site, ORDER, log=log)
    assert said == f"a process on {socket.gethostname()} starts job 41 again early"
    wait_for(lambda: lines(log), message="the detached watcher has written its outcome")
