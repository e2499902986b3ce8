"""The end of a job whose batch script may be gone, and what the next controller makes of a dead host."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import CheckpointConfig, JobConfig
from slurm_robust.config.plan import RunPlan, load_plan, save_plan
from slurm_robust.controller import takeover
from slurm_robust.controller.__main__ import PreviousController, _fenced, _write_start
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.takeover import finish, take_over, watch
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Evict, Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import read
from slurm_robust.model.state import TAKEOVER_GAP
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.job import Sim
from slurm_robust.util.output import settle
from slurm_robust.wire.epochs import EpochRecord
from tests.builders import plans
from tests.unit.engine.stories import PACE, evicted, opened, requeues, starts, trained


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Its clock goes on when this process waits."""
    slurm = FakeSlurm()
    clock = slurm.cluster.clock
    monkeypatch.setattr(takeover.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(takeover.time, "sleep", clock.advance)
    return slurm


def planned(slurm: FakeSlurm, folder: Path, *, requeue: bool = True) -> RunPlan:
    job_id = slurm.submit(
        SubmitRequest(command=("train.sh",), nodes=3, requeue=requeue, options=("--no-kill",))
    )
    config = JobConfig()
    return plans.plan(
        run_id="7-abcd",
        job_id=job_id,
        cwd=str(folder),
        slots=2,
        spares=1,
        nodes=("n1", "n2", "n3"),
        config=structs.replace(config, slurm=structs.replace(config.slurm, start_now=False)),
    )


def test_without_its_batch_host_the_job_is_requeued_to_end(
    slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = planned(slurm, tmp_path)
    slurm.cluster.node_down("n1")
    before = slurm.cluster.clock.now
    finish(JobDirectory(tmp_path), plan, slurm, 0)
    assert slurm.cluster.clock.now - before < takeover.BATCH_S
    job = slurm.job(plan.job_id)
    assert job.restart_count == 1
    assert job.excluded_nodes == ("n1",)
    assert "to end immediately with exit code 0" in capfd.readouterr().out


def test_a_batch_script_that_lives_has_the_time_to_end_the_job_itself(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    plan = planned(slurm, tmp_path)
    ends = slurm.cluster.clock.now + 5
    slurm.cluster.clock.on_advance.append(
        lambda now: slurm.cluster.finish(plan.job_id) if ends <= now < ends + 3 else None
    )
    finish(JobDirectory(tmp_path), plan, slurm, 0)
    job = slurm.job(plan.job_id)
    assert (job.restart_count, job.states) == (0, {"COMPLETED"})


def test_a_batch_script_that_does_not_end_is_not_waited_for_without_end(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    plan = planned(slurm, tmp_path)
    finish(JobDirectory(tmp_path), plan, slurm, 0)
    assert slurm.job(plan.job_id).restart_count == 1


@pytest.mark.parametrize("code", [0, None])
def test_a_job_that_cannot_be_requeued_or_did_not_end_is_cancelled(
    slurm: FakeSlurm, tmp_path: Path, code: int | None
) -> None:
    plan = planned(slurm, tmp_path, requeue=code is None)
    slurm.cluster.node_down("n1")
    finish(JobDirectory(tmp_path), plan, slurm, code)
    assert slurm.job(plan.job_id).is_finished


def test_a_silent_slurm_is_asked_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    plan = planned(slurm, tmp_path)
    slurm.cluster.unreachable = True
    back = slurm.cluster.clock.now + 100
    slurm.cluster.clock.on_advance.append(lambda now: setattr(slurm.cluster, "unreachable", now < back))
    finish(JobDirectory(tmp_path), plan, slurm, 0)
    assert slurm.job(plan.job_id).restart_count == 1


@pytest.mark.parametrize("code", [0, None])
def test_the_next_run_is_never_cancelled(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """Slurm does not answer, and has requeued the job when it does: after the question which run there is."""
    plan = planned(slurm, tmp_path, requeue=True)
    slurm.cluster.node_down("n1")
    cancel = slurm.cancel

    def away(job_id: int) -> None:
        monkeypatch.setattr(slurm, "cancel", cancel)
        slurm.requeue(job_id)
        slurm.start_now(job_id)
        raise SlurmError("Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "cancel", away)
    if code is not None:
        refused = SlurmAnswer(said=RequeueStatus.REFUSED, detail="no")
        monkeypatch.setattr(takeover, "_requeue", lambda *arguments: refused)
    finish(JobDirectory(tmp_path), plan, slurm, code)
    job = slurm.job(plan.job_id)
    assert job.restart_count == 1
    assert not job.is_finished


def test_without_an_answer_nothing_is_cancelled(slurm: FakeSlurm, tmp_path: Path) -> None:
    plan = planned(slurm, tmp_path)
    slurm.cluster.unreachable = True
    before = slurm.cluster.clock.now
    finish(JobDirectory(tmp_path), plan, slurm, None)
    assert takeover.FINISH_S <= slurm.cluster.clock.now - before < takeover.FINISH_S + 5
    slurm.cluster.unreachable = False
    assert slurm.job(plan.job_id).is_running


@pytest.fixture
def signals() -> Iterator[None]:
    """What ends of the job do to signals is undone."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def end_with(
    monkeypatch: pytest.MonkeyPatch,
    slurm: FakeSlurm,
    folder: Path,
    code: int,
    *events: ev.AnyEvent,
    lacking: tuple[str, ...] = (),
) -> SlurmJob:
    """What Slurm has of the job once the supervisor that took over has ended with ``code``."""
    plan = planned(slurm, folder)
    slurm.cluster.node_down("n1")

    def supervise(*arguments: object, after: int, notify: bool, start: str) -> int:
        JobDirectory(folder).journal.write_bytes(b"".join(ev.encode_event(event) + b"\n" for event in events))
        return code

    monkeypatch.setattr(takeover, "supervise", supervise)
    monkeypatch.setattr(takeover, "watch", lambda *arguments: None)
    take_over(JobDirectory(folder), plan, slurm, 1, "n1", "it is dead", lacking=lacking)
    return slurm.job(plan.job_id)


@pytest.mark.usefixtures("signals")
def test_without_slurms_commands_the_job_is_left_running_and_its_owner_is_told(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = ev.RunEnded(t=0.0, code=0, reason="every rank ended with code 0", final=True)
    job = end_with(monkeypatch, slurm, tmp_path, 0, ended, lacking=("scontrol", "srun"))
    assert job.is_running
    settle(10.0)
    said = "".join(capfd.readouterr())
    assert "finds no scontrol and no srun" in said
    assert f"scancel {job.job_id}" in said


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(("code", "runs"), [(ExitCode.JOB_DIR, True), (ExitCode.INTERNAL, False)])
def test_storage_that_lets_no_controller_work_does_not_end_the_training(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, runs: bool
) -> None:
    assert end_with(monkeypatch, slurm, tmp_path, code).is_running is runs


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("code", [ExitCode.TERMINATED, ExitCode.INTERRUPTED])
@pytest.mark.parametrize("final", [True, False])
def test_a_run_that_ended_by_itself_as_if_by_a_signal_is_ended(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, final: bool
) -> None:
    ended = ev.RunEnded(t=0.0, code=code, reason="the training ended", final=final)
    job = end_with(monkeypatch, slurm, tmp_path, code, ended)
    assert (job.restart_count, job.is_finished) == (1 if final else 0, not final)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("mode", ["act", "observe"])
@pytest.mark.parametrize(
    ("reason", "states", "final", "comes_back"),
    [
        ("JobLaunchFailure", {"FAILED", "COMPLETING"}, False, True),
        ("JobLaunchFailure", {"FAILED"}, False, True),
        ("JobLaunchFailure", {"FAILED"}, True, False),
        ("None", {"CANCELLED", "COMPLETING"}, False, False),
        ("TimeLimit", {"TIMEOUT"}, False, False),
    ],
)
def test_a_run_that_slurm_ends_with_its_old_batch_script_is_requeued(
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    states: set[str],
    final: bool,
    comes_back: bool,
    mode: str,
) -> None:
    plan = planned(slurm, tmp_path)
    plan = structs.replace(plan, config=structs.replace(plan.config, mode=mode))
    slurm.cluster.put(slurm.job(plan.job_id), states=frozenset(states), reason=reason)
    end = ev.RunEnded(t=0.0, code=ExitCode.TERMINATED, reason="TERM", final=final)
    JobDirectory(tmp_path).journal.write_bytes(ev.encode_event(end) + b"\n")
    monkeypatch.setattr(takeover, "supervise", lambda *arguments, **options: ExitCode.TERMINATED)
    monkeypatch.setattr(takeover, "watch", lambda *arguments: None)
    take_over(JobDirectory(tmp_path), plan, slurm, 1, "n1", "it is dead")
    job = slurm.job(plan.job_id)
    is_back = comes_back and mode == "act"
    assert (job.is_pending, job.excluded_nodes) == (is_back, ("n1",) if is_back else ())


@pytest.mark.usefixtures("signals")
def test_a_supervisor_that_was_signalled_leaves_a_run_that_goes_on(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert end_with(monkeypatch, slurm, tmp_path, ExitCode.TERMINATED).is_running


@pytest.mark.usefixtures("signals")
def test_the_end_is_read_as_soon_as_storage_answers(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, back = JobDirectory(tmp_path), slurm.cluster.clock.now + 100
    folder.journal.mkdir()  # refuses to be read

    def answer(now: float) -> None:
        if now >= back and folder.journal.is_dir():
            folder.journal.rmdir()
            folder.journal.write_bytes(ev.encode_event(ev.RunEnded(t=0.0, code=0, reason="done")) + b"\n")

    slurm.cluster.clock.on_advance.append(answer)
    plan = planned(slurm, tmp_path)
    monkeypatch.setattr(takeover, "supervise", lambda *arguments, **options: 0)
    monkeypatch.setattr(takeover, "watch", lambda *arguments: None)
    take_over(folder, plan, slurm, 1, "n1", "it is dead")
    assert slurm.job(plan.job_id).restart_count == 1


@pytest.mark.usefixtures("signals")
def test_storage_that_never_answers_cancels_nothing(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    JobDirectory(tmp_path).journal.mkdir()
    monkeypatch.setattr(takeover, "FINISH_S", 60.0)
    plan = planned(slurm, tmp_path)
    monkeypatch.setattr(takeover, "supervise", lambda *arguments, **options: int(ExitCode.INTERNAL))
    monkeypatch.setattr(takeover, "watch", lambda *arguments: None)
    take_over(JobDirectory(tmp_path), plan, slurm, 1, "n1", "it is dead")
    assert slurm.job(plan.job_id).is_running
    assert "the job is left as it is" in capfd.readouterr().out


def test_the_time_limit_and_the_end_come_as_signals(slurm: FakeSlurm, tmp_path: Path) -> None:
    plan, told = planned(slurm, tmp_path), []
    now = slurm.cluster.clock.now
    slurm.cluster.put(slurm.job(plan.job_id), end_time=slurm.now() + 600)
    ends = now + 700
    slurm.cluster.clock.on_advance.append(
        lambda now: slurm.cluster.finish(plan.job_id, "TIMEOUT") if ends <= now < ends + 5 else None
    )
    watch(slurm, plan, lambda number: told.append((number, slurm.cluster.clock.now - now)))
    (warned, warned_s), (ended, _) = told
    assert (warned, ended) == (signal.SIGUSR1, signal.SIGTERM)
    assert 480 <= warned_s <= 486


def test_a_plan_names_the_output_in_which_the_next_controller_goes_on(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    plan = structs.replace(planned(slurm, tmp_path), output="/home/alice/train-7.log")
    save_plan(JobDirectory(tmp_path), plan)
    assert load_plan(JobDirectory(tmp_path), "7-abcd").output == plan.output


# -- the next controller ---------------------------------------------------------------------------------


def taken_over(
    nodes: int = 2, spares: int = 1, *, without: str = "", config: JobConfig | None = None, **more: Any
) -> Sim:
    """The controller on n2 has just begun, after that on n1 died with its node.

    ``without``: a node whose agent was killed in that moment, too; no srun is left that would report it.
    """
    sim = trained(nodes, spares, to=3, config=config, **more)
    if without:
        sim.agent_dies(without, told=False)
    sim.node_dies("n1")
    return next_controller(sim)


def next_controller(sim: Sim) -> Sim:
    sim.run_until(lambda: sim.controller is not None and sim.controller.host == "n2", within_s=60.0)
    return sim


def launches(sim: Sim, within_s: float) -> None:
    """The next controller launches its first generation."""
    sim.run_until(lambda: sim.state.world.generation == 1 + TAKEOVER_GAP, within_s)


def test_the_dead_host_gives_its_slot_to_a_standby_within_seconds() -> None:
    sim = taken_over()
    launches(sim, within_s=10.0)
    assert sim.state.world.slots == ("n3", "n2")
    assert sim.state.world.next_generation == 2 + TAKEOVER_GAP, "numbers are left out once"
    assert evicted(sim) == {"n1"}
    (found,), started = sim.events(ev.IncidentOpened), sim.events(ev.ControllerStarted)[-1]
    assert found.symptom is Symptom.NODE_LOST
    assert found.t - found.detect_s == pytest.approx(started.silent_since), "by the controller before"
    assert found.detect_s > started.t - started.silent_since > JobConfig().timings.takeover_s


def test_observe_mode_names_the_dead_host_too() -> None:
    sim = taken_over(config=JobConfig(mode="observe"))
    sim.run_until(lambda: bool(sim.events(ev.Decided)), within_s=60.0)
    (decided,) = sim.events(ev.Decided)
    assert Evict(node="n1") in decided.actions
    assert not decided.carried_out
    assert evicted(sim) == set()


def test_no_agent_is_started_on_a_batch_host_that_died_in_the_middle_of_a_recovery() -> None:
    sim = trained(2, 1, to=3)
    sim.agent_dies("n2")
    sim.run_until(lambda: sim.stage == "Gathering" and sim.nodes["n2"].agent is not None, within_s=30.0)
    sim.node_dies("n1")
    launches(next_controller(sim), within_s=60.0)
    assert sim.events(ev.GenerationEnded)[0].t < sim.events(ev.ControllerStarted)[1].t
    assert starts(sim)[1:] == [("n2",)], "by the first controller"
    assert sim.state.world.slots == ("n3", "n2")


def test_a_dead_host_without_a_standby_is_waited_for_and_then_left_by_a_requeue() -> None:
    sim = taken_over(3, 0)
    began = sim.now
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    (found,), started = sim.events(ev.IncidentOpened), sim.events(ev.ControllerStarted)[-1]
    assert found.detect_s > started.t - started.silent_since + 8
    assert sim.now - began > 8
    assert requeues(sim) == [("n1",)]


FOUR = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize("spares", [1, 2])
def test_an_agent_that_was_killed_before_its_host_died_is_started_again_and_its_copies_count(
    spares: int,
) -> None:
    """The next controller has never heard it."""
    sim = taken_over(4, spares, without="n3")
    launches(sim, within_s=15.0)
    assert sim.state.world.slots == ("n5", "n2", "n3", "n4")
    assert starts(sim)[1:] == [("n3",)]
    assert evicted(sim) == {"n1"}
    assert sim.state.world.restored_step >= 2


def test_training_goes_on_where_it_was_if_only_the_agent_of_another_node_ended() -> None:
    """The host was cut off when it was taken over from, and is back."""
    sim = trained(4, 1, to=3)
    sim.agent_dies("n3", told=False)
    sim.partition("n1")
    next_controller(sim).heal()
    launches(sim, within_s=60.0)
    assert (sim.state.world.slots, evicted(sim)) == (FOUR, set())
    assert {event.symptom for event in sim.events(ev.SymptomAdded)} == {Symptom.AGENTS_LOST}


@pytest.mark.parametrize("memory", [True, False])
def test_without_a_standby_only_the_dead_host_is_excluded_and_copies_go_to_storage_before(
    memory: bool,
) -> None:
    sim = taken_over(4, 0, without="n3", config=JobConfig(checkpoint=CheckpointConfig(memory=memory)))
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    assert requeues(sim) == [("n1",)]
    assert starts(sim)[1:] == ([("n3",)] if memory else [])
    assert [ref.step >= 2 for ref in sim.storage.complete()] == ([True] if memory else [])
    assert (sim.state.world.stored is not None) == memory


@pytest.mark.parametrize("is_back", [False, True], ids=["without its agent", "with its new agent"])
def test_a_node_that_dies_meanwhile_does_not_hold_up_the_requeue(is_back: bool) -> None:
    sim = taken_over(4, 0, without="n3", pace=structs.replace(PACE, slurm_gives_up_s=20.0))
    sim.run_until(lambda: "n1" in evicted(sim), within_s=60.0)
    sim.run_until(lambda: not is_back or sim.nodes["n3"].agent is not None, within_s=10.0)
    sim.node_dies("n3")
    sim.run_until(lambda: bool(requeues(sim)), within_s=62.0)


def test_a_host_that_died_after_another_node_is_not_waited_for_without_end() -> None:
    """The next controller has never heard either of them, nor does the other node's kernel answer."""
    sim = trained(4, 1, to=3)
    sim.node_dies("n3")
    sim.node_dies("n1")
    next_controller(sim)
    sim.run_until(lambda: bool(sim.events(ev.Decided)), JobConfig().timings.unreachable_s + 60)
    assert "all nodes are heard again" not in sim.said
    assert opened(sim) == [Symptom.UNREACHABLE]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spares", [0, 1])
def test_a_host_that_was_only_cut_off_goes_on_training(spares: int, seed: int) -> None:
    sim = trained(3, spares, to=3, seed=seed)
    sim.partition("n1")
    next_controller(sim).heal()
    step = sim.step
    sim.run(30.0)
    assert (sim.state.epoch, sim.state.world.generation, evicted(sim)) == (2, 1, set())
    assert sim.step > step + 10


# -- the old controller --------------------------------------------------------------------------------


def test_the_end_of_an_overtaken_controller_is_not_the_end_of_the_job(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    assert _fenced(93, journal) == 93
    journal.is_ours = lambda: False
    assert _fenced(93, journal) == ExitCode.OTHER_CONTROLLER


def test_storage_that_hangs_or_refuses_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_robust.controller.__main__.FENCE_S", 0.1)
    journal, never = Journal(tmp_path / "journal.jsonl"), threading.Event()
    journal.is_ours = never.wait
    assert _fenced(93, journal) == 93
    never.set()

    def refuse() -> bool:
        raise OSError("stale")

    journal.is_ours = refuse
    assert _fenced(93, journal) == 93


def test_a_controller_says_from_whom_it_took_over_and_its_successor_does_not(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    plan = planned(slurm, tmp_path)
    epochs = (("n1", ""), ("n2", "n1"), ("n2", "n1"))
    for number, (node, taken_from) in enumerate(epochs, 1):
        journal = Journal(tmp_path / "journal.jsonl")
        journal.epoch = number
        epoch = EpochRecord(epoch=number, host=node, addresses=(), port=1, pid=1, run_id="r", node=node)
        taken = PreviousController(taken_from, "it is dead", 50.0) if taken_from else PreviousController()
        _write_start(journal, plan, epoch, taken)
        assert journal.close()
    found = [e for e in read(tmp_path / "journal.jsonl") if isinstance(e, ev.ControllerStarted)]
    assert [(e.taken_from, e.reason, e.silent_since) for e in found] == [
        ("", "", 0.0),
        ("n1", "it is dead", 50.0),
        ("", "", 0.0),
    ]
    assert [e.known for e in found] == [0, 2, 3]
