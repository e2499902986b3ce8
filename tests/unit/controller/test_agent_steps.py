"""The end of an srun, and what it said, as the controller reads it. Fake Slurm, real files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from msgspec import structs

from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.model.container import OUTSIDE, Container
from slurm_robust.model.exits import StepEnd
from slurm_robust.policy.starting import may_yet_end
from slurm_robust.slurm.client import StepHandle
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.process import kill_srun, spawn_detached
from slurm_robust.slurm.requests import StepRequest, SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.util import proc
from tests.waiting import wait_for

NODES = ("n1", "n2", "n3")


class Steps:
    def __init__(self, folder: Path, container: Container = OUTSIDE) -> None:
        self.slurm = FakeSlurm()
        job = self.slurm.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
        own = self.slurm.allocation(job)
        self.lent = Lent(own, container=container)
        self.steps = AgentSteps(
            self.slurm,
            own,
            ("agent",),
            folder,
            self.lent,
            container_of=lambda image: (
                Container(srun_options=(f"--container-image={image}",)) if image else OUTSIDE
            ),
        )
        self.steps.start(NODES, 1)
        (self.output,) = folder.iterdir()
        (self.srun,) = self.slurm.cluster.launched

    def say(self, text: str) -> None:
        with self.output.open("a") as file:
            file.write(text)


@pytest.fixture
def world(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_the_end_of_an_srun_is_reported_once_with_its_message(world: Steps) -> None:
    assert world.steps.news().ends == ()
    world.say("srun: error: Unable to create step for job 1: Invalid account")  # and no line end
    world.srun.end(1)
    (end,) = world.steps.news().ends
    assert (end.nodes, end.code) == (NODES, 1)
    assert end.message == "srun: error: Unable to create step for job 1: Invalid account"
    assert world.steps.news().ends == ()


def test_agents_of_a_release_start_in_its_image_and_so_do_steps_after_them(world: Steps) -> None:
    assert world.lent.container == OUTSIDE
    world.steps.start(NODES, 1, image="b")
    assert world.lent.container.srun_options == ("--container-image=b",)
    world.steps.start(("n2",), 1)
    assert world.lent.container == OUTSIDE


def test_a_node_apart_gets_an_srun_of_its_own(world: Steps) -> None:
    world.steps.start(NODES, 1, ("n2",))
    assert [srun.step.nodes for srun in world.slurm.cluster.launched] == [NODES, ("n1", "n3"), ("n2",)]
    world.steps.start(("n1",), 1, ("n1",))
    assert world.slurm.cluster.launched[-1].step.nodes == ("n1",)
    assert len({srun.step.name for srun in world.slurm.cluster.launched}) == 3


def test_many_nodes_apart_share_sruns_with_one_another(world: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_robust.controller.agent_steps.MAX_APART", 1)
    world.steps.start(NODES, 1, ("n2", "n3"))
    assert [srun.step.nodes for srun in world.slurm.cluster.launched[1:]] == [("n1",), ("n2", "n3")]


class OutOfProcesses(FakeSlurm):
    """Starts ``spare`` sruns; then the host has no process left for another."""

    spare = 1

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        if self.spare == 0:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.spare -= 1
        return super().launch_step(request, output)


def test_a_start_that_fails_half_way_names_the_nodes_without_agents(tmp_path: Path) -> None:
    slurm = OutOfProcesses()
    job = slurm.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
    steps = AgentSteps(slurm, slurm.allocation(job), ("agent",), tmp_path)
    failed = steps.start(NODES, 1, ("n2",))
    assert failed == {"n2": "[Errno 11] Resource temporarily unavailable"}
    (srun,) = slurm.cluster.launched
    assert srun.step.nodes == ("n1", "n3")
    with pytest.raises(OSError, match="unavailable"):
        steps.start(("n2",), 1)


def test_a_task_that_ended_before_is_not_reported_again_with_srun(world: Steps) -> None:
    world.say("srun: error: n3: task 2: Exited with exit code 2\n")
    (end,) = world.steps.news().ends
    assert end.nodes == ("n3",)
    assert world.steps.news().ends == ()
    world.srun.end(2)
    (end,) = world.steps.news().ends
    assert end.nodes == ("n1", "n2")


def test_tasks_of_a_step_that_is_cancelled_end_together(world: Steps) -> None:
    """As srun 22.05 writes it after ``scancel JOB.STEP``, and where it gets SIGTERM."""
    world.say("srun: error: n3: task 2: Exited with exit code 2\n")
    world.say("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n")
    (alone,) = world.steps.news().ends
    assert (alone.nodes, alone.is_task) == (("n3",), True)
    cancelled = "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-23T16:30:36 ***"
    world.say(f"{cancelled}\n")
    assert world.steps.news().ends == ()
    world.say("srun: error: n1: task 0: Killed\n")
    (end,) = world.steps.news().ends
    assert (end.nodes, end.is_task, end.named) == (("n1", "n2"), False, {})
    assert cancelled in end.message
    world.say("srun: error: n2: task 1: Killed\n")
    world.srun.end(137)
    assert world.steps.news().ends == ()


def test_an_agent_that_cannot_begin_says_so_itself(world: Steps) -> None:
    world.say('{"srobust_agent_error": "cannot read x", "node": "n2", "fix": "mount it"}\n{"srobust_agent_er')
    (refusal,) = world.steps.news().refusals
    assert (refusal.node, refusal.text) == ("n2", "cannot read x; fix: mount it")


IMAGE = Container(python=("apptainer", "exec", "a.sif", "python3"), key="agents.wrapper")


def test_of_a_wrapper_that_fails_its_words_are_told_with_the_key_and_the_file(tmp_path: Path) -> None:
    world = Steps(tmp_path, IMAGE)
    world.say("FATAL:   could not open image a.sif\nsrun: error: n2: task 1: Exited with exit code 255\n")
    (end,) = world.steps.news().ends
    assert "FATAL: could not open image a.sif" in end.message
    assert "agents.wrapper" in end.fix
    assert str(world.output) in end.fix


def test_without_a_container_an_end_that_says_nothing_names_the_file(world: Steps) -> None:
    world.say("srun: error: n2: task 1: Exited with exit code 1\n")
    (end,) = world.steps.news().ends
    assert end.fix == f"all that was said is in {world.output}"


def test_an_agent_that_said_why_it_cannot_begin_needs_no_other_fix(world: Steps) -> None:
    world.say('{"srobust_agent_error": "cannot read x", "node": "n2", "fix": "mount it"}\n')
    world.say("srun: error: n[2-3]: tasks 1-2: Exited with exit code 3\n")
    assert [bool(end.fix) for end in world.steps.news().ends] == [False, True]


@pytest.mark.parametrize(
    ("container", "how"),
    [
        (IMAGE, "--bind /jobs (docker: --volume) in agents.wrapper"),
        (
            Container(srun_options=("--container-image=a",), key="agents.srun_options"),
            "--container-mounts=/jobs:/jobs in agents.srun_options",
        ),
    ],
)
def test_a_folder_that_no_agent_sees_is_one_that_the_container_may_not_mount(
    container: Container, how: str, tmp_path: Path
) -> None:
    world = Steps(tmp_path, container)
    said = '{"srobust_agent_error": "cannot read x", "node": "n2", "fix": "share it", "unseen": "/jobs"}\n'
    world.say(said)
    (refusal,) = world.steps.news().refusals
    assert how in refusal.fix
    assert refusal.fix.endswith("; if it mounts that, share it")
    world.say(said.replace("/jobs", ""))
    (refusal,) = world.steps.news().refusals
    assert refusal.fix == "share it"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EMFILE, errno.EACCES])
def test_an_end_is_judged_when_storage_returns_the_output_of_srun(
    world: Steps, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    world.say("srun: error: Unable to create step for job 1: Invalid account\n")
    world.srun.end(1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert world.steps.news().ends == ()
    (end,) = world.steps.news().ends
    assert end.message == "srun: error: Unable to create step for job 1: Invalid account"


class RealSruns(FakeSlurm):
    """Each srun is a process that ends when it is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.sruns: list[StepHandle] = []

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        self.sruns.append(spawn_detached(("sleep", "600"), output=output, env={}))
        return self.sruns[-1]


