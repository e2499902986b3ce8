"""Lines for the job's own output, which may hang or be full."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.controller.__main__ import introduction
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.util import output
from tests.builders.state import changed
from tests.unit.engine.fake_job import Job
from tests.waiting import wait_for


class Sink:
    """Where descriptor 1 leads to."""

    def __init__(self) -> None:
        self.took: list[bytes] = []
        self.open = threading.Event()
        self.error: OSError | None = None
        self._write = os.write

    def write(self, fd: int, data: bytes) -> int:
        if fd != 1:  # a thread that an earlier test has left wakes its loop
            return self._write(fd, data)
        self.open.wait()
        if self.error is not None:
            raise self.error
        self.took.append(data)
        return len(data)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    sink = Sink()
    monkeypatch.setattr(output, "_output", output._Output())
    monkeypatch.setattr("slurm_robust.util.output.os.write", sink.write)
    return sink


def test_a_job_whose_output_hangs_is_not_held_up(sink: Sink) -> None:
    output.say("first")
    began = time.monotonic()
    for number in range(1000):
        output.say(f"line {number}")
    assert time.monotonic() - began < output.PATIENCE_S
    assert sink.took == []
    sink.open.set()
    wait_for(lambda: len(sink.took) == 1001)
    assert [line.split()[-1] for line in sink.took[1:]] == [str(n).encode() for n in range(1000)]


def test_a_full_output_costs_its_lines_alone(sink: Sink) -> None:
    sink.open.set()
    sink.error = OSError(28, os.strerror(28))
    output.say("lost")
    sink.error = None
    output.say("there")
    assert [line.split()[-1] for line in sink.took] == [b"there"]


def test_what_was_said_is_out_when_all_goes_well(capfd: pytest.CaptureFixture[str]) -> None:
    said: Callable[[], str] = lambda: capfd.readouterr().out  # noqa: E731
    output.say("one\ntwo")
    text = said()
    assert text.startswith("srobust: ")
    assert text.endswith(" one\n  two\n")


# -- The job's log while all is well, as the person who submitted the job reads it -----------------


def plan(**changes: object) -> RunPlan:
    fields: dict[str, object] = {
        "run_id": "r",
        "job_id": 7,
        "kind": CommandKind.SCRIPT,
        "command": ("train.py", "--name", "a b"),
        "cwd": "/home/alice",
        "slots": 2,
        "spares": 1,
        "nproc_per_node": 1,
        "restart_count": 0,
        "nodes": ("n1", "n2", "n3"),
        "config": JobConfig(),
    }
    return RunPlan(**(fields | changes))  # type: ignore[arg-type]


def test_the_first_lines_say_what_runs_where_and_where_its_output_is() -> None:
    state = Job().core.state
    what, protected, output = introduction(
        plan(), JobDirectory(Path("/jobs/7")), changed(state, running=False)
    )
    assert what == (
        "controller 1 of job 7: train.py --name 'a b'; 2 ranks on n[1-2], standby n3; folder /jobs/7"
    )
    assert protected.startswith("protected: restarts, hangs, ")
    assert output == (
        "output of the training: /jobs/7/logs/gen-002/rank-00000.out; to follow it: srobust logs 7 -f"
    )


@pytest.mark.parametrize(
    ("changes", "folder", "told"),
    [
        ({"array_task": "6_1"}, "/jobs/7", "controller 1 of job 7 (6_1): train.py"),
        ({"kind": CommandKind.MODULE, "command": ("my.train",)}, "/jobs/7", ": -m my.train; 2 ranks"),
        ({"config": JobConfig(mode="observe")}, "/jobs/7", "observe mode: nothing is done about faults"),
        ({"config": JobConfig(job_dir="/jobs")}, "/jobs/7", "srobust logs /jobs/7 -f"),
        ({}, "/jobs/7.my-run", "srobust logs /jobs/7.my-run -f"),
    ],
)
def test_the_unusual_is_reported(changes: dict[str, object], folder: str, told: str) -> None:
    assert told in "\n".join(introduction(plan(**changes), JobDirectory(Path(folder)), Job().core.state))


def test_agents_that_take_long_are_counted_and_named_ever_more_rarely() -> None:
    class Late(Job):
        def join(self, node: str, agent: str = "a", **changes: object) -> None:
            if node == "n1":
                super().join(node, agent, **changes)
            elif node == "n2" and self.mono > 1000:
                super().join(node, agent, **(changes | {"ready": False}))

    job = Late()
    assert job.said == ["starting agents on n[1-3]"]
    job.pass_time(9)
    assert len(job.said) == 1
    job.join("n2")
    job.pass_time(35)
    assert job.said[1:] == [
        "2 of 3 agents have joined after 10 s; not yet: n3; 1 of 3 nodes have imported torch; importing: n2",
        "2 of 3 agents have joined after 20 s; not yet: n3; 1 of 3 nodes have imported torch; importing: n2",
        "2 of 3 agents have joined after 40 s; not yet: n3; 1 of 3 nodes have imported torch; importing: n2",
    ]


def test_agents_that_come_at_once_are_not_counted() -> None:
    job = Job()
    job.pass_time(60)
    assert job.said == ["starting agents on n[1-3]"]


def test_the_first_step_of_each_generation_is_reported_once() -> None:
    job = Job()
    job.pass_time(5)
    job.train_to(0)
    job.train_to(3)
    assert job.said[1:] == ["generation 1: first step (step 0) is done, 5.0 s after the launch"]
    job.kill_rank(1)
    job.pass_time(5)
    job.train_to(4)
    firsts = [text for text in job.said if "first step" in text]
    assert len(firsts) == 2
    assert firsts[1].startswith("generation 2: first step (step 4) is done, ")


def test_the_first_step_is_done_when_the_slowest_rank_has_done_it() -> None:
    job = Job(slots=("n1", "n2", "n3"), spares=())
    for node, age_s in (("n1", 0.0), ("n2", 40.0), ("n3", 40.0)):
        if node == "n1":
            job.pass_time(41)
        progress = tuple(
            structs.replace(p, step=20, reported=True, age_s=age_s) for p in job.heartbeats[node].progress
        )
        job.change(node, progress=progress)
    assert job.said[-1] == "generation 1: first step (step 20) is done, 41.0 s after the launch"
    (first,) = job.events(ev.FirstStep)
    assert first.t == job.wall


def test_a_script_that_numbers_no_steps_has_a_first_one_too() -> None:
    job = Job(reported=False)
    job.train_to(0)
    (said,) = job.said[1:]
    assert said.startswith(
        "generation 1: first optimizer step is done, 0.0 s after the launch; its steps are not protected: "
    )


def test_a_long_quiet_training_says_how_far_it_is_every_ten_minutes() -> None:
    job = Job(spares=())
    job.train_to(0)
    before = len(job.said)
    job.pass_time(590)
    job.train_to(300)
    assert job.said[before:] == []
    job.pass_time(20)
    job.train_to(400)
    job.pass_time(600)
    job.pass_time(600)
    assert [text for text in job.said[before:] if "storage" not in text] == [
        "step 300 is done, 2 s a step",
        "step 400 is done, 6 s a step",
        "no new step for 600 s; step 400 is done",
    ]


def test_the_loss_is_printed_where_the_script_reports_it() -> None:
    job = Job()
    for node in job.core.world.slots:
        progress = tuple(
            structs.replace(p, step=0, reported=True, loss=2.302585) for p in job.heartbeats[node].progress
        )
        job.change(node, progress=progress)
    assert job.said[-1].endswith("(step 0) is done, 0.0 s after the launch, loss 2.303")
