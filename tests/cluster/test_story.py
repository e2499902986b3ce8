"""The story of one training in ten jobs, as people and clusters end them: no step is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, STEP_S = 400, 0.2
SITE = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=urgent Nodes=ALL PriorityTier=100 State=UP",
)


class Story:
    """One training and its jobs."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.jobs: list[ProtectedJob] = []
        self.out = sandbox.home(USER) / "story.sha"

    def submit(self, nodes: int, *sbatch: str, spares: int = 0, words: str = "") -> ProtectedJob:
        """The next job of the training."""
        options = f"--training story --spares {spares} story.py --out {self.out.name} --steps {STEPS}"
        job = ProtectedJob(
            self.sandbox, f"{options} --step-s {STEP_S} {words}", nodes=nodes, sbatch=("--requeue", *sbatch)
        )
        self.jobs.append(job)
        return job

    def begin(self, nodes: int, *sbatch: str, spares: int = 0, words: str = "") -> ProtectedJob:
        """The next job, once it has done ten steps more than the one before."""
        wanted = self.newest_step() + 10
        job = self.submit(nodes, *sbatch, spares=spares, words=words)
        job.wait_step(wanted)
        return job

    def newest_step(self) -> int:
        return max((job.step() for job in self.jobs), default=-1)

    def cancel(self, job: ProtectedJob) -> None:
        self.sandbox.exec(["scancel", str(job.id)], user=USER, check=True)
        job.wait(lambda: job.slurm_state() in ("CANCELLED", ""), 90, "its end")

    def repair(self, *nodes: str) -> None:
        """Power nodes on, and have Slurm use them again, as an administrator does."""
        for node in nodes:
            self.sandbox.fault.boot(node)
        update = ["scontrol", "update", f"nodename={','.join(nodes)}", "state=resume"]
        self.sandbox.exec(update, user="root")

    def done(self) -> Counter[int]:
        """How often each step was done, by the output of rank 0 in all jobs."""
        logs = [path for job in self.jobs for path in job.folder.glob("logs/gen-*/rank-00000.out")]
        lines = [line for path in logs for line in path.read_text().splitlines()]
        return Counter(int(line.split()[1]) for line in lines if line.startswith("step "))


def test_a_training_lives_through_ten_jobs(sandboxes: Callable[..., Sandbox]) -> None:
    sandbox = sandboxes(nodes=6, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=SITE)
    story = Story(sandbox)

    cancelled = story.begin(4)
    story.cancel(cancelled)

    bug = sandbox.home(USER) / "bug"
    wrong = story.begin(3, words="--bug bug")
    bug.touch()
    assert wrong.wait_end() == ExitCode.DO_NOT_REQUEUE, wrong.log
    bug.unlink()

    at_once = story.submit(5, words="--bug bug")
    at_once.wait(lambda: at_once.events(ev.GenerationLaunched), 60, "the launch")
    story.cancel(at_once)

    preempted = story.begin(5)
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=6", "--exclusive", "--output=/dev/null"]
    done = sandbox.exec([*urgent, "--wrap=sleep 5"], user="bob", check=True)
    assert done.stdout.strip().isdigit()
    preempted.wait(lambda: preempted.state.restart_count == 1, 120, "the run after the preemption")
    assert preempted.events(ev.IncidentOpened) == []
    preempted.wait_step(story.newest_step() + 10)
    story.cancel(preempted)

    # Slurm warns up to a minute early.
    limited = story.submit(4, "--time=3", "--signal=B:USR1@90", words="--step-s 0.5")
    limited.wait(lambda: limited.state.restart_count == 1, 180, "the run after the time limit")
    limited.wait_step(story.newest_step() + 10)
    maintenance = ["scontrol", "create", "reservation", "reservationname=maintenance", "starttime=now"]
    maintenance += ["duration=60", "nodes=ALL", "users=root", "flags=maint,ignore_jobs"]
    sandbox.exec(maintenance, user="root", check=True)
    story.cancel(limited)

    after = story.submit(4, spares=1)
    after.wait(lambda: after.slurm_state() == "PENDING", 30, "the job waits for the end of the maintenance")
    sandbox.exec(["scontrol", "delete", "reservation=maintenance"], user="root", check=True)
    after.wait_step(story.newest_step() + 10)
    lost = after.state.world.slots[1]
    sandbox.fault.power_cut(lost)
    after.wait_recovered(1)
    again = after.state.world.slots[2]
    sandbox.fault.power_cut(again)
    after.wait(lambda: after.state.restart_count == 1, 180, "the run without the dead nodes")
    after.wait_step(story.newest_step() + 10)
    story.cancel(after)
    story.repair(lost, again)

    moved = story.begin(3)
    (first,) = {e.host for e in moved.events(ev.ControllerStarted)}
    sandbox.fault.power_cut(first)
    moved.wait_step(story.newest_step() + 10, 180)
    story.cancel(moved)
    story.repair(first)

    killed = story.begin(4)
    sandbox.fault.kill_rank(killed.id, 1)
    killed.wait_recovered(1)
    story.cancel(killed)

    last = story.submit(4, words="--step-s 0.02")
    assert last.wait_end(300) == 0, last.log
    assert story.out.read_text() == undisturbed(4, f"story.py --out OUT --steps {STEPS} --step-s 0")
    done_often = story.done()
    assert sorted(done_often) == list(range(STEPS))
    assert done_often.total() - STEPS <= 20

    finished = story.submit(4)
    finished.wait(lambda: finished.slurm_state() in ("COMPLETED", ""), 60, "its end")
    assert story.done() == done_often