@pytest.fixture
def sruns() -> Iterator[RealSruns]:
    slurm = RealSruns()
    yield slurm
    for srun in slurm.sruns:
        srun.kill()
        wait_for(lambda srun=srun: srun.poll() is not None)


def test_the_next_controller_follows_the_sruns_of_the_one_before(sruns: RealSruns, tmp_path: Path) -> None:
    job = sruns.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
    allocation = sruns.allocation(job)
    before, after = (AgentSteps(sruns, allocation, ("agent",), tmp_path) for _ in range(2))
    before.start(NODES, 1)
    before.start(("n3",), 1)  # its agent had ended
    after.adopt()
    assert (after.news().ends, after.ended()) == ((), False)
    with (tmp_path / "step-000001-00.log").open("a") as file:
        file.write("srun: error: n[2-3]: tasks 1-2: Killed\n")
    (alone,) = after.news().ends
    assert (alone.nodes, alone.is_task) == (("n2",), True)
    sruns.sruns[0].kill()
    ends: list[StepEnd] = []
    wait_for(lambda: ends.extend(after.news().ends) or ends)
    assert [(end.nodes, end.is_task) for end in ends] == [(("n1",), False)]
    assert not after.ended()
    of_next_run = AgentSteps(sruns, structs.replace(allocation, restart_count=1), ("agent",), tmp_path)
    of_next_run.adopt()
    assert (of_next_run.news().ends, of_next_run.ended()) == ((), False)


