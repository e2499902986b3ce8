"""The examples as protected jobs: one rank is killed, and the weights end as if it had not been."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.unit.integrations.killed_examples import ROOT, Example

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("fsdp2.py", "--steps 40 --samples 80 --workers 2"),
        ("hf_trainer.py", "--steps 40"),
        ("lightning_trainer.py", "--epochs 4"),
    ],
)
def test_an_example_loses_a_rank(script: str, options: str, sandbox: Sandbox, tmp_path: Path) -> None:
    undisturbed = Example(tmp_path / "run", script, *options.split(), "--out", "out.json", ranks=2).finish()
    shutil.copy(ROOT / "examples" / script, sandbox.home(USER) / script)
    job = ProtectedJob(sandbox, f"{script} {options} --step-s 0.15 --out OUT", nodes=2)
    job.wait_step(14)  # in the second epoch
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert json.loads(job.out.read_text()) == undisturbed
    assert len(job.events(ev.IncidentOpened)) == 1
    assert job.events(ev.GenerationLaunched)[-1].restore_step >= 10
