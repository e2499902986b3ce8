"""Standbys rehearse on a real Slurm, beside the training, and take the slot of a dead node."""

from __future__ import annotations

import json

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.standby import StandbyStage
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

OPTIONS = "--out OUT --steps 5000 --step-s 0.2"


def standby(job: ProtectedJob) -> dict[str, object]:
    """The only one, as ``srobust status`` shows it."""
    done = job.sandbox.exec(["srobust", "status", str(job.id), "--json"], user=USER, timeout_s=30.0)
    (row,) = json.loads(done.stdout)["standbys"].values()
    assert isinstance(row, dict)
    return row


def test_a_standby_rehearses_and_takes_the_slot_of_a_dead_node(sandbox: Sandbox) -> None:
    job = ProtectedJob(
        sandbox, "--spares 1 tiny.py --out OUT --steps 5000 --step-s 0.2", nodes=3, preparations=True
    )
    job.wait_step(5)
    (spare,) = job.state.spares
    job.wait(lambda: stages(job, spare)[-1:] == [StandbyStage.REHEARSED], 400, "end of the rehearsal")
    assert stages(job, spare)[-4:] == [
        StandbyStage.TESTING,
        StandbyStage.TESTED,
        StandbyStage.REHEARSING,
        StandbyStage.REHEARSED,
    ]
    assert standby(job)["stage"] == "rehearsed"
    # Two of its steps were made, and none of its output is among the ranks'.
    assert (job.folder / "rehearsals" / f"{spare}.log").read_text().count("step ") == 1
    assert not job.out.exists()
    dead = job.state.world.slots[1]
    sandbox.fault.power_cut(dead)
    job.wait_recovered(1)
    assert job.state.world.slots[1] == spare
    assert job.state.world.best_step > 5
    sandbox.exec(["scancel", str(job.id)], user=USER, timeout_s=30.0)
    job.wait_left()


@pytest.mark.soak
def test_a_script_that_cannot_rehearse_costs_nothing_but_the_rehearsal(sandbox: Sandbox) -> None:
    script = "import os; os.environ.get('SROBUST_REHEARSAL') and os.mkdir('made'); import tiny"
    (sandbox.home(USER) / "writes.py").write_text(script)
    job = ProtectedJob(
        sandbox, "--spares 1 writes.py --out OUT --steps 5000 --step-s 0.2", nodes=3, preparations=True
    )
    job.wait_step(5)
    (spare,) = job.state.spares
    job.wait(lambda: stages(job, spare)[-1:] == [StandbyStage.REHEARSAL_FAILED], 400, "end of the rehearsal")
    assert "PermissionError at writes.py:1" in str(standby(job)["reason"])
    job.wait_said(f"standby {spare} is taken last")
    assert not (job.home / "made").exists()
    assert job.events(ev.NodeEvicted) == []
    sandbox.fault.power_cut(job.state.world.slots[1])
    job.wait_recovered(1)
    assert job.state.world.slots[1] == spare  # there is no other
    sandbox.exec(["scancel", str(job.id)], user=USER, timeout_s=30.0)
    job.wait_left()


def stages(job: ProtectedJob, node: str) -> list[StandbyStage]:
    """Through which it went."""
    return [event.stage for event in job.events(ev.StandbyChanged) if event.node == node]
