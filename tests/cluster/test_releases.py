"""The copy of the code that a job begins with, and what a later run of it finds."""

from __future__ import annotations

import shutil

import pytest

from slurm_robust.model import events as ev
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_requeued_job_whose_release_is_gone_goes_on_with_the_code_in_its_place(sandbox: Sandbox) -> None:
    code = sandbox.home(USER) / "project"
    code.mkdir()
    shutil.copy(SCRIPTS / "tiny.py", code)
    job = ProtectedJob(sandbox, "project/tiny.py --out OUT --steps 60 --step-s 0.2", nodes=1)
    job.wait_step(3)
    (taken,) = job.events(ev.ReleaseTaken)
    store = ReleaseStore(job.folder / "releases")
    assert (taken.release.entry, taken.release.files) == ("project/tiny.py", 1)
    assert taken.release.took_s < 1
    assert f"release {taken.release.name}: 1 file (" in job.log

    with (code / "tiny.py").open("a") as file:
        file.write("# edited\n")
    shutil.rmtree(store.folder / taken.release.name)
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.events(ev.UpdateApplied), 180, "the release that takes its place")
    assert job.wait_end() == 0
    (applied,) = job.events(ev.UpdateApplied)
    assert applied.before == taken.release.name != applied.release == job.state.last_good
    assert "are gone from" in job.log
    assert job.events(ev.GenerationLaunched)[-1].restore_step >= 3
