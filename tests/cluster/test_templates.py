"""Every batch script that users copy trains on a real Slurm, submitted as its head says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm_robust.model.journal import fold, read
from slurm_robust.sandbox import Sandbox
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TEMPLATES = Path(__file__).resolve().parents[2] / "sbatch_templates"
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
COMMANDS: dict[str, tuple[str, ...]] = {"train-prepared.sbatch": ()}
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
        ["sh", "-c", 'PATH=$HOME:$PATH exec "$@"', "sh", *command, *COMMANDS.get(name, ("train.py",))],
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
