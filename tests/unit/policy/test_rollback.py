"""Which failure of a candidate takes the job back to the release before, and which does not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from slurm_robust.config.job import UpdateConfig
from slurm_robust.model import incident as inc
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.findings import Outcome
from slurm_robust.model.progress import PaceHistory
from slurm_robust.model.release import Candidate, ReleaseState
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState, apply
from slurm_robust.model.world import Attempt
from slurm_robust.policy import decide
from slurm_robust.policy.rollback import is_proven, slower
from tests.builders.rules import rules
from tests.builders.state import changed, job_state

OLD, NEW = "a" * 12, "b" * 12
CANDIDATE = Candidate(
    release=NEW,
    update=1,
    before=OLD,
    checkpoint=CheckpointId(step=40, generation=2),
    generation=3,
    applied=1000.0,
    pace=PaceHistory(steps=100, p50_s=2.0),
)
STATE = job_state(
    slots=("n1", "n2", "n3"),
    spares=("n4",),
    generation=4,
    running=False,
    best_step=60,
    steps_here=60,
    restored=CheckpointId(step=55, generation=3),
    reports=True,
    sealed={1: 20, 2: 40, 3: 55, 4: 60},
    release=NEW,
    releases={OLD: ReleaseState.GOOD, NEW: ReleaseState.CANDIDATE},
    last_good=OLD,
    candidate=CANDIDATE,
)
RULES = rules()
EXCEPTION = WorkerError(type="ValueError", message="no", file="train.py", line=40)


def failed(**fields: Any) -> inc.Fault:
    return inc.Fault(generation=4, **{"alive": ("n1", "n2", "n3"), **fields})


def root(**fields: Any) -> inc.NodeExit:
    return inc.NodeExit(node="n2", exit=WorkerExit(rank=1, **fields))


UNUSABLE = root(code=UNUSABLE_COPY, error=EXCEPTION)


def goes_back(state: JobState, fault: inc.Fault, now: float = 2000.0) -> bool:
    actions = decide(state, fault, now, RULES).actions
    return any(isinstance(action, inc.RollBack) for action in actions)


def attempt(kind: inc.FaultKind, key: str, t: float) -> Attempt:
    return Attempt(signature=inc.Signature(kind=kind, key=key), t=t, step=60)


@pytest.mark.parametrize(
    "fault",
    [
        failed(root=root(code=1, error=EXCEPTION)),
        failed(root=root(signal=9, oom="limit 64 GB"), exits=(root(signal=9, oom="limit 64 GB"),)),
        failed(symptom=inc.Symptom.NON_FINITE, detail="loss is nan"),
        failed(symptom=inc.Symptom.SPIKE, detail="loss jumps"),
        failed(symptom=inc.Symptom.HANG, detail="no step for 60 s"),
        failed(
            symptom=inc.Symptom.HANG,
            detail="no step for 60 s",
            localisation=Localisation(ranks=(1,), reason="rank 1 waits", confidence=0.8),
        ),
        failed(symptom=inc.Symptom.SLOW, detail="steps take 6 s, 3 times the 2 s of the release before"),
        failed(symptom=inc.Symptom.LAUNCH_FAILED, unable=dict.fromkeys(("n1", "n2", "n3"), "no torch")),
    ],
    ids=lambda fault: fault.detail or "",
)
def test_what_comes_of_code_takes_a_candidate_back(fault: inc.Fault) -> None:
    decided = decide(STATE, fault, 2000.0, RULES)
    assert decided.actions == (inc.RollBack(release=NEW, to=OLD, step=40), inc.Restart())
    assert decided.verdict is not None
    assert (decided.verdict.rung, decided.verdict.blame) == (7, inc.Blame.CODE)
    assert decided.verdict.signature == inc.Signature(kind=inc.FaultKind.RELEASE, key=NEW)
    assert f"20 steps after release {NEW} took over: go back to release {OLD} at step 40" in decided.reason


@pytest.mark.parametrize("reports", [False, True])
def test_a_rollback_without_a_checkpoint_names_the_beginning_only_if_it_is_known(reports: bool) -> None:
    state = changed(STATE, reports=reports, has_stepped=True)
    state = structs.replace(state, candidate=structs.replace(CANDIDATE, checkpoint=None))
    reason = decide(state, failed(root=root(code=1, error=EXCEPTION)), 2000.0, RULES).reason
    assert reason.endswith("at the beginning" if reports else "where the script resumes by itself")
    assert ("61 steps after release" in reason) == reports


@pytest.mark.parametrize(
    "fault",
    [
        failed(lost=("n2",), alive=("n1", "n3")),
        failed(named={"n2": "XID 79"}),
        failed(lost=("n1", "n2", "n3"), alive=()),
        failed(lost=("n2",), ended={"n2": "Killed"}, alive=("n1", "n3")),
        failed(lost=("n1", "n2"), unreachable="the switch is down", alive=("n3",)),
        failed(unstarted={"n2": "no agent came"}),
        failed(refused={"n2": "Invalid account"}),
        failed(root=root(code=1, error=WorkerError(type="OSError", message="no room", full="/tmp"))),
        failed(exits=(root(code=1, taken="port 4000 is taken"),), root=root(code=1)),
        failed(
            root=UNUSABLE,
            exits=(UNUSABLE,),
            restore=CheckpointId(step=55, generation=3),
        ),
        failed(root=root(signal=9)),
        failed(root=root(signal=11)),
        failed(root=root(code=1)),
        failed(root=root(code=1, error=EXCEPTION), blames_peer=True),
        failed(stuck=("n1", "n2")),
        failed(
            symptom=inc.Symptom.HANG,
            detail="no step",
            localisation=Localisation(ranks=(1,), halted=True, reason="rank 1 is stopped", confidence=0.9),
        ),
        failed(symptom=inc.Symptom.SLOW, localisation=Localisation(ranks=(1,), reason="rank 1 lags")),
        failed(
            symptom=inc.Symptom.NON_FINITE,
            diagnosis=inc.Diagnosis(
                suspects=("n2",), results=(inc.TestResult(test="gemm", node="n2", outcome=Outcome.FAIL),)
            ),
        ),
    ],
)
def test_what_names_a_node_the_network_an_agent_or_a_disk_never_blames_the_release(fault: inc.Fault) -> None:
    assert not goes_back(STATE, fault)


def test_the_reason_of_a_rollback_asks_nothing_more() -> None:
    found = Localisation(ranks=(1,), reason="rank 1 waits", confidence=0.8)
    hang = failed(symptom=inc.Symptom.HANG, detail="no step for 60 s", localisation=found)
    asks = "where it comes again shows whether it is the node or the code"
    good = changed(STATE, candidate=None)
    reasons = [decide(state, hang, 2000.0, RULES).reason for state in (STATE, good)]
    assert [asks in reason for reason in reasons] == [False, True]


def test_an_unexplained_end_is_answered_by_a_restart_first() -> None:
    killed = failed(root=root(signal=9))
    again = changed(STATE, attempts=(attempt(inc.FaultKind.EXIT, "SIGKILL", 1500.0),))
    before = changed(STATE, attempts=(attempt(inc.FaultKind.EXIT, "SIGKILL", 900.0),))
    assert [goes_back(state, killed) for state in (STATE, again, before)] == [False, True, False]


def test_before_the_job_gives_up_it_goes_back_also_past_the_bounds_of_restarts() -> None:
    many = tuple(attempt(inc.FaultKind.EXIT, f"exit code {n}", 1990.0) for n in range(100))
    assert goes_back(changed(STATE, attempts=many), failed(root=root(signal=9)))
    assert not goes_back(changed(STATE, attempts=many), failed(lost=("n2",), alive=("n1", "n3")))
    reshard = WorkerError(type="slurm_robust.checkpoint.errors.CannotReshard", message="no")
    assert goes_back(STATE, failed(exits=(root(code=1, error=reshard),)))


def test_without_a_release_to_go_back_to_or_if_the_owner_forbids_it_the_ladder_goes_on_as_ever() -> None:
    fault = failed(root=root(code=1, error=EXCEPTION))
    first = changed(STATE, candidate=Candidate(release=NEW, update=0, before=""))
    good = changed(STATE, candidate=None)
    assert not goes_back(first, fault)
    assert not goes_back(good, fault)
    forbidden = rules(updates=UpdateConfig(rollback=False))
    assert [type(a) for a in decide(STATE, fault, 2000.0, forbidden).actions] == [inc.Restart]


def test_after_a_rollback_nothing_of_the_release_counts() -> None:
    decided = decide(STATE, failed(root=root(code=1, error=EXCEPTION)), 2000.0, RULES)
    state = apply(decided, STATE)
    assert (state.release, state.candidate, state.last_good) == (OLD, None, OLD)
    assert state.releases == {OLD: ReleaseState.GOOD, NEW: ReleaseState.BAD}
    assert state.world.sealed == {1: 20, 2: 40}
    assert (state.world.best_step, state.world.pace) == (40, CANDIDATE.pace)
    assert {g: state.world.good_steps[g] for g in (3, 4)} == {3: -1, 4: -1}


def test_a_candidate_is_good_after_its_steps_or_its_time() -> None:
    config = UpdateConfig(good_steps=100, good_s=1800.0)
    found = [is_proven(*made, config) for made in ((100, 1.0), (99, 1799.0), (2, 1800.0), (1, 1e6))]
    assert found == [True, False, True, False]


def test_a_candidate_is_slow_only_by_enough_steps_against_a_pace_that_is_known() -> None:
    config = UpdateConfig(slow_factor=1.5)
    three = [6.0] * 10
    assert slower(three, 10, 60.0, CANDIDATE, config) == 3.0
    assert slower([*three[:5], *([2.0] * 6)], 11, 42.0, CANDIDATE, config) == 0.0  # the median counts
    assert slower(three[:9], 20, 54.0, CANDIDATE, config) == 0.0
    assert slower([2.9] * 10, 10, 29.0, CANDIDATE, config) == 0.0
    young = Candidate(release=NEW, update=1, before=OLD, pace=PaceHistory(steps=19, p50_s=2.0))
    assert slower(three, 10, 60.0, young, config) == 0.0


def test_a_candidate_with_short_steps_is_slow_only_by_many_of_them_or_after_a_while() -> None:
    config = UpdateConfig(slow_factor=1.5)
    candidate = Candidate(release=NEW, update=1, before=OLD, pace=PaceHistory(steps=100, p50_s=0.2))
    found = [slower([0.6] * 12, *made, candidate, config) for made in ((49, 19.0), (50, 19.0), (12, 20.0))]
    assert found == [0.0, pytest.approx(3.0), pytest.approx(3.0)]
