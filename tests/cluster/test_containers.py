"""Agents in a container as pyxis makes it: other root, other mounts, other variables, the user's own ids."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.boot import slurm_version
from slurm_robust.sandbox.mounts import python_paths
from tests.cluster.installed_hooks import installed
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob, find_process
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

# Of the node's health nothing is looked at, only what jobs have left.
HOOKS = """
checks: {"*": {enabled: false}}
paths: {state: /run/srobust-state, log: /run/srobust-events.jsonl, syslog: false}
"""
SYSTEM = "bind /usr\nlink /bin usr/bin\nlink /lib usr/lib\nlink /lib64 usr/lib64\nworkdir /workspace\n"
TINY = "tiny.py --out OUT --steps 1000 --step-s 0.1"
AGENT = ("-m", "slurm_robust.agent")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The plug-in and its plugstack.conf, beside hooks."""
    major, minor = slurm_version()
    source = Path(__file__).with_name("container_spank.c")
    with installed(HOOKS) as made:
        command = ["cc", "-O2", "-fPIC", "-shared", f"-DSLURM_VERSION_NUMBER={major << 16 | minor << 8}"]
        subprocess.run([*command, "-o", made / "container.so", source], check=True, timeout=60)
        (made / "plugstack.conf").write_text(f"required {made}/container.so\n")
        yield made


@pytest.fixture
def box(sandboxes: Callable[..., Sandbox], folder: Path) -> Sandbox:
    lines = (f"PlugStackConfig={folder}/plugstack.conf", f"Prolog={folder}/prolog.sh")
    box = sandboxes(nodes=2, accounting=False, slurm_conf_lines=lines)
    if box.exec(["unshare", "--user", "true"], user=USER, check=False).returncode:
        pytest.skip("this kernel gives ordinary users no user namespaces (user.max_user_namespaces)")
    python = "".join(f"bind {path}\n" for path in python_paths())
    search = f"env PATH={os.path.dirname(sys.executable)}\n"
    inside = f"link /inside {sys.prefix}\n"
    (box.home(USER) / "train.img").write_text(SYSTEM + python + inside + search)
    (box.home(USER) / "bare.img").write_text(SYSTEM + "env PATH=/usr/bin\n")
    return box


def options(image: str) -> str:
    return f"--container-image=/home/{USER}/{image},--container-name=train"


def submit(box: Sandbox, image: str) -> ProtectedJob:
    before = f'export SROBUST_CONFIG_AGENTS_SRUN_OPTIONS="{options(image)}"'
    return ProtectedJob(box, TINY, nodes=2, before=before)


def copies(box: Sandbox, job: ProtectedJob) -> str:
    """Owners of what the job's agents have left in the memory of n2, as the node sees it."""
    command = ["find", "/dev/shm", "-maxdepth", "1", "-name", f"srobust-*-{job.id}-*-copies", "-printf", "%U"]
    return box.exec(command, node="n2", user="root", timeout_s=30.0).stdout


def test_a_killed_rank_restarts_by_a_fork_in_the_container_of_its_agent(box: Sandbox) -> None:
    job = submit(box, "train.img")
    job.wait_step(5)
    agent = find_process(box, "n2", "python3", *AGENT)
    spaces = [Path(f"/proc/{agent}/ns/{kind}").readlink() for kind in ("user", "mnt")]
    root = Path(f"/proc/{agent}/root")
    assert {path.name for path in (root / "home").iterdir()} == {USER}  # only what is mounted
    assert Path(f"/proc/{agent}/cwd").readlink().name == "workspace"
    before = box.fault.rank_pid(job.id, 1)
    box.fault.kill_rank(job.id, 1)
    job.wait_recovered()
    after = box.fault.rank_pid(job.id, 1)
    assert after != before
    assert find_process(box, "n2", "python3", *AGENT) == agent
    assert [Path(f"/proc/{after}/ns/{kind}").readlink() for kind in ("user", "mnt")] == spaces
    launched = job.events(ev.GenerationLaunched)[-1]
    assert launched.tiers == {"memory": 2}
    assert launched.restore_step >= 4
    assert any("finds no scontrol" in noted.text for noted in job.events(ev.Noted))
    # Tests of nodes run in the same container: only there is this Python.
    environ = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SROBUST_CONFIG_AGENTS_SRUN_OPTIONS": options("train.img"),
        "SROBUST_CONFIG_AGENTS_PYTHON": "/inside/bin/python3",
    }
    command = ["srobust", "diagnose", "--nodes=n2", "--tests=memory"]
    assert "pass" in box.exec(command, node="n1", user=USER, env=environ, timeout_s=60.0).stdout
    # What killed agents leave in memory is the user's outside, too, and the next job's prolog removes it.
    uid = box.config.uid(USER)
    for pid in (*box.host_pids("n1"), *box.host_pids("n2")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}").stat().st_uid == uid:
                os.kill(pid, signal.SIGKILL)
    job.wait_left()
    assert copies(box, job) == str(uid)
    bare = submit(box, "bare.img")
    wait_for(lambda: not copies(box, job), 30.0, "the sweep of the prolog")
    assert bare.wait_end() == ExitCode.DO_NOT_REQUEUE
    assert "No module named 'slurm_robust'" in bare.log
    assert "fix: install slurm_robust" in bare.log


