"""A job that Slurm holds after a failed prolog comes back by itself, without the node that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_failed_prolog_does_not_leave_the_job_held(
    sandboxes: Callable[..., Sandbox], tmp_path: Path
) -> None:
    prolog = tmp_path / "prolog.sh"
    # It fails once, on the node of these that Slurm takes first: not the same one if a node answers late.
    once = f"[ ! -e {tmp_path}/any-$SLURMD_NODENAME ] || ! mv {tmp_path}/armed {tmp_path}/$SLURMD_NODENAME"
    prolog.write_text(f"#!/bin/bash\n{once}\n")
    prolog.chmod(0o755)
    sandbox = sandboxes(
        nodes=3,
        slurmd_timeout_s=20,
        cred_expire_s=5,
        binds=(str(tmp_path),),
        slurm_conf_lines=(f"Prolog={prolog}", "PrologFlags=Alloc"),
    )
    job = ProtectedJob(sandbox, "tiny.py --out OUT --steps 60 --step-s 0.2", nodes=2)
    job.wait_step(5)
    others = set(sandbox.config.node_names) - {job.state.world.slots[0]}
    for name in (*(f"any-{node}" for node in others), "armed"):
        (tmp_path / name).touch()
    sandbox.exec(["scancel", "--batch", "--signal=USR1", str(job.id)], user=USER)
    job.wait(lambda: len(job.events(ev.AllocationTaken)) == 2, 180, "next run of the job")
    (bad,) = [node for node in others if (tmp_path / node).exists()]
    states = sandbox.exec(["sinfo", "-h", "-N", "-n", bad, "-o", "%T %E"]).stdout
    assert "Prolog error" in states
    assert job.wait_end() == 0
    assert bad not in job.state.world.slots
    assert '"release"' in (job.folder / "requeue.jsonl").read_text()
