from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.analysis.logs import classify_exit
from slurm_robust.config.job import Limits
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.state import JobState
from slurm_robust.model.world import Attempt
from slurm_robust.policy import decide
from slurm_robust.policy.ladder import MAX_PORTS
from tests.builders.rules import rules
from tests.builders.state import changed, job_state
from tests.there import there

RULES = rules()
STATE = job_state(
    job_id=7, slots=("n1", "n2", "n3"), spares=("n4",), generation=3, running=False, best_step=5, reports=True
)
NODES = ("n1", "n2", "n3", "n4")


OUT_OF_MEMORY = inc.Signature(kind=inc.FaultKind.OUT_OF_MEMORY)
PORT_TAKEN = inc.Signature(kind=inc.FaultKind.PORT_TAKEN)
KILLED = inc.Signature(kind=inc.FaultKind.EXIT, key="SIGKILL")
SEGFAULT = inc.Signature(kind=inc.FaultKind.EXIT, key="SIGSEGV")


def failed(**fields: object) -> inc.Fault:
    return inc.Fault(generation=3, **{"alive": ("n1", "n2", "n3"), **fields})  # type: ignore[arg-type]


def root(node: str = "n2", **fields: object) -> inc.NodeExit:
    return inc.NodeExit(node=node, exit=WorkerExit(rank=1, **fields))  # type: ignore[arg-type]


def kinds(decision: ev.Decided) -> list[str]:
    return [type(action).__name__ for action in decision.actions]


def test_memory_that_runs_out_is_the_jobs_and_tried_once_more() -> None:
    message = "out of memory in the job's cgroup (limit 64 GB)"
    oom = root("n3", signal=9, oom=message)
    again = job_state(slots=("n1", "n2", "n3"), attempts=(Attempt(signature=OUT_OF_MEMORY, t=0.0, step=-1),))
    for state, expected in ((job_state(slots=("n1", "n2", "n3")), ["Restart"]), (again, ["GiveUp"])):
        decision = decide(state, failed(root=oom, exits=(oom,)), 10.0, RULES)
        assert kinds(decision) == expected
        assert there(decision.verdict).blame is inc.Blame.CODE
        assert f"rank 1 on n3: {message}: ask for more memory (sbatch --mem)" in decision.reason


def test_a_node_whose_agent_ended_beside_a_dead_node_is_not_blamed() -> None:
    for alive in ((), ("n1",)):
        ended = {"n3": "Killed"}
        decision = decide(STATE, failed(lost=("n2", "n3"), ended=ended, alive=alive), 0.0, RULES)
        assert [action for action in decision.actions if isinstance(action, inc.Evict)] == [inc.Evict("n2")]
        assert kinds(decision) == ["Evict", "Replace", "Restart"]


def test_agents_that_all_ended_blame_no_node() -> None:
    fault = failed(lost=("n2", "n3"), ended={"n2": "Killed", "n3": "Killed"}, alive=())
    first = decide(STATE, fault, 0.0, RULES)
    assert there(first.verdict).signature.kind is inc.FaultKind.AGENTS_LOST


def test_a_killed_rank_is_restarted_in_place() -> None:
    decision = decide(STATE, failed(root=root(signal=9)), 0.0, RULES)
    assert kinds(decision) == ["Restart"]
    assert decision.verdict is not None
    assert (decision.verdict.rung, decision.verdict.signature) == (6, KILLED)


def test_a_lost_node_is_evicted_and_replaced() -> None:
    decision = decide(STATE, failed(lost=("n2",), alive=("n1", "n3")), 0.0, RULES)
    assert decision.actions == (inc.Evict(node="n2"), inc.Replace(node="n2", standby="n4"), inc.Restart())


def test_more_lost_nodes_than_spares_requeue_without_all_evicted_ones() -> None:
    state = changed(STATE, evicted={"n9": "x"})
    decision = decide(state, failed(lost=("n2", "n3"), alive=("n1",)), 0.0, RULES)
    assert kinds(decision) == ["Evict", "Evict", "Requeue"]
    assert decision.actions[-1] == inc.Requeue(
        exclude=("n9", "n2", "n3"), reason="2 nodes to replace, 1 standby left"
    )


def test_a_bug_is_restarted_once() -> None:
    error = WorkerError(type="KeyError", message="'x'", file="train.py", line=3)
    fault = failed(root=root(code=1, error=error))
    first = decide(STATE, fault, 0.0, RULES)
    assert kinds(first) == ["Restart"]
    again = changed(STATE, attempts=(Attempt(signature=there(first.verdict).signature, t=0.0, step=5),))
    second = decide(again, fault, 1.0, RULES)
    assert second.actions[0] == inc.GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=second.reason)
    assert "KeyError at train.py:3" in second.reason


