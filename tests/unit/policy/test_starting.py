"""An agent that does not come convicts nobody: what is asked, tried again, and reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.model.exits import Outlook, StepEnd, Witness
from slurm_robust.policy.starting import (
    PASSING_S,
    UNSETTLED_S,
    Start,
    StartAdvice,
    apart,
    format_start,
    judge,
)

PATIENCE_S = 60.0
WELL = Witness(node="n1", message="ALLOCATED", against=False)
DOWN = Witness(node="n1", message="DOWN (Not responding)", against=True)


def end(outlook: Outlook = Outlook.UNKNOWN, named: bool = False) -> StepEnd:
    message = "srun: error: it does not work"
    return StepEnd(
        nodes=("n1",), code=1, message=message, outlook=outlook, named={"n1": message} if named else {}
    )


def start(
    waited_s: float = 61.0,
    times: int = 1,
    ended: StepEnd | None = None,
    witness: Witness | None = WELL,
    **fields: float,
) -> Start:
    seconds = {"tried_s": waited_s, "end_s": 5.0, "asked_s": 0.1, **fields}
    return Start(node="n1", times=times, waited_s=waited_s, end=ended, witness=witness, **seconds)


def answer(given: Start) -> StartAdvice:
    return judge(given, PATIENCE_S)


def test_silence_is_waited_for_then_slurm_is_asked_then_it_is_started_again() -> None:
    assert answer(start(waited_s=59.0)) is StartAdvice.WAIT
    asked = Start(node="n1", times=1, waited_s=61.0, tried_s=61.0)
    assert answer(asked) is StartAdvice.ASK
    assert answer(start(witness=None)) is StartAdvice.WAIT  # the answer is on its way
    assert answer(start(witness=None, asked_s=13.0)) is StartAdvice.AGAIN  # Slurm does not answer
    assert answer(start()) is StartAdvice.AGAIN
    assert answer(start(times=2)) is StartAdvice.UNSTARTED


def test_slurms_word_against_the_node_is_enough() -> None:
    assert answer(start(witness=DOWN)) is StartAdvice.DOWN
    assert answer(start(ended=end(Outlook.STAYS), witness=DOWN)) is StartAdvice.DOWN


def test_what_cannot_pass_ends_at_once() -> None:
    assert answer(start(waited_s=0.3, ended=end(Outlook.STAYS), end_s=0.0)) is StartAdvice.REFUSED


def test_what_may_pass_is_tried_for_minutes_ever_more_rarely() -> None:
    passing = end(Outlook.PASSES)
    assert answer(start(times=1, ended=passing, end_s=2.6)) is StartAdvice.AGAIN
    assert answer(start(times=4, ended=passing, end_s=15.9)) is StartAdvice.WAIT
    assert answer(start(times=40, ended=passing, end_s=30.0)) is StartAdvice.AGAIN
    assert answer(start(times=40, ended=passing, tried_s=PASSING_S)) is StartAdvice.REFUSED


def test_an_unknown_error_is_tried_once_more_and_blames_only_nodes_that_slurm_names() -> None:
    assert answer(start(ended=end(), end_s=1.0)) is StartAdvice.WAIT
    assert answer(start(ended=end())) is StartAdvice.AGAIN
    assert answer(start(times=2, ended=end())) is StartAdvice.REFUSED
    assert answer(start(times=2, ended=end(named=True))) is StartAdvice.UNSTARTED


def test_a_node_of_a_step_that_ended_for_another_node_is_no_reason_to_end() -> None:
    other = StepEnd(nodes=("n1", "n2"), code=137, named={"n2": "failed on node n2"})
    assert answer(start(times=1, ended=other)) is StartAdvice.AGAIN
    assert answer(start(times=2, ended=other)) is StartAdvice.AGAIN
    assert answer(start(times=9, ended=other, tried_s=PASSING_S)) is StartAdvice.REFUSED


def test_where_agents_came_before_what_keeps_all_away_may_pass() -> None:
    for ended in (None, end(), end(named=True)):
        assert answer(start(times=2, ended=ended, came_before=True)) is StartAdvice.AGAIN
    assert answer(start(times=4, ended=end(), end_s=15.9, came_before=True)) is StartAdvice.WAIT
    late = {"times": 40, "tried_s": PASSING_S, "came_before": True}
    assert answer(start(ended=end(), **late)) is StartAdvice.REFUSED
    assert answer(start(ended=end(named=True), **late)) is StartAdvice.UNSTARTED
    assert answer(start(**late)) is StartAdvice.UNSTARTED
    assert answer(start(times=2, ended=end(Outlook.STAYS), came_before=True)) is StartAdvice.REFUSED


def test_nodes_that_end_the_step_of_others_get_their_own() -> None:
    failed = StepEnd(nodes=("n1", "n2"), code=137, named={"n2": "failed on node n2"})
    alone = StepEnd(nodes=("n3",), code=1, named={"n3": "exit code 1"}, is_task=True)
    assert apart({"n1": failed, "n2": failed, "n3": alone, "n4": None}) == ("n2",)


@given(
    st.integers(1, 50),
    st.floats(0, 2000),
    st.sampled_from([None, *Outlook]),
    st.booleans(),
    st.sampled_from([None, WELL, DOWN]),
    st.booleans(),
)
def test_every_wait_ends(
    times: int, since: float, outlook: Outlook | None, named: bool, witness: Witness | None, came_before: bool
) -> None:
    ended = None if outlook is None else end(outlook, named)
    late = start(
        waited_s=since + 61.0,
        times=times,
        ended=ended,
        witness=witness,
        end_s=since + 31.0,
        asked_s=13.0,
        came_before=came_before,
    )
    assert answer(late) not in (StartAdvice.WAIT, StartAdvice.ASK)


def test_a_missing_agent_is_explained() -> None:
    assert format_start(start()) == "no agent has joined in 1 start, 61 s; Slurm says ALLOCATED"
    assert "it does not work" in format_start(start(ended=end()))
    assert "Slurm does not say" in format_start(start(witness=None))


def test_a_slurmctld_that_has_just_come_back_may_refuse_what_it_grants_a_moment_later() -> None:
    refused = end(Outlook.STAYS)
    assert answer(start(times=2, ended=refused, tried_s=30.0, unsettled=True)) is StartAdvice.AGAIN
    assert answer(start(times=9, ended=refused, tried_s=UNSETTLED_S, unsettled=True)) is StartAdvice.REFUSED
