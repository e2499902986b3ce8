"""From the first sign of an implicit failure to the right action, on paper."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.config.job import DetectConfig, JobConfig, Limits, ReplayConfig
from slurm_robust.engine import questions as qs
from slurm_robust.evidence.incident_text import timeline
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.findings import Alert, Effect, Party, Suggestion
from slurm_robust.model.incident import Diagnosis, Symptom
from slurm_robust.model.progress import Traffic
from slurm_robust.testing.sim.training import doing
from slurm_robust.wire.messages import Phase
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3", "n4")
SPARES = ("n5", "n6")


def job(mode: str = "act", **detect: object) -> Job:
    """Four nodes that have trained for a while, a step a second."""
    config = JobConfig(mode=mode, detect=DetectConfig(**detect))  # type: ignore[arg-type]
    made = Job(NODES, SPARES, config)
    made.ages = True
    train(made, range(40))
    return made


def train(job: Job, steps: range, **report: object) -> None:
    """A step a second; ``report`` goes with the newest one."""
    for step in steps:
        job.train_to(step)
        job.pass_time(1.0, tick=1.0)
    if report:
        tell(job, **report)


def tell(job: Job, rank: int = 0, **report: object) -> None:
    """A rank reports its next step with these metrics."""
    node = job.core.world.placement.node_of(rank)
    before = job.heartbeats[node].progress
    progress = (
        structs.replace(p, step=p.step + 1, age_s=0.0, reported=True, **report) if p.rank == rank else p
        for p in before
    )
    job.change(node, progress=tuple(progress))
    job.pass_time(1.0, tick=0.25)


def symptoms(job: Job) -> list[Symptom]:
    return [event.symptom for event in job.events(ev.IncidentOpened)]


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def stopped(job: Job, rank: int) -> None:
    """This rank stands still, outside of any collective, and so the others wait."""
    node = job.core.world.placement.node_of(rank)
    job.stacks[rank] = doing(rank, node, "work@train.py", "main@train.py", state="T")


# -- hangs -----------------------------------------------------------------------------------------


def test_a_hang_is_localised_by_stacks_and_the_node_replaced() -> None:
    hung = job()
    stopped(hung, 2)
    hung.until(lambda: hung.core.world.generation == 2, 60)
    assert symptoms(hung) == [Symptom.HANG]
    assert evicted(hung) == {"n3"}
    (decided,) = hung.events(ev.Decided)
    assert decided.verdict is not None
    assert decided.verdict.rung == 4
    assert len(hung.saved_stacks[0].stacks) == 4
    train(hung, range(40, 43))
    assert hung.core.world.incident is None


def test_a_hang_that_heals_costs_nothing() -> None:
    slow = job()
    slow.mute.update(NODES)
    slow.until(lambda: slow.stage == "Localising", 60)
    train(slow, range(40, 42))
    assert slow.stage == "Running"
    assert slow.core.world.generation == 1
    assert slow.core.world.incident is None
    assert evicted(slow) == set()


def test_a_hang_that_stacks_do_not_place_is_tested_for() -> None:
    hung = job()  # all ranks wait for each other
    hung.diagnosis = Diagnosis(suspects=("n2",), reason="n2 fails memory")
    hung.until(lambda: hung.core.world.generation == 2, 60)
    assert [effect.bitwise for effect in hung.tested] == [False]
    assert evicted(hung) == {"n2"}
    assert [d.verdict.rung for d in hung.events(ev.Decided) if d.verdict] == [5, 5]


def test_tests_that_never_answer_do_not_hold_the_job_for_ever() -> None:
    hung = job(diagnose_s=20.0)
    hung.diagnosis = None
    hung.until(lambda: hung.core.world.generation == 2, 120)
    assert evicted(hung) == set()
    (unanswered,) = hung.events(ev.Unanswered)
    assert (unanswered.asked, unanswered.nodes) == ("tests", NODES)
    assert unanswered.why == "no answer within 50 s"
    assert not hung.events(ev.NodesTested)
    assert hung.events(ev.Decided)[-1].reason.endswith("; tests: no answer within 50 s: restart in place")


def test_tests_that_could_not_begin_are_reported_with_the_reason() -> None:
    hung = job()
    hung.diagnosis = Diagnosis(reason="nothing could be tested", left_out={"gemm": "srun: error: n2: down"})
    hung.until(lambda: hung.core.world.generation == 2, 60)
    (unanswered,) = hung.events(ev.Unanswered)
    assert unanswered.why == "nothing could be tested; gemm: srun: error: n2: down"


def test_a_replay_that_was_not_possible_is_reported() -> None:
    config = JobConfig(
        replay=ReplayConfig(args=()), limits=Limits(per_signature=1), detect=DetectConfig(diagnose=False)
    )
    crashing = Job(NODES, SPARES, config)
    train(crashing, range(3))
    crashing.diagnosis = ReplayVerdict(reason="no replay: only a Python script can be replayed").diagnosis()
    crashing.kill_rank(1)
    crashing.until(lambda: crashing.core.world.generation == 2, 20)
    crashing.kill_rank(1)
    crashing.until(lambda: crashing.code is not None, 60)
    (unanswered,) = crashing.events(ev.Unanswered)
    assert (unanswered.asked, unanswered.nodes) == ("a replay", NODES)
    assert unanswered.why == "no replay: only a Python script can be replayed"


def test_agents_that_do_not_answer_are_waited_for_briefly() -> None:
    hung = job(stacks_s=3.0)
    hung.mute.add("n4")
    hung.until(lambda: hung.stage == "Localising", 60)
    begun = hung.mono
    hung.until(lambda: hung.stage == "Running" and hung.core.world.generation == 2, 20)
    assert 6.0 < hung.mono - begun < 14.0  # two sample rounds, each waits for it
    assert evicted(hung) == set(), "silence alone convicts nobody"
    (unanswered,) = hung.events(ev.Unanswered)  # once, though it was silent in both rounds
    assert (unanswered.incident, unanswered.asked, unanswered.nodes) == (1, "stacks", ("n4",))
    assert unanswered.why == "no answer within 4 s"
    (report,) = incident_reports(hung.journal)
    told = [entry.text for entry in timeline(report) if entry.what == "no answer"]
    assert told == ["asked n4 for stacks: no answer within 4 s"]


def test_observe_mode_says_what_it_would_do_and_does_nothing() -> None:
    hung = job("observe")
    stopped(hung, 2)
    hung.until(lambda: bool(hung.events(ev.Decided)), 60)
    (decided,) = hung.events(ev.Decided)
    assert not decided.carried_out
    assert any(isinstance(action, inc.Evict) and action.node == "n3" for action in decided.actions)
    assert evicted(hung) == set()
    assert hung.core.world.generation == 1
    train(hung, range(40, 43))  # it was only slow
    assert hung.stage == "Running"
    assert hung.core.world.incident is None


# -- slowdowns --------------------------------------------------------------------------------------


def declining(mode: str = "act", **detect: object) -> Job:
    """Steps take three seconds and not one any more, and all ranks wait in the same collective."""
    made = job(mode, **detect)
    train(made, range(40, 200))
    return made


def crawl(job: Job, seconds: float) -> None:
    """Train as slowly as that until it is stopped."""
    step, end = job.core.world.steps_here, job.mono + seconds
    while job.mono < end and job.core.world.generation == 1 and job.stage in ("Running", "Localising"):
        step += 1
        job.train_to(step)
        job.pass_time(3.0, tick=1.0)


def looks(job: Job) -> int:
    return sum("the limit is" in event.text for event in job.events(ev.Noted))


def test_a_slowdown_that_three_sample_rounds_do_not_place_is_tested_for() -> None:
    slow = declining()
    slow.diagnosis = Diagnosis(suspects=("n2",), reason="n2 fails all_gather")
    crawl(slow, 1500.0)
    assert looks(slow) == 2
    assert slow.stage == "Running"
    crawl(slow, 1000.0)
    slow.until(lambda: slow.core.world.generation == 2, 60)
    assert symptoms(slow) == [Symptom.SLOW]
    assert [effect.bitwise for effect in slow.tested] == [False]
    assert evicted(slow) == {"n2"}


def test_tests_that_find_nobody_slow_are_made_once_in_a_job() -> None:
    slow = declining(slow_samples=1)
    crawl(slow, 300.0)
    slow.until(lambda: slow.core.world.generation == 2, 60)
    assert evicted(slow) == set()
    step = slow.core.world.best_step
    for more in range(200):
        slow.train_to(step + 1 + more)
        slow.pass_time(3.0, tick=1.0)
    assert looks(slow) >= 1, "it goes on as slowly"
    assert len(slow.tested) == 1
    assert slow.core.world.generation == 2


def test_a_slowdown_is_never_stopped_without_a_culprit_where_tests_are_off() -> None:
    for off in ({"slow_samples": 0}, {"diagnose": False}):
        slow = declining(**off)
        crawl(slow, 5000.0)
        assert looks(slow) == 4
        assert slow.core.world.generation == 1


# -- no traffic ------------------------------------------------------------------------------------


def mute_network(job: Job, *nodes: str, silent_s: float = 610.0) -> None:
    """The links of these nodes have carried nothing for a while."""
    for node in nodes:
        job.change(node, traffic=Traffic(silent_s=silent_s, talked_s=3600.0))


def silent_job(*nodes: str) -> Job:
    """A program that shows no steps, whose ranks are still."""
    made = Job(NODES, SPARES)
    made.ages = True
    made.pass_time(700.0, tick=1.0)
    mute_network(made, *nodes)
    return made


def test_a_silent_network_has_stacks_sampled_and_they_name_the_node() -> None:
    silent = silent_job(*NODES)
    stopped(silent, 2)
    silent.until(lambda: silent.core.world.generation == 2, 60)
    (opened,) = silent.events(ev.IncidentOpened)
    assert opened.symptom is Symptom.HANG
    assert opened.detail.startswith("the links of all 4 nodes have carried next to nothing for 610 s")
    assert evicted(silent) == {"n3"}


def test_a_silent_network_without_a_culprit_ends_nothing() -> None:
    silent = silent_job(*NODES)
    silent.until(lambda: silent.stage == "Localising", 20)
    silent.until(lambda: silent.stage == "Running", 20)
    silent.pass_time(30.0)
    assert silent.stage == "Running", "it is told once"
    assert sum("next to nothing" in event.text for event in silent.events(ev.Noted)) == 1
    assert symptoms(silent) == []
    assert silent.core.world.generation == 1


def test_a_network_is_not_silent_while_a_node_is_unknown_or_steps_are_made() -> None:
    some = silent_job(*NODES[:3])
    some.pass_time(10.0)
    trained = job()
    mute_network(trained, *NODES)
    train(trained, range(40, 45))
    for made in (some, trained):
        assert made.stage == "Running"
        assert symptoms(made) == []
        assert made.saved_stacks == []


# -- wrong numbers ---------------------------------------------------------------------------------


def test_no_number_is_tested_for_bit_by_bit() -> None:
    wrong = job()
    wrong.diagnosis = Diagnosis(suspects=("n4",), reason="n4 computes otherwise than the other 3")
    tell(wrong, loss=float("nan"))
    wrong.until(lambda: wrong.core.world.generation == 2, 60)
    assert symptoms(wrong) == [Symptom.NON_FINITE]
    assert [effect.bitwise for effect in wrong.tested] == [True]
    assert evicted(wrong) == {"n4"}


def test_no_number_with_good_nodes_is_restarted_and_ends_when_it_comes_again() -> None:
    wrong = job()
    for generation in (2, 3):
        tell(wrong, loss=float("nan"))
        wrong.until(lambda g=generation: wrong.core.world.generation == g, 60)  # type: ignore[misc]
    tell(wrong, loss=float("nan"))
    wrong.until(lambda: wrong.code is not None, 60)
    assert wrong.code == 93
    assert evicted(wrong) == set()


# -- alerts ----------------------------------------------------------------------------------------


def alert(number: int = 1, **fields: object) -> Alert:
    lost = {
        "check": "gpu.lost", "subject": "gpu3", "text": "fell off the bus", "blame": Party.NODE,
        "suggestion": Suggestion.REBOOT, "age_s": 0.5,
    }  # fmt: skip
    return Alert(number=number, **{**lost, **fields})  # type: ignore[arg-type]


def raise_alerts(job: Job, alerts: Mapping[str, Alert]) -> None:
    for node, one in alerts.items():
        job.change(node, alerts=(one,))
    job.pass_time(1.0, tick=0.25)


def test_a_lost_gpu_evicts_its_node_at_once() -> None:
    lost = job()
    raise_alerts(lost, {"n2": alert()})
    lost.until(lambda: lost.core.world.generation == 2, 20)
    assert symptoms(lost) == [Symptom.NODE_FAULT]
    assert evicted(lost) == {"n2"}


def test_one_network_alert_is_borne_and_two_are_not() -> None:
    flapping = job()
    link = {"check": "ethernet.state", "effect": Effect.LINK_DOWN, "subject": "mlx5_0/1", "text": "down",
            "blame": Party.FABRIC, "suggestion": Suggestion.RESET}  # fmt: skip
    raise_alerts(flapping, {"n2": alert(**link, ended_s=0.1)})
    train(flapping, range(40, 42))
    assert flapping.core.world.generation == 1
    flapping.change("n2", alerts=(alert(**{**link, "age_s": 60.0}, ended_s=50.0), alert(2, **link)))
    flapping.until(lambda: flapping.core.world.generation == 2, 20)
    assert symptoms(flapping) == [Symptom.NETWORK]
    assert evicted(flapping) == {"n2"}


def test_many_nodes_behind_one_switch_are_one_event() -> None:
    switch = job()
    switch.reply(qs.FindSwitches, dict.fromkeys(NODES, "leaf1"))
    link = {
        "check": "ethernet.state",
        "effect": Effect.LINK_DOWN,
        "subject": "mlx5_0/1",
        "blame": Party.FABRIC,
    }
    both = {n: (alert(**link), alert(2, **link)) for n in NODES[:3]}
    for node, its in both.items():
        switch.change(node, alerts=its)
    switch.pass_time(2.0, tick=0.25)
    assert evicted(switch) == set()


def test_a_spare_that_is_not_fit_is_dropped_before_it_is_used() -> None:
    trained = job()
    raise_alerts(trained, {"n5": alert()})
    assert evicted(trained) == {"n5"}
    assert trained.core.world.generation == 1
    raise_alerts(trained, {"n2": alert()})
    trained.until(lambda: trained.core.world.generation == 2, 20)
    assert trained.core.world.slots == ("n1", "n6", "n3", "n4")


def test_a_spare_that_breaks_while_the_generation_ends_takes_no_slot() -> None:
    trained = job()
    trained.stubborn.add("n2")
    raise_alerts(trained, {"n2": alert()})
    assert trained.stage == "Stopping"
    raise_alerts(trained, {"n5": alert()})
    trained.until(lambda: trained.core.world.generation == 2, 60)
    assert evicted(trained) == {"n2", "n5"}
    assert trained.core.world.slots == ("n1", "n6", "n3", "n4")


def test_a_spare_with_one_alert_of_its_network_stays() -> None:
    trained = job()
    raise_alerts(
        trained,
        {"n5": alert(check="ethernet.state", effect=Effect.LINK_DOWN, blame=Party.FABRIC)},
    )
    assert trained.core.state.spares == SPARES


def test_memory_that_runs_out_evicts_nobody_and_explains_the_kill() -> None:
    full = job()
    warning = alert(check="memory.pressure", blame=Party.JOB, suggestion=Suggestion.MONITOR)
    raise_alerts(full, {"n2": warning})
    assert full.events(ev.IncidentOpened) == []
    full.kill_rank(1)
    full.until(lambda: full.core.world.generation == 2, 20)
    assert evicted(full) == set()
    assert [effect.alerts for effect in full.saved_alerts] == [{"n2": (warning,)}]


# -- crashes ---------------------------------------------------------------------------------------


def test_a_crash_that_comes_again_is_tested_for() -> None:
    crashing = job()
    crashing.kill_rank(1)
    crashing.until(lambda: crashing.core.world.generation == 2, 20)
    assert crashing.tested == []
    crashing.diagnosis = Diagnosis(suspects=("n2",), reason="n2 fails gemm")
    crashing.kill_rank(1)
    crashing.until(lambda: crashing.core.world.generation == 3, 20)
    assert len(crashing.tested) == 1
    assert evicted(crashing) == {"n2"}


LOST = "Connection closed by peer [10.0.0.1]:3"


def root_of_lost_connections(named: Mapping[int, int]) -> int:
    """The root of four ranks that lost connections, rank 3 first; some name one that is unreachable."""
    ending = job()
    for rank, node in enumerate(NODES):
        message = f"{LOST}, rank {named[rank]} is unreachable" if rank in named else LOST
        error = WorkerError(type="RuntimeError", message=message)
        exits = (WorkerExit(rank=rank, code=1, age_s=1.0 + rank / 10, error=error),)
        ending.tell(node, exits=exits, phase=Phase.ENDED)
    ending.tick()
    ending.until(lambda: ending.core.world.generation == 2, 30)
    assert evicted(ending) == set()
    return ending.events(ev.GenerationEnded)[0].root


def test_of_ranks_that_lost_their_peers_the_one_that_they_name_is_the_root() -> None:
    assert root_of_lost_connections({}) == 3
    assert root_of_lost_connections({3: 1, 2: 1}) == 1


def test_names_that_contradict_each_other_or_nobody_has_leave_the_first_in_time_the_root() -> None:
    assert root_of_lost_connections({3: 1, 2: 0}) == 3
    assert root_of_lost_connections({3: 9, 2: 9}) == 3