def test_a_checkpoint_that_does_not_fit_the_script_is_not_tried_again() -> None:
    error = WorkerError(type="EntryMismatch", message="model has other shapes", file="fit.py", line=3)
    decision = decide(STATE, failed(root=root(code=1, error=error)), 0.0, RULES)
    assert (kinds(decision), there(decision.verdict).blame) == (["GiveUp"], inc.Blame.CODE)


def test_numbers_that_go_wrong_again_on_tested_nodes_lead_to_the_data_and_the_code() -> None:
    fault = failed(symptom=inc.Symptom.NON_FINITE, detail="loss is nan at step 6 in rank 1")
    tested = structs.replace(fault, diagnosis=inc.Diagnosis(reason="all passed"))
    first = decide(STATE, tested, 0.0, RULES)
    assert "look at the data" not in first.reason
    again = changed(STATE, attempts=(Attempt(signature=there(first.verdict).signature, t=0.0, step=5),))
    assert "look at the data and the code of that step first" in decide(again, tested, 1.0, RULES).reason


def test_an_exception_that_complains_about_a_peer_is_not_the_codes() -> None:
    error = WorkerError(type="RuntimeError", message="Connection reset by peer", file="train.py", line=3)
    decision = decide(STATE, failed(root=root(code=1, error=error), blames_peer=True), 0.0, RULES)
    assert (kinds(decision), there(decision.verdict).blame) == (["Restart"], inc.Blame.NOBODY)


def test_a_port_that_another_user_took_counts_as_no_attempt() -> None:
    taken = "a process of mallory (uid 7) listens on port 29511"
    rank0 = inc.NodeExit(node="n1", exit=WorkerExit(rank=0, code=1, taken=taken))
    fault = failed(root=rank0, exits=(rank0,))
    limits = Limits()
    state = changed(
        STATE, attempts=tuple(Attempt(signature=KILLED, t=0.0, step=5) for _ in range(limits.per_hour))
    )
    for number in range(MAX_PORTS):
        decision = decide(state, fault, 1.0, RULES)
        assert (kinds(decision), decision.verdict and decision.verdict.signature) == (["Restart"], PORT_TAKEN)
        assert decision.reason == (
            f"rank 0: exit code 1 on n1, where {taken}, its MASTER_PORT: restart in place, with another port"
        )
        ours = Attempt(signature=PORT_TAKEN, t=float(number), step=5)
        state = changed(state, attempts=(*state.world.attempts, ours))
    last = decide(state, fault, 1.0, RULES)
    assert last.verdict is None or last.verdict.signature != PORT_TAKEN, "it is judged like any other end"
    fresh = changed(STATE, attempts=state.world.attempts[-MAX_PORTS:])
    several = rules(limits=Limits(per_hour=1, per_day=1, total=1))
    assert kinds(decide(fresh, failed(root=root(signal=9)), 1.0, several)) == ["Restart"]


def test_restarts_are_bounded_by_the_hour_and_the_day_and_those_of_earlier_days_do_not_add_up() -> None:
    hour = 3600.0
    attempts = tuple(Attempt(signature=SEGFAULT, t=number * hour, step=number) for number in range(200))
    busy, fault = changed(STATE, attempts=attempts, best_step=500), failed(root=root(signal=9))
    now = 199 * hour + 1
    assert kinds(decide(busy, fault, now, RULES)) == ["Restart"]
    few = decide(busy, fault, now, rules(limits=Limits(per_day=20)))
    assert "24 recoveries within a day (limits.per_day: 20)" in few.reason
    assert kinds(few) == ["GiveUp"]
    assert kinds(decide(busy, fault, now, rules(limits=Limits(total=200)))) == ["GiveUp"]


def test_a_port_is_no_reason_where_rank_zero_has_ended_well() -> None:
    well = inc.NodeExit(node="n1", exit=WorkerExit(rank=0, code=0, taken="somebody"))
    decision = decide(STATE, failed(root=root(signal=9), exits=(well, root(signal=9))), 0.0, RULES)
    assert there(decision.verdict).signature == KILLED


def out_of_room(rank: int, node: str, full: str) -> inc.NodeExit:
    message = "[Errno 28] No space left on device"
    error = WorkerError(type="OSError", message=message, file="train.py", line=3, traceback="x", full=full)
    return inc.NodeExit(node=node, exit=WorkerExit(rank=rank, code=1, error=error))


