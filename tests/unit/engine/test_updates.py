"""Updates of a job's code: asked for, tried, applied behind a step that all ranks have kept."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from slurm_robust.config.job import JobConfig, StandbyConfig, UpdateConfig
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Blame, RollBack
from slurm_robust.model.release import ReleaseState, Requester, UpdateEnd, When
from slurm_robust.model.standby import StandbyStage
from slurm_robust.testing.sim.environment import SimulatedRelease
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Launch, Rehearse, TryRelease, UpdateJob
from slurm_robust.wire.protocol import PROTOCOL
from tests.unit.engine.stories import (
    PACE,
    blames_no_node,
    evicted,
    gets_on,
    launched,
    next_controller,
    node_tests,
    opened,
    orders,
    restored,
    sent,
    trained,
)

FIRST, SECOND, THIRD = "a" * 12, "b" * 12, "c" * 12
UNTRIED = JobConfig(updates=UpdateConfig(good_steps=40, trial=False))
QUICK = JobConfig(updates=UpdateConfig(good_steps=40), standby=StandbyConfig(test_s=0))


NO_TRIAL = structs.replace(QUICK, updates=UNTRIED.updates)


def job(nodes: int = 2, spares: int = 0, *, config: JobConfig = QUICK, **more: Any) -> Sim:
    """A job whose first release is good, and which has two more."""
    sim = trained(nodes, spares, to=more.pop("to", 45), config=config, release=FIRST, **more)
    for name in (SECOND, THIRD):
        sim.has_release(name)
    return sim


def applied(sim: Sim) -> list[tuple[int, str, bool]]:
    """The updates that were applied: number, release, and whether a recovery took it along."""
    return [(e.update, e.release, e.recovery) for e in sim.events(ev.UpdateApplied)]


def ends(sim: Sim) -> list[tuple[int, UpdateEnd]]:
    """The updates that were not."""
    return [(e.update, e.how) for e in sim.events(ev.UpdateEnded)]


def tried(sim: Sim) -> ev.UpdateTried:
    """The newest trial."""
    return sim.events(ev.UpdateTried)[-1]


def is_applied(sim: Sim, number: int = 1, within_s: float = 120.0) -> None:
    """The update is applied, and the next generation trains."""
    sim.run_until(lambda: number in [update for update, _, _ in applied(sim)], within_s)
    gets_on(sim, launched(sim).generation)


def is_tried(sim: Sim, within_s: float = 120.0) -> ev.UpdateTried:
    before = len(sim.events(ev.UpdateTried))
    sim.run_until(lambda: len(sim.events(ev.UpdateTried)) > before, within_s)
    return tried(sim)


# -- what the owner asks for -----------------------------------------------------------------------------


def test_the_first_release_is_good_after_its_steps() -> None:
    sim = job()
    (judged,) = sim.events(ev.ReleaseProven)
    assert judged.release == FIRST
    assert sim.state.releases == {FIRST: ReleaseState.GOOD}
    assert sim.state.last_good == FIRST
    assert launched(sim).release == FIRST
    assert {order.release for order in orders(sim, Launch).values()} == {FIRST}


def test_an_update_is_accepted_and_who_asks_again_gets_the_same_answer() -> None:
    sim = job()
    token = sim.update(SECOND)
    reply = sim.reply(token)
    assert (reply.ok, reply.update) == (True, 1)
    (asked,) = sim.events(ev.UpdateRequested)
    assert (asked.release, asked.by.user, asked.deadline) == (SECOND, "ada", None)
    assert [e.release.name for e in sim.events(ev.ReleaseTaken)] == [FIRST, SECOND]
    is_applied(sim)
    sim.env.answers.clear()
    sim.controller_dies()
    sim.run_until(lambda: sim.controller is not None, within_s=10.0)
    sim.ask_update(UpdateJob(release=SECOND, when=When.NOW, by=Requester(user="ada", uid=1000), token=token))
    again = sim.reply(token)
    assert (again.ok, again.update) == (True, 1)
    assert len(sim.events(ev.UpdateRequested)) == 1


def test_an_update_where_a_node_keeps_nothing_in_memory_goes_on_from_a_step_that_all_have_written() -> None:
    sim = job()
    sim.nodes["n2"].unkept = "the file system of /dev/shm has 3.1 MB free of 2.1 GB"
    sim.run(3.0)
    sim.reply(sim.update(SECOND))
    is_applied(sim)
    asked = [event.step for event in sim.events(ev.CheckpointRequested)]
    restored = launched(sim).restore
    assert restored is not None
    assert (restored.step, launched(sim).tiers) == (asked[-1], {"storage": 2})


def test_what_cannot_be_updated_is_refused_with_the_reason_and_the_fix() -> None:
    sim = job()
    running = sim.reply(sim.update(FIRST))
    assert (running.ok, running.text) == (False, f"release {FIRST} runs already")
    unknown = sim.reply(sim.update("d" * 12))
    assert not unknown.ok
    assert "cannot be read" in unknown.text
    assert not sim.reply(sim.update("../../etc")).ok
    sim.nodes["n2"].protocol = PROTOCOL - 1
    sim.nodes["n2"].agents[next(iter(sim.nodes["n2"].agents))].beat()
    sim.run(3.0)
    older = sim.reply(sim.update(SECOND))
    assert (older.ok, older.text) == (
        False,
        "the agents on n2 are of an older version and know no releases",
    )
    assert all(reply.fix for reply in (running, unknown, older))
    assert sim.events(ev.UpdateRequested) == []


def test_a_job_without_releases_and_one_that_only_observes_take_no_update() -> None:
    sim = trained(2)
    sim.has_release(SECOND)
    reply = sim.reply(sim.update(SECOND))
    assert not reply.ok
    assert "without a release" in reply.text
    observes = job(config=JobConfig(mode="observe"))
    assert "observe mode" in observes.reply(observes.update(SECOND)).text


def test_a_run_that_is_over_takes_no_update() -> None:
    sim = job()
    sim.warn()
    sim.run(0.5)
    reply = sim.reply(sim.update(SECOND))
    assert (reply.ok, "this run of the job ends" in reply.text) == (False, True)


def test_a_later_update_takes_the_place_of_one_that_waits_also_in_its_trial() -> None:
    sim = job()
    sim.reply(sim.update(SECOND, When.LAZY))
    sim.reply(sim.update(THIRD))
    is_applied(sim, 2)
    assert ends(sim) == [(1, UpdateEnd.SUPERSEDED)]
    assert applied(sim) == [(2, THIRD, False)]


def test_its_owner_withdraws_the_update_that_waits() -> None:
    sim = job()
    sim.reply(sim.update(SECOND, When.LAZY))
    is_tried(sim)
    reply = sim.reply(sim.update(FIRST, withdraw=True, running=FIRST, updates=1))
    assert (reply.ok, reply.update) == (True, 1)
    assert ends(sim) == [(1, UpdateEnd.WITHDRAWN)]
    assert sim.state.update is None
    again = sim.reply(sim.update(FIRST, withdraw=True))
    assert (again.ok, again.text) == (False, "no update waits")


def test_who_withdraws_an_update_that_has_just_been_applied_does_not_go_back() -> None:
    sim = job()
    sim.update(SECOND)
    is_applied(sim)
    reply = sim.reply(sim.update(FIRST, withdraw=True, running=FIRST, updates=1))
    assert (reply.ok, reply.text) == (False, f"release {FIRST} does not run any more: {SECOND} does")
    assert sim.state.release == SECOND


def test_of_two_owners_who_ask_at_once_the_second_is_told_of_the_first() -> None:
    sim = job()
    assert sim.reply(sim.update(SECOND, When.LAZY, running=FIRST, updates=0)).ok
    reply = sim.reply(sim.update(THIRD, When.LAZY, running=FIRST, updates=0))
    assert (reply.ok, reply.text) == (False, "update 1 has been asked for meanwhile")
    assert sim.reply(sim.update(THIRD, When.LAZY, running=FIRST, updates=1)).ok


def test_while_an_update_is_applied_another_one_is_told_to_ask_again() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: sim.stage == "Updating", within_s=20.0)
    assert "update 1 is being applied" in sim.reply(sim.update(THIRD)).text
    sim.run_until(lambda: sim.stage in ("Stopping", "Gathering"), within_s=60.0)
    assert "update 1 is being applied" in sim.reply(sim.update(THIRD)).text
    is_applied(sim)
    assert sim.reply(sim.update(THIRD)).ok


# -- the trial ---------------------------------------------------------------------------------------------


def test_all_nodes_try_the_imports_and_one_makes_the_first_steps_beside_its_ranks() -> None:
    sim = job(spares=0)
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, found.untried) == (True, ())
    assert set(orders(sim, TryRelease)) == {"n1", "n2"}
    ((node, order),) = sent(sim, Rehearse)
    assert (node, order.release, order.beside) == ("n1", SECOND, True)
    is_applied(sim)


def test_a_standby_makes_the_first_steps_and_has_rehearsed_when_the_update_is_applied() -> None:
    sim = job(spares=1, to=60)
    assert sim.state.standbys["n3"].stage is StandbyStage.REHEARSED
    rehearsed = len(sent(sim, Rehearse))
    sim.update(SECOND)
    is_tried(sim)
    assert [(n, o.release, o.beside) for n, o in sent(sim, Rehearse)[rehearsed:]] == [("n3", SECOND, False)]
    is_applied(sim)
    sim.run(60.0)
    assert len(sent(sim, Rehearse)) == rehearsed + 1
    assert sim.state.standbys["n3"].stage is StandbyStage.REHEARSED


def test_a_standby_that_rehearsed_for_the_release_before_rehearses_again() -> None:
    sim = job(spares=1, to=60, config=structs.replace(QUICK, updates=UNTRIED.updates))
    sim.update(SECOND)
    is_applied(sim)
    sim.run_until(lambda: sim.state.standbys["n3"].stage is StandbyStage.REHEARSED, within_s=120.0)
    assert orders(sim, Rehearse)["n3"].release == SECOND


def test_an_import_that_fails_on_one_node_refuses_the_update_and_training_goes_on() -> None:
    sim = job()
    sim.has_release(SECOND, SimulatedRelease(imports={"n2": "module flash_attn cannot be imported"}))
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, found.node) == (False, "n2")
    assert "flash_attn" in found.text
    assert ends(sim) == [(1, UpdateEnd.REFUSED)]
    assert sim.state.releases[SECOND] is ReleaseState.REFUSED
    gets_on(sim, 1)


def test_first_steps_that_fail_refuse_the_update_if_the_release_that_runs_passes() -> None:
    sim = job()
    sim.has_release(SECOND, SimulatedRelease(rehearsal="ValueError: no"))
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, found.node, found.text) == (False, "n1", "its first steps fail: ValueError: no")
    assert [order.release for _, order in sent(sim, Rehearse)] == [SECOND, FIRST]
    gets_on(sim, 1)


def test_a_script_that_no_rehearsal_fits_is_not_refused_for_that() -> None:
    sim = job()
    sim.nodes["n1"].rehearsal = "RuntimeError: needs the real world"
    sim.update(SECOND)
    found = is_tried(sim)
    assert found.ok
    assert "as does the release that runs" in found.untried[0]
    is_applied(sim)


def test_what_a_rehearsal_forbids_leaves_the_first_steps_untried() -> None:
    """The release that runs passes: its copy was made before the file that it writes to was there."""
    sim = job()
    sim.has_release(SECOND, SimulatedRelease(rehearsal="PermissionError: log.bin", confined=True))
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, found.untried) == (True, ("its first steps: PermissionError: log.bin",))
    is_applied(sim)


def test_ranks_that_need_all_gpus_leave_the_first_steps_untried_without_a_standby() -> None:
    sim = job(gpus_per_node=8)
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, sent(sim, Rehearse)) == (True, [])
    assert "no standby" in found.untried[0]


def test_a_node_that_does_not_answer_leaves_its_imports_untried() -> None:
    sim = job(config=structs.replace(QUICK, updates=UpdateConfig(trial_s=40.0)), nodes=3)
    sim.nodes["n3"].zygote_s = (500.0, 501.0)
    sim.env.pace = structs.replace(sim.env.pace, zygote_s=(500.0, 501.0))
    sim.update(SECOND, When.LAZY)
    found = is_tried(sim)
    assert (found.ok, found.took_s > 39.0) == (True, True)
    assert found.untried[0] == "its imports on n[1-3]: no answer"


def test_a_recovery_does_not_wait_for_a_trial_which_begins_again_after_it() -> None:
    sim = job(spares=1)
    sim.update(SECOND)
    sim.run_until(lambda: bool(sent(sim, TryRelease)), within_s=20.0)
    sim.kill_rank(0)
    sim.run_until(lambda: launched(sim).generation == 2, within_s=30.0)
    assert (launched(sim).release, sim.events(ev.UpdateTried)) == (FIRST, [])
    is_applied(sim)
    assert len({order.number for _, order in sent(sim, TryRelease)}) == 2


# -- applied -----------------------------------------------------------------------------------------------


def test_an_update_now_starts_the_new_release_on_the_same_nodes_and_loses_no_step() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    is_applied(sim)
    (event,) = sim.events(ev.UpdateApplied)
    launch = launched(sim)
    assert (launch.generation, launch.release, launch.slots) == (2, SECOND, ("n1", "n2"))
    assert event.checkpoint == launch.restore
    assert launch.restore_step == event.step
    assert not any(step.step > event.step for step in sim.events(ev.ProgressMade) if step.generation == 1)
    assert {order.release for order in orders(sim, Launch).values()} == {SECOND}
    assert (opened(sim), blames_no_node(sim)) == ([], True)
    assert sim.run_to_end() == 0


def test_the_time_in_which_storage_is_full_as_an_update_has_ended_the_ranks_is_lost() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: bool(sim.events(ev.StopStarted)), within_s=60.0)
    sim.storage_hangs()
    sim.run(300.0)
    sim.storage_hangs(False)
    is_applied(sim)
    (told,) = [line for line in sim.said if "decided nothing for" in line]
    assert told.endswith("no rank runs, so that time is lost")
    assert summary_of(sim.journal, sim.clock.now).classes[TimeClass.UPDATING] > 290_000


def test_no_step_is_lost_with_a_local_stride() -> None:
    sim = job(config=UNTRIED)
    sim.training.whole_s = 7.0
    sim.run_until(lambda: sim.state.world.local_stride > 1, within_s=120.0)
    sim.update(SECOND)
    is_applied(sim)
    (event,) = sim.events(ev.UpdateApplied)
    assert event.checkpoint is not None
    assert event.checkpoint.step == event.step


def test_a_script_without_our_api_is_stopped_at_once() -> None:
    sim = Sim(2, seed=1, steps=400, others=1, config=UNTRIED, release=FIRST)
    sim.training.reports = False
    sim.has_release(SECOND)
    sim.run_until(lambda: sim.step >= 5, within_s=300.0)
    sim.update(SECOND)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=60.0)
    assert any("where the script resumes by itself" in line for line in sim.said)


def test_ranks_that_keep_nothing_are_stopped_in_the_end_and_what_is_repeated_is_said() -> None:
    sim = job(config=UNTRIED)
    sim.takes_snapshots = False
    sim.nodes["n2"].writes = False
    sim.update(SECOND)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=200.0)
    assert any("ranks did not keep one step in time" in line for line in sim.said)


def test_a_lazy_update_rides_on_the_next_recovery() -> None:
    sim = job(spares=1, to=60)
    sim.update(SECOND, When.LAZY)
    is_tried(sim)
    sim.run(60.0)
    assert applied(sim) == []
    sim.node_dies("n2")
    is_applied(sim)
    assert applied(sim) == [(1, SECOND, True)]
    assert launched(sim).slots == ("n1", "n3")


def test_a_lazy_update_is_applied_at_its_deadline() -> None:
    sim = job()
    sim.update(SECOND, When.LAZY, deadline_s=100.0)
    is_tried(sim)
    sim.run(30.0)
    assert applied(sim) == []
    is_applied(sim)
    (asked,) = sim.events(ev.UpdateRequested)
    (event,) = sim.events(ev.UpdateApplied)
    assert asked.deadline is not None
    assert asked.deadline <= event.t < asked.deadline + 20.0


def test_a_fault_while_ranks_are_about_to_be_stopped_takes_the_update_along() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: sim.stage == "Updating", within_s=20.0)
    sim.kill_rank(1)
    is_applied(sim)
    assert applied(sim) == [(1, SECOND, True)]
    assert len(opened(sim)) == 1


def test_workers_that_crash_while_they_are_stopped_for_an_update_are_no_fault() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: sim.stage == "Stopping", within_s=60.0)
    if sim.ranks:
        sim.exit_rank(min(sim.ranks), code=1)
    is_applied(sim)
    assert (opened(sim), applied(sim)) == ([], [(1, SECOND, False)])


def test_a_node_that_dies_while_ranks_are_stopped_for_an_update_is_replaced() -> None:
    sim = job(spares=1, config=structs.replace(QUICK, updates=UNTRIED.updates))
    sim.update(SECOND)
    sim.run_until(lambda: sim.stage == "Stopping", within_s=60.0)
    sim.node_dies("n2")
    is_applied(sim)
    assert launched(sim).slots == ("n1", "n3")
    assert applied(sim) == [(1, SECOND, False)]
    assert sim.run_to_end() == 0


def test_a_controller_that_dies_at_any_point_of_an_update_leaves_no_false_incident() -> None:
    relaunched = 0
    for count in range(2, 12):  # the first event is not yet the request
        sim = job(config=UNTRIED)
        sim.deaths.append(count)
        sim.update(SECOND)
        sim.run(60.0)
        gets_on(sim, launched(sim).generation)
        assert (opened(sim), applied(sim)) == ([], [(1, SECOND, False)]), count
        assert launched(sim).restore == sim.events(ev.UpdateApplied)[0].checkpoint, count
        relaunched += len([e for e in sim.events(ev.StopStarted) if e.relaunch])
    assert relaunched == 1


def test_a_launch_that_reached_one_node_only_is_made_again_though_the_next_controller_dies_in_it() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: bool(applied(sim)), within_s=60.0)
    sim.env.network.cut("n1", "n2")  # the controller is on n1: its order does not reach n2
    sim.run(0.5)
    sim.controller_dies()
    sim.env.network.heal("n1", "n2")
    sim.run_until(lambda: any(e.relaunch for e in sim.events(ev.StopStarted)), within_s=60.0)
    sim.controller_dies()
    gets_on(sim, 3)
    assert (opened(sim), applied(sim)) == ([], [(1, SECOND, False)])


def test_an_update_waits_over_a_requeue_and_its_release_stays() -> None:
    sim = job(others=0)
    sim.update(SECOND, When.LAZY)
    is_tried(sim)
    sim.warn()
    sim.run_until(lambda: sim.runs == 2, within_s=300.0)
    sim.run_until(lambda: bool(applied(sim)), within_s=120.0)
    assert applied(sim) == [(1, SECOND, True)]
    sim.warn()
    sim.run_until(lambda: sim.runs == 3 and sim.state.world.running, within_s=300.0)
    assert launched(sim).release == SECOND


def test_ranks_that_are_held_for_a_controller_that_died_are_stopped_by_the_next_one() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    sim.run_until(lambda: sim.stage == "Updating", within_s=20.0)
    sim.run_until(lambda: all(sim.env.now < rank.held_until for rank in sim.ranks.values()), within_s=20.0)
    held = sim.step
    sim.controller_dies()
    is_applied(sim)
    assert launched(sim).restore_step == held
    assert sim.state.epoch == 2


def test_a_new_controller_knows_the_release_that_runs_and_its_candidacy() -> None:
    sim = job(config=UNTRIED)
    sim.update(SECOND)
    is_applied(sim)
    next_controller(sim)
    assert sim.state.candidate is not None
    sim.run_until(lambda: sim.state.candidate is None, within_s=300.0)
    assert sim.state.last_good == SECOND
    assert restored(sim)[0] > 0


# -- rolled back -------------------------------------------------------------------------------------------


def rolled_back(sim: Sim) -> list[RollBack]:
    """The rollbacks that were decided."""
    return [a for e in sim.events(ev.Decided) for a in e.actions if isinstance(a, RollBack)]


def is_rolled_back(sim: Sim, bad: SimulatedRelease, within_s: float = 900.0) -> ev.UpdateApplied:
    """A release that is bad is applied, and rolled back; then the job is done as if it had never been."""
    sim.has_release(SECOND, bad)
    sim.update(SECOND)
    sim.run_until(lambda: bool(rolled_back(sim)), within_s)
    (event,) = sim.events(ev.UpdateApplied)
    assert rolled_back(sim) == [RollBack(release=SECOND, to=FIRST, step=event.step)]
    decided = sim.events(ev.Decided)[-1]
    assert decided.verdict is not None
    assert (decided.verdict.rung, decided.verdict.blame) == (7, Blame.CODE)
    generation = launched(sim).generation
    gets_on(sim, max(generation, decided_generation(sim)))
    assert (launched(sim).release, launched(sim).restore) == (FIRST, event.checkpoint)
    assert sim.state.releases[SECOND] is ReleaseState.BAD
    assert (sim.state.release, sim.state.candidate, sim.state.last_good) == (FIRST, None, FIRST)
    assert evicted(sim) == set()
    assert sim.run_to_end() == 0
    assert sim.training.newest == sim.training.steps - 1
    return event


def decided_generation(sim: Sim) -> int:
    sim.run_until(lambda: launched(sim).release == FIRST, within_s=60.0)
    return launched(sim).generation


def test_a_release_that_raises_an_exception_is_rolled_back_to_the_step_before_the_update() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(fails_at=65))
    assert len(opened(sim)) == 1
    assert len(sim.events(ev.IncidentClosed)) == 1


def test_a_release_that_fails_at_its_first_step_is_rolled_back() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(fails_at=0))
    sim.update(SECOND)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=60.0)
    sim.env.releases[SECOND] = SimulatedRelease(fails_at=launched(sim).restore_step + 1)
    sim.run_until(lambda: launched(sim).release == FIRST, within_s=60.0)
    gets_on(sim, 3)


def test_a_release_that_does_not_fit_the_checkpoint_is_rolled_back() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(fits=False))
    assert sim.events(ev.CheckpointBanned) == []


def test_a_release_that_makes_nan_is_rolled_back_and_its_steps_do_not_count() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(spoils_at=65))
    assert (node_tests(sim), sim.events(ev.CheckpointBanned)) == ([], [])


def test_a_release_that_hangs_is_rolled_back() -> None:
    sim = job(config=NO_TRIAL)
    is_rolled_back(sim, SimulatedRelease(hangs_at=65))


def test_a_release_that_is_three_times_as_slow_is_rolled_back() -> None:
    sim = job(config=NO_TRIAL, to=60)
    is_rolled_back(sim, SimulatedRelease(factor=3.0))


def test_a_release_that_is_a_little_slower_stays() -> None:
    sim = job(config=NO_TRIAL, to=60)
    sim.has_release(SECOND, SimulatedRelease(factor=1.3))
    sim.update(SECOND)
    is_applied(sim)
    sim.run_until(lambda: sim.state.last_good == SECOND, within_s=600.0)
    assert sim.run_to_end() == 0
    assert rolled_back(sim) == []


def trains_well(sim: Sim) -> None:
    """The candidate is good in the end, and nothing was ever wrong with it."""
    sim.run_until(lambda: sim.state.last_good == SECOND, within_s=900.0)
    assert (rolled_back(sim), opened(sim)) == ([], [])


def test_a_few_short_steps_that_take_long_do_not_make_a_release_slow() -> None:
    sim = job(config=NO_TRIAL, to=60, pace=structs.replace(PACE, step_s=0.2))
    sim.update(SECOND)
    sim.run_until(lambda: launched(sim).release == SECOND and sim.step > launched(sim).restore_step, 120.0)
    sim.training.slow = {0: 2.0}
    begun = sim.step
    sim.run_until(lambda: sim.step >= begun + 25, within_s=30.0)
    sim.training.slow = {}
    trains_well(sim)


def test_steps_beside_a_trial_do_not_make_a_release_slow() -> None:
    sim = job(config=structs.replace(QUICK, updates=UpdateConfig(good_steps=90)), to=100)
    sim.update(SECOND)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=120.0)
    sim.env.pace = structs.replace(sim.env.pace, zygote_s=(150.0, 151.0))
    sim.training.slow = {0: 2.0}  # it takes processor time from a rank
    sim.update(THIRD, When.LAZY)
    is_tried(sim, within_s=300.0)
    sim.training.slow = {}
    trains_well(sim)


def test_a_rank_that_is_killed_says_nothing_of_the_release_the_first_time() -> None:
    sim = job(config=NO_TRIAL)
    sim.update(SECOND)
    is_applied(sim)
    sim.kill_rank(0)
    gets_on(sim, 3)
    assert (launched(sim).release, rolled_back(sim)) == (SECOND, [])
    sim.kill_rank(0)
    gets_on(sim, 4)
    assert (launched(sim).release, len(rolled_back(sim))) == (FIRST, 1)


def test_a_dead_node_is_not_the_release() -> None:
    sim = job(spares=1, config=NO_TRIAL)
    sim.update(SECOND)
    is_applied(sim)
    sim.node_dies("n2")
    gets_on(sim, 3)
    assert (launched(sim).release, launched(sim).slots, rolled_back(sim)) == (SECOND, ("n1", "n3"), [])
    assert sim.state.candidate is not None


def test_a_release_that_was_good_is_not_rolled_back() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(fails_at=140))
    sim.update(SECOND)
    sim.run_until(lambda: sim.state.last_good == SECOND, within_s=600.0)
    assert sim.run_to_end() == ExitCode.DO_NOT_REQUEUE
    assert rolled_back(sim) == []


def test_a_release_is_rolled_back_once_and_then_the_job_ends_with_the_evidence() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(fails_at=70))
    sim.update(SECOND)
    sim.run_until(lambda: bool(rolled_back(sim)), within_s=600.0)
    gets_on(sim, 3)
    reply = sim.reply(sim.update(SECOND))
    assert (reply.ok, "is not rolled back again" in reply.text) == (True, True)
    assert sim.run_to_end() == ExitCode.DO_NOT_REQUEUE
    assert len(rolled_back(sim)) == 1


def test_nothing_is_rolled_back_if_the_owner_does_not_want_it() -> None:
    off = structs.replace(NO_TRIAL, updates=structs.replace(NO_TRIAL.updates, rollback=False))
    sim = job(config=off)
    sim.has_release(SECOND, SimulatedRelease(fails_at=65))
    sim.update(SECOND)
    assert sim.run_to_end() == ExitCode.DO_NOT_REQUEUE
    assert rolled_back(sim) == []


def test_the_same_failure_under_the_good_release_is_answered_as_ever() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(FIRST, SimulatedRelease(fails_at=65))
    sim.has_release(SECOND, SimulatedRelease(fails_at=65))
    sim.update(SECOND)
    assert sim.run_to_end() == ExitCode.DO_NOT_REQUEUE
    assert len(rolled_back(sim)) == 1
    assert [launch.release for launch in sim.events(ev.GenerationLaunched)][-2:] == [FIRST, FIRST]


def test_the_owner_goes_back_by_hand_and_forth_again() -> None:
    sim = job(config=NO_TRIAL)
    sim.update(SECOND)
    is_applied(sim)
    sim.update(FIRST, rollback=True)
    is_applied(sim, 2)
    assert (sim.state.candidate, sim.state.last_good) == (None, FIRST)
    sim.update(SECOND)
    is_applied(sim, 3)
    assert launched(sim).release == SECOND
    assert sim.run_to_end() == 0


def test_a_rollback_after_a_requeue_finds_the_step_before_the_update_on_storage() -> None:
    sim = job(config=NO_TRIAL, others=0)
    sim.has_release(SECOND, SimulatedRelease(fails_at=75))
    sim.update(SECOND)
    is_applied(sim)
    (event,) = sim.events(ev.UpdateApplied)
    sim.warn()
    sim.run_until(lambda: sim.runs == 2 and sim.state.world.running, within_s=300.0)
    assert (launched(sim).release, sim.state.candidate is not None) == (SECOND, True)
    sim.run_until(lambda: launched(sim).release == FIRST, within_s=600.0)
    assert sim.state.releases[SECOND] is ReleaseState.BAD
    assert launched(sim).restore_step <= event.step
    assert sim.run_to_end() == 0


def test_a_new_update_that_waits_rides_on_the_rollback() -> None:
    sim = job(config=NO_TRIAL)
    sim.has_release(SECOND, SimulatedRelease(fails_at=70))
    sim.update(SECOND)
    is_applied(sim)
    sim.update(THIRD, When.LAZY)
    sim.run_until(lambda: launched(sim).release == THIRD, within_s=600.0)
    assert applied(sim) == [(1, SECOND, False), (2, THIRD, True)]
    assert len(rolled_back(sim)) == 1
    assert sim.events(ev.UpdateApplied)[1].before == FIRST
    assert sim.run_to_end() == 0


# -- scripts whose steps cannot be counted ---------------------------------------------------------------


def stepless(*, config: JobConfig = QUICK, spares: int = 0) -> Sim:
    """A job whose ranks run for two minutes, and show no step; no release of it does."""
    sim = Sim(2, spares, seed=1, steps=4000, others=1, pace=PACE, config=config, release=FIRST)
    for name in (FIRST, SECOND, THIRD):
        sim.has_release(name, SimulatedRelease(stepless=True))
    sim.run_until(lambda: sim.stage == "Running", within_s=120.0)
    sim.run(120.0)
    return sim


def test_a_job_that_shows_no_steps_is_updated_at_once_with_its_first_steps_untried() -> None:
    sim = stepless()
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, found.untried) == (
        True,
        ("its first steps: the script makes no steps that can be counted",),
    )
    assert found.took_s < 40.0
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=60.0)
    assert (sent(sim, Rehearse), opened(sim)) == ([], [])


def test_a_job_that_has_just_begun_is_waited_for_before_its_steps_are_called_uncounted() -> None:
    sim = Sim(2, seed=1, steps=4000, others=1, pace=PACE, config=QUICK, release=FIRST)
    sim.has_release(FIRST, SimulatedRelease(stepless=True))
    sim.has_release(SECOND)
    sim.run_until(lambda: sim.stage == "Running", within_s=120.0)
    sim.update(SECOND)
    found = is_tried(sim)
    assert (found.ok, 30.0 < found.took_s < 65.0) == (True, True)
    assert "no steps that can be counted" in found.untried[0]


def test_a_lazy_update_of_a_job_that_shows_no_steps_rides_on_the_next_recovery() -> None:
    sim = stepless(spares=1)
    sim.update(SECOND, When.LAZY)
    assert is_tried(sim).ok
    sim.kill_rank(0)
    sim.run_until(lambda: launched(sim).release == SECOND, within_s=120.0)
    assert applied(sim) == [(1, SECOND, True)]


def test_a_job_that_has_made_steps_waits_for_the_next_one_and_says_so_once() -> None:
    sim = job(others=0)
    sim.warn()
    sim.run_until(lambda: sim.runs == 2 and sim.state.world.running, within_s=300.0)
    sim.training.step_s = 45.0
    sim.update(SECOND)
    found = is_tried(sim, within_s=300.0)
    assert (found.ok, found.untried, found.took_s > 40.0) == (True, (), True)
    assert [line for line in sim.said if "waits for the first step" in line] == [
        f"the trial of update 1 waits for the first step of generation {launched(sim).generation}"
    ]


def test_a_release_whose_steps_cannot_be_counted_any_more_is_not_refused_for_that() -> None:
    short = StandbyConfig(test_s=0, rehearse_s=60)
    sim = job(spares=1, to=60, config=structs.replace(QUICK, standby=short))
    sim.has_release(SECOND, SimulatedRelease(stepless=True))
    sim.update(SECOND)
    found = is_tried(sim, within_s=600.0)
    assert found.ok
    assert found.untried == ("its first steps: it was not done in time",)


def test_a_release_that_has_run_for_long_is_good_if_no_step_can_ever_be_counted() -> None:
    sim = stepless(config=JobConfig(updates=UpdateConfig(good_s=200.0)))
    assert sim.state.releases == {FIRST: ReleaseState.UNJUDGED}
    sim.run_until(lambda: sim.state.last_good == FIRST, within_s=100.0)
    (judged,) = sim.events(ev.ReleaseProven)
    assert judged.reason == "it has run for 200 s; its steps cannot be counted"


def test_later_generations_of_a_script_without_our_api_are_not_said_to_begin_at_step_0() -> None:
    sim = Sim(2, 1, seed=1, steps=4000, others=1, pace=PACE, config=NO_TRIAL, release=FIRST)
    sim.training.reports = False
    sim.run_until(lambda: sim.step >= 5, within_s=300.0)
    sim.kill_rank(0)
    sim.run_until(lambda: launched(sim).generation == 2, within_s=120.0)
    text = "generation 2 starts again; where it goes on is the script's affair (it has no sr.Checkpointer)"
    assert text in sim.said


def test_a_candidate_that_another_one_replaces_stays_unjudged() -> None:
    sim = job(config=NO_TRIAL)
    sim.update(SECOND)
    is_applied(sim)
    assert sim.state.releases[SECOND] is ReleaseState.CANDIDATE
    sim.update(THIRD)
    is_applied(sim, 2)
    assert sim.state.releases == {
        FIRST: ReleaseState.GOOD,
        SECOND: ReleaseState.UNJUDGED,
        THIRD: ReleaseState.CANDIDATE,
    }
