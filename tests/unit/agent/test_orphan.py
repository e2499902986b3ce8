from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.agent.link import ControllerLink
from slurm_robust.agent.orphan import OrphanWatch, is_orphan, is_rescuer
from slurm_robust.model.job import JobDirectory
from slurm_robust.slurm.companion import OF_JOB
from slurm_robust.slurm.records import Allocation, SlurmJob, SlurmNode
from slurm_robust.wire.epochs import EpochRecord
from tests.builders import records

NODES = tuple(f"n{i}" for i in range(1, 7))
ALLOCATION = Allocation(job_id=7, nodes=NODES, gpus_per_node={}, batch_host="n1", restart_count=2)
JOB = records.job(name="j", user_name="a", nodes=NODES[1:], batch_host="n1", restart_count=2)
DOWN = records.node("DOWN", "NOT_RESPONDING", address="10.0.0.1")


def test_a_job_whose_batch_host_is_down_is_an_orphan() -> None:
    assert is_orphan(JOB, (DOWN,), 2)
    assert is_orphan(JOB, (DOWN, structs.replace(DOWN, name="n2")), 2)


@pytest.mark.parametrize(
    ("job", "hosts"),
    [
        (structs.replace(JOB, restart_count=3), (DOWN,)),  # another run lives: not ours to end
        (structs.replace(JOB, states=frozenset({"PENDING"})), (DOWN,)),
        (JOB, (structs.replace(DOWN, states=frozenset({"ALLOCATED", "NOT_RESPONDING"})),)),
        (JOB, ()),
        (JOB, (DOWN, structs.replace(DOWN, name="n2", states=frozenset({"ALLOCATED"})))),  # taken over there
    ],
)
def test_anything_less_certain_is_left_alone(job: SlurmJob, hosts: tuple[SlurmNode, ...]) -> None:
    assert not is_orphan(job, hosts, 2)


def test_only_a_few_nodes_ask_slurm_and_never_the_batch_host() -> None:
    assert [n for n in NODES if is_rescuer(n, ALLOCATION)] == ["n2", "n3", "n4"]


def test_silence_counts_from_the_last_answer() -> None:
    link = ControllerLink()
    assert link.silence(10.0) == 0.0
    assert link.silence(80.0) == 70.0
    link.on_epoch(EpochRecord(epoch=1, host="h", addresses=(), port=1, pid=1, run_id="r"), 80.0)
    link.on_answer(1, 81.0)
    assert link.silence(91.0) == 10.0


def test_an_agent_on_a_companions_node_rescues_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own allocation has no batch host that could die."""
    for name, value in {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n[1-2]", OF_JOB: "38"}.items():
        monkeypatch.setenv(name, value)
    watch = OrphanWatch("n2", tmp_path / "log")
    watch.tick(10_000.0)
    assert watch._thread is None


def test_outside_of_a_job_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def never() -> None:
        raise AssertionError("Slurm was asked")

    watch = OrphanWatch("n2", JobDirectory(tmp_path), never)  # type: ignore[arg-type]
    watch.tick(10_000.0)
