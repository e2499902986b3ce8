"""Agents that do not start: reported with Slurm's message, tried again where that helps, blamed on nobody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.incident import Blame, Symptom
from slurm_robust.wire.messages import Heartbeat, Phase, Shutdown
from tests.unit.engine.fake_job import Job
from tests.unit.engine.test_detection import alert

ACCOUNT = "srun: error: Unable to create step for job 7: Invalid account or account/partition combination"
NO_SLURMCTLD = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"
UNKNOWN = "srun: error: Unable to create step for job 7: Job credential expired"
DEAD_NODE = "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure"


class Unstarted(Job):
    """No agent comes from ``missing`` before the ``comes``-th start."""

    missing: tuple[str, ...] = ("n1", "n2", "n3")
    comes = 100

    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        starts = sum(node in nodes for nodes in self.started)
        if node not in self.missing or starts >= self.comes:
            super().join(node, agent, **changes)


class OneMissing(Unstarted):
    missing = ("n2",)


def test_a_step_that_slurm_refuses_ends_the_job_at_once_with_its_message() -> None:
    job = Unstarted()
    job.pass_time(1)
    job.step_ends("n1", "n2", "n3", message=ACCOUNT)
    job.until(lambda: job.code is not None, limit=5)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    (decided,) = job.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.blame is Blame.NOBODY
    assert ACCOUNT in decided.reason
    assert "sacctmgr show assoc" in decided.reason
    assert job.events(ev.NodeEvicted) == []
    assert len(job.started) == 1
    assert any(ACCOUNT in text for text in job.said)


def test_a_refusal_is_reported_at_once_also_while_slurm_does_not_say_how_the_nodes_are() -> None:
    job = Unstarted()
    job.slurm_answers = False
    job.step_ends("n1", "n2", "n3", message=ACCOUNT)
    job.until(lambda: job.code is not None, limit=5)
    assert "Slurm does not say" in job.events(ev.Decided)[0].reason


def test_a_slurmctld_that_restarts_is_waited_for() -> None:
    job = Unstarted()
    job.comes = 4
    for _ in range(3):
        starts = len(job.started)
        job.step_ends("n1", "n2", "n3", message=NO_SLURMCTLD)
        job.until(lambda starts=starts: len(job.started) > starts, limit=60)
    assert job.stage == "Running"
    assert job.events(ev.Decided) == []
    assert job.events(ev.IncidentOpened) == []
    assert any("Unable to contact slurm controller" in text for text in job.said)


def test_a_slurmctld_that_never_comes_back_ends_the_job_without_blame() -> None:
    job = Unstarted()
    while job.code is None and job.mono < 1000 + 1200:
        starts = len(job.started)
        job.step_ends("n1", "n2", "n3", message=NO_SLURMCTLD)
        job.until(lambda starts=starts: len(job.started) > starts or job.code is not None, limit=60)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.events(ev.NodeEvicted) == []
    assert 900 <= job.mono - 1000 < 1000


def test_a_node_that_slurm_calls_down_is_left_on_its_word() -> None:
    job = OneMissing()
    job.dead.add("n2")
    job.step_ends("n1", "n2", "n3", message=DEAD_NODE, code=233)
    for node in ("n1", "n3"):
        job.join(node)  # they are started again
    job.until(lambda: job.stage == "Running", limit=10)
    assert job.core.world.slots == ("n1", "n3")
    (decided,) = job.events(ev.Decided)
    assert "Slurm says DOWN" in decided.reason
    assert "Communication connection failure" in decided.reason


def test_a_silent_node_that_slurm_calls_well_gets_a_second_start() -> None:
    job = OneMissing()
    job.comes = 2
    job.until(lambda: job.stage == "Running", limit=90)
    assert job.core.world.slots == ("n1", "n2")
    assert job.events(ev.IncidentOpened) == []
    assert job.asked == [("n2",)]


def test_a_node_on_which_two_starts_show_nothing_is_replaced_with_little_confidence() -> None:
    job = OneMissing()
    job.until(lambda: job.stage == "Running", limit=180)
    assert job.core.world.slots == ("n1", "n3")
    (decided,) = job.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.confidence == 0.5
    assert "no agent has joined in 2 starts" in decided.reason
    assert "Slurm says ALLOCATED" in decided.reason


def test_where_no_agent_comes_at_all_it_is_not_the_nodes() -> None:
    job = Unstarted()
    job.until(lambda: job.code is not None, limit=700)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.events(ev.NodeEvicted) == []


def test_before_the_first_training_two_failures_that_name_no_cause_are_enough() -> None:
    job = Unstarted()
    for _ in range(2):
        job.step_ends("n1", "n2", "n3", message=UNKNOWN)
        job.pass_time(3)
    job.until(lambda: job.code is not None, limit=5)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert job.started == [("n1", "n2", "n3"), ("n1", "n2")]


class DeadAtTheStart(Job):
    """``out`` are dead, which Slurm does not know. An srun with one of them ends on all of its nodes (22.05).

    Other agents need ``start_s``.
    """

    out: tuple[str, ...] = ("n2",)
    fails_s = 5.0
    start_s = 10.0

    def __init__(self, **options: object) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        super().__init__(**options)

    def start_agents(self, nodes: tuple[str, ...], apart: tuple[str, ...]) -> None:
        together = tuple(node for node in nodes if node not in apart)
        for step in filter(None, (together, *((node,) for node in apart))):
            named = [node for node in step if node in self.out]
            if named:
                self.due.append((self.mono + self.fails_s, partial(self.fail, step, named)))
            if not named or self.start_s < self.fails_s:
                living = [node for node in step if node not in named]
                self.due += [(self.mono + self.start_s, partial(self.join, node)) for node in living]

    def fail(self, step: tuple[str, ...], named: list[str]) -> None:
        lines = [
            f"srun: error: Task launch for StepId=7.0 failed on node {node}: Communication connection failure"
            for node in named
        ]
        lines += [
            "srun: error: Application launch failed: Communication connection failure",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-28T22:08:04 ***",
            *(f"srun: error: {node}: task 0: Killed" for node in step if node not in named),
        ]
        self.step_ends(*step, message="\n".join(lines))
        for node in step:
            self.heartbeats.pop(node, None)

    def tick(self) -> None:
        due = [act for at, act in self.due if at <= self.mono]
        self.due = [(at, act) for at, act in self.due if at > self.mono]
        for act in due:
            act()
        super().tick()


def requeued(slots: tuple[str, ...]) -> tuple[ev.AnyEvent, ...]:
    """A training that had trained before this run."""
    before = Job(slots=slots, spares=())
    before.train_to(5)
    taken = ev.AllocationTaken(t=before.wall, restart_count=1, nodes=slots, slots=slots, spares=())
    return (*before.journal, ev.ControllerStarted(t=before.wall, epoch=2, host="n1", pid=2, port=1), taken)


def test_a_node_that_is_dead_at_the_start_ends_no_other_agent_a_second_time() -> None:
    job = DeadAtTheStart()
    job.until(lambda: job.stage == "Running", limit=60)
    assert job.core.world.slots == ("n1", "n3")
    assert [*job.core.state.evicted] == ["n2"]
    (decided,) = job.events(ev.Decided)
    assert "failed on node n2" in decided.reason


class QuickAgents(DeadAtTheStart):
    start_s = 1.0


def test_agents_that_joined_before_their_srun_ended_are_started_again_at_once() -> None:
    job = QuickAgents()
    job.until(lambda: job.stage == "Running", limit=30)
    assert job.core.world.slots == ("n1", "n3")
    assert [*job.core.state.evicted] == ["n2"]


class TwoDead(DeadAtTheStart):
    out = ("n2", "n4")


def test_several_dead_nodes_at_the_start_end_no_run() -> None:
    """Those that live are slower than Slurm is to find the dead ones, as on a busy machine."""
    job = TwoDead(slots=("n1", "n2", "n3", "n4"), spares=())
    job.until(lambda: bool(job.requeued), limit=60)
    assert job.requeued == [("n2", "n4")]
    assert job.events(ev.RunEnded) == []


def test_a_requeued_training_is_not_lost_to_a_node_that_dies_while_agents_start() -> None:
    job = DeadAtTheStart(slots=("n1", "n2"), spares=(), history=requeued(("n1", "n2")))
    job.until(lambda: bool(job.requeued), limit=60)
    assert job.requeued == [("n2",)]


def test_a_training_whose_agents_came_before_waits_for_what_keeps_all_of_them_away() -> None:
    """No cause is known, so it may pass: nothing that was computed is given up for it."""
    job = Unstarted(spares=(), history=requeued(("n1", "n2")))
    job.comes = 5
    for _ in range(4):
        starts = len(job.started)
        job.step_ends("n1", "n2", message=UNKNOWN)
        job.until(lambda starts=starts: len(job.started) > starts, limit=60)
    assert job.stage == "Running"
    assert job.events(ev.IncidentOpened) == []


def test_agents_that_cannot_start_are_not_waited_for_for_ever() -> None:
    job = Unstarted(spares=(), history=requeued(("n1", "n2")))
    while job.code is None and job.mono < 1000 + 1200:
        starts = len(job.started)
        job.step_ends("n1", "n2", message=UNKNOWN)
        job.until(lambda starts=starts: len(job.started) > starts or job.code is not None, limit=60)
    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert 900 <= job.mono - 1000 < 1000
    assert UNKNOWN in job.events(ev.RunEnded)[-1].reason


def test_of_two_agents_of_one_node_the_second_is_ordered_to_end() -> None:
    job = OneMissing()
    job.comes = 2
    job.until(lambda: job.stage == "Running", limit=90)
    late = Heartbeat(node="n2", agent="late", seq=0, epoch=1, phase=Phase.IDLE, ready=True)
    job.core.on_heartbeat(late, job.now())
    job.pass_time(2)
    assert job.stage == "Running"
    assert job.core.world.generation == 1
    ((agent, order),) = [(to, m) for to, m in job.sent if isinstance(m, Shutdown)]
    assert agent == "late"
    assert order.keep_copies


def test_an_agent_that_ended_is_started_again_once_and_its_node_is_not_blamed() -> None:
    killed = "srun: error: n2: task 1: Killed"
    job = Job()
    job.train_to(3)
    lost_peer = WorkerError(
        type="torch.distributed.DistBackendError",
        message="Connection closed by peer",
        file="train.py",
        line=3,
    )
    job.heartbeats.pop("n2")
    job.kill_rank(0, signal=None, code=1, error=lost_peer)
    job.pass_time(1)
    job.task_ends("n2", killed)
    job.until(lambda: bool(job.events(ev.Decided)))
    (opened,), (added,) = job.events(ev.IncidentOpened), job.events(ev.SymptomAdded)
    assert opened.symptom is Symptom.WORKER_EXIT  # not the user's exception
    assert (added.symptom, added.detail) == (Symptom.AGENTS_LOST, f"the agent on n2 ended ({killed})")
    (decided,) = job.events(ev.Decided)
    assert decided.verdict.blame is Blame.NOBODY
    assert decided.reason == f"the agent on n2 ended ({killed}): start the agent again and restart"
    job.until(lambda: job.core.world.generation == 2)
    assert (job.core.world.slots, job.core.state.evicted) == (("n1", "n2"), {})
    assert job.started[-1] == ("n2",)
    job.train_to(9)
    job.heartbeats.pop("n2")
    job.pass_time(1)
    job.task_ends("n2", killed)
    job.until(lambda: job.core.world.generation == 3)
    assert job.events(ev.IncidentOpened)[-1].symptom is Symptom.AGENTS_LOST
    assert job.core.state.evicted == {"n2": f"the agent on n2 ended again ({killed})"}


def test_no_silence_is_waited_for_where_slurm_says_that_the_agent_ended() -> None:
    job = Job()
    job.train_to(3)
    job.heartbeats.pop("n2")
    job.task_ends("n2", "srun: error: n2: task 1: Killed")
    began = job.now().mono
    job.until(lambda: bool(job.events(ev.Decided)))
    assert job.now().mono - began < job.core.config.timings.node_dead_s / 2


def test_a_node_whose_agent_ran_out_of_memory_is_not_the_one_to_blame() -> None:
    job = OneMissing()
    Job.join(job, "n2")
    job.train_to(3)
    job.heartbeats.pop("n2")
    job.task_ends("n2", "srun: error: n2: task 1: Out Of Memory")
    job.until(lambda: job.started[-1] == ("n2",))
    Job.join(job, "n2")
    job.pass_time(1)
    assert (job.stage, job.core.world.generation) == ("Running", 2)
    assert job.core.world.slots == ("n1", "n2")
    (decided,) = job.events(ev.Decided)
    assert "on n2: srun: error: n2: task 1: Out Of Memory: ask for more memory" in decided.reason
    assert job.events(ev.NodeEvicted) == []


def test_the_end_of_the_step_under_a_training_is_reported() -> None:
    job = Job()
    job.train_to(3)
    job.step_ends("n1", "n2", "n3", message="slurmstepd: error: *** STEP 7.0 CANCELLED ***", code=143)
    job.pass_time(1)
    assert job.stage == "Running"
    assert any("STEP 7.0 CANCELLED" in e.text for e in job.events(ev.Noted))


def trains() -> Job:
    job = Job()
    job.train_to(5)
    job.pass_time(1)
    return job


def test_a_dead_node_that_comes_back_ends_no_agent_of_the_others() -> None:
    job = trains()
    job.power_cut("n2")
    job.until(lambda: bool(job.events(ev.NodeEvicted)))
    assert job.let_go == ["n2"]


def test_a_dead_standby_that_comes_back_ends_no_agent_of_the_others() -> None:
    job = trains()
    job.power_cut("n3")
    job.until(lambda: bool(job.events(ev.SpareSetAside)))
    job.pass_time(10)
    assert job.let_go == ["n3"]


def test_the_srun_of_a_node_that_lives_is_kept() -> None:
    """It tells of the ends of its agents."""
    job = trains()
    job.change("n2", alerts=(alert(),))
    job.until(lambda: bool(job.events(ev.NodeEvicted)))
    assert job.let_go == []


class StandbyMissing(Unstarted):
    missing = ("n4",)


def test_an_srun_is_not_killed_while_it_starts_other_agents() -> None:
    job = StandbyMissing(spares=("n3", "n4"))
    job.train_to(5)
    job.power_cut("n3")
    job.until(lambda: any(e.node == "n3" for e in job.events(ev.SpareSetAside)))
    job.pass_time(5)
    assert job.let_go == []
    job.comes = 0
    job.join("n4")
    job.pass_time(1)
    assert job.let_go == ["n3"]