def test_the_end_of_an_srun_is_new_for_the_first_controller_that_sees_it_alone(
    sruns: RealSruns, tmp_path: Path
) -> None:
    """Whose agents have outlived it waits for none of them to follow."""
    allocation = sruns.allocation(sruns.submit(SubmitRequest(command=("x",), nodes=3)))
    clock = [1000.0]
    before, first, second = (
        AgentSteps(sruns, allocation, ("agent",), tmp_path, since_boot=lambda: clock[0]) for _ in range(3)
    )
    before.start(NODES, 1)
    (srun,) = sruns.sruns
    srun.kill()
    wait_for(lambda: srun.poll() is not None)
    first.adopt()
    assert [end.age_s for end in first.news().ends] == [0.0]
    clock[0] += 60.0
    assert first.news().ends == ()
    second.adopt()
    (end,) = second.news().ends
    assert (end.nodes, end.age_s) == (NODES, 60.0)
    assert may_yet_end(structs.replace(end, age_s=0.0), "n1", 1.0)
    assert not may_yet_end(end, "n1", 1.0)


def test_the_agents_beside_a_dead_node_live_when_it_comes_back(sruns: RealSruns, tmp_path: Path) -> None:
    """Their srun is killed, whose end is not theirs, under this controller and the next one."""
    job = sruns.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
    allocation = sruns.allocation(job)
    before, after = (AgentSteps(sruns, allocation, ("agent",), tmp_path) for _ in range(2))
    before.start(NODES, 1)
    before.start(("n3",), 1)
    together, alone = sruns.sruns
    before.let_go("n4")
    assert together.poll() is None
    before.let_go("n3")
    wait_for(lambda: together.poll() is not None)
    assert alone.poll() is None, "it has no other node's agents"
    after.adopt()
    with (tmp_path / "step-000001-00.log").open("a") as file:
        file.write("srun: error: n[1-2]: tasks 0-1: Killed\n")
    for steps in (before, after):
        assert (steps.news().ends, steps.ended()) == ((), False)
    alone.kill()
    wait_for(lambda: alone.poll() is not None)
    wait_for(lambda: [end.nodes for end in after.news().ends] == [("n3",)])
    assert not after.ended(), "nobody tells of the others"


def test_a_shepherd_dies_before_its_srun(tmp_path: Path) -> None:
    """It would end the step at the end of its parent."""
    ended = tmp_path / "ended"
    shepherd = f"trap '' HUP; read -r _; touch {ended}"  # a pipe's other end closes with its parent
    script = f"exec 3> >({shepherd}); exec sleep 600"
    srun = spawn_detached(["bash", "-c", script], output=tmp_path / "out", env=dict(os.environ))
    wait_for(lambda: len(proc.descendants(proc.process_table(), srun.pid)) == 1)
    kill_srun(srun.pid)
    wait_for(lambda: srun.poll() == -9)
    assert not ended.exists()