def update(box: Sandbox, job: ProtectedJob, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["srobust", "update", str(job.id), "--now", *words]
    done = box.exec(command, user=USER, timeout_s=120.0, check=False)
    print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}[{done.returncode}]")
    return done


def image_of_agent(box: Sandbox) -> str:
    """What the image in which the agent of n2 runs has set."""
    agent = find_process(box, "n2", "python3", *AGENT)
    variables = dict(
        line.split("=", 1) for line in Path(f"/proc/{agent}/environ").read_text().split("\0") if line
    )
    return variables["WHICH"]


def test_an_update_brings_another_image_and_a_configuration_and_one_that_does_not_work_is_refused(
    box: Sandbox,
) -> None:
    home = box.home(USER)
    base = (home / "train.img").read_text()
    for name in ("train", "second"):
        (home / f"{name}.img").write_text(f"{base}env WHICH={name}\n")
    code = home / "code"
    code.mkdir()
    shutil.copy(SCRIPTS / "tiny.py", code)
    for path in (code, code / "tiny.py"):
        shutil.chown(path, home.stat().st_uid)
    (home / "new.yaml").write_text("detect: {slow_factor: 7}\n")
    before = f'export SROBUST_CONFIG_AGENTS_SRUN_OPTIONS="{options("train.img")}"'
    run = f"--set updates.trial=false --set updates.good_steps=40 code/{TINY}"
    job = ProtectedJob(box, run, nodes=2, before=before)
    job.wait(lambda: job.events(ev.ReleaseProven), 120.0, "the first release is good")
    assert image_of_agent(box) == "train"

    image = f"/home/{USER}/second.img"
    done = update(box, job, "--image", image, "--config", f"/home/{USER}/new.yaml")
    assert done.returncode == 0
    (applied,) = job.events(ev.UpdateApplied)
    launched = job.events(ev.GenerationLaunched)[-1]
    assert (launched.restore_step, launched.tiers) == (applied.step, {"memory": 2})
    assert image_of_agent(box) == "second"
    job.wait(lambda: len(job.events(ev.ReleaseProven)) == 2, 60.0, "the second release is good")
    job.wait_said(f"release {applied.release} sets detect.slow_factor to 7.0, not")
    assert applied.checkpoint in CheckpointStore(job.folder / "checkpoints").complete()  # the way back
    assert job.state.epoch == 2
    assert "the controller was killed" not in job.log
    assert "failed with an internal error" not in job.log

    refused = update(box, job, "--image", f"/home/{USER}/bare.img")
    assert refused.returncode != 0
    (end,) = job.events(ev.UpdateEnded)
    assert "No module named 'slurm_robust'" in end.reason
    job.wait(lambda: job.events(ev.GenerationLaunched)[-1].generation == 3, 120.0, "training goes on")
    job.wait_step(job.step() + 5)
    assert job.state.release == applied.release
    assert image_of_agent(box) == "second"
    assert not job.events(ev.IncidentOpened)
    assert job.wait_end() == 0
