"""A node that a job gives up is named to the administrator's side, as its epilog accepts it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.engine import questions as qs
from slurm_robust.evidence.bundle import save_suspect
from slurm_robust.hooks.suspects import EndedJob, judge
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Suspect
from slurm_robust.model.job import JobDirectory
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.lives import BAD_GPU
from tests.unit.engine.stories import evicted, gets_on, opened, questions, trained


def suspects(sim: Sim) -> list[Suspect]:
    return [asked.suspect for asked in questions(sim, qs.SaveSuspect)]


def test_an_evicted_node_is_suspected_with_what_was_seen() -> None:
    sim = trained(2, 1)
    sim.node_dies("n2")
    gets_on(sim, 2)
    (suspect,) = suspects(sim)
    assert (suspect.node, suspect.job_id, suspect.symptom) == ("n2", sim.job_id, "node lost")
    assert suspect.reason == sim.state.evicted["n2"]
    assert suspect.evidence == ("does not respond",)
    (gone,) = sim.events(ev.NodeEvicted)
    assert gone.incident == 1


def test_an_unfit_standby_is_suspected_without_an_incident() -> None:
    sim = trained(2, 1)
    sim.alert("n3", BAD_GPU)
    sim.run_until(lambda: "n3" in evicted(sim), within_s=90.0)
    (suspect,) = suspects(sim)
    assert (suspect.node, suspect.symptom, opened(sim)) == ("n3", "", [])


@pytest.mark.parametrize("t", [1.7e9, 1.7e9 + 0.123456])
def test_the_epilog_accepts_a_suspect_that_a_job_has_written(tmp_path: Path, t: float) -> None:
    directory = JobDirectory(tmp_path)
    suspect = Suspect(node="n2", job_id=7, t=t, reason="silent", symptom="node lost", evidence=("a",))
    for _ in range(2):  # again after a second eviction
        path = save_suspect(directory, suspect)
    assert path == tmp_path / "suspects" / "n2.json"
    assert [p.name for p in directory.suspects.iterdir()] == ["n2.json"]
    assert directory.suspects.stat().st_mode & 0o077 == 0
    job = EndedJob(job_id=7, uid=1000, gid=1000, user="alice", work_dir="/")
    assert isinstance(judge(path.read_bytes(), job, "n2", t + 5), Suspect)
    assert msgspec.json.decode(path.read_bytes(), type=Suspect) == suspect