def test_a_full_disk_of_one_node_evicts_it_once_in_a_job() -> None:
    found = out_of_room(1, "n2", "/tmp")
    secondary = inc.NodeExit(node="n1", exit=WorkerExit(rank=0, code=1))
    fault = failed(root=found, exits=(secondary, found))
    first = decide(STATE, fault, 0.0, RULES)
    assert kinds(first) == ["Evict", "Replace", "Restart"]
    assert first.verdict is not None
    assert first.verdict.suspects == ("n2",)
    assert "rank 1 on n2: no room left in the node's own /tmp" in first.reason
    # The job itself has filled the disk of the next node, however much later.
    later = changed(STATE, attempts=(Attempt(signature=first.verdict.signature, t=0.0, step=1),))
    second = out_of_room(2, "n3", "/tmp")
    assert kinds(decide(later, failed(root=second, exits=(second,)), 9000.0, RULES)) == ["Restart"]


TOLD = "unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left on device (28)"


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (WorkerExit(rank=1, code=1, full="/dev/shm", tail=(TOLD,)), "Evict"),
        (WorkerExit(rank=1, signal=7, full="/dev/shm"), "Evict"),
        (WorkerExit(rank=1, code=1, full="/dev/shm", error=WorkerError(type="E", message=TOLD)), "Evict"),
        (WorkerExit(rank=1, code=1, tail=(TOLD,)), "Restart"),  # anybody may print that
        (WorkerExit(rank=1, signal=7), "Restart"),
        (WorkerExit(rank=1, code=1, full="/dev/shm", tail=("KeyError: 3",)), "Restart"),
    ],
)
def test_a_full_disk_is_what_a_rank_says_and_its_agent_sees(end: WorkerExit, kind: str) -> None:
    found = inc.NodeExit(node="n2", exit=end)
    decision = decide(STATE, failed(root=found, exits=(found,)), 0.0, RULES)
    assert kinds(decision)[0] == kind
    assert ("no room left in the node's own /dev/shm" in decision.reason) == (kind == "Evict")


def test_full_disks_of_several_nodes_and_what_they_share_are_the_jobs() -> None:
    first, other = out_of_room(1, "n2", "/tmp"), out_of_room(2, "n3", "/tmp")
    assert kinds(decide(STATE, failed(root=first, exits=(first, other)), 0.0, RULES)) == ["Restart"]
    shared = out_of_room(1, "n2", "")
    assert kinds(decide(STATE, failed(root=shared, exits=(shared,)), 0.0, RULES)) == ["Restart"]


def test_what_fills_all_nodes_alike_is_the_jobs_own_and_that_is_said() -> None:
    found = [out_of_room(rank, node, "/dev/shm") for rank, node in enumerate(STATE.world.slots)]
    decision = decide(STATE, failed(root=found[0], exits=tuple(found)), 0.0, RULES)
    assert kinds(decision) == ["Restart"]
    assert there(decision.verdict).blame is inc.Blame.CODE
    assert "no room left in /dev/shm of all nodes: the job fills it itself" in decision.reason
    again = changed(STATE, attempts=(Attempt(signature=there(decision.verdict).signature, t=0.0, step=5),))
    last = decide(again, failed(root=found[0], exits=tuple(found)), 1.0, RULES)
    assert kinds(last) == ["GiveUp"]


def test_nobody_can_start_a_worker_blames_the_code_not_the_nodes() -> None:
    unable = dict.fromkeys(("n1", "n2", "n3"), "No module named 'x'")
    decision = decide(STATE, failed(unable=unable), 0.0, RULES)
    assert kinds(decision) == ["GiveUp"]
    assert "No module named 'x'" in decision.reason


def test_one_node_that_cannot_is_the_node() -> None:
    decision = decide(STATE, failed(unable={"n2": "no space left"}), 0.0, RULES)
    assert kinds(decision) == ["Evict", "Replace", "Restart"]


exits = st.one_of(
    st.none(),
    st.builds(root, st.sampled_from(NODES[:3]), signal=st.sampled_from([6, 9, 11])),
    st.builds(root, st.sampled_from(NODES[:3]), code=st.integers(1, 255)),
)
attempts = st.lists(
    st.builds(
        Attempt,
        signature=st.sampled_from([KILLED, SEGFAULT, inc.Signature.of_nodes(inc.FaultKind.NODE, ("n2",))]),
        t=st.floats(0, 9000),
        step=st.integers(0, 5),
    ),
    max_size=12,
).map(tuple)


