"""A hang that moves with the rank is the code's, one that stays with the node is the node's, on paper."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.config.job import DetectConfig, JobConfig, ParallelConfig
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.stacks import Collective, Frame, RankStacks
from slurm_robust.testing.sim.training import doing, waiting
from slurm_robust.wire.messages import TakeStacks
from tests.unit.engine.fake_job import Job

NODES = ("n1", "n2", "n3")
HANG_STEP = 30


def job(spares: tuple[str, ...] = ("n4",), reported: bool = True, **detect: object) -> Job:
    made = Job(NODES, spares, JobConfig(detect=DetectConfig(**detect)), reported=reported, memory=reported)  # type: ignore[arg-type]
    made.ages = True
    return made


def train(job: Job, until: int = HANG_STEP, step_s: float = 1.0) -> None:
    """From where the generation begins; a step takes ``step_s``."""
    job.until(lambda: job.stage == "Running", 60)
    job.pass_time(max(2.0, step_s))
    for step in range(job.core.world.restored_step + 1 if job.reported else 0, until + 1):
        job.train_to(step)
        job.pass_time(step_s, tick=min(1.0, step_s / 4))


def next_generation(job: Job, limit: float = 300.0) -> None:
    generation = job.core.world.generation
    job.until(lambda: job.code is not None or job.core.world.generation > generation, limit)


def stuck(job: Job, rank: int, line: str = "wait@train.py", cpu_s: float = 5.0) -> None:
    """This rank does something of its own, always the same, while the others wait for it."""
    node = job.core.world.placement.node_of(rank)
    job.stacks = {rank: with_cpu(doing(rank, node, line, "main@train.py"), cpu_s)}


def with_cpu(stacks: RankStacks, cpu_s: float) -> RankStacks:
    (worker,) = stacks.processes
    return structs.replace(stacks, processes=(structs.replace(worker, cpu_s=cpu_s),))


def evicted(job: Job) -> set[str]:
    return {event.node for event in job.events(ev.NodeEvicted)}


def verdicts(job: Job) -> list[inc.Blame]:
    return [d.verdict.blame for d in job.events(ev.Decided) if d.verdict is not None]


def last_actions(job: Job) -> list[type]:
    return [type(action) for action in job.events(ev.Decided)[-1].actions]


def test_a_job_that_was_suspended_has_not_hung() -> None:
    """Resumed after longer than any step takes, it trains on; if it does not, that is a hang."""
    suspended = job()
    train(suspended)
    suspended.wall += 60
    suspended.mono += 60
    suspended.core.on_stall(60, suspended.now())
    suspended.pass_time(20)
    assert suspended.events(ev.IncidentOpened) == []
    suspended.until(lambda: suspended.events(ev.IncidentOpened), 200)
    (opened,) = suspended.events(ev.IncidentOpened)
    assert opened.symptom is inc.Symptom.HANG


def suspend(job: Job, seconds: float) -> None:
    """Slurm stops all of the job, the controller included."""
    job.wall += seconds
    job.mono += seconds
    for node in job.heartbeats:
        old = job.heartbeats[node]
        job.heartbeats[node] = structs.replace(old, progress=job.older(node, seconds))
    job.core.on_stall(seconds, job.now())


def test_a_job_that_shares_its_nodes_in_turns_is_found_hanging() -> None:
    """Of the time that it has, a hang takes its bound of 14 s and at most 150 s."""
    for slice_s, awake_s in ((30.0, 30.0), (10.0, 50.0), (300.0, 30.0), (60.0, 10.0)):
        shared = job()
        train(shared)
        generation, had_s = shared.core.world.generation, 0.0
        while not shared.events(ev.IncidentOpened) and had_s < 200:
            suspend(shared, slice_s)
            shared.pass_time(awake_s)
            had_s += awake_s
        assert had_s <= 14 + 150 + awake_s, (slice_s, awake_s)
        (opened,) = shared.events(ev.IncidentOpened)
        assert opened.symptom is inc.Symptom.HANG
        assert generation == 1


def test_a_job_that_shares_its_nodes_in_turns_and_trains_has_never_hung() -> None:
    """Its steps are shorter or longer than its turns."""
    for step_s, awake_s in ((1, 30), (7, 10), (29, 30), (75, 30), (200, 30)):
        shared = job()
        train(shared, step_s=step_s)
        step = HANG_STEP
        for second in range(max(20 * awake_s, 4 * step_s)):
            if second % step_s == 0:
                step += 1
                shared.train_to(step)
            shared.pass_time(1.0)
            if second % awake_s == awake_s - 1:
                suspend(shared, 30.0)
        assert shared.events(ev.IncidentOpened) == [], (step_s, awake_s)
        assert not [order for _, order in shared.sent if isinstance(order, TakeStacks)]
        assert shared.core.monitor.pace.longest_s < step_s + 2, "a suspension is no part of a step"


def test_an_alert_that_was_decided_on_is_no_new_fault_after_a_suspension() -> None:
    from tests.unit.engine.test_detection import alert

    healthy = Job(NODES, ("n4",), JobConfig(mode="observe"), reported=True)
    train(healthy)
    healthy.change("n3", alerts=(alert(),))
    healthy.pass_time(2.0)
    decided = len(healthy.events(ev.Decided))
    assert decided == 1
    for _ in range(3):
        suspend(healthy, 30.0)
        healthy.train_to(healthy.core.world.best_step + 1)
        healthy.pass_time(5.0)
    assert len(healthy.events(ev.Decided)) == decided


def test_a_rank_that_hangs_at_the_same_step_on_other_nodes_is_the_codes_fault() -> None:
    for reported in (True, False):
        hung = job(reported=reported)
        nodes = []
        while hung.code is None:
            train(hung)
            nodes.append(hung.core.world.placement.node_of(1))
            stuck(hung, 1)
            next_generation(hung)
        assert hung.code == 93
        assert nodes == ["n2", "n2", "n4"], "in place, then on the standby, then the end"
        assert evicted(hung) == set()
        assert verdicts(hung) == [inc.Blame.NOBODY, inc.Blame.NOBODY, inc.Blame.CODE]
        assert "it was the same on n2" in hung.events(ev.Decided)[-1].reason


def test_without_a_standby_two_nodes_exchange_their_slots() -> None:
    hung = job(spares=())
    while hung.code is None:
        train(hung)
        stuck(hung, 1)
        next_generation(hung)
    assert hung.core.world.slots == ("n2", "n1", "n3")
    assert (hung.code, evicted(hung)) == (93, set())
    assert hung.core.world.generation == 3


def test_a_hang_that_stays_with_the_node_evicts_it() -> None:
    hung = job(spares=())
    for step in (30, 40):
        train(hung, step)
        stuck(hung, 1)  # n2
        next_generation(hung)
    assert hung.core.world.placement.node_of(0) == "n2"
    train(hung, 50)
    stuck(hung, 0, "other@train.py")
    next_generation(hung)
    assert evicted(hung) == {"n2"}
    assert "it stays with the node" in hung.events(ev.Decided)[-1].reason


def test_of_two_groups_that_hang_the_node_that_both_have_is_evicted() -> None:
    """One standby for a pair: the bad one of the two exchanges its slot, and is in another pair then."""
    config = JobConfig(parallel=ParallelConfig(pp=2))
    hung = Job(tuple(f"n{i}" for i in range(1, 9)), ("n9",), config, reported=True, memory=True)
    hung.ages = True
    calls = ("recv@torch/distributed/distributed_c10d.py", "main@train.py")
    pairs = []
    for step in (30, 40, 50):
        train(hung, step)
        slots = hung.core.world.slots
        pair = (slots.index("n6") % 4, slots.index("n6") % 4 + 4)
        pairs.append({slots[rank] for rank in pair})
        hung.stacks = {rank: doing(rank, slots[rank], *calls) for rank in pair}
        next_generation(hung)
    assert pairs == [{"n2", "n6"}, {"n2", "n6"}, {"n5", "n6"}]
    assert evicted(hung) == {"n6"}
    assert "n6 is what both have in common" in hung.events(ev.Decided)[-1].reason
    assert hung.core.state.unproven == ("n6",), "suspicion alone speaks against it"
    assert "n2" in hung.core.world.slots, "the other one of the pair is used again"


def test_two_groups_that_share_a_rank_say_nothing_of_its_node() -> None:
    """It may be the code of that rank."""
    config = JobConfig(parallel=ParallelConfig(tp=2, pp=2))
    hung = Job(tuple(f"n{i}" for i in range(1, 9)), (), config, reported=True, memory=True)
    hung.ages = True
    calls = ("all_reduce@torch/distributed/distributed_c10d.py", "other@train.py", "main@train.py")
    for step, pair in ((30, (0, 1)), (40, (0, 4))):
        train(hung, step)
        hung.stacks = {rank: doing(rank, hung.core.world.slots[rank], *calls) for rank in pair}
        next_generation(hung)
    assert [len(d.place.nodes) for d in hung.events(ev.Decided) if d.place] == [2, 2]
    assert evicted(hung) == set()


def test_a_second_hang_elsewhere_is_another_one() -> None:
    hung = job()
    train(hung, 30)
    stuck(hung, 1)
    next_generation(hung)
    train(hung, 60)
    stuck(hung, 2, "other@train.py")
    next_generation(hung)
    assert last_actions(hung) == [inc.Restart]
    assert evicted(hung) == set()


def test_a_process_that_is_stopped_speaks_against_its_node_at_once() -> None:
    hung = job()
    train(hung)
    hung.stacks = {1: doing(1, "n2", "work@train.py", state="T")}
    next_generation(hung)
    assert evicted(hung) == {"n2"}


def test_a_process_that_is_held_in_the_kernel_may_wait_for_shared_storage() -> None:
    hung = job()
    train(hung)
    hung.stacks = {1: doing(1, "n2", "work@train.py", state="D")}
    next_generation(hung)
    assert last_actions(hung) == [inc.Restart]
    assert evicted(hung) == set()


def test_the_second_sample_shows_the_calls_in_libraries_of_the_few_ranks_in_question() -> None:
    hung = job()
    train(hung)
    stuck(hung, 1)
    next_generation(hung)
    looks = dict.fromkeys((m.number, m.native) for _, m in hung.sent if isinstance(m, TakeStacks))
    assert [native for _, native in looks] == [(), (1,)]


def test_a_rank_that_spins_in_a_wait_for_its_gpu_gets_no_time_to_compute() -> None:
    """The recorder names it; that it waits for its own GPU is what the second sample shows."""
    hung = job()
    train(hung)
    others = Collective(group="0", sequence=9, operation="nccl:all_reduce", state="started", ranks=(0, 1, 2))
    own = structs.replace(others, state="scheduled")
    libraries = Frame(function="cuStreamSynchronize", file="/usr/lib/libcuda.so.1")
    node = hung.core.world.placement.node_of(1)
    begun = hung.mono
    while hung.core.world.generation == 1:
        looks = {m.number for _, m in hung.sent if isinstance(m, TakeStacks)}
        stacks = with_cpu(doing(1, node, "item@train.py"), hung.mono)
        (process,) = stacks.processes
        (thread,) = process.threads
        if len(looks) > 1:
            thread = structs.replace(thread, frames=(libraries, *thread.frames))
        process = structs.replace(process, threads=(thread,))
        hung.stacks = {
            rank: structs.replace(waiting(rank, f"n{rank + 1}"), collectives=(others,)) for rank in (0, 2)
        } | {1: structs.replace(stacks, processes=(process,), collectives=(own,), native=len(looks) > 1)}
        hung.pass_time(0.25, tick=0.25)
        assert hung.mono - begun < 120
    assert len(looks) == 2
    assert "rank 1 did not come to nccl:all_reduce 9" in hung.events(ev.Decided)[-1].reason


def test_where_many_are_in_question_no_process_is_paused() -> None:
    made = Job(tuple(f"n{number}" for number in range(1, 25)), (), JobConfig(detect=DetectConfig()))
    made.ages = True
    train(made)
    made.stacks = {
        rank: with_cpu(doing(rank, f"n{rank + 1}", "wait@train.py", "main@train.py"), 5.0)
        for rank in range(10)
    }
    next_generation(made)
    assert {m.native for _, m in made.sent if isinstance(m, TakeStacks)} == {()}


# -- an evaluation that nobody announces -------------------------------------------------------------


def evaluate(job: Job, seconds: float) -> None:
    """Rank 0 computes for so long, now here and now there; nothing else happens."""
    node = job.core.world.placement.node_of(0)
    begun = job.mono
    while job.mono - begun < seconds and job.stage in ("Running", "Localising"):
        past = job.mono - begun
        job.stacks = {
            0: with_cpu(doing(0, node, f"layer{int(past)}@model.py", "main@train.py"), 10 + 0.8 * past)
        }
        job.pass_time(0.5, tick=0.5)


def test_an_evaluation_on_one_rank_costs_no_restart() -> None:
    for seconds in (30.0, 300.0):
        for reported in (True, False):
            healthy = job(reported=reported)
            train(healthy)
            evaluate(healthy, seconds)
            for step in range(HANG_STEP + 1, HANG_STEP + 70):
                healthy.train_to(step)
                healthy.pass_time(1.0, tick=0.25)
            assert (healthy.core.world.generation, evicted(healthy)) == (1, set())
            assert healthy.core.world.incident is None
            assert healthy.core.world.pace.pause_s > seconds - 5
            asked = len([m for _, m in healthy.sent if type(m).__name__ == "TakeStacks"])
            evaluate(healthy, seconds)
            assert len([m for _, m in healthy.sent if type(m).__name__ == "TakeStacks"]) == asked, "learned"


def test_a_pause_that_ends_by_itself_has_no_time_of_recovery() -> None:
    hung = job()
    train(hung)
    stuck(hung, 1)
    hung.until(lambda: hung.stage == "Localising", limit=300)
    step = hung.core.world.best_step + 1
    hung.train_to(step)
    hung.until(lambda: hung.core.world.incident is None)
    (closed,) = hung.events(ev.IncidentClosed)
    assert closed.recover_s is None
    assert f"incident 1: over, step {step} is done; training went on by itself" in hung.said
    assert not any("recover_s" in note.text for note in hung.events(ev.Noted))


def test_patience_has_an_end() -> None:
    hung = job(phase_s=100.0)
    train(hung)
    evaluate(hung, 180.0)
    assert hung.core.world.generation == 2
    assert evicted(hung) == set()


def test_a_rank_that_computes_always_at_the_same_place_is_restarted_once_and_then_gets_time() -> None:
    hung = job(phase_s=500.0)
    for _ in range(2):
        train(hung)
        begun, node = hung.mono, hung.core.world.placement.node_of(0)
        generation = hung.core.world.generation
        while hung.mono - begun < 400.0 and hung.core.world.generation == generation:
            cpu_s = 10.0 + hung.mono - begun
            hung.stacks = {0: with_cpu(doing(0, node, "spin@train.py", "main@train.py"), cpu_s)}
            hung.pass_time(0.5)
    assert hung.core.world.generation == 2, "after the same step it may take detect.phase_s"
    assert hung.core.world.pace.hung_after == HANG_STEP, "a verdict does not take back what was learned"


def test_a_node_fault_is_seen_while_an_evaluation_is_waited_for() -> None:
    from tests.unit.engine.test_detection import alert

    healthy = job()
    train(healthy)
    evaluate(healthy, 60.0)
    assert healthy.stage == "Localising"
    healthy.change("n3", alerts=(alert(),))
    healthy.pass_time(2.0)
    assert evicted(healthy) == {"n3"}


# -- a slowdown ----------------------------------------------------------------------------------------


def slow_down(job: Job, rank: int, steps: int) -> None:
    """Steps take four seconds from now on, and stacks show ``rank`` at work while the others wait."""
    generation = job.core.world.generation
    first = job.core.world.steps_here + 1
    for step in range(first, first + steps):
        if job.core.world.generation != generation:
            return
        stuck(job, rank)
        job.train_to(step)
        job.pass_time(4.0, tick=0.5)


def test_a_slowdown_that_moves_with_the_rank_is_let_be() -> None:
    slow = job(slow_samples=0)
    train(slow, 200)
    slow_down(slow, 1, 60)
    assert slow.core.world.generation == 2
    assert slow.core.world.placement.node_of(1) == "n4"
    assert evicted(slow) == set()
    slow.until(lambda: slow.stage == "Running", 60)
    slow_down(slow, 1, 200)
    assert slow.core.world.generation == 2
    assert evicted(slow) == set()
    assert any("it is the code, and goes on" in e.text for e in slow.events(ev.Noted))
