"""Every batch script that users copy trains on a real Slurm, submitted as its head says."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from slurm_robust.model.journal import fold, read
from slurm_robust.sandbox import Sandbox
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "sbatch_templates"
PACKAGE = ROOT / "slurm_robust"
TRAINING = """
import torch
import torch.distributed as dist
import slurm_robust as sr

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
for step in range(checkpointer.restore(), 3):
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    checkpointer.step(step)
"""
# No runtime for containers is needed: what makes one is taken off and kept.
APPTAINER = """#!/bin/bash
echo "$@" >>"$HOME/apptainer.log"
while [ "$1" != train.sif ]; do shift; done
shift
exec "$@"
"""
SRUN = """#!/bin/bash
words=()
for word in "$@"; do
    case $word in
    --container-* | --no-container-*) echo "$word" >>"$HOME/srun.log" ;;
    *) words+=("$word") ;;
    esac
done
exec /usr/bin/srun "${words[@]}"
"""
RUNTIMES = {"apptainer": APPTAINER, "srun": SRUN}
NODES = {"train-requeue.sbatch": 2, "train-shared-spares.sbatch": 2}


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.glob("*.sbatch")))
def test_a_template_trains(sandbox: Sandbox, name: str) -> None:
    home = sandbox.home("alice")
    shutil.copytree(TEMPLATES, home, dirs_exist_ok=True)
    (home / "train.py").write_text(TRAINING)
    for runtime, text in RUNTIMES.items():
        (home / runtime).write_text(text)
        (home / runtime).chmod(0o755)
    nodes = NODES.get(name, 3)
    command = ["sbatch", "--parsable", f"--nodes={nodes}", "--time=10", name]
    done = sandbox.exec(
        ["sh", "-c", 'PATH=$HOME:$PATH exec "$@"', "sh", *command, "train.py"],
        user="alice",
        env={"TP": "1", "PP": "2", "OMP_NUM_THREADS": "1"},
        timeout_s=30.0,
        check=True,
    )
    job = done.stdout.strip()
    journal = home / "srobust-jobs" / job / "journal.jsonl"
    log = home / f"train-{job}.log"
    wait_for(lambda: fold(read(journal)).ended is not None, 120.0, "the end of the training")
    state = fold(read(journal))
    assert state.ended is not None
    assert state.ended.code == 0, log.read_text()
    assert len(state.world.slots) == 2
    assert len(state.spares) == nodes - 2
    if name == "train-container.sbatch":
        for line in (home / "apptainer.log").read_text().splitlines():
            assert line.startswith(
                "exec --nv --bind /home/alice --bind /dev/shm train.sif /usr/bin/env python3 -m slurm_robust."
            )
    if name == "train-pyxis.sbatch":
        assert set((home / "srun.log").read_text().splitlines()) == {
            "--container-image=/home/alice/train.sqsh",
            "--container-mounts=/dev/shm:/dev/shm,/home/alice:/home/alice",
            "--no-container-remap-root",
        }


@pytest.mark.parametrize("kind", ["standby", "shared-spares"])
def test_what_init_writes_is_filled_in_for_the_site_and_the_doctor_finds_nothing_bad(
    sandbox: Sandbox, kind: str
) -> None:
    home = sandbox.home("alice")
    (home / "train.py").write_text(TRAINING)
    # As a wheel has it: files in the place of links, and no checkout around them.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, home / "site" / PACKAGE.name, ignore=ignored, dirs_exist_ok=True)
    init = [
        sys.executable,
        "-m",
        "slurm_robust.cli",
        "init",
        kind,
        "--script",
        "train.py",
        "--force",
        "--json",
    ]
    installed = {"PYTHONPATH": "/home/alice/site"}
    done = sandbox.exec(init, user="alice", env=installed, timeout_s=30.0, check=True)
    written = json.loads(done.stdout)
    chosen = {choice["name"]: choice["value"] for choice in written["choices"]}
    assert (chosen["partition"], chosen["account"], chosen["nodes"]) == ("main", "users", "4")
    assert written["notes"] == []
    script = written["files"][0]
    doctor = ["srobust", "doctor", "--json", script, "train.py"]
    done = sandbox.exec(doctor, user="alice", timeout_s=30.0, check=False)
    assert not [text for text in json.loads(done.stdout)["unseen"] if "$@" in text]
    bad = [one for one in json.loads(done.stdout)["hazards"] if one["level"] == "bad"]
    assert (done.returncode, bad) == (0, [])
    tried = ["sbatch", "--test-only", script, "train.py"]
    sandbox.exec(tried, user="alice", timeout_s=30.0, check=True)
