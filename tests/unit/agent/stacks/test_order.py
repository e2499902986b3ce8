"""The controller's order through a real agent, zygote and workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.wire.messages import StacksTaken, TakeStacks
from tests.unit.agent.local_job import LocalJob, ScriptedController
from tests.unit.agent.stacks.hanging_workers import RECORDS_GLOO, functions, process
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SCRIPT = """
import threading
import torch.distributed
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
def hangs():
    print("up", flush=True)
    threading.Event().wait()
hangs()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    job = LocalJob(tmp_path, SCRIPT)
    yield job
    job.close()


def answer(controller: ScriptedController, order: TakeStacks) -> StacksTaken:
    """What the agent answers to ``order``, which is repeated until then, as a controller does."""

    def taken() -> list[StacksTaken]:
        controller.send("n1", order)
        controller.pump()
        return controller.stacks

    return wait_for(taken, 60, "the agent has sent stacks")[0]


def test_an_agent_sends_the_stacks_of_its_workers(job: LocalJob) -> None:
    controller = job.controller()
    job.start_agent("n1")

    controller.wait_for("n1", lambda heartbeat: heartbeat.ready)
    controller.launch("n1", 1, (0, 1))
    logs = [job.job.worker_log(1, rank, "out") for rank in (0, 1)]

    def all_hang() -> bool:
        controller.pump()
        return all(log.exists() and "up" in log.read_text() for log in logs)

    wait_for(all_hang, 60)
    taken = answer(controller, TakeStacks(epoch=controller.epoch, generation=1, number=1, budget_s=30.0))
    assert (taken.node, taken.generation, taken.number) == ("n1", 1, 1)
    assert [(s.rank, s.source) for s in taken.stacks] == [(0, "py-spy"), (1, "py-spy")]
    for stacks in taken.stacks:
        assert "hangs" in functions(process(stacks))
        recorded = [("gloo:barrier", "completed")] if RECORDS_GLOO else []
        assert [(c.operation, c.state) for c in stacks.collectives] == recorded