@given(lost=st.sets(st.sampled_from(NODES[:3])), spares=st.sets(st.just("n4")), root=exits, attempts=attempts)
def test_every_failure_gets_one_bounded_answer_with_a_reason(
    lost: set[str], spares: set[str], root: inc.NodeExit | None, attempts: tuple[Attempt, ...]
) -> None:
    state = changed(STATE, spares=tuple(spares), attempts=attempts)
    alive = tuple(n for n in NODES[:3] if n not in lost)
    decision = decide(state, failed(lost=tuple(sorted(lost)), root=root, alive=alive), 9000.0, RULES)
    ends = [a for a in decision.actions if isinstance(a, (inc.Restart, inc.Requeue, inc.GiveUp))]
    assert ends == [decision.actions[-1]]
    assert decision.reason
    used = [a.standby for a in decision.actions if isinstance(a, inc.Replace)]
    assert set(used) <= spares
    assert len(set(used)) == len(used)
    evicted = {a.node for a in decision.actions if isinstance(a, inc.Evict)}
    assert evicted <= lost  # a healthy node is never evicted by these rungs
    recent = [a for a in attempts if 9000.0 - a.t < 3600]
    if len(recent) >= RULES.limits.per_hour:
        assert isinstance(decision.actions[-1], inc.GiveUp)


@given(n=st.integers(1, 30))
def test_the_same_fault_for_ever_ends(n: int) -> None:
    state, answers = STATE, 0
    for i in range(n):
        decision = decide(state, failed(root=root(signal=9)), float(i), RULES)
        if isinstance(decision.actions[-1], inc.GiveUp):
            break
        answers += 1
        attempt = Attempt(signature=KILLED, t=float(i), step=state.world.best_step)
        state = changed(state, attempts=(*state.world.attempts, attempt))
    assert answers == min(n, RULES.limits.per_signature)


def out_of_gpu_memory(state_steps: int = -1, generation: int = 2) -> tuple[JobState, inc.Fault]:
    error = WorkerError(
        type="torch.OutOfMemoryError",
        message="CUDA out of memory. Tried to allocate 66.00 GiB",
        file="train.py",
        line=9,
        traceback="x",
    )
    found = root(code=1, error=error)
    state = changed(STATE, generation=generation, steps_here=state_steps)
    return state, failed(root=found, cause=classify_exit(found.exit))


def test_gpu_memory_that_is_not_there_after_a_kill_is_nobodys_fault_once() -> None:
    state, fault = out_of_gpu_memory()
    first = decide(state, fault, 0.0, RULES)
    assert kinds(first) == ["Restart"]
    assert first.verdict is not None
    assert first.verdict.blame is inc.Blame.NOBODY
    assert "may not have been free" in first.reason
    again = changed(state, attempts=(Attempt(signature=first.verdict.signature, t=0.0, step=5),))
    second = decide(again, fault, 1.0, RULES)
    assert there(second.verdict).blame is inc.Blame.CODE


def test_gpu_memory_that_runs_out_in_the_first_generation_or_later_is_the_jobs() -> None:
    for state, fault in (out_of_gpu_memory(generation=1), out_of_gpu_memory(state_steps=7)):
        decision = decide(state, fault, 0.0, RULES)
        assert there(decision.verdict).blame is inc.Blame.CODE


def test_workers_slow_to_die_on_several_nodes_convict_nobody() -> None:
    fault = failed(root=root(signal=9), stuck=("n1", "n2", "n3"))
    first = decide(STATE, fault, 0.0, RULES)
    assert kinds(first) == ["Restart"]
    assert first.verdict is not None
    assert first.verdict.blame is inc.Blame.NOBODY
    again = changed(STATE, attempts=(Attempt(signature=first.verdict.signature, t=0.0, step=5),))
    assert kinds(decide(again, fault, 1.0, RULES)) == ["Requeue"]
    with_diagnosis = rules(diagnose=True)
    assert kinds(decide(STATE, fault, 0.0, with_diagnosis)) == ["Restart"]


def test_workers_of_one_node_that_do_not_die_are_the_nodes() -> None:
    decision = decide(STATE, failed(root=root(signal=9), stuck=("n2",)), 0.0, RULES)
    assert kinds(decision) == ["Evict", "Replace", "Restart"]
    assert "n2: its workers cannot be killed" in decision.reason


@pytest.mark.parametrize(
    ("line", "evicted"),
    [
        ("NCCL WARN NET/IB : mlx5_2:1 async fatal event: local catastrophic error", True),
        ("NCCL WARN NET/IB: Got completion from peer 10.0.4.7<48122> with status=12 hca mlx5_3", False),
    ],
)
def test_a_line_that_names_another_host_does_not_convict_the_node_that_prints_it(
    line: str, evicted: bool
) -> None:
    found = root(code=1, error=WorkerError(type="RuntimeError", message=line))
    cause = classify_exit(found.exit)
    assert cause.action is inc.Remedy.EVICT
    assert ("Evict" in kinds(decide(STATE, failed(root=found, cause=cause), 0.0, RULES))) is evicted
