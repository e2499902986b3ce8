"""The replayer by job steps, with a Slurm whose steps only write what real ranks would have written."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from slurm_robust.diagnostics.replay.node import ReplayTask, leave_failure, trace_path
from slurm_robust.diagnostics.replay.steps import StepReplayer, patience_s
from slurm_robust.model.findings import Outcome
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.slurm.client import StepHandle
from slurm_robust.slurm.errors import CommandFailed
from slurm_robust.slurm.records import Allocation, SlurmStep
from slurm_robust.slurm.requests import StepRequest
from slurm_robust.testing.fake_replayer import NodeDefect
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.worker.replay import Gradients, Machine, ReplayEnd, add_line
from tests.contracts.replayer import NODES, SCRIPT, Make, ReplayerContract, run
from tests.waiting import wait_for

JOB = Allocation(job_id=7, nodes=NODES)


class Handle:
    """An srun that ends only when it is killed, or has ended."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.pid = 1

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9


class PretendedSteps(FakeSlurm):
    """Each step has done its work when it is launched, but those with a node that hangs."""

    def __init__(self, faults: Mapping[str, NodeDefect]) -> None:
        super().__init__()
        self.faults = faults
        self.launched: list[tuple[StepRequest, Handle]] = []
        self.cancelled: list[str] = []
        self.refuses: tuple[str, ...] = ()

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        if set(request.nodes) & set(self.refuses):
            raise CommandFailed("srun: error: node is down")
        faults = {self.faults[node] for node in request.nodes if node in self.faults}
        self._write(msgspec.json.decode(request.command[-1], type=ReplayTask), faults)
        handle = Handle(None if NodeDefect.HANGS in faults else 0)
        self.launched.append((request, handle))
        return handle

    def steps(self, job_id: int) -> tuple[SlurmStep, ...]:
        return tuple(
            SlurmStep(
                job_id=job_id, step_id=str(i), name=r.name, nodes=r.nodes, states=frozenset({"RUNNING"})
            )
            for i, (r, handle) in enumerate(self.launched)
        )

    def cancel(self, job_id: int, *, step_id: str | None = None, signal: str | None = None) -> None:
        assert step_id is not None
        assert signal == "KILL"
        self.cancelled.append(self.launched[int(step_id)][0].name)

    def _write(self, task: ReplayTask, faults: set[NodeDefect]) -> None:
        folder = Path(task.folder)
        if NodeDefect.CRASHES in faults:
            leave_failure(folder, f"rank 0 on {task.nodes[0]}: SIGSEGV")
            return
        for rank in range(len(task.nodes) * task.nproc):
            path = trace_path(folder, rank)
            add_line(path, Machine(name="abacus"))
            for step in range(task.steps):
                spoilt = NodeDefect.CORRUPTS in faults and step > 0
                finite = NodeDefect.NAN not in faults
                add_line(path, Gradients(step=step, digest="bad" if spoilt else "good", is_finite=finite))
            if NodeDefect.HANGS not in faults:
                add_line(path, ReplayEnd(code=0))


class TestStepReplayer(ReplayerContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda faults: StepReplayer(PretendedSteps(faults), JOB, tmp_path)


def test_every_group_is_a_step_with_a_name_and_folder_of_its_own(tmp_path: Path) -> None:
    slurm = PretendedSteps({"n2": NodeDefect.CORRUPTS})
    replayer = StepReplayer(slurm, JOB, tmp_path, ports=range(29500, 29510))
    run(replayer)
    run(replayer)
    requests = [request for request, _ in slurm.launched]
    assert len(requests) == len({request.name for request in requests}) == 16
    tasks = [msgspec.json.decode(request.command[-1], type=ReplayTask) for request in requests]
    assert tasks[5].nodes == requests[5].nodes == ("n2", "n6")
    assert tasks[5].folder == str(tmp_path / "replay-1" / "vertical-1")
    assert tasks[5].ports == tuple(range(29500, 29510))
    assert (tasks[5].command, tasks[5].steps) == (SCRIPT.command, 4)
    assert slurm.cancelled == []


def test_what_hangs_is_killed_and_cancelled_in_each_phase(tmp_path: Path) -> None:
    slurm = PretendedSteps({"n8": NodeDefect.HANGS})
    verdict = run(StepReplayer(slurm, JOB, tmp_path))
    assert slurm.cancelled == ["replay-1-horizontal-3", "replay-1-vertical-3"]
    assert [handle.poll() for _, handle in slurm.launched].count(-9) == 2
    assert verdict.horizontal[3].text.startswith("no result within")
    assert verdict.horizontal[3].text.endswith("from n[7-8]")


def test_a_group_that_slurm_does_not_start_is_faulty(tmp_path: Path) -> None:
    slurm = PretendedSteps({})
    slurm.refuses = ("n3",)
    verdict = run(StepReplayer(slurm, JOB, tmp_path))
    assert verdict.suspects == ("n3",)
    assert "it cannot be started: " in verdict.horizontal[1].text


def test_a_rest_that_holds_no_replica_stays_idle(tmp_path: Path) -> None:
    pipeline = ParallelLayout(nproc_per_node=1, sizes=(("tp", 1), ("dp", 4), ("pp", 2)))
    slurm = PretendedSteps({"n7": NodeDefect.CORRUPTS})
    verdict = StepReplayer(slurm, JOB, tmp_path).replay(NODES[:7], pipeline, SCRIPT, steps=4, budget_s=0.5)
    assert verdict.horizontal[3].nodes == ("n7",)
    assert verdict.horizontal[3].outcome is Outcome.UNKNOWN
    assert verdict.suspects == ("n7",)
    assert {len(request.nodes) for request, _ in slurm.launched} == {2}


def test_a_replay_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    slurm = PretendedSteps(dict.fromkeys(NODES, NodeDefect.HANGS))
    replayer = StepReplayer(slurm, JOB, tmp_path)
    reasons: list[str] = []

    def replay() -> None:
        reasons.append(run(replayer).reason)

    thread = threading.Thread(target=replay)
    thread.start()
    wait_for(lambda: len(slurm.launched) == 4)
    replayer.stop()
    thread.join(timeout=60)
    assert reasons == ["no replay: it was stopped"]
    assert all(handle.poll() == -9 for _, handle in slurm.launched)


def test_only_when_most_groups_ran_the_others_are_waited_for_no_longer_than_a_multiple() -> None:
    assert patience_s([20.0, 20.0], 4, 450.0) == 450.0
    assert patience_s([20.0, 20.0, 30.0], 4, 450.0) == 60.0
    assert patience_s([0.5, 0.5, 0.5], 4, 450.0) == 30.0
    assert patience_s([200.0, 200.0, 200.0], 4, 450.0) == 450.0


def test_a_folder_that_cannot_be_used_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    verdict = run(StepReplayer(PretendedSteps({}), JOB, tmp_path / "file"))
    assert verdict.reason.startswith("no replay: ")
