"""Lines for the job's own output, which may hang or be full."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.config.job import DetectConfig, JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.controller.__main__ import introduction
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.testing.sim.environment import SimulatedPace
from slurm_robust.testing.sim.job import Sim
from slurm_robust.util import output
from tests.builders.state import job_state
from tests.unit.engine.stories import PACE, controller_of, core_of, gets_on
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


STATE = job_state(epoch=1, slots=("n1", "n2"), spares=("n3",), nproc_per_node=1, generation=1)


def test_the_first_lines_say_what_runs_where_and_where_its_output_is() -> None:
    what, protected, output = introduction(plan(), JobDirectory(Path("/jobs/7")), STATE)
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
    assert told in "\n".join(introduction(plan(**changes), JobDirectory(Path(folder)), STATE))


def test_agents_that_take_long_are_counted_and_named_ever_more_rarely() -> None:
    sim = Sim(2, 1, pace=PACE)
    sim.node_dies("n3")
    sim.nodes["n2"].zygote_s = (100.0, 100.0)
    sim.run(60.0)
    start, *lines = sim.said
    assert start == "starting agents on n[1-3]"
    found = [re.fullmatch(r"2 of 3 agents have joined after (\d+) s; (.*)", line) for line in lines]
    assert [int(line[1]) // 10 for line in found if line] == [1, 2, 4]
    assert {line and line[2] for line in found} == {
        "not yet: n3; 1 of 3 nodes have imported torch; importing: n2"
    }


def test_agents_that_come_soon_are_not_counted() -> None:
    sim = Sim(2, 1, pace=PACE)
    for node in sim.nodes.values():
        node.zygote_s = (7.0, 7.0)
    sim.run(60.0)
    first, then, *_ = sim.said
    assert (first, then[:25]) == ("starting agents on n[1-3]", "generation 1: first step ")


def test_the_first_step_of_each_generation_is_reported_once_and_its_loss() -> None:
    sim = Sim(2, 1, pace=PACE)
    sim.training.loss = 2.302585
    sim.run_until(lambda: sim.step >= 3, within_s=60.0)
    sim.kill_rank(1)
    gets_on(sim, 2)
    begun, firsts = sim.events(ev.GenerationLaunched), sim.events(ev.FirstStep)
    assert [first.step for first in firsts] == [0, 4]
    assert [text for text in sim.said if "first step" in text] == [
        f"generation {first.generation}: first step (step {first.step}) is done, "
        f"{first.t - launched.t:.1f} s after the launch, loss 2.303"
        for launched, first in zip(begun, firsts, strict=True)
    ]


def test_the_first_step_is_done_when_the_slowest_rank_has_done_it() -> None:
    sim = Sim(3, pace=structs.replace(PACE, step_s=1000.0))
    sim.run_until(lambda: sim.stage == "Running", within_s=60.0)
    sim.run(41.0)
    core, now = core_of(sim)
    for node, age_s in (("n1", 0.0), ("n2", 40.0), ("n3", 40.0)):
        real = core.fleet.heartbeat(node)
        assert real is not None
        progress = tuple(structs.replace(p, step=20, age_s=age_s) for p in real.progress)
        core.on_heartbeat(structs.replace(real, seq=real.seq + 100, progress=progress), now)
    controller_of(sim).turn()
    (launched,), (first,) = sim.events(ev.GenerationLaunched), sim.events(ev.FirstStep)
    assert (first.step, first.t) == (20, now.wall)
    assert f"first step (step 20) is done, {now.wall - launched.t:.1f} s after the launch" in sim.said[-1]


def test_a_script_that_numbers_no_steps_has_a_first_one_too() -> None:
    sim = Sim(2, 1, pace=PACE)
    sim.training.reports = False
    sim.run_until(lambda: sim.step >= 2, within_s=60.0)
    (launched,), (first,) = sim.events(ev.GenerationLaunched), sim.events(ev.FirstStep)
    assert sim.said[1].startswith(
        f"generation 1: first optimizer step is done, {first.t - launched.t:.1f} s after the launch; "
        "its steps are not protected: "
    )


def test_a_long_quiet_training_says_how_far_it_is_every_ten_minutes() -> None:
    no_hang = JobConfig(detect=DetectConfig(hang=False))
    sim = Sim(1, pace=SimulatedPace(step_s=10.0, turn_s=2.0), config=no_hang, steps=400, leap_s=60.0)
    sim.run_until(lambda: "first step" in sim.said[-1], within_s=60.0)
    before = len(sim.said)
    sim.run(590.0)
    assert sim.said[before:] == []
    sim.training.step_s = 30.0
    sim.run(620.0)
    sim.hang_rank(0)
    sim.run(600.0)
    for said, pattern in zip(
        sim.said[before:],
        (
            r"step (59|60) is done, loss 2\.5, 10(\.\d)? s a step",
            r"step (79|80) is done, loss 2\.5, (29|30|31)(\.\d)? s a step",
            r"no new step for 60\d s; step (79|80) is done",
        ),
        strict=True,
    ):
        assert re.fullmatch(pattern, said), said
