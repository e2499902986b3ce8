"""Nodes whose clocks differ by minutes: faults are judged as ever, and the ledger keeps slurmctld's time."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.ledger.account import PRODUCTIVE
from slurm_robust.ledger.ledger import ledger
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE = Path(__file__).parents[1] / "stand_ins" / "clock.c"
AHEAD = {"n1": 200, "n2": -170, "n3": 100}
"""Seconds. n1 has the first controller."""
STEPS, STEP_S = 60, 0.3


@pytest.fixture
def wrong_clocks(sandbox: Sandbox) -> Iterator[tuple[str, ...]]:
    """Options of sbatch with which the Python programs of a job see :data:`AHEAD`."""
    library = sandbox.home(USER) / "clock.so"
    compiler = shutil.which("cc")
    assert compiler, "apt-get install gcc libc6-dev"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True, timeout=60
    )
    ahead = "/".join(f"{node}:{seconds}" for node, seconds in AHEAD.items())
    inside = f"/home/{USER}/{library.name}"
    yield (f"--export=ALL,LD_PRELOAD={inside},CLOCK_AHEAD={ahead}", "--nodelist=n1,n2,n3")
    library.unlink()


def test_a_dead_rank_and_a_dead_batch_host_among_nodes_whose_clocks_differ(
    sandbox: Sandbox, wrong_clocks: tuple[str, ...]
) -> None:
    options = f"--spares 1 clocked.py --out OUT --steps {STEPS} --step-s {STEP_S}"
    begun = time.time()
    job = ProtectedJob(sandbox, options, nodes=3, sbatch=wrong_clocks)
    job.wait_step(5)
    assert job.state.world.slots == ("n1", "n2")
    for node in job.state.world.slots:
        seen = job.home / f"clock.{node}"
        assert seen.stat().st_mtime + AHEAD[node] == pytest.approx(float(seen.read_text()), abs=5)
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    job.wait_step(job.step() + 5)
    sandbox.fault.power_cut("n1")
    job.wait_recovered(2)
    job.wait(lambda: job.state.ended is not None, 180, "end of the run")
    over = time.time()
    assert job.out.read_text() == undisturbed(2, f"tiny.py --out OUT --steps {STEPS} --step-s 0")

    crash, loss = job.events(ev.IncidentOpened)
    assert (crash.symptom, loss.symptom) == (Symptom.WORKER_EXIT, Symptom.NODE_LOST)
    verdicts = [decided.verdict for decided in job.events(ev.Decided) if decided.verdict]
    assert [(verdict.blame, verdict.suspects) for verdict in verdicts] == [
        (Blame.NOBODY, ()),
        (Blame.NODE, ("n1",)),
    ]
    assert [event.node for event in job.events(ev.NodeEvicted)] == ["n1"]
    assert job.events(ev.RequeueStarted) == []
    first, second = job.events(ev.ControllerStarted)[:2]
    assert second.taken_from == first.host == "n1"
    assert abs(first.t - second.t) > 60, "the journal goes back by minutes"

    events = [event for event in read(job.folder / "journal.jsonl") if event.epoch <= second.epoch]
    books = ledger(events, over)
    parts = [part for span in books.spans for part in span.parts]
    assert sum(part.ms for part in parts) == books.wall_ms
    assert books.begin == pytest.approx(begun, abs=5), "slurmctld's time"
    assert books.wall_ms / 1000 == pytest.approx(over - begun, abs=10)
    trained_s = sum(part.ms for part in parts if part.time in PRODUCTIVE) / 1000
    assert STEPS * STEP_S * 0.8 < trained_s < over - begun
