"""A node that a job gives up is named to the administrator's side, as its epilog accepts it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.evidence.bundle import save_suspect
from slurm_robust.hooks.suspects import EndedJob, judge
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Suspect
from slurm_robust.model.job import JobDirectory
from tests.unit.engine.fake_job import Job, questions
from tests.unit.engine.test_detection import alert


class Watched(Job):
    """Keeps the suspects."""

    def act(self, effects: list[fx.Effect]) -> None:
        kept = [q.suspect for q in questions(effects) if isinstance(q, qs.SaveSuspect)]
        self.suspects = [*getattr(self, "suspects", []), *kept]
        super().act(effects)


def test_an_evicted_node_is_suspected_with_what_was_seen() -> None:
    job = Watched()
    job.train_to(3)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    (suspect,) = job.suspects
    assert (suspect.node, suspect.job_id, suspect.symptom) == ("n2", 7, "node lost")
    assert suspect.reason == job.core.state.evicted["n2"]
    assert suspect.evidence == ("does not respond",)
    (evicted,) = job.events(ev.NodeEvicted)
    assert evicted.incident == 1


def test_an_unfit_spare_is_suspected_without_an_incident() -> None:
    job = Watched()
    job.train_to(3)
    job.change("n3", alerts=(alert(),))
    job.until(lambda: "n3" in job.core.state.evicted, limit=90)
    (suspect,) = job.suspects
    assert (suspect.node, suspect.symptom) == ("n3", "")


@pytest.mark.parametrize("t", [1.7e9, 1.7e9 + 0.123456])
def test_the_epilog_accepts_what_is_written(tmp_path: Path, t: float) -> None:
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