def test_slurm_as_the_witness_of_nodes(world: Steps) -> None:
    world.slurm.cluster.node_down("n2")
    first, second, other = world.steps.witnesses(("n1", "n2", "n4"))
    assert (first.message, first.against) == ("ALLOCATED", False)
    assert second.message == "DOWN+NOT_RESPONDING (Not responding), no longer part of the job"
    assert second.against
    assert other.against  # it is idle, but not ours
    assert [one.left for one in (first, second, other)] == [False, False, True]


def test_at_the_end_of_the_run_no_srun_is_left_not_even_one_that_an_earlier_controller_started(
    world: Steps, tmp_path: Path
) -> None:
    world.steps.kill()
    assert world.srun.exit_code == -9
    srun = spawn_detached(["sleep", "600"], output=tmp_path / "step-000001-01.log", env={})
    record = world.steps._record(srun.pid, NODES)
    assert record is not None
    (tmp_path / "step-000001-01.json").write_bytes(msgspec.json.encode(record))
    other = AgentSteps(world.slurm, world.slurm.allocation(1), ("agent",), tmp_path)
    other.adopt()
    other.kill()
    wait_for(lambda: srun.poll() == -9)


CANCELLED = "slurmstepd-n1: error: *** STEP {} ON n1 CANCELLED AT 2026-11-28T18:37:21{} ***\n"
PREEMPTED = " DUE TO PREEMPTION"


def test_slurmstepds_word_on_the_steps_is_read_when_it_is_asked_for(world: Steps) -> None:
    assert world.steps.why_ended() is None
    world.say("x" * 70_000 + "\n")
    world.say(CANCELLED.format("1.0", PREEMPTED))
    assert world.steps.why_ended() == "PREEMPTION"
    world.output.unlink()
    assert world.steps.why_ended() is None


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [(PREEMPTED, "", ""), ("", PREEMPTED, "PREEMPTION"), (PREEMPTED, None, None), ("", None, None)],
)
def test_the_end_of_a_companion_is_not_that_of_this_job(
    tmp_path: Path, theirs: str, ours: str | None, why: str | None
) -> None:
    slurm = FakeSlurm()
    job, companion = (
        slurm.submit(SubmitRequest(command=("x",), nodes=nodes, options=("--no-kill",))) for nodes in (3, 1)
    )
    own, lent = slurm.allocation(job), Lent(slurm.allocation(job))
    lent.add(companion, *slurm.allocation(companion).nodes)
    steps = AgentSteps(slurm, own, ("agent",), tmp_path, lent)
    steps.start((*own.nodes, *slurm.allocation(companion).nodes), 1)
    of_job, of_companion = sorted(tmp_path.glob("step-*.log"))
    of_companion.write_text(CANCELLED.format(f"{companion}.0", theirs))
    if ours is not None:
        of_job.write_text(CANCELLED.format(f"{job}.0", ours))
    assert steps.why_ended() == why


def test_what_any_step_with_agents_says_of_the_end_counts(sruns: RealSruns, tmp_path: Path) -> None:
    """One whose agents have all been started again ended before, and not with the job."""
    job = sruns.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
    before, after = (AgentSteps(sruns, sruns.allocation(job), ("agent",), tmp_path) for _ in range(2))
    before.start(("n2", "n3"), 1)
    before.start(NODES, 1)
    before.start(("n3",), 1)
    first, second, third = sorted(tmp_path.glob("step-*.log"))
    after.adopt()
    first.write_text(CANCELLED.format(f"{job}.0", ""))
    assert (before.why_ended(), after.why_ended()) == (None, None)
    second.write_text(CANCELLED.format(f"{job}.1", PREEMPTED))
    assert (before.why_ended(), after.why_ended()) == ("PREEMPTION", "PREEMPTION")
    third.write_text(CANCELLED.format(f"{job}.2", ""))
    assert (before.why_ended(), after.why_ended()) == ("PREEMPTION", "PREEMPTION")
    second.unlink()
    assert (before.why_ended(), after.why_ended()) == ("", "")
