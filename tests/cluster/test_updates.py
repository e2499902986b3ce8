"""Code changes while a job trains: what is fine stays, what is not goes back, and no step is lost.

The tests of a job run in their order, one update after the other. Whatever they do, its final weights are
those of a run in which the same releases had the same steps.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.incident import RollBack
from slurm_robust.model.release import ReleaseState, UpdateEnd
from slurm_robust.sandbox import Sandbox, SandboxError
from tests.cluster.protected_job import MADE, USER, find_process
from tests.cluster.released_job import GOOD_STEPS, ReleasedJob, variant
from tests.conftest import SandboxPool

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LOCAL_MODULES = "/tmp/local_modules"
AGENT = "^[^ ]*python[^ ]* .*slurm_robust[.]agent --job-dir"  # not the srun that started it
MAX_KILLED = 4  # controllers: the sixth that is killed within ten minutes ends the job


@pytest.fixture(autouse=True)
def _a_good_release_runs(request: pytest.FixtureRequest) -> None:
    """Each test of a job begins so."""
    for name in {"job", "fragile"} & {*request.fixturenames}:
        job: ReleasedJob = request.getfixturevalue(name)
        if job not in MADE:
            MADE.append(job)
        job.wait(lambda: job.state.last_good and not job.state.candidate, 120, "a good release")  # noqa: B023


def told_of(job: ReleasedJob, *words: str) -> str:
    """What ``srobust incident`` says of the last one; it has all ``words``."""
    number = job.events(ev.IncidentOpened)[-1].incident
    said = job.srobust("incident", str(number)).stdout
    assert [word for word in words if word not in said] == []
    return said


def rolled_back(job: ReleasedJob, text: str) -> None:
    """Apply a release that is bad: training goes on with the one before, from the step before the update."""
    before, incidents = job.state.release, len(job.events(ev.IncidentClosed))
    job.update(text)
    applied = job.events(ev.UpdateApplied)[-1]
    assert applied.before == before
    job.lost_nothing(applied)
    job.wait_recovered(incidents + 1)
    actions = [action for event in job.events(ev.Decided) for action in event.actions]
    back = [action for action in actions if isinstance(action, RollBack)][-1]
    assert (back.release, back.to, back.step) == (applied.release, before, applied.step)
    assert job.state.releases[applied.release] is ReleaseState.BAD
    launched = job.events(ev.GenerationLaunched)[-1]
    assert (launched.release, launched.restore_step) == (before, applied.step)


# -- one job, each kind of update --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(shared_sandbox: Sandbox) -> ReleasedJob:
    """Two ranks and a standby, of which each can import what is in its own ``LOCAL_MODULES``."""
    before = f"export PYTHONPATH={LOCAL_MODULES}"
    return ReleasedJob(shared_sandbox, nodes=3, options="--spares 1", before=before)


def test_an_update_that_is_fine_is_applied_at_the_next_step_and_becomes_good(job: ReleasedJob) -> None:
    slots = job.state.world.slots
    done = job.update(variant(1.5), "--now", "--message", "half as much again")
    assert done.returncode == 0
    applied = job.wait_applied(1)
    job.lost_nothing(applied)
    (requested,) = job.events(ev.UpdateRequested)
    assert (requested.by.user, requested.message) == (USER, "half as much again")
    assert any("variant.py" in line for line in requested.changes)
    job.wait(lambda: job.state.last_good == applied.release, 60, "a good release")
    assert (job.state.world.slots, job.events(ev.IncidentOpened)) == (slots, [])
    listed = job.srobust("releases").stdout
    assert applied.release in listed
    assert "half as much again" in listed


def test_an_update_that_does_not_compile_is_refused_with_its_line(job: ReleasedJob) -> None:
    release = job.state.release
    done = job.update("WEIGHT = = 2.0\n")
    assert done.returncode != 0
    assert "variant.py" in done.stderr
    assert "WEIGHT = = 2.0" in done.stderr
    assert (job.state.release, job.state.update) == (release, None)


def test_an_update_that_one_node_cannot_import_is_refused_and_names_the_node(job: ReleasedJob) -> None:
    lacks = job.state.world.slots[1]
    made = f"mkdir -p {LOCAL_MODULES} && touch {LOCAL_MODULES}/only_elsewhere.py"
    for node in {*job.state.world.slots, *job.state.spares} - {lacks}:
        job.sandbox.exec(["bash", "-c", made], node=node, user=USER, check=True)
    generation, step = job.state.world.generation, job.step()
    done = job.update(variant(2.0, first="import only_elsewhere"))
    assert done.returncode != 0
    assert lacks in done.stdout
    assert "only_elsewhere" in done.stdout
    tried = job.events(ev.UpdateTried)[-1]
    assert (tried.ok, tried.node) == (False, lacks)
    assert job.wait_ended(tried.update).how is UpdateEnd.REFUSED
    job.wait_step(step + 5)
    assert job.state.world.generation == generation


def test_an_update_that_fails_in_its_first_step_is_refused_with_its_traceback(job: ReleasedJob) -> None:
    generation = job.state.world.generation
    done = job.update(variant(2.0, spoil="raise ValueError('a bug of the first step')"))
    assert done.returncode != 0
    assert "a bug of the first step" in done.stdout
    assert "variant.py" in done.stdout
    assert job.wait_ended(job.events(ev.UpdateTried)[-1].update).how is UpdateEnd.REFUSED
    assert job.state.world.generation == generation


def test_a_requeued_run_keeps_its_release_until_it_takes_the_update_that_waits(job: ReleasedJob) -> None:
    release = job.state.release
    assert job.update(variant(3.0), "--lazy").returncode == 0
    waits = job.state.update
    assert waits is not None
    job.write(variant(9.0))  # nobody asks for it
    requeue(job)
    assert f"differs from release {release}" in job.log
    applied = job.events(ev.UpdateApplied)[-1]
    assert (applied.update, applied.before) == (waits.update, release)
    assert job.events(ev.GenerationLaunched)[-1].release == waits.release


def test_the_final_weights_are_those_of_the_same_releases_at_the_same_steps(job: ReleasedJob) -> None:
    assert job.finish() == 0
    job.assert_bitwise()
    job.assert_nothing_left()


def requeue(job: ReleasedJob) -> None:
    """As at its time limit."""
    runs, launches = job.state.restart_count, len(job.events(ev.GenerationLaunched))
    job.sandbox.exec(["scancel", "--batch", "--signal=USR1", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.state.restart_count > runs, 120, "next run of the job")
    job.wait(lambda: len(job.events(ev.GenerationLaunched)) > launches, 60, "launch")


# -- one job, updates amid faults --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile(shared_sandbox: Sandbox, sandbox_pool: SandboxPool) -> ReleasedJob:
    """Two ranks and two standbys, after the job above; releases are not tried."""
    sandbox = sandbox_pool.get(shared_sandbox.config)
    return ReleasedJob(sandbox, nodes=4, options="--spares 2 --set updates.trial=false", step_s=0.1)


def test_an_update_that_crashes_after_40_steps_is_rolled_back(fragile: ReleasedJob) -> None:
    assert GOOD_STEPS > 40
    rolled_back(fragile, variant(2.0, spoil="assert done < 40 or rank, 'a bug of step 40'"))
    told_of(fragile, "a bug of step 40", "variant.py")


def test_an_update_that_makes_nan_is_rolled_back(fragile: ReleasedJob) -> None:
    rolled_back(fragile, variant(2.0, spoil="loss = loss * float('nan') if done > 3 else loss"))


def test_an_update_that_hangs_is_rolled_back(fragile: ReleasedJob) -> None:
    hang = "time.sleep(3600) if done == 4 and rank == 1 else None"
    rolled_back(fragile, variant(2.0, first="import time", spoil=hang))


def test_an_update_that_is_three_times_slower_is_rolled_back(fragile: ReleasedJob) -> None:
    rolled_back(fragile, variant(2.0, first="import time", spoil="time.sleep(0.15)"))


def test_an_update_whose_optimizer_has_another_shape_does_not_stay(fragile: ReleasedJob) -> None:
    release = fragile.state.release
    text = variant(2.0).replace(
        "AdamW(model.parameters())", "AdamW([{'params': [p]} for p in model.parameters()])"
    )
    fragile.update(text)
    fragile.wait(
        lambda: fragile.state.update is None and fragile.state.release == release, 90, "the way back"
    )
    fragile.wait_step(fragile.step() + 5)


def test_a_rollback_can_be_rolled_back(fragile: ReleasedJob) -> None:
    first = fragile.state.release
    assert fragile.update(variant(2.5)).returncode == 0
    second = fragile.state.release
    assert second != first
    assert fragile.srobust("rollback").returncode == 0
    assert (fragile.state.release, fragile.state.candidate) == (first, None)
    assert fragile.srobust("rollback", second).returncode == 0
    assert fragile.state.release == second
    for applied in fragile.events(ev.UpdateApplied)[-3:]:
        fragile.lost_nothing(applied)
    fragile.wait(lambda: fragile.state.last_good == second, 60, "a good release")


def test_an_update_while_the_controller_is_dead_is_applied_by_the_next_one(fragile: ReleasedJob) -> None:
    epoch = fragile.state.epoch
    kill_controller(fragile)
    assert fragile.update(variant(1.5)).returncode == 0
    assert fragile.state.epoch > epoch
    fragile.lost_nothing(fragile.events(ev.UpdateApplied)[-1])
    fragile.wait(lambda: not fragile.state.candidate, 60, "a good release")


def test_an_update_that_cannot_be_tried_and_fails_in_its_first_step_is_rolled_back(
    fragile: ReleasedJob,
) -> None:
    rolled_back(fragile, variant(2.0, spoil="raise ValueError('a bug of the first step')"))
    told_of(fragile, "a bug of the first step")


def test_an_update_during_a_recovery_is_applied(fragile: ReleasedJob) -> None:
    incidents, updates = len(fragile.events(ev.IncidentClosed)), len(fragile.events(ev.UpdateApplied))
    fragile.sandbox.fault.kill_rank(fragile.id, 1)
    assert fragile.update(variant(2.0)).returncode == 0
    assert len(fragile.events(ev.UpdateApplied)) == updates + 1
    fragile.wait_recovered(incidents + 1)


def test_the_loss_of_a_node_takes_the_update_that_waits_along(fragile: ReleasedJob) -> None:
    assert fragile.update(variant(2.5), "--lazy").returncode == 0
    waits, lost = fragile.state.update, fragile.state.world.slots[1]
    assert waits is not None
    assert lost != fragile.state.own_node
    fragile.sandbox.fault.power_cut(lost)
    applied = fragile.wait_applied(waits.update)
    assert (applied.recovery, applied.release) == (True, waits.release)
    assert lost not in fragile.launched_after(applied).slots
    assert applied.checkpoint is not None
    assert applied.step - applied.checkpoint.step <= 1


def test_an_update_during_a_takeover_is_applied_by_the_controller_that_took_over(
    fragile: ReleasedJob,
) -> None:
    host = fragile.state.own_node
    fragile.sandbox.fault.power_cut(host)
    assert fragile.update(variant(3.0)).returncode == 0
    assert fragile.state.own_node != host
    assert host not in fragile.state.world.slots


def test_the_weights_after_updates_amid_faults_are_those_of_the_same_releases(fragile: ReleasedJob) -> None:
    fragile.finish()
    fragile.assert_bitwise()


def kill_controller(job: ReleasedJob) -> None:
    os.kill(find_process(job.sandbox, job.state.own_node, "-m", "slurm_robust.controller"), signal.SIGKILL)


# -- updates and faults as they come -----------------------------------------------------------------------


class Storm:
    """Updates and faults in an order that a seed decides, one after the other."""

    def __init__(self, job: ReleasedJob, seed: int) -> None:
        self._job = job
        self._random = random.Random(seed)
        self._weight = 1.0
        self._killed = 0

    def update(self) -> None:
        """One update, most often with a fault just before or after it; returns when it is over."""
        job = self._job
        first = len(job.events(ev.UpdateRequested))
        doing = self._random.choice((self._fine, self._fine, self._lazy, self._bad, self._back))
        fault = self._random.choice((self._nothing, self._kill_rank, self._kill_controller, self._kill_agent))
        print(f"update {first + 1}: {doing.__name__}, {fault.__name__}")
        if self._random.random() < 0.5 and doing != self._lazy:
            fault()
            doing()
        else:
            doing()
            fault()
        job.wait(lambda: job.state.update is None, 120, "the end of the update")
        step = job.step()
        job.wait_step(step + 2 + self._random.randrange(10))

    def _next(self) -> float:
        self._weight += 0.25
        return self._weight

    def _fine(self) -> None:
        self._job.update(variant(self._next()))

    def _lazy(self) -> None:
        self._job.update(variant(self._next()), "--lazy", "--deadline", "5s")

    def _bad(self) -> None:
        self._job.update(variant(self._next(), spoil="assert done < 7, 'a bug of step 7'"))

    def _back(self) -> None:
        self._job.srobust("rollback")

    def _nothing(self) -> None:
        pass

    def _kill_rank(self) -> None:
        rank = self._random.randrange(2)
        self._kill(lambda: self._job.sandbox.fault.kill_rank(self._job.id, rank))

    def _kill_controller(self) -> None:
        self._killed += 1
        if self._killed > MAX_KILLED:
            self._kill_rank()
        else:
            self._kill(lambda: kill_controller(self._job))

    def _kill_agent(self) -> None:
        node = self._random.choice(self._job.state.world.slots)
        kill = ["pkill", "-9", "-f", AGENT]
        self._kill(lambda: self._job.sandbox.exec(kill, node=node, user="root", check=True))

    def _kill(self, kill: Callable[[], object]) -> None:
        """What is to be killed may just be starting again."""

        def done() -> bool:
            try:
                kill()
            except (SandboxError, ValueError):
                return False
            return True

        self._job.wait(done, 60, "somebody to kill")


@pytest.mark.parametrize(
    ("updates", "seed"), [(5, 1), pytest.param(20, 2, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_updates_and_faults_mixed_leave_the_weights_of_the_same_releases(
    sandbox: Sandbox, updates: int, seed: int
) -> None:
    job = ReleasedJob(sandbox, nodes=3, options="--spares 1 --set updates.trial=false")
    job.wait_step(10)
    storm = Storm(job, seed)
    for _ in range(updates):
        storm.update()
    assert job.finish() == 0
    assert len(job.events(ev.UpdateRequested)) >= updates / 2  # a way back needs a good release
    job.assert_bitwise()
