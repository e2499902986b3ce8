"""The way out and back: the pure decision case by case, then whole stories over the fake."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from slurm_robust.slurm import errors
from slurm_robust.slurm.need import Need
from slurm_robust.slurm.records import SlurmJob, SlurmNode
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.requeue import RequeueOutcome, carry_out
from slurm_robust.slurm.requeue_plan import (
    Do,
    RequeueCommand,
    RequeueEnd,
    RequeueMemory,
    RequeueRequest,
    StageOutcome,
    Until,
    Wait,
    after,
    decide,
    newly_drained,
)
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from tests.builders import records
from tests.requeues import requeue_without, watch_until_running
from tests.there import there

ORDER = RequeueRequest(job_id=7, ending_run=0, exclude=("n2",))


def job(states: str, restarts: int = 0, **fields: object) -> SlurmJob:
    known: dict[str, object] = {"priority": 1000, "nodes": ("n1", "n2")}
    return records.job(states=frozenset(states.split("+")), restart_count=restarts, **{**known, **fields})


# What a process remembers that has seen the job pending for a while.
SETTLED = RequeueMemory(pending_for_s=10.0)
COMPLETING = job("COMPLETING", 1)
PENDING = job("PENDING", 1, reason="BeginTime", excluded_nodes=("n2",), nodes=())


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (job("RUNNING"), Do(stage=RequeueCommand.REQUEUE)),
        (COMPLETING, Do(stage=RequeueCommand.EXCLUDE, nodes=("n2",))),
        (
            msgspec.structs.replace(COMPLETING, excluded_nodes=("n9",)),
            Do(stage=RequeueCommand.EXCLUDE, nodes=("n9", "n2")),
        ),
        (
            msgspec.structs.replace(PENDING, required_nodes=("n1", "n2")),
            Do(stage=RequeueCommand.UNPIN, nodes=("n1",)),
        ),
        (
            msgspec.structs.replace(PENDING, priority=0, reason="job_requeued_in_held_state"),
            Do(stage=RequeueCommand.RELEASE),
        ),
        (
            msgspec.structs.replace(PENDING, priority=0, reason="launch_failed_requeued_held"),
            Do(stage=RequeueCommand.RELEASE),
        ),
        (
            msgspec.structs.replace(COMPLETING, excluded_nodes=("n2",)),
            Wait(why="the last run is still completing"),
        ),
        (PENDING, Do(stage=RequeueCommand.START)),
        (job("RUNNING", 1, nodes=("n1", "n3")), RequeueEnd(ok=True, why="running again on n[1,3]")),
        (job("COMPLETING", 0), Wait(why="the run is ending for another reason")),
        (job("STAGE_OUT", 0), Wait(why="the job is STAGE_OUT")),
    ],
)
def test_the_next_step_of_a_requeue_follows_from_what_slurm_shows(
    seen: SlurmJob, expected: Do | Wait | RequeueEnd
) -> None:
    assert decide(ORDER, seen, SETTLED) == expected


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (job("CANCELLED", 1), "has ended (CANCELLED)"),
        (job("COMPLETED", 0), "has ended (COMPLETED)"),
        (job("PENDING", 0), "PENDING in run 0 already"),
        (
            msgspec.structs.replace(PENDING, priority=0, reason="JobHeldUser"),
            "held (JobHeldUser): scontrol release 7",
        ),
        (msgspec.structs.replace(PENDING, priority=0, reason="JobHeldAdmin"), "only one can release it"),
        (msgspec.structs.replace(PENDING, priority=0, reason="BadConstraints"), "JobId=7 ExcNodeList="),
    ],
)
def test_a_job_that_has_ended_or_runs_again_is_left_alone(seen: SlurmJob, words: str) -> None:
    step = decide(ORDER, seen, RequeueMemory())
    assert isinstance(step, RequeueEnd)
    assert not step.ok
    assert words in step.why


def test_a_job_is_not_started_in_the_second_in_which_its_last_run_ended() -> None:
    """Slurm would refuse the credential and end the job as failed."""
    assert decide(ORDER, PENDING, RequeueMemory(pending_for_s=1.9)) == Wait(
        why="the last run has only just ended"
    )


def test_until_excluded_ends_before_the_job_is_pending() -> None:
    order = msgspec.structs.replace(ORDER, until=Until.EXCLUDED)
    step = decide(order, msgspec.structs.replace(COMPLETING, excluded_nodes=("n2",)), RequeueMemory())
    assert isinstance(step, RequeueEnd)
    assert step.ok


def test_while_slurm_takes_no_change_the_exclusion_is_left_to_the_watcher() -> None:
    refused = errors.UpdateUnavailable("Job update not available right now, the DB index is being set")
    memory = after(RequeueMemory(), Do(stage=RequeueCommand.EXCLUDE), refused)
    dying = msgspec.structs.replace(ORDER, until=Until.EXCLUDED)
    end = decide(dying, COMPLETING, memory)
    assert isinstance(end, RequeueEnd)
    assert end.ok
    watcher = msgspec.structs.replace(ORDER, may_requeue=False)
    assert decide(watcher, COMPLETING, RequeueMemory()) == Wait(why="the last run is still completing")
    ended = msgspec.structs.replace(PENDING, excluded_nodes=())
    assert decide(watcher, ended, SETTLED) == Do(stage=RequeueCommand.EXCLUDE, nodes=("n2",))


def test_what_slurm_refuses_for_good_is_not_tried_again() -> None:
    memory = after(RequeueMemory(), Do(stage=RequeueCommand.REQUEUE), errors.RequeueDisabled("disabled"))
    step = decide(ORDER, job("RUNNING"), memory)
    assert step == RequeueEnd(ok=False, why="Slurm does not requeue the job: disabled")
    memory = SETTLED
    for _ in range(5):
        memory = after(memory, Do(stage=RequeueCommand.EXCLUDE), errors.InvalidNode("Invalid node name"))
    # Better back with a bad node than not at all.
    assert decide(ORDER, msgspec.structs.replace(PENDING, excluded_nodes=()), memory) == Do(
        stage=RequeueCommand.START
    )


def test_a_pending_job_is_pointed_out_again_but_ever_more_rarely() -> None:
    waiting = msgspec.structs.replace(PENDING, reason="Resources")
    memory = SETTLED
    orders = []
    for look in range(200):
        step = decide(ORDER, waiting, memory)
        if isinstance(step, Do):
            orders.append(look)
            memory = after(memory, step, None)
        else:
            memory = msgspec.structs.replace(memory, waits=memory.waits + 1)
    assert orders == [0, 9, 26, 59, 124]


def test_silence_does_not_count_as_a_refusal() -> None:
    memory = RequeueMemory()
    for _ in range(100):
        memory = after(memory, Do(stage=RequeueCommand.REQUEUE), errors.ControllerUnreachable("down"))
    assert memory == RequeueMemory()


def test_newly_drained_are_only_those_of_failed_prologs() -> None:
    def node(name: str, reason: str) -> SlurmNode:
        return records.node("IDLE", "DRAIN", name=name, reason=reason)

    nodes = [node("n1", "Prolog error"), node("n2", "Prolog error"), node("n3", "broken fan")]
    assert newly_drained(frozenset({"n1"}), nodes) == ("n2",)


# -- stories ---------------------------------------------------------------------------------------


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


def started(slurm: FakeSlurm, nodes: int = 2, **fields: object) -> int:
    return slurm.submit(SubmitRequest(command=("train.sh",), nodes=nodes, **fields))


def told(into: list[StageOutcome]) -> Callable[[StageOutcome], None]:
    return into.append


@pytest.fixture
def job_id(slurm: FakeSlurm) -> int:
    return started(slurm)


def test_a_dying_controller_and_its_watcher(job_id: int, slurm: FakeSlurm) -> None:
    clock = slurm.cluster.clock
    begun = clock.now
    said: list[StageOutcome] = []
    first = requeue_without(slurm, job_id, ["n2"], clock=clock, report=told(said))
    assert first.ok
    assert clock.now == begun, "nothing to wait for before the batch script ends"
    rest = watch_until_running(slurm, job_id, exclude=["n2"], clock=clock, report=told(said))
    assert rest.ok
    assert there(rest.job).nodes == ("n1", "n3")
    assert clock.now - begun < 5
    assert [outcome.stage for outcome in said] == [
        RequeueCommand.REQUEUE,
        RequeueCommand.EXCLUDE,
        RequeueCommand.START,
    ]


@pytest.mark.parametrize(("known", "tried"), [(True, []), (False, [RequeueCommand.EXCLUDE])])
def test_where_slurm_takes_no_change_before_the_run_has_ended(
    job_id: int, slurm: FakeSlurm, known: bool, tried: list[RequeueCommand]
) -> None:
    slurm.cluster.slurmdbd = False
    slurm.shrink(job_id, ["n1"])
    clock, said = slurm.cluster.clock, []
    first = requeue_without(slurm, job_id, ["n2"], unavailable=known, clock=clock, report=told(said))
    assert first.ok
    assert [outcome.stage for outcome in said] == [RequeueCommand.REQUEUE, *tried]
    rest = watch_until_running(slurm, job_id, exclude=["n2"], clock=clock, report=told(said))
    assert rest.ok
    assert there(rest.job).excluded_nodes == ("n2",)


def test_a_watcher_waits_for_the_run_to_end_and_does_not_end_it(job_id: int, slurm: FakeSlurm) -> None:
    clock = slurm.cluster.clock
    end = clock.now + 20
    clock.on_advance.append(
        lambda now: slurm.requeue(job_id) if now >= end and slurm.job(job_id).restart_count == 0 else None
    )
    said: list[StageOutcome] = []
    outcome = watch_until_running(
        slurm, job_id, exclude=["n2"], until=Until.STARTED, clock=clock, report=told(said)
    )
    assert outcome.ok
    assert [o.stage for o in said] == [RequeueCommand.EXCLUDE, RequeueCommand.START]
    never = started(slurm, 1)
    outcome = watch_until_running(slurm, never, clock=clock, timeout_s=30)
    assert not outcome.ok
    assert "run 0 has not ended yet" in outcome.detail


def test_a_watcher_that_comes_too_late_does_nothing(job_id: int, slurm: FakeSlurm) -> None:
    slurm.requeue(job_id)
    slurm.cluster.clock.advance(200)
    said: list[StageOutcome] = []
    outcome = watch_until_running(slurm, job_id, exclude=["n2"], clock=slurm.cluster.clock, report=told(said))
    assert outcome.ok
    assert said == []


def test_a_pinned_job_drops_the_pin_of_the_bad_node(slurm: FakeSlurm) -> None:
    job_id = started(slurm, required_nodes=("n1", "n2"))
    outcome = requeue_without(slurm, job_id, ["n2"], until=Until.RUNNING, clock=slurm.cluster.clock)
    assert outcome.job is not None
    assert outcome.job.nodes == ("n1", "n3")
    assert outcome.job.required_nodes == ("n1",)


def test_failed_prologs_are_worked_around(job_id: int, slurm: FakeSlurm) -> None:
    slurm.requeue(job_id)
    slurm.cluster.failing_prologs.update({"n1", "n2"})
    outcome = watch_until_running(slurm, job_id, clock=slurm.cluster.clock)
    assert outcome.ok
    assert outcome.job is not None
    assert outcome.job.nodes == ("n3", "n4")
    assert set(outcome.job.excluded_nodes) == {"n1", "n2"}


def test_failing_prologs_are_not_worked_around_for_ever() -> None:
    slurm = FakeSlurm(FakeCluster([f"n{i}" for i in range(1, 9)]))
    job_id = started(slurm, 1)
    slurm.requeue(job_id)
    slurm.cluster.failing_prologs.update(slurm.cluster.nodes)
    outcome = watch_until_running(slurm, job_id, clock=slurm.cluster.clock)
    assert not outcome.ok
    assert "after 3 releases" in outcome.detail


def test_a_cancelled_job_is_not_revived(job_id: int, slurm: FakeSlurm) -> None:
    slurm.cancel(job_id)
    outcome = requeue_without(slurm, job_id, ["n2"], clock=slurm.cluster.clock)
    assert not outcome.ok
    assert slurm.job(job_id).is_finished


def test_slurm_away_for_a_while(job_id: int, slurm: FakeSlurm) -> None:
    clock = slurm.cluster.clock
    back = clock.now + 10
    slurm.cluster.unreachable = True
    clock.on_advance.append(lambda now: setattr(slurm.cluster, "unreachable", now < back))
    outcome = requeue_without(slurm, job_id, ["n2"], clock=clock, timeout_s=30)
    assert outcome.ok
    assert clock.now >= back


def test_slurm_away_for_good(job_id: int, slurm: FakeSlurm) -> None:
    slurm.cluster.unreachable = True
    outcome = requeue_without(slurm, job_id, [], clock=slurm.cluster.clock, timeout_s=5)
    assert not outcome.ok
    assert not outcome.final
    assert "not done within 5 s" in outcome.detail
    assert "Unable to contact" in outcome.detail


def test_no_requeue_and_no_job(slurm: FakeSlurm) -> None:
    clock = slurm.cluster.clock
    job_id = started(slurm, requeue=False)
    said: list[StageOutcome] = []
    outcome = requeue_without(slurm, job_id, [], clock=clock, report=told(said))
    assert not outcome.ok
    assert outcome.final
    assert [(o.stage, o.ok) for o in said] == [(RequeueCommand.REQUEUE, False)]
    assert not requeue_without(slurm, 99, [], clock=clock).ok


def test_a_job_that_an_administrator_holds_is_requeued_all_the_same(job_id: int, slurm: FakeSlurm) -> None:
    slurm.cluster.put(slurm.job(job_id), priority=0, reason="JobHeldAdmin")
    outcome = requeue_without(slurm, job_id, ["n2"], clock=slurm.cluster.clock)
    assert outcome.ok
    assert outcome.detail.startswith("an administrator holds it (JobHeldAdmin)")
    assert there(outcome.job).excluded_nodes == ("n2",)


def test_an_expedited_job_needs_nobody_who_watches(slurm: FakeSlurm) -> None:
    job_id = started(slurm, options=("--requeue=expedite",))
    clock = slurm.cluster.clock
    assert requeue_without(slurm, job_id, ["n2"], clock=clock).ok
    clock.advance(slurm.cluster.completing_s)
    assert slurm.job(job_id).nodes == ("n1", "n3")


def test_an_unknown_node_does_not_keep_the_job_away(job_id: int, slurm: FakeSlurm) -> None:
    outcome = requeue_without(
        slurm, job_id, ["gone"], until=Until.RUNNING, clock=slurm.cluster.clock, timeout_s=60
    )
    assert outcome.ok


# -- what it asks for --------------------------------------------------------------------------------

SLOTS_AND_SPARE = Need(least=4, most=5)


def six_nodes(*dead: str) -> FakeSlurm:
    slurm = FakeSlurm(FakeCluster([f"n{i}" for i in range(1, 7)]))
    for name in dead:
        power_cut(slurm, name)
    return slurm


def power_cut(slurm: FakeSlurm, name: str) -> None:
    states = slurm.cluster.nodes[name].states | {"NOT_RESPONDING"}
    slurm.cluster.set_node(name, states=frozenset(states))


def shrunk_and_requeued(slurm: FakeSlurm, *exclude: str, need: Need | None = SLOTS_AND_SPARE) -> SlurmJob:
    """A job of five nodes loses those in ``exclude`` and comes back."""
    job_id, clock = started(slurm, 5), slurm.cluster.clock
    for name in exclude:
        power_cut(slurm, name)
    slurm.shrink(job_id, [node for node in slurm.job(job_id).nodes if node not in exclude])
    order = RequeueRequest(job_id=job_id, ending_run=0, exclude=exclude, need=need)
    done = carry_out(slurm, order, timeout_s=60, clock=clock)
    return done.job if done.ok and done.job is not None else slurm.job(job_id)


def test_a_shrunk_job_does_not_wait_for_a_spare() -> None:
    slurm = six_nodes("n6")
    back = shrunk_and_requeued(slurm, "n2")
    assert back.nodes == ("n1", "n3", "n4", "n5")
    assert shrunk_and_requeued(six_nodes("n6"), "n2", need=None).is_pending, "as before"


def test_a_shrunk_job_takes_a_spare_that_is_there() -> None:
    assert shrunk_and_requeued(six_nodes(), "n2").nodes == ("n1", "n3", "n4", "n5", "n6")


def test_nothing_but_two_power_cuts() -> None:
    assert shrunk_and_requeued(six_nodes(), "n2", "n3").nodes == ("n1", "n4", "n5", "n6")


def test_a_living_suspect_is_used_again_before_a_dead_node_is_waited_for() -> None:
    """Also if Slurm notices only later that a node is dead."""
    slurm = six_nodes("n6")
    job_id, clock = started(slurm, 5), slurm.cluster.clock
    order = RequeueRequest(
        job_id=job_id, ending_run=0, exclude=("n5",), need=SLOTS_AND_SPARE, until=Until.EXCLUDED
    )
    assert carry_out(slurm, order, timeout_s=20, clock=clock).ok
    assert slurm.job(job_id).excluded_nodes == ("n5",)
    power_cut(slurm, "n2")
    watcher = msgspec.structs.replace(order, until=Until.RUNNING, may_requeue=False)
    done = carry_out(slurm, watcher, timeout_s=60, clock=clock)
    assert there(done.job).nodes == ("n1", "n3", "n4", "n5")


def test_what_the_owner_changes_meanwhile_is_left_alone() -> None:
    slurm = six_nodes()
    started(slurm, 3, required_nodes=("n4", "n5", "n6"))
    job_id, clock, said = started(slurm, 3), slurm.cluster.clock, []
    changed = clock.now + 20

    def by_hand(now: float) -> None:
        if now >= changed and slurm.job(job_id).excluded_nodes:
            slurm.set_excluded_nodes(job_id, [])

    clock.on_advance.append(by_hand)
    order = RequeueRequest(job_id=job_id, ending_run=0, exclude=("n3",), need=Need(least=3, most=3))
    done = carry_out(slurm, order, timeout_s=60, clock=clock, report=told(said))
    assert done.ok
    assert there(done.job).nodes == ("n1", "n2", "n3")
    assert [outcome.stage for outcome in said].count(RequeueCommand.EXCLUDE) == 1


# -- nodes that alone have the newest step -----------------------------------------------------------


def asked_by_name(slurm: FakeSlurm, **fields: object) -> tuple[RequeueOutcome, list[StageOutcome], float]:
    job_id, clock, said = started(slurm, 2), slurm.cluster.clock, []
    begun = clock.now
    order = RequeueRequest(
        job_id=job_id, ending_run=0, need=Need(least=2, most=2), holders=("n3", "n4"), **fields
    )
    done = carry_out(slurm, order, timeout_s=200, clock=clock, report=told(said))
    return done, said, clock.now - begun


def test_nodes_that_are_rebooting_are_asked_for_by_name(slurm: FakeSlurm) -> None:
    done, said, took_s = asked_by_name(slurm)
    assert there(done.job).nodes == ("n3", "n4")
    assert [outcome.stage for outcome in said][-2:] == [RequeueCommand.PIN, RequeueCommand.START]
    assert took_s < 10


def test_other_nodes_are_taken_if_the_named_ones_do_not_come_in_a_minute(slurm: FakeSlurm) -> None:
    power_cut(slurm, "n4")
    done, said, took_s = asked_by_name(slurm)
    assert there(done.job).nodes == ("n1", "n2")
    assert RequeueCommand.PIN not in [outcome.stage for outcome in said], (
        "else a job would wait for a dead node"
    )
    assert 60 <= took_s < 75


def test_a_job_with_segments_asks_for_no_node_by_name(slurm: FakeSlurm) -> None:
    job_id, clock, said = started(slurm, 2), slurm.cluster.clock, []
    need = Need(least=2, most=2, segment=1)
    order = RequeueRequest(job_id=job_id, ending_run=0, need=need, holders=("n4",))
    begun = clock.now
    done = carry_out(slurm, order, timeout_s=200, clock=clock, report=told(said))
    assert there(done.job).nodes == ("n1", "n2")
    assert RequeueCommand.PIN not in [outcome.stage for outcome in said]
    assert clock.now - begun < 10, "nor does it wait for it"


def test_the_next_requeue_does_not_ask_for_them_again(slurm: FakeSlurm) -> None:
    job_id = started(slurm, 2, required_nodes=("n1", "n2"))
    order = RequeueRequest(job_id=job_id, ending_run=0, pins=("n2", "n3"))
    done = carry_out(slurm, order, timeout_s=60, clock=slurm.cluster.clock)
    assert done.ok
    assert there(done.job).required_nodes == ("n1",)
